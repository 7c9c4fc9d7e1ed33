"""The networks of a model for an `InputSpec`: stem, field, head and inference network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from ltnode.errors import InputError
from ltnode.models import images, vectors
from ltnode.models.input_spec import InputSpec

Stem = Literal["paper", "deep"]
"""Down-sampling of images: that of the paper, which divides height and width by 4, or one that ends at 8 x 8 or less."""
_LARGEST_PAPER_STEM = 64
"""Larger side in pixels up to which users' images get the paper's stem; the solve of larger states is too slow."""


def default_stem(spec: InputSpec, preset: str) -> Stem:
    """Return the stem that images of this size have if none is chosen."""
    large = spec.is_image and max(spec.shape[1:]) > _LARGEST_PAPER_STEM
    return "deep" if large and preset == "default" else "paper"


@dataclass(frozen=True)
class Parts:
    """Networks of one model.

    Attributes:
        stem: Maps inputs to the initial state.
        field: ``field(t, h) -> dh/dt``.
        head: Maps states to logits or means; for a NODE-GP, to features.
        encoder: Inference network, where every input has its own end-time.
        diffusion: Diffusion network of an SDE-Net.
    """

    stem: nn.Module
    field: nn.Module
    head: nn.Module
    encoder: nn.Module | None = None
    diffusion: nn.Module | None = None

    def initialise(self, scheme: Callable[[nn.Module], nn.Module]) -> Parts:
        """Initialise stem, field, head and encoder, in this order."""
        for part in (self.stem, self.field, self.head, self.encoder):
            if part is not None:
                scheme(part)
        return self


def vector_parts(spec: InputSpec, width: int, amortized: bool, augment: int, outputs: int | None = None) -> Parts:
    """Return the networks for vectors; ``outputs`` is the width of the head, by default that of the specification."""
    # A linear lift leaves the non-linear work to the ODE: members at different end-times are then different functions
    # wherever no data ties them together.
    stem = nn.Linear(spec.shape[0], width)
    nn.init.normal_(stem.weight, std=2 / math.sqrt(spec.shape[0]))
    nn.init.uniform_(stem.bias, -2.0, 2.0)
    return Parts(
        stem=stem,
        field=vectors.TimeMLP(width + augment, (width, width)),
        head=nn.Linear(width + augment, outputs or spec.n_outputs),
        encoder=vectors.mlp([spec.shape[0], width, 2]) if amortized else None,
    )


def paper_vector_parts(spec: InputSpec, amortized: bool) -> Parts:
    """Return the networks of the paper's 1-D experiments."""
    if spec.shape != (1,) or spec.task != "regression":
        raise InputError("the paper's vector network is for 1-D regression; use preset='default' for other vectors")
    encoder = vectors.paper_encoder() if amortized else None
    return Parts(vectors.paper_stem(), vectors.paper_field(), nn.Linear(50, 1), encoder).initialise(vectors.init_paper_)


def image_parts(
    spec: InputSpec, width: int, amortized: bool, augment: int, outputs: int | None = None, stem: Stem = "paper"
) -> Parts:
    """Return the paper's networks for images, with its stem or with a deeper one for photos.

    ``outputs`` is the width of the head, by default that of the specification.
    """
    channels, rows, columns = spec.shape
    if min(rows, columns) < 8:
        raise InputError(f"images must be at least 8x8 for the down-sampling block, not {rows}x{columns}")

    def down_sampling() -> nn.Sequential:
        if stem == "deep":
            return images.deep_down_sampling(channels, width, max(rows, columns))
        return images.down_sampling(channels, width)

    return Parts(
        down_sampling(),
        images.ConvField(width + augment),
        images.classifier(outputs or spec.n_outputs, width + augment),
        images.encoder(channels, width, down_sampling()) if amortized else None,
    ).initialise(images.init_paper_)
