"""One training step of LT-NODE in JAX with diffrax: a peer that `benchmarks/training.py` starts as a separate process.

usage: python benchmarks/diffrax_peer.py [--data cifar10] [--repeats 10] [--json FILE]

The network, its parameters, the batch and the end-times are those of the torch ways: ``ltnode.build("lt-node", ...)``, and the
batch is one ODE state, so that the error norm is over all of it, as in torchdiffeq. Dopri5 at rtol = atol = 1e-2, forward,
backward and SGD in one jitted function, float32 with JAX's default matmul precision: on NVIDIA GPUs from Ampere on that is TF32
for convolutions and products.

Two things favour diffrax. The weights q(T_s) / S and the KL term are constants that torch computed: JAX has no derivative of
what normalises the truncated posterior, so its two parameters are not trained here. And a failed solve is not looked for within
the step (``throw=False``), only afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # read when jax is imported: the GPU is shared with torch

import diffrax
import jax
import jax.numpy as jnp
from jax import Array, lax

if TYPE_CHECKING:  # imported where it is used, after `why_not`: JAX must load its own CUDA libraries before torch loads others
    import torch

    import ltnode

ADJOINTS = {
    "recursive checkpoint": diffrax.RecursiveCheckpointAdjoint(),
    "direct": diffrax.DirectAdjoint(),
    "backsolve": diffrax.BacksolveAdjoint(max_steps=4096),  # backwards the bound costs nothing
}
LR, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 1e-4
CONTROLLER = diffrax.PIDController(rtol=1e-2, atol=1e-2)
MOST_STEPS = 16
"""The tolerance needs about 6. With a bound of 16 the direct adjoint computes no step twice; with the default, 4096, it does."""

Parameters = dict[str, Array]
"""Stem, field and head by their names in the torch model."""
State = tuple[Parameters, Parameters]
"""Parameters and their momenta."""


class Network(NamedTuple):
    """``stem(p, x)``, ``field(t, h, p)`` and ``head(p, h)``."""

    stem: Callable[[Parameters, Array], Array]
    field: Callable[[Array, Array, Parameters], Array]
    head: Callable[[Parameters, Array], Array]


class Problem(NamedTuple):
    """Images (B, C, H, W), labels (B,), ascending end-times (S,) with their weights (S,), and the KL term of the loss."""

    x: Array
    y: Array
    times: Array
    weights: Array
    kl_term: Array


def parameters_of(model: ltnode.LatentTimeODE) -> Parameters:
    """What JAX trains of the torch model: all but the posterior of the end-time."""
    named = model.named_parameters()
    return {name: jnp.array(p.detach().numpy()) for name, p in named if not name.startswith("end_time.")}


def problem_of(model: ltnode.LatentTimeODE, x: torch.Tensor, y: torch.Tensor, times: torch.Tensor, n_data: int) -> Problem:
    """The batch, and what the posterior of the torch model contributes to `LatentTimeODE.compose_loss`."""
    import torch

    from ltnode.objective import Weighting, resolve_kl_weight, time_weights

    with torch.no_grad():
        log_q, kl = model.posterior_terms(x, times)
        assert log_q is not None and kl is not None
        low, high = model.end_time.window
        weights = time_weights(log_q, Weighting.parse(model.objective.weighting), high - low)
        kl_term = resolve_kl_weight(model.objective.kl_weight, n_data, per_input=False) * kl
    floats = [jnp.asarray(v.to(x.dtype).numpy()) for v in (x, times, weights, kl_term)]
    return Problem(floats[0], jnp.asarray(y.int().numpy()), *floats[1:])


def conv(h: Array, weight: Array, stride: int = 1, padding: int = 0) -> Array:
    return lax.conv_general_dilated(h, weight, (stride, stride), [(padding, padding)] * 2)


def layer(p: Parameters, name: str, h: Array, stride: int = 1, padding: int = 0) -> Array:
    return conv(h, p[f"{name}.weight"], stride, padding) + p[f"{name}.bias"][:, None, None]


def group_norm(p: Parameters, name: str, h: Array) -> Array:
    """32 groups of channels."""
    groups = h.reshape(len(h), 32, -1)
    deviation = groups - groups.mean(axis=2, keepdims=True)
    variance = jnp.square(deviation).mean(axis=2, keepdims=True)
    normed = (deviation * lax.rsqrt(variance + 1e-5)).reshape(h.shape)
    return normed * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]


def stem(p: Parameters, x: Array) -> Array:
    h = jax.nn.relu(group_norm(p, "stem.1", layer(p, "stem.0", x)))
    h = jax.nn.relu(group_norm(p, "stem.4", layer(p, "stem.3", h, 2, 1)))
    return layer(p, "stem.6", h, 2, 1)


def time_conv(p: Parameters, name: str, t: Array, h: Array) -> Array:
    """Convolution of [t, h] without the plane of t, as in `ltnode.models.images.TimeConv2d`."""
    weight = p[f"{name}.weight"]
    time_map = conv(jnp.ones((1, 1, *h.shape[2:]), h.dtype), weight[:, :1], padding=1)
    return conv(h, weight[:, 1:], padding=1) + p[f"{name}.bias"][:, None, None] + t * time_map


def field(t: Array, h: Array, p: Parameters) -> Array:
    """dh/dt; the argument order is diffrax's."""
    h = time_conv(p, "field.conv1.conv", t, jax.nn.relu(group_norm(p, "field.norm1", h)))
    h = time_conv(p, "field.conv2.conv", t, jax.nn.relu(group_norm(p, "field.norm2", h)))
    return group_norm(p, "field.norm3", h)


