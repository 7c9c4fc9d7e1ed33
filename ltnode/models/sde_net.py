"""SDE-Net: a neural SDE whose diffusion is trained to be small on the data and large away from the data.

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
from ltnode.models.contract import Draw, Inputs, Model, Task, apply_part, check_draw, check_input, evaluating
from ltnode.models.prediction import Prediction
from ltnode.models.seeded import seeded_normal
from ltnode.objective import Categorical, Gaussian, Likelihood, LossParts
from ltnode.ode import Stats
from ltnode.ode.sde import euler_maruyama
from ltnode.typing import Float, Tensor


@dataclass(frozen=True)
class SDEOptions:
    """Steps and noise of an SDE-Net.

    Attributes:
        steps: Number of Euler-Maruyama steps.
        step_size: Size of a step; the end-time is ``steps * step_size``.
        sigma_train: Largest diffusion while training the weights: the noise is ``sigma * g(h(0)) dW`` with 0 < g < 1.
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
                allowed = "> 0" if name == "step_size" else ">= 0"
                raise InputError(f"{name} must be a finite number {allowed}, not {value!r}")

    @property
    def edges(self) -> list[float]:
        """Times of the steps, from 0 to the end-time."""
        return [m * self.step_size for m in range(self.steps + 1)]


class ConvDiffusion(nn.Module):
    """Diffusion network for images: (GN, ReLU, conv[t, .]) at t = 0 two or three times, then GN, ReLU, mean pooling, Linear.

    The channel of t = 0 has no effect, but its weights are included in the published numbers of parameters.
    """

    def __init__(self, width: int = 64, convolutions: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(images.norm(width) for _ in range(convolutions))
        self.convs = nn.ModuleList(images.TimeConv2d(width) for _ in range(convolutions))
        self.head = images.classifier(1, width)

    def forward(self, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B 1"]:
        """Compute the logit of g."""
        run, start = execution.current(), h.new_zeros(())
        norms = [norm for norm in [*self.norms, self.head[0]] if isinstance(norm, nn.GroupNorm)]
        convs = [layer.conv for layer in self.convs if isinstance(layer, images.TimeConv2d)]
        for i, layer in enumerate(self.convs):
            if i == len(convs) - 2:
                # The remaining layers up to the norm of the head are those of a field.
                at_once = run.normed_convolutions(start, h, (convs[i], convs[i + 1]), (norms[i], norms[i + 1], norms[i + 2]))
                if at_once is not None:
                    return self.head[1:](at_once)
            h = layer(start, run.relu_of_norm(norms[i], h))
        return run.run_layers(self.head, h)


def vector_diffusion(width: int, hidden: int = 100) -> nn.Sequential:
    """Return a diffusion network for vectors with one hidden layer; its output is the logit of g."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))


class SDENet(Model):
    """``dh = f(t, h) dt + sigma g(h(0)) dW`` from ``h(0) = stem(x)``, by Euler-Maruyama; ``head(h)`` is the prediction.

    One training step has two phases with separate parameters. ``"main"`` (stem, field, head) minimises the negative
    log-likelihood of one noisy pass, with a gradient that reaches the stem through g as well. ``"diffusion"`` (g) minimises
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
        """Compute h(0), in the dtype of x also under autocast."""
        return apply_part("stem", self.stem, x).to(x.dtype)

    def diffusion_at(self, h: Tensor, frozen: bool = False) -> Float[Tensor, " B"]:
        """Compute g(h(0)) in (0, 1); ``frozen`` treats the weights of g as constants, while h keeps its gradient."""
        if frozen:
            constants = {name: p.detach() for name, p in self.diffusion.named_parameters()}
            return torch.sigmoid(functional_call(self.diffusion, constants, (h,))).squeeze(-1)
        return torch.sigmoid(self.diffusion(h)).squeeze(-1)

    def _outputs(self, h: Tensor, scale: Float[Tensor, " B"], noise: Tensor) -> Float[Tensor, "S B C"]:
        """Compute the outputs of S passes at once; noise has shape (steps, S, B or 1, ...)."""
        scale = scale.reshape(-1, *[1] * (h.ndim - 1)).to(h.dtype)
        y = euler_maruyama(self._drift, scale, h.unsqueeze(0), self.sde.edges, noise)
        y = y.expand(noise.shape[1], *y.shape[1:])
        out = apply_part("head", self.head, y.flatten(0, 1))
        return out.unflatten(0, y.shape[:2])

    def _stats(self, passes: int = 1) -> Stats:
        """Count steps and evaluations of the drift per input; all passes share the first evaluation."""
        return Stats(self.sde.steps, 0, 1 + (self.sde.steps - 1) * passes)

    def _drift(self, t: Tensor, y: Tensor) -> Tensor:
        return self.field(t, y.flatten(0, 1)).unflatten(0, y.shape[:2])

    def forward(self, x: Tensor, samples: int = 10, seed: int = 0) -> Float[Tensor, "S B C"]:
        """Compute the outputs of the passes of a prediction, with a graph; all passes share stem, diffusion and first drift.

        The noise is a function of (seed, pass, step, position in the state) and the same for every input, so that the passes of
        an input do not depend on the rest of the batch. Over seeds, they have the distribution of independent noise.
        """
        h = self.initial_state(x)
        noise = seeded_normal((samples, self.sde.steps, 1, *h.shape[1:]), seed, 0, h).transpose(0, 1)
        return self._outputs(h, self.sde.sigma_test * self.diffusion_at(h), noise)

    # -- training --------------------------------------------------------------------------------------------------------

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """Compute the loss of one phase, per data point; see `Model.loss`. ``times`` must be None: the end-time is fixed."""
        check_input(x)
        self.check_targets(x, y)
        if times is not None:
            raise InputError(
                "times must be None for an SDE-Net, whose end-time is fixed; change it by sde={'steps': ..., 'step_size': ...}"
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
        # In eval mode outliers do not enter running statistics, and g receives the features that predictions have.
        with torch.no_grad(), evaluating(self.stem):
            h = self.initial_state(torch.cat([x, x + self.sde.outlier_std * eps]))
        inside, outside = self.diffusion(h).squeeze(-1).chunk(2)
        # BCE(g, 0) = softplus(logit) and BCE(g, 1) = softplus(-logit).
        return functional.softplus(inside).mean() + functional.softplus(-outside).mean()

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """Return the diffusion network for its phase, and all other parameters for the main phase."""
        diffusion = list(self.diffusion.parameters())
        if phase == "diffusion":
            return {"diffusion": diffusion}
        chosen = {id(p) for p in diffusion}
        return {"weights": [p for p in self.parameters() if id(p) not in chosen]}

    @torch.no_grad()
    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the residual noise of a mean-square model on training inputs."""
        self.likelihood.fit_noise(lambda: self.predict(x).mean - y.reshape(-1).to(x.dtype))

    @torch.no_grad()
    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Describe the mean of g over the inputs, and the observation noise of a regression model."""
        facts: dict[str, float] = {}
        if x is not None:
            with evaluating(self):
                facts["diffusion"] = float(self.diffusion_at(self.initial_state(x)).mean())
        noise = self.likelihood.observation_noise()
        return facts if noise is None else {**facts, "noise_std": float(noise)}

    # -- prediction ------------------------------------------------------------------------------------------------------

    def predict(self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Prediction:
        """Compute the predictive distribution over S passes, which run as one batch; see `LatentTimeODE.predict`.

        Both values of ``draw`` draw the noise from the seed, because noise has no quantiles; see `forward`.
        """
        x = self.as_inputs(x)
        with torch.no_grad(), evaluating(self):
            return self._prediction(x, samples, draw, seed)

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the log of the averaged class probabilities with a graph to x."""
        return self._prediction(x, samples, draw, seed).log_probs

    def _prediction(self, x: Tensor, samples: int, draw: Draw, seed: int) -> Prediction:
        samples = checked_count("samples", samples)
        check_draw(draw)
        outputs = self(x, samples, seed)
        times = outputs.new_full((samples,), self.sde.edges[-1])
        return Prediction(self.task, outputs, times, self._stats(samples), self.likelihood.observation_noise())
