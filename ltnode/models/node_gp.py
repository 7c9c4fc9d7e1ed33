"""NODE-GP: a neural ODE whose features go through one-dimensional Gaussian processes (deep kernel learning).

Wilson, Hu, Salakhutdinov and Xing, "Stochastic Variational Deep Kernel Learning", NIPS 2016; on a neural ODE: Anumasa and
Srijith, "Improving Robustness and Uncertainty Modelling in Neural Ordinary Differential Equations", WACV 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from ltnode.checks import checked_count
from ltnode.endtime import FixedTime
from ltnode.errors import InputError, missing_extra
from ltnode.models.contract import Draw, Inputs, Steps, Task, check_draw, check_input, check_steps, evaluating
from ltnode.models.end_time_model import EndTimeModel, PosteriorTerms
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.options import ObjectiveOptions, SolverOptions
from ltnode.models.prediction import Prediction
from ltnode.models.seeded import seeded_normal, seeded_uniform
from ltnode.objective import Categorical, Gaussian, LossParts
from ltnode.ode import Stats
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from ltnode.models.grid_gp import GridGPs

_END_TIME = 1.0


@dataclass(frozen=True)
class GPOptions:
    """Options of the Gaussian processes of a NODE-GP.

    Attributes:
        grid_size: Number of inducing points per feature.
        bound: The grid covers (-bound, bound).
        training_samples: Number of draws of the processes that estimate the expected log-likelihood of class labels.
    """

    grid_size: int = 64
    bound: float = 10.0
    training_samples: int = 8

    def __post_init__(self) -> None:
        if checked_count("grid_size", self.grid_size) < 8:
            raise InputError(f"grid_size must be >= 8 for cubic interpolation, not {self.grid_size}")
        checked_count("training_samples", self.training_samples)
        if not isinstance(self.bound, int | float) or not 0.0 < self.bound < math.inf:
            raise InputError(f"bound must be a positive, finite number (the grid covers (-bound, bound)), not {self.bound!r}")


class RunningBounds(nn.Module):
    """Scales features linearly so that their smallest and largest values lie at -0.95 and 0.95 of the grid's bounds.

    Train mode takes the extreme values of the batch over all features, and updates a running mean of them (rate 0.1) in the state
    dict. Eval mode uses the running mean, so that outputs do not depend on the batch, and clamps values beyond it.
    """

    low: Tensor
    high: Tensor
    batches: Tensor
    rate = 0.1
    share = 0.95

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(1.0))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Scale the features."""
        if self.training:
            low, high = features.min(), features.max()
            self._follow(low.detach(), high.detach())
        else:
            low, high = self.low, self.high
            features = features.clamp(low, high)
        unit = (features - low) / (high - low).clamp_min(torch.finfo(features.dtype).tiny ** 0.5)
        return self.share * self.bound * (2 * unit - 1)

    @torch.no_grad()
    def _follow(self, low: Tensor, high: Tensor) -> None:
        rate = torch.where(self.batches == 0, 1.0, self.rate).to(self.low.dtype)
        self.low.lerp_(low.to(self.low.dtype), rate)
        self.high.lerp_(high.to(self.high.dtype), rate)
        self.batches.add_(1)


