"""The contract of all models as a test class: a new model inherits all tests by saying how it is built.

class TestMyModel(ModelContract):
    name, data, preset = "my-model", InputSpec((2,), "classification", 3), "default"
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from ltnode.models import InputSpec, Model, build, build_from_spec, input_spec

# Different batch sizes lead to different matrix products, so float32 results differ in their last digits.
SAME = {"rtol": 1e-5, "atol": 1e-5}


class ModelContract:
    """Contract of `ltnode.models.Model`; subclasses name the model.

    Attributes:
        name: A name for `ltnode.build`.
        data: A data set's name or an `InputSpec`.
        preset: A preset.
        options: Further arguments of `build`.
        random_draws: Whether two seeds of ``draw="random"`` give different predictions.
    """

    name: ClassVar[str]
    data: ClassVar[str | InputSpec] = "synthetic"
    preset: ClassVar[str] = "default"
    options: ClassVar[dict[str, Any]] = {}
    random_draws: ClassVar[bool] = True

    # -- building ------------------------------------------------------------------------------------------------------------

    def make(self, seed: int = 0) -> Model:
        return build(self.name, self.data, self.preset, seed=seed, **self.options)  # type: ignore[arg-type]

    def inputs(self, n: int = 6, seed: int = 0) -> Tensor:
        return torch.randn(n, *input_spec(self.data).shape, generator=torch.Generator().manual_seed(seed))

    def targets(self, n: int = 6, seed: int = 0) -> Tensor:
        spec, generator = input_spec(self.data), torch.Generator().manual_seed(seed)
        if spec.task == "classification":
            assert spec.n_classes is not None
            return torch.randint(spec.n_classes, (n,), generator=generator)
        return torch.randn(n, generator=generator)

    def roughen(self, model: Model) -> bool:
        """Change the weights so that the prediction grid fails for some of ``inputs(8)``; False for a model without a grid."""
        return False

    def train_a_little(self, model: Model, steps: int = 3) -> list[float]:
        """Make a few optimiser steps over all phases with the same random numbers; returns the losses of the first phase."""
        x, y = self.inputs(8), self.targets(8)
        optimizers = {}
        for phase in model.phases:
            parameters = [p for group in model.parameter_roles(phase).values() for p in group]
            optimizers[phase] = torch.optim.Adam(parameters, lr=5e-3)
        losses = []
        model.train()
        for _ in range(steps):
            for phase, optimizer in optimizers.items():
                optimizer.zero_grad()
                torch.manual_seed(2)
                loss = model.loss(x, y, n_data=8, phase=phase)
                loss.backward()
                optimizer.step()
                model.after_step()
                if phase == model.phases[0]:
                    losses.append(loss.item())
        return losses

    # -- loss ----------------------------------------------------------------------------------------------------------------

    def test_loss_is_a_finite_number_with_a_gradient(self) -> None:
        """The loss is 0-dim, and every parameter of the phase gets a finite gradient."""
        model = self.make()
        for phase in model.phases:
            model.zero_grad()
            loss = model.loss(self.inputs(), self.targets(), n_data=100, phase=phase)
            assert loss.shape == ()
            assert bool(torch.isfinite(loss))
            loss.backward()
            for group in model.parameter_roles(phase).values():
                for parameter in group:
                    assert parameter.grad is not None
                    assert bool(torch.isfinite(parameter.grad).all())

    def test_training_lowers_the_loss(self) -> None:
        """Three Adam steps on 8 points, with the same end-times in each."""
        losses = self.train_a_little(self.make())
        assert losses[-1] < losses[0]

    def test_parameter_roles_partition_the_parameters(self) -> None:
        """Over all phases and roles, every parameter appears exactly once."""
        model = self.make()
        listed = [id(p) for phase in model.phases for group in model.parameter_roles(phase).values() for p in group]
        assert len(listed) == len(set(listed))
        assert set(listed) == {id(p) for p in model.parameters()}

    # -- predictions ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("samples", "draw"), [(1, "quantile"), (10, "quantile"), (7, "random")])
    def test_prediction_has_the_promised_shapes(self, samples: int, draw: str) -> None:
        """design: probs (B, C), member_probs (S, B, C), times (S,) or (S, B); mean, std (B,), noise_std 0-dim; no graph."""
        batch, spec = 5, input_spec(self.data)
        p = self.make().predict(self.inputs(batch), samples=samples, draw=draw)  # type: ignore[arg-type]
        assert p.times.shape in {(samples,), (samples, batch)}
        if spec.task == "classification":
            assert p.probs.shape == (batch, spec.n_classes)
            assert p.member_probs.shape == (samples, batch, spec.n_classes)
            assert p.labels.shape == (batch,)
        else:
            assert p.mean.shape == p.std.shape == p.total_std.shape == (batch,)
            assert p.member_means.shape == (samples, batch)
            assert p.noise_std.shape == ()
        for value in (p.entropy, p.aleatoric, p.epistemic):
            assert value.shape == (batch,)
            assert bool(torch.isfinite(value).all())
        assert not p.outputs.requires_grad

    def test_numpy_inputs_are_predicted_like_tensors(self) -> None:
        """Arrays of any float type, also with negative strides; other types are refused with what was given."""
        model, x = self.make(), self.inputs(4)
        expected = model.predict(x).outputs
        assert torch.equal(model.predict(x.numpy()).outputs, expected)
        assert torch.equal(model.predict(x.double().numpy()).outputs, expected)
        assert torch.equal(model.predict(x.flip(0).numpy()[::-1]).outputs, expected)
        with pytest.raises(ValueError, match="x must be a floating-point tensor or array .*not ndarray of int64"):
            model.predict(x.long().numpy())

    def test_uncertainty_splits_in_two(self) -> None:
        """Entropy = aleatoric + epistemic, both non-negative; the same holds for variances in regression (float32)."""
        model = self.make()
        self.train_a_little(model)
        p = model.predict(3 * self.inputs(12))
        assert bool((p.epistemic >= 0).all())
        assert bool((p.aleatoric >= 0).all())
        if p.task == "classification":
            ones = torch.ones(12)
            torch.testing.assert_close(p.probs.sum(dim=1), ones, rtol=0, atol=1e-6)
            torch.testing.assert_close(p.member_probs.sum(dim=2), ones.expand(10, -1), rtol=0, atol=1e-6)
            torch.testing.assert_close(p.member_probs.mean(dim=0), p.probs)
            torch.testing.assert_close(p.aleatoric + p.epistemic, p.entropy, rtol=0, atol=1e-6)
            plain = -(p.probs * p.probs.log()).sum(dim=1)
            torch.testing.assert_close(p.entropy, plain, rtol=0, atol=1e-5)
            assert bool((p.entropy <= math.log(p.probs.shape[1]) + 1e-5).all())
        else:
            torch.testing.assert_close(p.mean, p.member_means.mean(dim=0))
            torch.testing.assert_close(p.epistemic, p.member_means.var(dim=0, correction=0), rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(p.aleatoric, p.noise_std.square().expand(12))
            variance = (p.aleatoric + p.epistemic).clamp_min(1e-12)
            torch.testing.assert_close(p.entropy, 0.5 * torch.log(2 * math.pi * math.e * variance), rtol=1e-5, atol=1e-5)

    def test_predict_leaves_no_trace(self) -> None:
        """Modes of all modules, random state, buffers, weights, gradients and loss_parts are unchanged."""
        model = self.make()
        model.loss(self.inputs(), self.targets(), n_data=6).backward()
        model.train()
        next(iter(model.children())).eval()  # a part that the user put into eval mode must stay in it
        modes = [module.training for module in model.modules()]
        state = {name: value.clone() for name, value in model.state_dict().items()}
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        parts, solver = model.loss_parts, json.dumps(model.solver_state())
        torch.manual_seed(5)
        random_state = torch.get_rng_state()
        for draw in ("quantile", "random"):
            model.predict(self.inputs(), draw=draw)  # type: ignore[arg-type]
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), random_state)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        for parameter, before in zip(model.parameters(), gradients, strict=True):
            assert (parameter.grad is None) == (before is None)
            assert before is None or (parameter.grad is not None and torch.equal(parameter.grad, before))
        assert model.loss_parts is parts
        assert json.dumps(model.solver_state()) == solver

    @pytest.mark.parametrize("state", ["fresh", "trained", "rough"])
    def test_prediction_depends_on_its_input_alone(self, state: str) -> None:
        """Predictions of an input alone, in a batch, shuffled, and among very different inputs agree to 1e-5.

        A rough field amplifies rounding errors, so that case is in float64, where only a real dependence could be seen.
        """
        model, x = self.make(), self.inputs(8)
        if state == "trained":
            self.train_a_little(model)
            model.finish_training(self.inputs(8), self.targets(8))
        elif state == "rough":
            x = x.double()
            if not self.roughen(model.double()):
                pytest.skip("the model has no stored grid to fail")
        together = model.predict(x).outputs
        order = torch.randperm(8)
        torch.testing.assert_close(model.predict(x[order]).outputs, together[:, order], **SAME)
        for i in (0, 3, 7):
            torch.testing.assert_close(model.predict(x[i : i + 1]).outputs[:, 0], together[:, i], **SAME)
        strange = torch.cat([x[:3], 30 * self.inputs(5, seed=9).to(x), x[3:]])
        among = model.predict(strange).outputs
        torch.testing.assert_close(torch.cat([among[:, :3], among[:, 8:]], dim=1), together, **SAME)

    def test_random_draws_come_from_the_seed(self) -> None:
        """With draw="random", predictions depend on the seed and not on the state of the global generator."""
        model, x = self.make(), self.inputs()
        first = model.predict(x, draw="random", seed=3)
        torch.manual_seed(99)
        again = model.predict(x, draw="random", seed=3)
        assert torch.equal(first.outputs, again.outputs)
        assert torch.equal(first.times, again.times)
        if self.random_draws:
            assert not torch.equal(first.outputs, model.predict(x, draw="random", seed=4).outputs)

    def test_log_probs_agree_with_predict_and_reach_the_input(self) -> None:
        """Attacks get the log of the predicted probabilities in eval mode with a gradient; regression models refuse."""
        model, x = self.make().eval(), self.inputs()
        if model.task == "regression":
            with pytest.raises(ValueError, match="regression"):
                model.log_probs(x)
            return
        x.requires_grad_()
        log_probs = model.log_probs(x)
        torch.testing.assert_close(log_probs.exp(), model.predict(x.detach()).probs, **SAME)
        (gradient,) = torch.autograd.grad(log_probs[:, 0].sum(), x)
        assert bool(torch.isfinite(gradient).all())
        assert float(gradient.abs().max()) > 0

    def test_describe_gives_plain_finite_numbers(self) -> None:
        """Logs hold numbers, not tensors."""
        facts = self.make().describe(self.inputs())
        assert all(isinstance(value, float) and math.isfinite(value) for value in facts.values())

    # -- saving, copying, building again -------------------------------------------------------------------------------------

    def test_state_dict_carries_everything_a_prediction_needs(self) -> None:
        """Weights, posterior and a prediction grid of any length reach another model through a state dict, bit for bit."""
        model = self.make()
        self.train_a_little(model)
        model.finish_training(self.inputs(8), self.targets(8))
        if isinstance(getattr(model, "grid", None), Tensor):
            end = float(model.grid[-1])  # type: ignore[arg-type]
            model.grid = torch.linspace(0.0, end, 8, dtype=torch.float64)
        other = self.make(seed=1)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other.predict(self.inputs()).outputs, model.predict(self.inputs()).outputs)

    def test_spec_builds_the_same_network_again(self) -> None:
        """A model rebuilt from its specification as JSON and its state dict has the same loss and predictions, bit for bit."""
        model = self.make()
        again = build_from_spec(json.loads(json.dumps(model.spec)))
        again.load_state_dict(model.state_dict())
        assert again.spec == model.spec
        assert torch.equal(again.predict(self.inputs()).outputs, model.predict(self.inputs()).outputs)
        losses = []
        for one in (model, again):
            torch.manual_seed(1)
            losses.append(one.loss(self.inputs(), self.targets(), n_data=6).item())
        assert losses[0] == losses[1]

    def test_solver_state_is_json_and_continues_a_run(self) -> None:
        """The state of the training solver survives JSON: the next loss has the same bits."""
        model = self.make()
        self.train_a_little(model, steps=1)
        other = self.make(seed=1)
        other.load_state_dict(model.state_dict())
        other.load_solver_state(json.loads(json.dumps(model.solver_state())))
        losses = []
        for one in (model, other):
            torch.manual_seed(1)
            losses.append(one.loss(self.inputs(), self.targets(), n_data=6).item())
        assert losses[0] == losses[1]

    def test_same_seed_same_numbers(self) -> None:
        """Building with a seed, the loss and the prediction are deterministic, and the global generator is unchanged."""
        torch.manual_seed(7)
        before = torch.get_rng_state()
        first, second, third = self.make(3), self.make(3), self.make(4)
        assert torch.equal(torch.get_rng_state(), before)
        pairs = list(zip(first.parameters(), second.parameters(), strict=True))
        assert all(torch.equal(a, b) for a, b in pairs)
        assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), third.parameters(), strict=True))
        histories = []
        for model in (first, second):
            torch.manual_seed(11)
            histories.append((self.train_a_little(model, steps=2), model.predict(self.inputs()).outputs))
        assert histories[0][0] == histories[1][0]
        assert torch.equal(histories[0][1], histories[1][1])

    def test_copies_are_independent(self) -> None:
        """deepcopy works after a loss and a backward pass, predicts the same, and does not follow the original."""
        model = self.make()
        self.train_a_little(model, steps=1)
        twin = copy.deepcopy(model)
        before = twin.predict(self.inputs()).outputs
        assert torch.equal(model.predict(self.inputs()).outputs, before)
        self.train_a_little(model, steps=1)
        assert torch.equal(twin.predict(self.inputs()).outputs, before)

    def test_works_in_float64(self) -> None:
        """After ``model.double()`` loss and prediction are float64, and close to those in float32 (1e-3 for rounding)."""
        model = self.make()
        single = model.predict(self.inputs()).outputs
        model.double()
        x, y = self.inputs().double(), self.targets()
        y = y.double() if model.task == "regression" else y
        loss = model.loss(x, y, n_data=6)
        assert loss.dtype == torch.float64
        loss.backward()
        self._restore_statistics(model)
        double = model.predict(x)
        assert double.outputs.dtype == double.times.dtype == torch.float64
        torch.testing.assert_close(double.outputs.float(), single, rtol=1e-3, atol=1e-3)

    def _restore_statistics(self, model: Model) -> None:
        """Undo the effect of a loss in train mode on the running statistics of BatchNorm."""
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_running_stats()
