"""How familiar an input is: the distance of its path from the paths of training inputs, and its rank among held-out inputs.

Two scores are computed from the path of the one solve:

- its density, a Gaussian per class with a common covariance, which sees inputs that look like nothing in the training data;
- for classification, the energy ``-logsumexp`` of the logits, which sees foreign inputs that look like the training data.

Each is standardised on the inputs on which the density was fitted, and the distance is their smooth maximum. Its rank among
held-out inputs that chose nothing else is a p-value: under exchangeability, an input from the same source has
``familiarity <= alpha`` with a probability of at most alpha (conformal prediction; Vovk, Gammerman and Shafer, 2005).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from ltnode.errors import InputError
from ltnode.models.fitted import FittedModule
from ltnode.models.path import N_TIMES, PathFeatures
from ltnode.models.path_process import Fallback, PathProcess
from ltnode.typing import Float, Tensor

_SHARPNESS = 4.0
"""Factor inside the smooth maximum; infinity would be the maximum itself."""
_SMALLEST_SCALE = 1e-3
"""Smallest standard deviation of a feature, relative to the root mean square over all features."""
_TYPICAL = 0.99
"""The distance between the median and this quantile of a score on the fitting inputs is its unit."""


class TiedGaussian(FittedModule):
    """Gaussian densities of several classes with one covariance; returns a distance to the nearest class.

    The covariance is shrunk towards a multiple of the identity (oracle approximating shrinkage; Chen, Wiesel, Eldar and Hero,
    2010), so that it exists for fewer rows than features.
    """

    scale: Tensor
    means: Tensor
    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.declare("scale", "means", "factor")

    def fit(self, features: Float[Tensor, "N D"], labels: Tensor | None) -> None:
        """Fit means and covariance in float64; without labels there is one class."""
        x = features.double()
        deviations = x.std(dim=0, correction=0)
        # Deviations below the rounding of the features are none; if all features are 0, any unit will do.
        rounding = 10 * torch.finfo(features.dtype).eps * float(x.abs().max()) or 1.0
        scale = deviations.clamp_min(max(float(_SMALLEST_SCALE * deviations.square().mean().sqrt()), rounding))
        x = x / scale
        classes = x.new_zeros(len(x), dtype=torch.long) if labels is None else labels.unique(return_inverse=True)[1]
        counts = torch.bincount(classes).to(x)
        means = x.new_zeros(len(counts), x.shape[1]).index_add_(0, classes, x) / counts[:, None]
        covariance = shrunk_covariance(x - means[classes])
        factor = torch.linalg.cholesky(torch.linalg.inv(covariance))
        self.scale = scale.to(features.dtype)
        # Half precision halves the size of saved models. Everything else, ranks included, is computed from the rounded values.
        self.factor = factor.half()
        self.means = (means @ self.factor.double()).to(features.dtype)

    def forward(self, features: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """Return the logarithm of the squared Mahalanobis distance to the nearest mean, per feature."""
        factor, origin, means, squares = self.derived(lambda: self._prepared(features.dtype), features.dtype)
        whitened = torch.addmm(origin, features, factor)
        # Relative to their own mean, the means are small, so that little cancels in this sum.
        to_means = torch.addmm(squares, whitened, means, alpha=-2.0).amin(dim=1)
        squared = whitened.square().sum(dim=1) + to_means
        return (squared / features.shape[1]).clamp_min(torch.finfo(features.dtype).tiny).log()

    def _prepared(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Factor of the unscaled features, minus the mean of the means, the means without it, and their squared norms."""
        origin = self.means.mean(dim=0)
        means = self.means - origin
        factor = self.factor.to(dtype) / self.scale[:, None]
        return factor, -origin, means.T.contiguous(), means.square().sum(dim=1)

    def shape_problem(self) -> str | None:
        """Check that the restored tensors belong together."""
        width = self.scale.shape[0] if self.scale.ndim == 1 else -1
        if self.scale.numel() == self.means.numel() == self.factor.numel() == 0:
            return None
        if self.means.ndim != 2 or self.means.shape[1] != width or tuple(self.factor.shape) != (width, width):
            return f"a density of {width} features has means {tuple(self.means.shape)} and a factor {tuple(self.factor.shape)}"
        return None