class NodeGP(EndTimeModel):
    """``x -> stem -> ODE to T = 1 -> head -> F features -> F one-dimensional GPs -> linear mixing -> logits or mean``.

    Training minimises the negative evidence lower bound per data point,
    ``-E_q log p(y | W f) + (KL(q || p) - log p(kernel)) / N``: by draws of f for class labels, in closed form for a Gaussian.

    Args:
        stem: Maps inputs to the initial state (B, ...).
        field: ``field(t, h) -> dh/dt``.
        head: Maps states (N, ...) to features (N, F).
        features: Number of features F.
        outputs: Number of classes, or 1.
        task: "classification" or "regression".
        gp: Options of the processes.
        solver: Solver options.
        units: Mean and standard deviation of the targets of a regression, in whose units the outputs are.

    Raises:
        MissingExtraError: gpytorch is not installed.
    """

    def __init__(
        self,
        stem: nn.Module,
        field: nn.Module,
        head: nn.Module,
        features: int,
        outputs: int,
        task: Task = "classification",
        *,
        gp: GPOptions | None = None,
        solver: SolverOptions | None = None,
        units: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(task)
        self.gp = gp or GPOptions()
        self.units = units
        # As a "classification" network the backbone may have any number of output columns.
        once = ObjectiveOptions(samples=1)
        self.backbone = LatentTimeODE(stem, field, head, FixedTime(_END_TIME), "classification", solver=solver, objective=once)
        self.bounds = RunningBounds(self.gp.bound)
        self.processes = _grid_gps(features, self.gp)
        self.mixing = nn.Linear(features, outputs, bias=False)
        # The scale of gpytorch for classes; for a regression f = sum_d w_d f_d has the prior variance of one process.
        nn.init.normal_(self.mixing.weight, std=1 / features if task == "classification" else features**-0.5)
        self.likelihood = Categorical() if task == "classification" else Gaussian(units[1], smallest_std=1e-4 * units[1])

    # -- the pieces of a pass --------------------------------------------------------------------------------------------

    def marginals(self, x: Tensor, steps: Steps | str = "stored") -> tuple[Float[Tensor, "B F"], Float[Tensor, "B F"], Stats]:
        """Compute mean and variance of every feature's process at the inputs, and the work of the solve."""
        features, stats = self._features(x, steps)
        return *self._marginals_at(features[0]), stats

    def _features(self, x: Tensor, steps: Steps | str) -> tuple[Float[Tensor, "1 B F"], Stats]:
        h = self.backbone.initial_state(x)
        solution = self.backbone.solve(h, h.new_tensor([_END_TIME]), steps)  # type: ignore[arg-type]
        return self.backbone.outputs_at(solution.states), solution.stats

    def _marginals_at(self, features: Float[Tensor, "B F"]) -> tuple[Float[Tensor, "B F"], Float[Tensor, "B F"]]:
        with torch.autocast(features.device.type, enabled=False):
            return self.processes.marginals(self.bounds(features.to(self.mixing.weight.dtype)))

    def _mixed(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Compute mean and variance (B, 1) of the single output ``w . f`` of a regression, in the units of the target."""
        offset, scale = self.units
        return offset + scale * self.mixing(mean), scale**2 * (variance @ self.mixing.weight.square().T)

    def _members(self, mean: Tensor, variance: Tensor, samples: int, draw: Draw, seed: int) -> Float[Tensor, "S B C"]:
        """Compute the outputs at S draws of the processes, which are the same for every input."""
        if self.task == "regression":
            mean, variance = self._mixed(mean, variance)
        z = _draws(samples, mean.shape[1], draw, seed, mean)
        f = mean + variance.sqrt() * z.unsqueeze(1)
        return f if self.task == "regression" else self.mixing(f)

    def forward(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Float[Tensor, "S B C"]:
        """Compute the outputs at S draws of the processes; differentiable."""
        mean, variance, _ = self.marginals(x)
        return self._members(mean, variance, samples, draw, seed)

    # -- training --------------------------------------------------------------------------------------------------------

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """Compute the negative evidence lower bound per data point; see `Model.loss`.

        ``n_data`` is required, because the KL counts once for all points. ``times`` must be None: the end-time is fixed.
        """
        check_input(x)
        self.check_targets(x, y)
        if times is not None:
            raise InputError(f"times must be None for a NODE-GP, whose end-time is always {_END_TIME:g}")
        if n_data is None:
            raise InputError("a NODE-GP requires n_data, the number of training points, because its KL counts once for all")
        self.check_labels(y, self.mixing.out_features)
        features, self.solve_stats = self._features(x, "training")
        parts = self.compose_loss(features, y, x.new_tensor([_END_TIME]), PosteriorTerms(), n_data)
        self.loss_parts = parts.detached()
        return parts.loss

    @property
    def solving_network(self) -> LatentTimeODE:
        """The network that computes the features."""
        return self.backbone

    def compose_loss(
        self, outputs: Float[Tensor, "1 B F"], y: Tensor, times: Tensor, posterior: PosteriorTerms, n_data: int | None
    ) -> LossParts:
        """Compose the negative bound from the features; see `EndTimeModel.compose_loss`. The end-time has no posterior."""
        assert n_data is not None
        mean, variance = self._marginals_at(outputs[0])
        with torch.autocast(outputs.device.type, enabled=False):
            expected = self._expected_log_likelihood(mean, variance, y)
            kl, log_prior = self.processes.kl(), self.processes.log_prior()
            weight = 1.0 / checked_count("n_data", n_data)
            return LossParts(-expected + weight * (kl - log_prior), expected, kl, weight, times)

    def _expected_log_likelihood(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.likelihood, Gaussian):
            mean, variance = self._mixed(mean, variance)
            at_mean = self.likelihood.log_prob(mean.unsqueeze(0), y)
            return (at_mean - 0.5 * variance.squeeze(1) / self.likelihood.noise_std.square()).mean()
        # Validation would read the arguments and thereby wait for the device.
        f = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).rsample(torch.Size([self.gp.training_samples]))
        return self.likelihood.log_prob(self.mixing(f), y).mean()

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """Return networks and noise, kernel and mean of the processes, and the parameters of their posterior with the mixing."""
        hyper = self.processes.hyper_parameters()
        chosen = {id(p) for p in hyper}
        variational = [*(p for p in self.processes.parameters() if id(p) not in chosen), *self.mixing.parameters()]
        chosen |= {id(p) for p in variational}
        return {"weights": [p for p in self.parameters() if id(p) not in chosen], "gp_hyper": hyper, "variational": variational}

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the prediction grid on training inputs."""
        self.backbone.finish_training(x, y)

    @torch.no_grad()
    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Describe the kernel, the bounds of the features, and the observation noise of a regression model."""
        kernel = self.processes.covar_module
        facts = {
            "length_scale": float(kernel.base_kernel.lengthscale),
            "output_scale": float(kernel.outputscale),
            "feature_low": float(self.bounds.low),
            "feature_high": float(self.bounds.high),
        }
        noise = self.likelihood.observation_noise()
        return facts if noise is None else {**facts, "noise_std": float(noise)}

    # -- prediction ------------------------------------------------------------------------------------------------------

    def predict(
        self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Compute the predictive distribution from one solve and S draws of the processes; see `LatentTimeODE.predict`.

        ``"quantile"``: every process takes its S quantiles in a permuted order that is the same for every input, scaled so that
        their variance is that of the process; ``"random"``: independent draws from the seed.
        """
        x = self.as_inputs(x)
        check_steps(steps)
        with torch.no_grad(), evaluating(self):
            return self._prediction(x, samples, draw, seed, steps)

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the log of the averaged class probabilities with a graph to x."""
        return self._prediction(x, samples, draw, seed, "stored").log_probs

    def _prediction(self, x: Tensor, samples: int, draw: Draw, seed: int, steps: Steps) -> Prediction:
        samples = checked_count("samples", samples)
        mean, variance, stats = self.marginals(x, steps)
        outputs = self._members(mean, variance, samples, draw, seed)
        times = outputs.new_full((samples,), _END_TIME)
        return Prediction(self.task, outputs, times, stats, self.likelihood.observation_noise())


def _grid_gps(features: int, options: GPOptions) -> GridGPs:
    try:
        import gpytorch  # noqa: F401
    except ImportError as error:
        raise missing_extra("gpytorch", "gp", "the model node-gp") from error
    from ltnode.models.grid_gp import GridGPs

    return GridGPs(features, options.grid_size, options.bound)


def _draws(samples: int, columns: int, draw: Draw, seed: int, like: Tensor) -> Float[Tensor, "S D"]:
    """Return standard normal numbers that all inputs share."""
    check_draw(draw)
    if draw == "random":
        return seeded_normal((samples, columns), seed, 0, like)
    u = (torch.arange(samples, dtype=torch.float64, device=like.device) + 0.5) / samples
    z = torch.special.ndtri(u)
    if samples > 1:
        z = z / z.square().mean().sqrt()
    if columns == 1:
        return z.to(like.dtype).unsqueeze(1)
    order = seeded_uniform((samples, columns), 0, 1, like.device).argsort(dim=0)
    return z[order].to(like.dtype)
