"""Data that come in batches, and inputs that are read while they are used: the same numbers as from memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from photo_folder import write_photos
from torch.utils.data import DataLoader, TensorDataset

import ltnode
from ltnode.data import from_folder
from ltnode.data.loaders import from_batches
from ltnode.data.streaming import StreamedTensor, in_parts
from ltnode.errors import InputError
from ltnode.models import InputSpec

CONFIG = ltnode.TrainConfig(epochs=2, batch_size=16, validation_fraction=0.2, device="cpu")


def weights(run: ltnode.Run) -> dict[str, torch.Tensor]:
    """The trained weights; what is fitted after training has means of inputs, which are rounded differently."""
    return dict(run.model.named_parameters())


def assert_same(one: ltnode.Run, other: ltnode.Run) -> None:
    """Both runs have the same weights, bit for bit: the order of the examples is that of the configuration."""
    for name, value in weights(one).items():
        assert value.equal(weights(other)[name]), name


def test_loaders_and_iterables_train_as_arrays_do(generator: torch.Generator) -> None:
    x = torch.randn(50, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    spec = InputSpec((3,), "classification", 2)
    runs = []
    for data in (
        (x, y),
        DataLoader(TensorDataset(x, y), batch_size=7),
        iter([(x[:20], y[:20]), (x[20:].numpy(), y[20:].numpy())]),
    ):
        runs.append(ltnode.fit(ltnode.build("lt-node", spec, seed=0, width=4), data, CONFIG))
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "already used is empty"),
        ([torch.zeros(3, 2)], r"pair \(x, y\)"),
        ([(torch.zeros(3, 2), torch.zeros(2))], "and B targets"),
        ([(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(3, 4), torch.zeros(3))], "all inputs must have the shape"),
    ],
)
def test_wrong_batches_are_refused(batches: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_batches(iter(batches), "regression")


def test_images_that_are_read_while_training_give_the_same_weights(tmp_path: Path) -> None:
    """Order, batches and decoding are the same; the normalisation is fitted on all of these few images in both cases."""
    photos = write_photos(tmp_path / "photos", 24, size=12)
    runs = []
    for stream in (False, True):
        data = from_folder(photos, stream=stream)
        assert data.train.streamed is stream
        runs.append(ltnode.fit(ltnode.build("alt-node", data, seed=0, width=4), data, CONFIG))
    assert_same(*runs)


class Counted:
    """A source that counts how many inputs are read, and at most how many at once."""

    shape, dtype = (2,), torch.float32

    def __init__(self) -> None:
        self.total = self.largest = 0

    def __len__(self) -> int:
        return 1000

    def read(self, positions: list[int]) -> torch.Tensor:
        """Rows of twice the position."""
        self.total += len(positions)
        self.largest = max(self.largest, len(positions))
        return torch.tensor(positions, dtype=torch.float32)[:, None].expand(-1, 2) * 2


def test_rows_are_chosen_without_reading_and_read_in_parts() -> None:
    source = Counted()
    chosen = StreamedTensor(source)[torch.arange(999, 0, -3)][10:200]
    assert source.total == 0
    expected = 2 * np.arange(999, 0, -3)[10:200]
    parts = list(in_parts(chosen, 16))
    np.testing.assert_array_equal(torch.cat(parts)[:, 0].numpy(), expected)
    assert (source.total, source.largest) == (190, 16)
    assert not any(isinstance(part, StreamedTensor) for part in parts)
    np.testing.assert_allclose(chosen.mean(dim=0).numpy(), [expected.mean()] * 2)  # exact in float64, rounded once
    assert (chosen + 1)[0, 0] == expected[0] + 1


def test_reading_ahead_stops_with_the_reader() -> None:
    """At most two further parts are read while one is in use, and none after the loop has ended."""
    source = Counted()

    def first() -> Iterator[torch.Tensor]:
        yield from in_parts(StreamedTensor(source), 10)

    parts = first()
    next(parts)
    parts.close()
    assert source.total <= 40
