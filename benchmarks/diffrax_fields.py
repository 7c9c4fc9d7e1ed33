"""The fields of `fields.py` in JAX, and their training step with diffrax: a peer that `own_fields.py` starts as a process.

usage: python benchmarks/diffrax_fields.py FIELD [--repeats 20]

Step, adjoints and what favours diffrax are those of `diffrax_peer.py`. Prints one JSON object per adjoint.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import diffrax_peer as peer
import jax
import jax.numpy as jnp
from diffrax_peer import Network, Parameters
from jax import Array

if TYPE_CHECKING:
    import ltnode


def linear(p: Parameters, name: str, h: Array) -> Array:
    return h @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def normed(h: Array, axes: tuple[int, ...]) -> Array:
    deviation = h - h.mean(axis=axes, keepdims=True)
    return deviation * jax.lax.rsqrt(jnp.square(deviation).mean(axis=axes, keepdims=True) + 1e-5)


def mlp(t: Array, h: Array, p: Parameters) -> Array:
    h = jnp.tanh(linear(p, "field.net.0", h))
    return linear(p, "field.net.4", jnp.tanh(linear(p, "field.net.2", h)))


def convolutions(t: Array, h: Array, p: Parameters) -> Array:
    for norm, conv in (("field.net.0", "field.net.2"), ("field.net.3", "field.net.5")):
        groups = normed(h.reshape(len(h), 8, -1), (2,)).reshape(h.shape)
        scaled = groups * p[f"{norm}.weight"][:, None, None] + p[f"{norm}.bias"][:, None, None]
        h = peer.layer(p, conv, jax.nn.silu(scaled), padding=1)
    return h


def attention(t: Array, h: Array, p: Parameters) -> Array:
    def norm(name: str) -> Array:
        return normed(h, (2,)) * p[f"field.{name}.weight"] + p[f"field.{name}.bias"]

    batch, tokens, width = h.shape
    parts = linear(p, "field.qkv", norm("norm1")).reshape(batch, tokens, 3, 4, width // 4)
    mixed = jax.nn.dot_product_attention(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]).reshape(h.shape)
    inner = jax.nn.gelu(linear(p, "field.mlp.0", norm("norm2")), approximate=False)
    return linear(p, "field.out", mixed) + linear(p, "field.mlp.2", inner)


FIELDS = {"MLP": mlp, "Convolutions": convolutions, "Attention": attention}


def network(name: str) -> Network:
    """The field between an identity and a linear classifier of the flattened state."""
    return Network(lambda p, x: x, FIELDS[name], lambda p, h: linear(p, "head.1", h.reshape(len(h), -1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("field", choices=FIELDS)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if (reason := peer.why_not()) is not None:
        raise SystemExit(f"diffrax: {reason}, not measured")
    import torch
    from own_fields import BATCH, EXAMPLES, STATES, subject_of
    from training import end_times

    model = subject_of(options.field).model({})
    assert not TYPE_CHECKING or isinstance(model, ltnode.LatentTimeODE)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *STATES[options.field], generator=generator)
    y = torch.randint(0, 10, (BATCH,), generator=generator)
    p, problem = peer.parameters_of(model), peer.problem_of(model, x, y, end_times(), EXAMPLES)
    for adjoint in peer.ADJOINTS:
        print(json.dumps(peer.time_adjoint(adjoint, p, problem, options.repeats, network(options.field))), flush=True)


if __name__ == "__main__":
    main()