def head(p: Parameters, h: Array) -> Array:
    features = jax.nn.relu(group_norm(p, "head.0", h)).mean(axis=(2, 3))
    return features @ p["head.4.weight"].T + p["head.4.bias"]


PAPER = Network(stem, field, head)


class Solved(NamedTuple):
    """The forward solve: accepted and tried steps, and whether it reached the last end-time."""

    accepted: Array
    tried: Array
    reached: Array


def loss_of(p: Parameters, problem: Problem, adjoint: Any, controller: Any, network: Network) -> tuple[Array, Solved]:
    """The negative evidence lower bound per data point: `LatentTimeODE.compose_loss` after one solve."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(network.field),
        diffrax.Dopri5(),
        t0=0.0,
        t1=problem.times[-1],
        dt0=None,
        y0=network.stem(p, problem.x),
        args={name: value for name, value in p.items() if name.startswith("field.")},
        saveat=diffrax.SaveAt(ts=problem.times),
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=MOST_STEPS,
        throw=False,
    )
    states = solution.ys
    logits = network.head(p, states.reshape(-1, *states.shape[2:])).reshape(*states.shape[:2], -1)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), problem.y[None, :, None], axis=2)[:, :, 0]
    loss = problem.kl_term - (problem.weights[:, None] * chosen).sum(axis=0).mean()
    stats, reached = solution.stats, solution.result == diffrax.RESULTS.successful
    return loss, Solved(stats["num_accepted_steps"], stats["num_steps"], reached)


def train_step(
    state: State, problem: Problem, adjoint: Any, controller: Any = CONTROLLER, network: Network = PAPER
) -> tuple[State, Array, Solved]:
    """Parameters and momenta after an update of torch's SGD, the loss before it, and the solve."""
    p, momenta = state
    (loss, solved), gradients = jax.value_and_grad(loss_of, has_aux=True)(p, problem, adjoint, controller, network)
    momenta = jax.tree.map(lambda m, g, w: MOMENTUM * m + g + WEIGHT_DECAY * w, momenta, gradients, p)
    return (jax.tree.map(lambda w, m: w - LR * m, p, momenta), momenta), loss, solved


def first_state(p: Parameters) -> State:
    """Copies of the parameters, as a step that reuses the memory of its state may not touch them, and momenta of zero."""
    return jax.tree.map(jnp.copy, p), jax.tree.map(jnp.zeros_like, p)


def time_adjoint(name: str, p: Parameters, problem: Problem, repeats: int, network: Network = PAPER) -> dict[str, Any]:
    """A row of the table; compiling is not timed.

    ``device_ms`` is the median wall time of a step that is waited for, ``loop_ms`` the mean of steps queued one after the
    other. Evaluations are those of the forward solve, as for torchdiffeq's direct way: the first stage of a step is the last of
    the step before. How many the backward solve of an adjoint needs, diffrax does not tell. The memory is what XLA planned.
    """
    state = first_state(p)
    step = partial(train_step, adjoint=ADJOINTS[name], network=network)
    compiled = jax.jit(step, donate_argnums=0).lower(state, problem).compile()
    state, _, solved = compiled(state, problem)
    samples = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        state, _, _ = jax.block_until_ready(compiled(state, problem))
        samples.append((time.perf_counter() - start) * 1e3)
    start = time.perf_counter()
    for _ in range(repeats):
        state, loss, last = compiled(state, problem)
    jax.block_until_ready(state)
    loop = (time.perf_counter() - start) / repeats * 1e3
    if not (solved.reached and last.reached and jnp.isfinite(loss)):
        raise RuntimeError(f"a solve failed within {MOST_STEPS} steps, or the loss {float(loss)} is not finite")
    memory = compiled.memory_analysis()
    planned = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "way": f"diffrax {name}",
        "device_ms": statistics.median(samples[2:]),
        "loop_ms": loop,
        "steps": int(solved.accepted),
        "evaluations": None if name == "backsolve" else 6 * int(solved.tried) + 1,
        "peak_gb": planned / 1e9,
        "versions": {"jax": jax.__version__, "diffrax": diffrax.__version__},
    }


def time_diffrax(data: str, repeats: int, keep: Callable[[list[dict[str, Any]]], None] | None = None) -> list[dict[str, Any]]:
    """A row for each adjoint; ``keep`` gets the rows so far after each."""
    from training import end_times, synthetic_batch

    import ltnode

    model = ltnode.build("lt-node", data, seed=0)
    assert isinstance(model, ltnode.LatentTimeODE)
    x, y = synthetic_batch(model.spec["input"], 256, "cpu")
    p, problem = parameters_of(model), problem_of(model, x, y, end_times(), 50_000)
    rows: list[dict[str, Any]] = []
    for name in ADJOINTS:
        rows.append(time_adjoint(name, p, problem, repeats))
        if keep is not None:
            keep(rows)
    return rows


def why_not() -> str | None:
    """Why there is nothing to measure; None where JAX has a GPU."""
    return None if jax.default_backend() == "gpu" else "jax sees no GPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10", choices=("cifar10", "mnist"))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    def keep(rows: list[dict[str, Any]]) -> None:
        print(rows[-1], flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")

    reason = why_not()
    if reason is not None:
        raise SystemExit(f"diffrax: {reason}, not measured")
    try:
        time_diffrax(options.data, options.repeats, keep)
    except Exception as error:  # one line for the table of `benchmarks/training.py`, whatever it is
        raise SystemExit(
            f"diffrax: not measured further, {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error


if __name__ == "__main__":
    main()
