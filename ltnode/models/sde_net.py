"""SDE-Net: a neural SDE whose diffusion is trained to be small on the data and large away from them.

Kong, Sun and Zhang, "SDE-Net: Equipping Deep Neural Networks with Uncertainty Estimates", ICML 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from ltnode.checks import checked_count
from ltnode.errors import InputError, unknown_name
from ltnode.models import execution, images
from ltnode.models.contract import Draw, Model, Task, apply_part, check_input
from ltnode.models.modes import evaluating
from ltnode.models.prediction import Prediction
from ltnode.models.seeded import seeded_normal
from ltnode.objective import Categorical, Gaussian, Likelihood, LossParts, MeanSquare
from ltnode.ode import Stats
from ltnode.ode.sde import euler_maruyama
from ltnode.typing import Float, Tensor


@dataclass(frozen=True)
class SDEOptions:
    """Steps and noise of an SDE-Net.

    Attributes:
        steps: Number of Euler-Maruyama steps.
        step_size: Their size; the end-time is ``steps * step_size``.
        sigma_train: Largest diffusion while the weights are trained: the noise is ``sigma * g(h(0)) dW`` with 0 < g < 1.
        sigma_test: Largest diffusion in predictions.
        outlier_std: Standard deviation of the noise that turns data into out-of-distribution inputs.
    """

    steps: int = 6
    step_size: float = 1.0
    sigma_train: float = 1.0
    sigma_test: float = 50.0
    outlier_std: float = 2.0

    def __post_init__(self) -> None:
        checked_count("steps", self.steps)
        for name in ("step_size", "sigma_train", "sigma_test", "outlier_std"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0.0 <= value < math.inf or (name == "step_size" and value == 0.0):
                raise InputError(f"{name} = {value!r} is impossible: a finite number that is not negative (step_size: not 0)")

    @property
    def edges(self) -> list[float]:
        """Times of the steps, from 0 to the end-time."""
        return [m * self.step_size for m in range(self.steps + 1)]


class ConvDiffusion(nn.Module):
    """Diffusion network for images: 2 or 3 times (GN, ReLU, conv[t, .]) at t = 0, then GN, ReLU, mean over positions, Linear.

    The channel of t = 0 has no effect, but its weights count among the published numbers of parameters.
    """

    def __init__(self, width: int = 64, convolutions: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(images.norm(width) for _ in range(convolutions))
        self.convs = nn.ModuleList(images.TimeConv2d(width) for _ in range(convolutions))
        self.head = images.classifier(1, width)

    def forward(self, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B 1"]:
        """Logit of g."""
        run, start = execution.current(), h.new_zeros(())
        norms = [norm for norm in [*self.norms, self.head[0]] if isinstance(norm, nn.GroupNorm)]
        convs = [layer.conv for layer in self.convs if isinstance(layer, images.TimeConv2d)]
        for i, layer in enumerate(self.convs):
            if i == len(convs) - 2:
                # What remains but for the head's end has the layers of a field.
                at_once = run.normed_convolutions(start, h, (convs[i], convs[i + 1]), (norms[i], norms[i + 1], norms[i + 2]))
                if at_once is not None:
                    return self.head[1:](at_once)
            h = layer(start, run.relu_of_norm(norms[i], h))
        return run.run_layers(self.head, h)


def vector_diffusion(width: int, hidden: int = 100) -> nn.Sequential:
    """Diffusion network for vectors: one hidden layer, to the logit of g."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))


