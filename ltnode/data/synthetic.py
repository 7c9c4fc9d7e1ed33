"""Small generated problems with known solutions that train in seconds."""

from __future__ import annotations

from dataclasses import replace

import torch

from ltnode.data.arrays import Task
from ltnode.data.dataset import Dataset, Split
from ltnode.errors import InputError
from ltnode.typing import Float, Tensor

_DTYPE = torch.float32  # independent of the default dtype


def gap_data(n: int = 1500, seed: int = 0) -> Dataset:
    """1-D regression with a gap: ``y = cos(4 x + 0.8) + 0.1 eps``, ``eps ~ N(0, 1)``.

    Half of the x are uniform on (-1, -0.7), the other half on (0.5, 1), so a good model is uncertain between -0.7 and 0.5 and
    outside of (-1, 1). Function and intervals are those of Foong et al. There is no standardisation. The test split is an
    independent draw of ``n // 5`` points (at least 2).

    Args:
        n: Number of training points, at least 2; if n is odd, the right interval gets one more.
        seed: Seed of the random draws.
    """
    generator = _generator(n, seed)
    return _dataset("gap", _gap(n, generator), _gap(_test_size(n), generator))


def _gap(n: int, generator: torch.Generator) -> Split:
    left = -1 + 0.3 * torch.rand(n // 2, generator=generator, dtype=_DTYPE)
    right = 0.5 + 0.5 * torch.rand(n - n // 2, generator=generator, dtype=_DTYPE)
    x = torch.cat([left, right])
    y = torch.cos(4 * x + 0.8) + 0.1 * torch.randn(n, generator=generator, dtype=_DTYPE)
    return Split(x[:, None], y)


def gap_grid() -> Float[Tensor, "800 1"]:
    """The inputs of the 1-D figures: -2 to 2 (exclusive) in steps of 0.005."""
    return (torch.arange(800, dtype=torch.float64) * 0.005 - 2).to(torch.float32)[:, None]


def concentric_annuli(n: int = 1000, seed: int = 0, dim: int = 2) -> Dataset:
    """Binary classification: a ball of radius 0.5 (class 0) inside an annulus of radii 1 to 1.5 (class 1).

    Points are uniform in volume, half of them in each class. A flow in the input space with a common end-time cannot make the
    classes linearly separable (Dupont et al., "Augmented Neural ODEs", 2019); input-dependent end-times can.

    Args:
        n: Number of training points, at least 2.
        seed: Seed of the random draws.
        dim: Dimension of the space, at least 1.
    """
    if dim < 1:
        raise InputError(f"dim must be at least 1, not {dim}")
    generator = _generator(n, seed)
    train, test = _annuli(n, dim, generator), _annuli(_test_size(n), dim, generator)
    return _dataset("concentric", train, test, ("inner ball", "annulus"))


def _annuli(n: int, dim: int, generator: torch.Generator) -> Split:
    inner = n // 2
    labels = (torch.arange(n) >= inner).to(torch.int64)
    low = torch.tensor([0.0, 1.0], dtype=_DTYPE)[labels] ** dim
    high = torch.tensor([0.5, 1.5], dtype=_DTYPE)[labels] ** dim
    # The volume within radius r is proportional to r^dim, so uniform in r^dim means uniform in volume.
    radius = (low + (high - low) * torch.rand(n, generator=generator, dtype=_DTYPE)) ** (1 / dim)
    direction = torch.randn(n, dim, generator=generator, dtype=_DTYPE)
    x = radius[:, None] * direction / direction.norm(dim=1, keepdim=True)
    order = torch.randperm(n, generator=generator)
    return Split(x[order], labels[order])


def reflection(n: int = 500, seed: int = 0) -> Dataset:
    """1-D regression ``y = -x`` on x uniform in (-1, 1), without noise.

    Trajectories of a 1-D ODE cannot cross, so no flow with a common end-time maps x to -x; a time-dependent field with
    input-dependent end-times can.
    """
    generator = _generator(n, seed)

    def draw(count: int) -> Split:
        x = 2 * torch.rand(count, 1, generator=generator, dtype=_DTYPE) - 1
        return Split(x, -x[:, 0])

    return _dataset("reflection", draw(n), draw(_test_size(n)))


def _generator(n: int, seed: int) -> torch.Generator:
    if n < 2:
        raise InputError(f"n must be at least 2 points, not {n}")
    return torch.Generator().manual_seed(seed)


def _test_size(n: int) -> int:
    return max(2, n // 5)


def _dataset(name: str, train: Split, test: Split, class_names: tuple[str, ...] | None = None) -> Dataset:
    task: Task = "classification" if class_names else "regression"
    data = Dataset.from_arrays(train.x, train.y, test.x, test.y, task, name=name, class_names=class_names, standardise=False)
    return replace(data, source="generated")