def shrunk_covariance(deviations: Float[Tensor, "N D"]) -> Float[Tensor, "D D"]:
    """Return the covariance of centred rows, shrunk towards its mean variance by the OAS formula."""
    rows, width = deviations.shape
    covariance = deviations.T @ deviations / rows
    mean = covariance.diagonal().mean()
    squared = covariance.square().mean()
    denominator = (rows + 1) * (squared - mean.square() / width)
    weight = min(1.0, float((squared + mean.square()) / denominator)) if float(denominator) > 0 else 1.0
    ridge = max(float(mean), 1.0) * 1e-6  # classes of one row each have no deviations at all
    return (1 - weight) * covariance + (weight * mean + ridge) * torch.eye(width).to(covariance)


class Ranks(FittedModule):
    """Sorted distances of held-out inputs, among which new distances are ranked."""

    distances: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.declare("distances")

    def fit(self, distances: Float[Tensor, " n"]) -> None:
        """Keep the distances of inputs that nothing else was fitted to or chosen on."""
        self.distances = distances.sort().values

    def forward(self, distance: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Return the p-values ``(1 + #{held-out distances >= distance}) / (n + 1)`` in float64.

        In float32, 1/20 would exceed a rate of 0.05, and the smallest possible p-value could never be flagged.
        """
        n = self.distances.shape[0]
        if torch.compiler.is_compiling():  # exported formats have no binary search
            smaller = (self.distances[None] < distance[:, None]).sum(dim=1)
        else:
            smaller = torch.searchsorted(self.distances, distance.contiguous())
        return (n + 1 - smaller).to(torch.float64) / (n + 1)

    @property
    def n(self) -> int:
        """Number of held-out inputs."""
        return self.distances.shape[0]

    def shape_problem(self) -> str | None:
        """Check that restored distances are a sorted vector of finite numbers."""
        d = self.distances
        if d.ndim != 1 or not bool(torch.isfinite(d).all()) or bool((d[1:] < d[:-1]).any()):
            return "the distances of the calibration examples must be finite and sorted"
        return None


class Familiarity(FittedModule):
    """The densities of the path, and the distance that combines them with the energy.

    Attributes:
        process: For regression with known targets, a Gaussian process on the states where paths begin.
        further_processes: Those of the second and further targets of a regression with several.
    """

    centres: Tensor
    spreads: Tensor
    typical: Tensor
    input_mean: Tensor
    base_rates: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.path, self.process = TiedGaussian(), PathProcess()
        self.further_processes = torch.nn.ModuleList()
        self.over_time = torch.nn.ModuleList(TiedGaussian() for _ in range(N_TIMES))
        self.declare("centres", "spreads", "typical", "input_mean", "base_rates")

    @property
    def fitted(self) -> bool:
        """Whether `fit` was called."""
        return self.spreads.numel() > 0

    @property
    def density_only(self) -> bool:
        """Whether the distance needs the path only at the times of the density of pooled states."""
        first = cast(TiedGaussian, next(iter(self.over_time)))
        return self.path.scale.numel() != N_TIMES * first.scale.numel()

    @torch.no_grad()
    def fit(self, features: PathFeatures, labels: Tensor | None, input_mean: Tensor, base_rates: Tensor | None) -> None:
        """Fit the densities on training inputs, and standardise the scores on them.

        Args:
            features: Paths of the training inputs.
            labels: Their classes, or None for one density of all inputs.
            input_mean: Mean of the network inputs.
            base_rates: Class frequencies, or mean and standard deviation of the targets, if known.
        """
        self.path.fit(features.vector(), labels)
        for density, states in zip(self._densities_over_time(), features.states, strict=True):
            density.fit(states, labels)
        self.typical = self._deviations(features.states).median(dim=1).values
        self.input_mean = input_mean
        self.base_rates = input_mean.new_empty(0) if base_rates is None else base_rates.to(input_mean)
        scores = torch.stack(self._scores(features))
        self.centres = scores.median(dim=1).values
        upper = scores.double().quantile(_TYPICAL, dim=1).to(scores.dtype)
        self.spreads = (upper - self.centres).clamp_min(1e-6)

    def fit_processes(self, starts: Float[Tensor, "N F"], y: Float[Tensor, "N *targets"]) -> None:
        """Fit one process per target on the states where training paths begin."""
        columns = y.reshape(len(y), -1).unbind(dim=1)
        self.further_processes = torch.nn.ModuleList(PathProcess() for _ in columns[1:]).to(starts.device)
        for process, column in zip(self._processes(), columns, strict=True):
            process.fit(starts, column)

    def fallback(self, starts: Float[Tensor, "B F"], noise: Tensor) -> Fallback:
        """Return what the processes answer; ``noise`` is the standard deviation of the noise, 0-dim, (K,) or (B, K)."""
        processes = self._processes()
        noises = noise.unbind(dim=-1) if noise.ndim else (noise,)
        if len(processes) != len(noises):
            raise InputError(f"the model predicts {len(noises)} targets, but its familiarity was fitted on {len(processes)}")
        answers = [process.fallback(starts, own) for process, own in zip(processes, noises, strict=True)]
        return answers[0] if len(answers) == 1 else Fallback(*(torch.stack(part, dim=1) for part in zip(*answers, strict=True)))

    def _processes(self) -> list[PathProcess]:
        return [self.process, *(cast(PathProcess, process) for process in self.further_processes)]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # How many processes a saved model has depends on its targets.
        start = f"{prefix}further_processes."
        saved = {name.removeprefix(start).split(".")[0] for name in state_dict if name.startswith(start)}
        self.further_processes = torch.nn.ModuleList(PathProcess() for _ in saved).to(self.spreads.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, features: PathFeatures) -> Float[Tensor, " B"]:
        """Return the distances of a batch: about 0 for typical training inputs, and unbounded."""
        sharp = [(s - c) * f for s, (c, f) in zip(self._scores(features), self.derived(self._standard), strict=True)]
        if len(sharp) == 1:
            return sharp[0] / _SHARPNESS
        return (torch.logaddexp(sharp[0], sharp[1]) - math.log(2)) / _SHARPNESS

    def _standard(self) -> list[tuple[Tensor, Tensor]]:
        """What is subtracted from each score, and what the difference is multiplied by."""
        return list(zip(self.centres, _SHARPNESS / self.spreads, strict=True))

    def profile(self, states: Float[Tensor, "K B F"]) -> Float[Tensor, "K B"]:
        """Return the distance of the state at every fixed time, in units of that of a typical training input."""
        return self._deviations(states) / self.typical[:, None]

    def _deviations(self, states: Float[Tensor, "K B F"]) -> Float[Tensor, "K B"]:
        """Root mean square deviations from the nearest class mean, in standard deviations."""
        densities = self._densities_over_time()
        return torch.stack([density(part) for density, part in zip(densities, states, strict=True)]).div(2).exp()

    def _densities_over_time(self) -> list[TiedGaussian]:
        return [cast(TiedGaussian, density) for density in self.over_time]

    def _scores(self, features: PathFeatures) -> list[Float[Tensor, " B"]]:
        density: Tensor = self.path(features.vector())
        return [density] if features.energy is None else [density, features.energy]

    def shape_problem(self) -> str | None:
        """Check that the constants of the scores belong together."""
        if self.centres.shape != self.spreads.shape or self.spreads.ndim != 1 or self.spreads.numel() > 2:
            return "the distance needs one centre and one spread for each of at most two scores"
        if not bool((self.spreads > 0).all()) or not bool(torch.isfinite(self.centres).all()):
            return "the spreads of the scores must be positive, and their centres finite"
        return None


def check_calibration_size(n: int, rate: float) -> str | None:
    """Describe why no p-value can reach a false-alarm rate with n calibration inputs; None if some can."""
    if not 0 < rate < 1:
        raise InputError(f"a false-alarm rate must lie strictly between 0 and 1, not {rate!r}")
    if 1 / (n + 1) <= rate:
        return None
    needed = math.ceil(1 / rate - 1)
    return (
        f"no input can be flagged at a false-alarm rate of {rate:g}: with {n} calibration examples the smallest possible rate is "
        f"{1 / (n + 1):.3g}; {needed} examples are needed"
    )
