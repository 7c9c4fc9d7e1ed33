"""Monte-Carlo dropout for neural ODEs: one mask per solve, constant in time.

Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016. Fresh masks at every evaluation of the field would make
it another function at every stage of a step, whose error no step size can control.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ltnode.checks import checked_count
from ltnode.errors import InputError, unknown_name
from ltnode.models import images, vectors
from ltnode.models.contract import Draw, Model, Steps, check_input
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.modes import evaluating
from ltnode.models.prediction import Prediction
from ltnode.models.seeded import seeded_uniform
from ltnode.objective import Gaussian, MeanSquare
from ltnode.ode import Solution, odesolve, odesolve_on_prediction_grid
from ltnode.typing import Float, Tensor


class MaskedDropout(nn.Module):
    """Multiply channels by masks that the model draws once per solve.

    ``mask`` is that of the last training pass, used in train mode only; ``member_mask``, while it is set, goes before it in
    either mode. Without a mask the layer does nothing.

    Args:
        width: Number of channels (axis 1).
        rate: Probability that a channel is dropped.
    """

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        if not isinstance(rate, int | float) or not 0.0 <= rate < 1.0:
            raise InputError(f"rate = {rate!r} is impossible: the probability to drop a channel is at least 0 and below 1")
        self.width, self.rate = checked_count("width", width), float(rate)
        self.mask: Tensor | None = None
        self.member_mask: Tensor | None = None

    def masks_from(self, u: Float[Tensor, "M width"]) -> Float[Tensor, "M width"]:
        """Masks 0 or 1/(1 - rate) from uniform numbers, float32."""
        return (u >= self.rate).float() / (1.0 - self.rate)

    def forward(self, h: Tensor) -> Tensor:
        """Masked h (N, width, ...): of M masks, the i-th serves samples i, M + i, 2 M + i, ..."""
        mask = self.mask if self.member_mask is None and self.training else self.member_mask
        if mask is None:
            return h
        if h.shape[0] % mask.shape[0]:
            raise InputError(
                f"the masks were drawn for a batch of {mask.shape[0]}, not {h.shape[0]}; call the model, which draws new ones, "
                "or its eval mode, which has none"
            )
        mask = mask.to(h.dtype).reshape(*mask.shape, *[1] * (h.ndim - 2))
        return (h.unflatten(0, (-1, mask.shape[0])) * mask).flatten(0, 1)

    def extra_repr(self) -> str:
        """Width and rate."""
        return f"width={self.width}, rate={self.rate:g}"


class DropoutConvField(nn.Module):
    """The paper's field for images with dropped feature maps before its second convolution."""

    def __init__(self, field: images.ConvField, rate: float) -> None:
        super().__init__()
        self.field = field
        self.dropout = MaskedDropout(field.norm2.num_channels, rate)

    def forward(self, t: Tensor, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """dh/dt at time t."""
        f = self.field
        h = f.conv1(t, functional.relu(f.norm1(h)))
        h = f.conv2(t, self.dropout(functional.relu(f.norm2(h))))
        return f.norm3(h)


def with_dropout(field: nn.Module, rate: float) -> nn.Module:
    """The field with a `MaskedDropout` after every hidden activation; a field that has some already is taken as it is.

    Raises:
        InputError: It is neither one of ltnode's fields nor has such layers.
    """
    if any(isinstance(module, MaskedDropout) for module in field.modules()):
        return field
    if isinstance(field, images.ConvField):
        return DropoutConvField(field, rate)
    if isinstance(field, vectors.TimeMLP | vectors.TimeConcat) and isinstance(field.layers, nn.Sequential):
        field.layers = _drop_hidden(field.layers, rate)
        return field
    raise InputError(
        f"where to drop in a {type(field).__name__} is not known: put layers of ltnode.models.mc_dropout.MaskedDropout into it"
    )


def _drop_hidden(layers: nn.Sequential, rate: float) -> nn.Sequential:
    """Dropout before every linear layer but the first: what it weighs is a hidden layer's final value."""
    result: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, nn.Linear) and result:
            result.append(MaskedDropout(layer.in_features, rate))
        result.append(layer)
    return nn.Sequential(*result)


