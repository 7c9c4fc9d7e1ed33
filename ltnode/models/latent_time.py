"""The network behind NODE, Uni-NODE, LT-NODE and ALT-NODE, which differ only in the distribution of their end-time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from ltnode.checks import checked_count
from ltnode.counter_rng import CounterGenerator
from ltnode.endtime import EndTime, FixedTime
from ltnode.errors import InputError, LTNodeError
from ltnode.models import execution
from ltnode.models.contract import Draw, Inputs, Steps, Task, apply_part, check_draw, check_input, check_steps, evaluating
from ltnode.models.end_time_model import EndTimeModel, PosteriorTerms
from ltnode.models.familiar_model import Members
from ltnode.models.options import ObjectiveOptions, SolverOptions
from ltnode.models.path import N_TIMES, PathFeatures, n_path_times, path_features, path_times
from ltnode.models.path_model import PathModel
from ltnode.models.prediction import Prediction
from ltnode.models.quantiles import KeptQuantiles
from ltnode.objective import Categorical, Gaussian, Likelihood, LossParts, Weighting, negative_elbo, resolve_kl_weight
from ltnode.ode import Solution, Stats, TrainingGrid, fit_prediction_grid, odesolve, odesolve_on_prediction_grid
from ltnode.ode.prediction_grid import check_edges
from ltnode.typing import Float, Tensor

_CALIBRATION_SAMPLES = 512
TRAINING_GRID = "training_grid"
"""Name of the training grid in the state of a network, which has one once it was trained."""


class LatentTimeODE(EndTimeModel, PathModel):
    """``x -> stem -> h(0) -> ODE -> h(T_1..T_S) -> head -> S predictions``, with a distribution over T.

    Args:
        stem: Maps inputs to the initial state (B, ...).
        field: ``field(t, h) -> dh/dt``; t is 0-dim or (B,).
        head: Maps states (N, ...) to logits (N, C), or to what the likelihood needs, such as means (N, targets).
        end_time: Distribution of the end-time.
        task: "classification" or "regression".
        likelihood: p(y | output); by default categorical, or Gaussian with learnt noise.
        solver: Solver options.
        objective: Objective options.
        augment: Number of zero channels that are appended to the initial state (augmented neural ODE).

    Attributes:
        grid: The prediction grid, on which predictions are solved by default.
        training_grid: The grid that training steps replay.
        described_quantiles: Quantiles of the end-time for descriptions of predictions, kept while they stay the same.
    """

    grid: Tensor

    def __init__(
        self,
        stem: nn.Module,
        field: nn.Module,
        head: nn.Module,
        end_time: EndTime,
        task: Task = "classification",
        *,
        likelihood: Likelihood | None = None,
        solver: SolverOptions | None = None,
        objective: ObjectiveOptions | None = None,
        augment: int = 0,
    ) -> None:
        super().__init__(task)
        for name, part in (("stem", stem), ("field", field), ("head", head)):
            if not isinstance(part, nn.Module):
                raise InputError(f"{name} must be an nn.Module (wrap a function in one), not {type(part).__name__}")
        if not isinstance(end_time, EndTime):
            raise InputError(
                f"end_time must be an end-time distribution such as ltnode.GammaTime(), not {type(end_time).__name__}; "
                "use ltnode.FixedTime(t) for a number"
            )
        if likelihood is not None and not isinstance(likelihood, Likelihood):
            raise InputError(f"likelihood must be an ltnode.objective.Likelihood, not {type(likelihood).__name__}")
        if not isinstance(augment, int) or augment < 0:
            raise InputError(f"augment must be a number of channels >= 0, not {augment!r}")
        self.stem, self.field, self.head, self.end_time = stem, field, head, end_time
        self.likelihood = likelihood or (Categorical() if task == "classification" else Gaussian())
        self.solver = solver or SolverOptions()
        self.objective = objective or ObjectiveOptions()
        self.augment = augment
        self.training_grid = TrainingGrid(t_end=self._window_end)
        self._quantiles, self.described_quantiles = KeptQuantiles(), KeptQuantiles()
        steps = torch.linspace(0.0, self._window_end, 5, dtype=torch.float64)
        self.register_buffer("grid", steps)

    @property
    def _window_end(self) -> float:
        return float(self.end_time.window[1])

    # -- the pieces of a pass --------------------------------------------------------------------------------------------

    def initial_state(self, x: Tensor) -> Tensor:
        """Compute h(0), with the augmented channels."""
        h = apply_part("stem", self.stem, x)
        if self.augment:
            shape = (h.shape[0], self.augment, *h.shape[2:])
            h = torch.cat([h, h.new_zeros(shape)], dim=1)
        return h

    def outputs_at(self, states: Float[Tensor, "S B *state"]) -> Float[Tensor, "S B C"]:
        """Apply the head to all states in one call."""
        samples, batch = states.shape[:2]
        out = apply_part("head", self.head, states.reshape(samples * batch, *states.shape[2:]))
        width = self.likelihood.targets * self.likelihood.outputs_per_target
        if out.ndim != 2 or (self.task == "regression" and out.shape[1] != width):
            required = f"(N, {width})" if self.task == "regression" else "(N, classes)"
            raise InputError(f"the head must return {required} for N states, not {tuple(out.shape)}")
        return out.reshape(samples, batch, -1)

    def solve(self, h: Tensor, times: Tensor, steps: Steps | Literal["training"] = "training") -> Solution:
        """Solve for the states at the end-times: on the prediction grid ("stored"), with batch-wide steps, or as in training."""
        o, run = self.solver, execution.current()
        if steps == "stored":
            field = run.prediction_field(self.field, h)
            return odesolve_on_prediction_grid(field, h, times, self.grid, o.rtol, o.atol, o.method)
        grid = self._training_grid() if steps == "training" and self._within_window(times) else None
        return odesolve(
            self.field,
            h,
            times,
            o.rtol,
            o.atol,
            o.method,
            grid=grid,
            recompute=o.recompute,
            clip_last=o.clip_last,
            max_steps=o.max_steps,
            replayer=run.replayer(self.field, h, times, o) if isinstance(grid, TrainingGrid) else None,
        )

    def _training_grid(self) -> TrainingGrid | list[float] | None:
        o = self.solver
        if o.training == "fixed":
            return [self._window_end * m / o.fixed_steps for m in range(o.fixed_steps + 1)]
        if o.training == "adaptive":
            return None
        # A loss that is only evaluated must not change what the next training step does.
        return self.training_grid if self.training and torch.is_grad_enabled() else replace(self.training_grid)

    def _within_window(self, times: Tensor) -> bool:
        # End-times that the caller passes may lie beyond the window, which is all that the training grid covers.
        return float(times.detach().max()) <= self._window_end

    def forward(self, x: Tensor, times: Tensor, steps: Steps | Literal["training"] = "stored") -> Float[Tensor, "S B C"]:
        """Compute the outputs of the members at end-times (S,) or (S, B); differentiable."""
        return self.outputs_at(self.solve(self.initial_state(x), times, steps).states)

    # -- training --------------------------------------------------------------------------------------------------------

    @property
    def soft_targets(self) -> bool:
        """Whether the likelihood is that of labels, which can be averaged over class probabilities."""
        return isinstance(self.likelihood, Categorical)

    @property
    def n_targets(self) -> int:
        """Number of real values that a regression predicts."""
        return self.likelihood.targets

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """Compute the negative evidence lower bound per data point over sampled end-times; see `ltnode.objective`.

        Args:
            x: Inputs (B, ...).
            y: Integer labels (B,) or class probabilities (B, C); or real values (B,), (B, 1) or (B, targets).
            n_data: Number of training points; required for ``kl_weight="elbo"`` with one T for all inputs.
            times: End-times (S,) or (S, B); None draws them on the window.
            phase: Ignored; the model has one phase.
        """
        return self.weighted_loss(x, y, None, n_data, times)

    def weighted_loss(
        self,
        x: Tensor,
        y: Tensor,
        weights: Float[Tensor, " B"] | None,
        n_data: int | None = None,
        times: Tensor | None = None,
        phase: str = "main",
    ) -> Tensor:
        """Compute `loss` with weights of the examples; see `Model.weighted_loss`."""
        check_input(x)
        self.check_targets(x, y)
        n_data = None if n_data is None else checked_count("n_data", n_data)
        times = self._drawn_times(x) if times is None else self._checked_times(times, x)
        with self.training_grid.restored_on(LTNodeError):
            solution = self.solve(self.initial_state(x), times)
            outputs = self.outputs_at(solution.states)
            self.check_labels(y, outputs.shape[-1])
        self.solve_stats = solution.stats
        parts = self.compose_loss(outputs, y, times, self.posterior_terms(x, times), n_data, weights)
        self.loss_parts = parts.detached()
        return parts.loss

    def posterior_terms(self, x: Tensor, times: Tensor) -> PosteriorTerms:
        """Compute what the posterior of the inputs contributes to the loss."""
        if not self.end_time.learnable:
            return PosteriorTerms()
        distribution = self.end_time(x if self.end_time.amortized else None)
        return PosteriorTerms(distribution.log_prob(times.to(x.dtype)), distribution.kl())

    @property
    def solving_network(self) -> LatentTimeODE:
        """The model itself."""
        return self

    def compose_loss(
        self,
        outputs: Float[Tensor, "S B C"],
        y: Tensor,
        times: Tensor,
        posterior: PosteriorTerms,
        n_data: int | None,
        weights: Float[Tensor, " B"] | None = None,
    ) -> LossParts:
        """Compose the negative evidence lower bound; see `EndTimeModel.compose_loss`."""
        kl_weight = 0.0
        if posterior.kl is not None:
            kl_weight = resolve_kl_weight(self.objective.kl_weight, n_data, self.end_time.amortized)
        low, high = self.end_time.window
        weighting = Weighting.parse(self.objective.weighting)
        log_likelihood = self.likelihood.log_prob(outputs, y)
        terms = posterior.log_q, posterior.kl
        return negative_elbo(log_likelihood, times, *terms, weighting, kl_weight, high - low, weights)

    def _drawn_times(self, x: Tensor) -> Tensor:
        o, batch = self.objective, x.shape[0] if self.end_time.amortized else None
        return self.end_time.training_times(o.samples, batch=batch, scheme=o.scheme, device=x.device, dtype=x.dtype)

    def _checked_times(self, times: Tensor, x: Tensor) -> Tensor:
        """Check times that the caller passed; returns one column per input where each has its own T."""
        batch = x.shape[0]
        times = torch.as_tensor(times, device=x.device, dtype=None if isinstance(times, torch.Tensor) else x.dtype)
        if times.ndim not in (1, 2) or times.shape[0] == 0 or (times.ndim == 2 and times.shape[1] != batch):
            raise InputError(
                f"times must have shape (S,) or (S, {batch}) with S >= 1 for {batch} inputs, not {tuple(times.shape)}"
            )
        low, high = self.end_time.window
        if self.end_time.learnable and self.end_time.truncate and times.device.type == "cpu":
            inside = ((times >= low) & (times <= high)).any(dim=0)
            if not bool(inside.all()):
                raise InputError(
                    f"at least one time per input must lie in the window ({low:g}, {high:g}), outside of which the truncated "
                    f"posterior has no density, but the times range from {float(times.min()):g} to {float(times.max()):g}"
                )
        if self.end_time.amortized and times.ndim == 1:
            times = times[:, None].expand(-1, batch)
        return times

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """Return the weights, and the variational parameters (posterior or inference network)."""
        variational = list(self.end_time.variational_parameters())
        chosen = {id(p) for p in variational}
        return {"weights": [p for p in self.parameters() if id(p) not in chosen], "variational": variational}

    def training_times(
        self,
        batch: int,
        seed: int,
        step: int | range,
        indices: Tensor | None = None,
        *,
        keys: Tensor | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        """Return the end-times of a step, a function of (seed, step), and of the sample index where each input has its own T.

        Where all inputs share drawn end-times, a range of steps gives one row (S,) per step. ``keys`` are keys of a
        `CounterGenerator` that replace seed and step.
        """
        o, generator = self.objective, CounterGenerator(seed, step, indices, keys)
        return self.end_time.training_times(o.samples, batch=batch, scheme=o.scheme, generator=generator, device=device)

    def after_step(self) -> None:
        """Clamp the parameters of the posterior to their range."""
        self.end_time.constrain_()

    @torch.no_grad()
    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the prediction grid, and the residual noise of a mean-square model, on training inputs."""
        with evaluating(self):
            h = self.initial_state(x[:_CALIBRATION_SAMPLES])
            o = self.solver
            self.grid = fit_prediction_grid(self.field, h, self._window_end, o.rtol, o.atol, o.method).to(h.device)
        self.likelihood.fit_noise(lambda: self.predict(x).mean - y.reshape(-1).to(x.dtype))

    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Describe the learnt posterior, and the observation noise of a regression model (root mean square over its targets)."""
        facts = dict(self.end_time.describe(x) if self.end_time.amortized else self.end_time.describe())
        noise = self.likelihood.observation_noise()
        return facts if noise is None else {**facts, "noise_std": float(noise.square().mean().sqrt() if noise.ndim else noise)}

    # -- prediction ------------------------------------------------------------------------------------------------------

    def prediction_times(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the end-times of a prediction: (S,), or (S, B) where each input has its own.

        ``"quantile"`` takes the quantiles of the posterior at (s - 1/2)/S, which involves no randomness. ``"random"`` draws from
        the posterior, as in the paper; a seed gives the same times on every device.
        """
        samples = checked_count("samples", samples)
        check_draw(draw)
        if draw == "quantile":
            return self._quantiles(self.end_time, x, samples)
        distribution = self.end_time(x if self.end_time.amortized else None)
        return distribution.sample(samples, generator=torch.Generator().manual_seed(seed)).detach()

    def predict(
        self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Compute the predictive distribution from one solve, whatever the number of samples.

        Args:
            x: Inputs (B, ...), a tensor or a numpy array.
            samples: Number of end-times S.
            draw: ``"quantile"`` or ``"random"`` (as in the paper), see `prediction_times`.
            seed: Seed of the random draws.
            steps: ``"stored"``: the prediction grid, with the error checked per sample, so that predictions do not depend on the
                rest of the batch; ``"adaptive"``: batch-wide adaptive steps (as in the paper).
        """
        check_steps(steps)
        return super().predict(x, samples, draw, seed, steps)

    def members(self, x: Tensor, samples: int, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored") -> Members:
        """Compute the members at the end-times of a prediction and, if the familiarity is fitted, the distance of the path."""
        times = self.prediction_times(x, samples, draw, seed)
        solution = self.solve(self.initial_state(x), self.solved_times(times), steps)
        return self.members_at(solution.states, times, solution.stats)

    def solved_times(self, times: Float[Tensor, "S *batch"]) -> Float[Tensor, "n *batch"]:
        """Return the times at which `members_at` needs the states: those of the path if it is fitted, and the end-times."""
        # All members of a fixed end-time are equal.
        distinct = times[:1] if isinstance(self.end_time, FixedTime) else times
        return self.with_path_times(distinct) if self.has_familiarity else distinct

    def members_at(self, states: Float[Tensor, "n B *state"], times: Float[Tensor, "S *batch"], stats: Stats | None) -> Members:
        """Compute the members at the end-times from the states at the `solved_times`."""
        if not self.has_familiarity:
            outputs, noise = self.likelihood.moments(self.outputs_at(states))
            distance, fallback = None, None
        else:
            raw, features = self.split_path(states)
            outputs, noise = self.likelihood.moments(raw)
            distance, fallback = self.familiarity(features), self.fallback(features, noise)
        samples = times.shape[0]
        if noise is not None and noise.ndim == 3:
            noise = noise.expand(samples, -1, -1)
        return Members(outputs.expand(samples, -1, -1), times, stats, noise, distance, fallback)

    def with_path_times(self, times: Float[Tensor, "S *batch"]) -> Float[Tensor, "n *batch"]:
        """Put the fixed times of the path at which the distance needs it before end-times."""
        fixed = path_times(self._window_end, times.device, self.familiarity.density_only, times.dtype)
        return torch.cat([fixed if times.ndim == 1 else fixed[:, None].expand(-1, times.shape[1]), times])

    def split_path(self, states: Float[Tensor, "n B *state"]) -> tuple[Float[Tensor, "S B C"], PathFeatures]:
        """Return the outputs at the end-times, and the features of the path, from the states at `with_path_times`."""
        return self._split_at(states, n_path_times(self.familiarity.density_only))

    def _split_at(self, states: Float[Tensor, "n B *state"], fixed: int) -> tuple[Float[Tensor, "S B C"], PathFeatures]:
        outputs = self.outputs_at(states[fixed - 1 :])  # one call for the end-times and the last time of the path
        return outputs[1:], path_features(states[:fixed], outputs[0] if self.task == "classification" else None)

    def path(self, x: Tensor) -> PathFeatures:
        """Compute the features of the path of network inputs, in the current mode of the model."""
        h = self.initial_state(x)
        return self._split_at(self.solve(h, self.fixed_times(h.device), "stored").states, N_TIMES)[1]

    def fixed_times(self, device: torch.device) -> Float[Tensor, " K"]:
        """Return the fixed times of the path, from 0 to the end of the window, in float64."""
        return path_times(self._window_end, device)

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the log of the averaged class probabilities with a graph to x."""
        times = self.prediction_times(x, samples, draw, seed)
        return Prediction(self.task, self(x, times), times).log_probs

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.training_grid.edges is not None:
            destination[prefix + TRAINING_GRID] = self.training_grid.to_tensor()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (steps := state_dict.pop(prefix + TRAINING_GRID, None)) is not None:
            self.training_grid.load_tensor(steps)
        # The number of steps of the saved prediction grid depends on the training.
        saved = state_dict.get(f"{prefix}grid")
        if isinstance(saved, torch.Tensor):
            try:
                check_edges(saved)
            except InputError as error:
                raise InputError(f"{prefix}grid: {error}") from error
            self.grid = self.grid.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args)
