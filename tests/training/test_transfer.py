"""Fine-tuning: weights of another run, parts that are not trained, stems of one's own, and balanced classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from photo_folder import write_photos
from torch import nn

import ltnode
from ltnode.errors import ConfigError, InputError
from ltnode.models import InputSpec
from ltnode.training.batches import TrainingData
from ltnode.training.transfer import start_from

CONFIG = ltnode.TrainConfig(epochs=2, batch_size=16, lr=0.01, device="cpu")


def examples(n: int = 60, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors and labels, the same for every call."""
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(n) % classes


def model(classes: int, seed: int) -> ltnode.Model:
    """A small network."""
    return ltnode.build("lt-node", InputSpec((4,), "classification", classes), seed=seed, width=6)


def test_weights_are_copied_where_they_fit(tmp_path: Path) -> None:
    """Another number of classes needs another head, and only the head keeps its initial weights."""
    ltnode.fit(model(3, 0), examples(), CONFIG, tmp_path / "run")
    trained, fresh, started = ltnode.load(tmp_path / "run"), model(5, 1), model(5, 1)
    assert start_from(started, tmp_path / "run") == ["head"]
    for name, value in started.named_parameters():
        source = fresh if name.startswith("head") else trained
        assert value.equal(dict(source.named_parameters())[name]), name
    with pytest.raises(ConfigError, match="no weight of .* fits"):
        start_from(
            ltnode.build("lt-node", InputSpec((7,), "classification", 2), width=5, end_time=ltnode.FixedTime(1.0)), trained
        )


def test_frozen_parts_are_not_trained() -> None:
    """Weights and statistics of BatchNorm of the stem stay as they are, bit for bit, also with averaged weights; others move."""
    stem = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    network = ltnode.build("lt-node", InputSpec((4,), "classification", 3), seed=0, stem=stem)
    assert network.stem is stem
    before = {name: value.clone() for name, value in network.state_dict().items()}
    ltnode.fit(network, examples(), CONFIG.replace(frozen=("stem",), averaging=0.9))
    after = network.state_dict()
    assert all(after[name].equal(value) for name, value in before.items() if name.startswith("stem."))
    assert not any(after[name].equal(value) for name, value in before.items() if name.startswith("head."))
    with pytest.raises(ConfigError, match="unknown part to freeze 'stam'"):
        ltnode.fit(model(3, 0), examples(), CONFIG.replace(frozen=("stam",)))


def test_a_stem_must_give_states() -> None:
    spec = InputSpec((3, 16, 16), "classification", 2)
    own = ltnode.build("alt-node", spec, stem=nn.Conv2d(3, 12, 4, stride=4), seed=0)
    assert own.predict(torch.rand(2, 3, 16, 16)).probs.shape == (2, 2)
    assert own.spec is None
    with pytest.raises(InputError, match=r"to states \(B, channels, height, width\), not \(2, 768\)"):
        ltnode.build("lt-node", spec, stem=nn.Flatten())
    with pytest.raises(InputError, match="width must be that of the stem, 12"):
        ltnode.build("lt-node", spec, stem=nn.Conv2d(3, 12, 4, stride=4), width=8)


def test_balanced_classes_are_drawn_equally_often() -> None:
    """Of 1,000 draws with shares 1/2 each, the rare class has 500 with a standard deviation of 16: 400 is 6 of them away."""
    x, y = torch.randn(1000, 4), (torch.arange(1000) >= 950).long()
    network = model(2, 0)
    data = ltnode.data.Dataset.from_arrays(x, y, x, y)
    orders = []
    for weights in ("balanced", None):
        config = CONFIG.replace(class_weights=weights)
        orders.append(TrainingData.of(data, network, config, torch.device("cpu")).epoch_order(0))
    assert 400 < int(y[orders[0]].sum()) < 600
    assert int(y[orders[1]].sum()) == 50
    with pytest.raises(ConfigError, match="in batches of fewer than all 1000 examples"):
        ltnode.fit(network, data, CONFIG.replace(class_weights="balanced", batch_size=None))


def test_large_photos_have_a_deep_stem_that_is_recorded(tmp_path: Path) -> None:
    """The state is at most 8 x 8; a description without a stem is that of an earlier version, which had the paper's stem."""
    photos = write_photos(tmp_path / "photos", 2, size=80)
    network = ltnode.build("lt-node", ltnode.data.from_folder(photos), seed=0, width=8)
    assert tuple(network.stem(torch.zeros(1, 3, 80, 80)).shape) == (1, 8, 5, 5)
    assert tuple(
        ltnode.build("lt-node", InputSpec((3, 224, 160), "classification", 2)).stem(torch.zeros(1, 3, 224, 160)).shape[2:]
    ) == (7, 5)
    assert network.spec is not None
    again = ltnode.models.build_from_spec(network.spec)
    again.load_state_dict(network.state_dict())
    old = {**network.spec, "options": {"width": 8}}
    assert tuple(ltnode.models.build_from_spec(old).stem(torch.zeros(1, 3, 80, 80)).shape) == (1, 8, 19, 19)