class _MaskedNode(LatentTimeODE):
    """A neural ODE that draws one mask per sample at the start of every pass in train mode."""

    def dropouts(self) -> list[MaskedDropout]:
        return [module for module in self.field.modules() if isinstance(module, MaskedDropout)]

    def initial_state(self, x: Tensor) -> Tensor:
        h = super().initial_state(x)
        if self.training:
            for layer in self.dropouts():
                layer.mask = layer.masks_from(torch.rand(h.shape[0], layer.width, device=h.device))
        return h

    def solve_members(self, x: Tensor, samples: int, seed: int, steps: Steps) -> tuple[Solution, Float[Tensor, "S B C"]]:
        """The solve of all members, and their outputs.

        The members are one axis of the state, (B, S, ...), so that any part of the batch can be solved by itself.
        """
        h = super().initial_state(x)
        times = self.prediction_times(x, 1)
        o = self.solver

        def field(t: Tensor, y: Tensor) -> Tensor:
            # t has one entry per input where steps are per sample.
            own = t if t.ndim == 0 else t.repeat_interleave(samples)
            return self.field(own, y.flatten(0, 1)).unflatten(0, y.shape[:2])

        layers = self.dropouts()
        try:
            for stream, layer in enumerate(layers):
                layer.member_mask = layer.masks_from(seeded_uniform((samples, layer.width), seed, stream, h.device))
            y0 = h.unsqueeze(1).expand(-1, samples, *h.shape[1:])
            if steps == "stored":
                solution = odesolve_on_prediction_grid(field, y0, times, self.grid, o.rtol, o.atol, o.method)
            else:
                solution = odesolve(field, y0, times, o.rtol, o.atol, o.method, clip_last=o.clip_last, max_steps=o.max_steps)
        finally:
            for layer in layers:
                layer.member_mask = None
        return solution, self.outputs_at(solution.states[0].transpose(0, 1))


class DropoutODE(Model):
    """A plain neural ODE with `MaskedDropout` layers in its field.

    In train mode every pass draws one mask per sample (from torch's generator) for its grid search and its replay alike. A
    prediction has S masks, the same for every input, and solves all S members as one state: an input's members share their
    steps. Without masks the network is the mean network.

    Args:
        node: The network.
        rate: Probability that a channel is dropped.
    """

    def __init__(self, node: LatentTimeODE, rate: float = 0.1) -> None:
        super().__init__(node.task)
        self.node = _MaskedNode(
            node.stem,
            with_dropout(node.field, rate),
            node.head,
            node.end_time,
            node.task,
            likelihood=node.likelihood,
            solver=node.solver,
            objective=node.objective,
            augment=node.augment,
        )

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """The loss of the network under one mask per sample; arguments as for `LatentTimeODE.loss`."""
        loss = self.node.loss(x, y, n_data, times, phase)
        self.loss_parts, self.solve_stats = self.node.loss_parts, self.node.solve_stats
        return loss

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the stored grid of the mean network, and the residual noise of a mean-square model."""
        self.node.finish_training(x, y)
        likelihood = self.node.likelihood
        if isinstance(likelihood, MeanSquare):
            with torch.no_grad():
                residual = self.predict(x).mean - y.reshape(-1).to(x.dtype)
                likelihood.noise_std.copy_(residual.square().mean().sqrt())

    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """The observation noise of a regression model."""
        return {name: value for name, value in self.node.describe(x).items() if name == "noise_std"}

    def solver_state(self) -> dict[str, Any]:
        """The kept grid."""
        return self.node.solver_state()

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Continue with a kept grid."""
        self.node.load_solver_state(state)

    def predict(
        self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Predictive distribution over S masks, from one solve.

        Args:
            x: (B, ...).
            samples: Number of masks S.
            draw: Masks have no quantiles: both draws take them from the seed.
            seed: Seed of the masks.
            steps: ``"stored"`` or ``"adaptive"``, as for `LatentTimeODE`.
        """
        check_input(x)
        samples = checked_count("samples", samples)
        if steps not in ("stored", "adaptive"):
            raise InputError(unknown_name("kind of steps", steps, ("stored", "adaptive")))
        with torch.no_grad(), evaluating(self):
            solution, outputs = self._members(x, samples, draw, seed, steps)
        likelihood = self.node.likelihood
        noise = likelihood.noise_std.detach() if isinstance(likelihood, Gaussian | MeanSquare) else None
        return Prediction(self.task, outputs, self.node.prediction_times(x, samples), solution.stats, noise)

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Log of the averaged class probabilities with a graph to x."""
        _, outputs = self._members(x, checked_count("samples", samples), draw, seed, "stored")
        return Prediction(self.task, outputs, self.node.prediction_times(x, samples)).log_probs

    def _members(self, x: Tensor, samples: int, draw: Draw, seed: int, steps: Steps) -> tuple[Solution, Tensor]:
        if draw not in ("quantile", "random"):
            raise InputError(unknown_name("draw", draw, ("quantile", "random")))
        return self.node.solve_members(x, samples, seed, steps)