class SDENet(Model):
    """``dh = f(t, h) dt + sigma g(h(0)) dW`` from ``h(0) = stem(x)``, by Euler-Maruyama; ``head(h)`` gives a prediction.

    One training step has two phases, each with parameters of its own. ``"main"`` (stem, field, head) minimises the negative
    log-likelihood of one noisy pass; its gradient reaches the stem through g as well. ``"diffusion"`` (g) minimises
    ``BCE(g(x), 0) + BCE(g(x + outlier_std eps), 1)`` on constant features, with eps ~ N(0, 1) the same in all colour channels.

    Args:
        stem: Maps inputs to the initial state (B, ...).
        field: The drift, ``field(t, h) -> dh/dt``.
        head: Maps states (N, ...) to logits (N, C), or to means (N, 1).
        diffusion: Maps h(0) to the logit (B, 1) of g.
        task: "classification" or "regression".
        likelihood: p(y | output); by default categorical, or Gaussian with learnt noise.
        sde: Steps and noise.
    """

    phases: ClassVar[tuple[str, ...]] = ("main", "diffusion")
    fixed_operations: ClassVar[bool] = True

    def __init__(
        self,
        stem: nn.Module,
        field: nn.Module,
        head: nn.Module,
        diffusion: nn.Module,
        task: Task = "classification",
        *,
        likelihood: Likelihood | None = None,
        sde: SDEOptions | None = None,
    ) -> None:
        super().__init__(task)
        self.stem, self.field, self.head, self.diffusion = stem, field, head, diffusion
        self.likelihood = likelihood or (Categorical() if task == "classification" else Gaussian())
        self.sde = sde or SDEOptions()

    # -- the pieces of a pass --------------------------------------------------------------------------------------------

    def initial_state(self, x: Tensor) -> Tensor:
        """h(0), in the dtype of x also under autocast."""
        return apply_part("stem", self.stem, x).to(x.dtype)

    def diffusion_at(self, h: Tensor, frozen: bool = False) -> Float[Tensor, " B"]:
        """g(h(0)) in (0, 1); ``frozen`` takes the weights of g as constants, while h keeps its gradient."""
        if frozen:
            constants = {name: p.detach() for name, p in self.diffusion.named_parameters()}
            return torch.sigmoid(functional_call(self.diffusion, constants, (h,))).squeeze(-1)
        return torch.sigmoid(self.diffusion(h)).squeeze(-1)

    def _outputs(self, h: Tensor, scale: Float[Tensor, " B"], noise: Tensor) -> Float[Tensor, "S B C"]:
        """Outputs of S passes at once; noise is (steps, S, B or 1, ...)."""
        scale = scale.reshape(-1, *[1] * (h.ndim - 1)).to(h.dtype)
        y = euler_maruyama(self._drift, scale, h.unsqueeze(0), self.sde.edges, noise)
        y = y.expand(noise.shape[1], *y.shape[1:])
        out = apply_part("head", self.head, y.flatten(0, 1))
        return out.unflatten(0, y.shape[:2])

    def _stats(self, passes: int = 1) -> Stats:
        """Steps, and evaluations of the drift per input: the first serves all passes."""
        return Stats(self.sde.steps, 0, 1 + (self.sde.steps - 1) * passes)

    def _drift(self, t: Tensor, y: Tensor) -> Tensor:
        return self.field(t, y.flatten(0, 1)).unflatten(0, y.shape[:2])

    def forward(self, x: Tensor, samples: int = 10, seed: int = 0) -> Float[Tensor, "S B C"]:
        """Outputs of the passes of a prediction, with a graph; stem, diffusion and first drift run once for all passes.

        The noise is a function of (seed, pass, step, place in the state) and the same for every input, so that an input's
        passes do not depend on its batch-mates; over seeds each input's passes have the distribution of independent noise.
        """
        h = self.initial_state(x)
        noise = seeded_normal((samples, self.sde.steps, 1, *h.shape[1:]), seed, 0, h).transpose(0, 1)
        return self._outputs(h, self.sde.sigma_test * self.diffusion_at(h), noise)

    # -- training --------------------------------------------------------------------------------------------------------

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """The loss of one phase, per data point; noise comes from torch's generator.

        Args:
            x: (B, ...).
            y: (B,) integer labels, or (B,) or (B, 1) real values.
            n_data: Not used.
            times: Must be None: the end-time is fixed.
            phase: ``"main"`` or ``"diffusion"``.
        """
        check_input(x)
        self.check_targets(x, y)
        if times is not None:
            raise InputError(
                "an SDE-Net has a fixed end-time: times must be None; change it by sde={'steps': ..., 'step_size': ...}"
            )
        if phase == "main":
            loss = self._negative_log_likelihood(x, y)
        elif phase == "diffusion":
            loss = self._detection_loss(x)
        else:
            raise InputError(unknown_name("phase", phase, self.phases))
        value = loss.detach()
        self.loss_parts = LossParts(value, -value, torch.zeros_like(value), 0.0, x.new_full((1,), self.sde.edges[-1]))
        return loss

    def _negative_log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.initial_state(x)
        noise = torch.randn(self.sde.steps, 1, *h.shape, dtype=h.dtype, device=h.device)
        outputs = self._outputs(h, self.sde.sigma_train * self.diffusion_at(h, frozen=True), noise)
        self.check_labels(y, outputs.shape[-1])
        self.solve_stats = self._stats()
        return -self.likelihood.log_prob(outputs, y).mean()

    def _detection_loss(self, x: Tensor) -> Tensor:
        eps = torch.randn(x.shape[0], 1, *x.shape[2:], dtype=x.dtype, device=x.device) if x.ndim > 2 else torch.randn_like(x)
        # Eval mode: outliers must not enter running statistics, and g sees the features that predictions will have.
        with torch.no_grad(), evaluating(self.stem):
            h = self.initial_state(torch.cat([x, x + self.sde.outlier_std * eps]))
        inside, outside = self.diffusion(h).squeeze(-1).chunk(2)
        # BCE(g, 0) = softplus(logit) and BCE(g, 1) = softplus(-logit).
        return functional.softplus(inside).mean() + functional.softplus(-outside).mean()

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """The diffusion network in its own phase, everything else in the main one."""
        own = list(self.diffusion.parameters())
        if phase == "diffusion":
            return {"diffusion": own}
        chosen = {id(p) for p in own}
        return {"weights": [p for p in self.parameters() if id(p) not in chosen]}

    @torch.no_grad()
    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the residual noise of a mean-square model on training inputs."""
        if isinstance(self.likelihood, MeanSquare):
            residual = self.predict(x).mean - y.reshape(-1).to(x.dtype)
            self.likelihood.noise_std.copy_(residual.square().mean().sqrt())

    @torch.no_grad()
    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Mean of g over the inputs, and the observation noise of a regression model."""
        facts: dict[str, float] = {}
        if x is not None:
            with evaluating(self):
                facts["diffusion"] = float(self.diffusion_at(self.initial_state(x)).mean())
        if isinstance(self.likelihood, Gaussian | MeanSquare):
            facts["noise_std"] = float(self.likelihood.noise_std)
        return facts

    # -- prediction ------------------------------------------------------------------------------------------------------

    def predict(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Prediction:
        """Predictive distribution over passes, run as one batch.

        Args:
            x: (B, ...).
            samples: Number of passes S.
            draw: Noise has no quantiles to go through: both draws take it from the seed, see `forward`.
            seed: Seed of the noise.
        """
        check_input(x)
        samples = checked_count("samples", samples)
        with torch.no_grad(), evaluating(self):
            outputs = self._members(x, samples, draw, seed)
        noise = self.likelihood.noise_std.detach() if isinstance(self.likelihood, Gaussian | MeanSquare) else None
        times = outputs.new_full((samples,), self.sde.edges[-1])
        return Prediction(self.task, outputs, times, self._stats(samples), noise)

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Log of the averaged class probabilities with a graph to x."""
        outputs = self._members(x, checked_count("samples", samples), draw, seed)
        return Prediction(self.task, outputs, outputs.new_full((samples,), self.sde.edges[-1])).log_probs

    def _members(self, x: Tensor, samples: int, draw: Draw, seed: int) -> Tensor:
        if draw not in ("quantile", "random"):
            raise InputError(unknown_name("draw", draw, ("quantile", "random")))
        return self(x, samples, seed)
