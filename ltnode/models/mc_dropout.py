"""Monte-Carlo dropout for neural ODEs: one mask per solve, constant in time.

Gal and Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016. New masks at every evaluation would make the field a
different function at every stage of a step, and no step size could control the error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ltnode.checks import checked_count
from ltnode.errors import InputError
from ltnode.models import images, vectors
from ltnode.models.contract import Draw, Inputs, Model, Steps, check_draw, check_steps, evaluating
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.prediction import Prediction
from ltnode.models.seeded import seeded_uniform
from ltnode.ode import Solution, odesolve, odesolve_on_prediction_grid
from ltnode.typing import Float, Tensor


class MaskedDropout(nn.Module):
    """Multiplies channels by masks that the model draws once per solve.

    ``mask`` belongs to the last training pass and is used in train mode only. ``member_mask`` takes precedence in both modes
    while it is set. Without a mask the layer does nothing.

    Args:
        width: Number of channels (axis 1).
        rate: Probability that a channel is dropped.
    """

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        if not isinstance(rate, int | float) or not 0.0 <= rate < 1.0:
            raise InputError(f"rate, the probability to drop a channel, must be a number >= 0 and < 1, not {rate!r}")
        self.width, self.rate = checked_count("width", width), float(rate)
        self.mask: Tensor | None = None
        self.member_mask: Tensor | None = None

    def masks_from(self, u: Float[Tensor, "M width"]) -> Float[Tensor, "M width"]:
        """Turn uniform numbers into masks of 0 and 1/(1 - rate), float32."""
        return (u >= self.rate).float() / (1.0 - self.rate)

    def forward(self, h: Tensor) -> Tensor:
        """Mask h (N, width, ...); with M masks, the i-th is applied to samples i, M + i, 2 M + i, ..."""
        mask = self.mask if self.member_mask is None and self.training else self.member_mask
        if mask is None:
            return h
        if h.shape[0] % mask.shape[0]:
            raise InputError(
                f"the number of samples must be a multiple of {mask.shape[0]}, for which the masks were drawn, not {h.shape[0]}; "
                "call the model, which draws new masks, or use eval mode, which has none"
            )
        mask = mask.to(h.dtype).reshape(*mask.shape, *[1] * (h.ndim - 2))
        return (h.unflatten(0, (-1, mask.shape[0])) * mask).flatten(0, 1)

    def extra_repr(self) -> str:
        """Show width and rate."""
        return f"width={self.width}, rate={self.rate:g}"


class DropoutConvField(nn.Module):
    """The paper's field for images, with dropout of feature maps before its second convolution."""

    def __init__(self, field: images.ConvField, rate: float) -> None:
        super().__init__()
        self.field = field
        self.dropout = MaskedDropout(field.norm2.num_channels, rate)

    def forward(self, t: Tensor, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Compute dh/dt at time t."""
        f = self.field
        h = f.conv1(t, functional.relu(f.norm1(h)))
        h = f.conv2(t, self.dropout(functional.relu(f.norm2(h))))
        return f.norm3(h)


def with_dropout(field: nn.Module, rate: float) -> nn.Module:
    """Return the field with a `MaskedDropout` after every hidden activation; a field that contains one is returned unchanged.

    Raises:
        InputError: The field is not one of ltnode's and contains no `MaskedDropout`.
    """
    if any(isinstance(module, MaskedDropout) for module in field.modules()):
        return field
    if isinstance(field, images.ConvField):
        return DropoutConvField(field, rate)
    if isinstance(field, vectors.TimeConcat) and isinstance(field.layers, nn.Sequential):
        field.layers = _drop_hidden(field.layers, rate)
        return field
    raise InputError(
        f"ltnode cannot place dropout layers in a {type(field).__name__}: add ltnode.models.mc_dropout.MaskedDropout layers to it"
    )


def _drop_hidden(layers: nn.Sequential, rate: float) -> nn.Sequential:
    """Insert dropout before every linear layer except the first, that is after every hidden activation."""
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
        """Solve for all members; returns the solution and the outputs.

        The members form an axis of the state (B, S, ...), so that any part of the batch can be solved separately.
        """
        h = super().initial_state(x)
        times = self.prediction_times(x, 1)
        o = self.solver

        def field(t: Tensor, y: Tensor) -> Tensor:
            # With steps per sample, t has one entry per input.
            per_state = t if t.ndim == 0 else t.repeat_interleave(samples)
            return self.field(per_state, y.flatten(0, 1)).unflatten(0, y.shape[:2])

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

    In train mode every pass draws one mask per sample from the global generator, for both its grid search and its replay. A
    prediction uses S masks, the same for every input, and solves for all S members as one state, so that the members of an input
    share their steps. Without masks this is the mean network. ``rate`` is the probability that a channel is dropped.
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
        """Compute the loss of the network under one mask per sample; the arguments are those of `LatentTimeODE.loss`."""
        loss = self.node.loss(x, y, n_data, times, phase)
        self.loss_parts, self.solve_stats = self.node.loss_parts, self.node.solve_stats
        return loss

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the prediction grid of the mean network, and the residual noise of a mean-square model."""
        self.node.finish_training(x, y)
        self.node.likelihood.fit_noise(lambda: self.predict(x).mean - y.reshape(-1).to(x.dtype))

    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Describe the observation noise of a regression model."""
        return {name: value for name, value in self.node.describe(x).items() if name == "noise_std"}

    def solver_state(self) -> dict[str, Any]:
        """Return the state of the training grid."""
        return self.node.solver_state()

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Restore the training grid."""
        self.node.load_solver_state(state)

    def predict(
        self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Compute the predictive distribution over S masks in one solve; see `LatentTimeODE.predict`.

        Both values of ``draw`` draw the masks from the seed, because masks have no quantiles.
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
        check_draw(draw)
        solution, outputs = self.node.solve_members(x, samples, seed, steps)
        times, noise = self.node.prediction_times(x, samples), self.node.likelihood.observation_noise()
        return Prediction(self.task, outputs, times, solution.stats, noise)
