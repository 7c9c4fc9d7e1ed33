"""TrainConfig: typed, checked, saved and compared."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import warnings

import pytest
import torch

import ltnode
from ltnode.errors import ConfigError
from ltnode.models import MODELS
from ltnode.training import TrainConfig, train_preset
from ltnode.training.config import FREE_ON_RESUME, LATER_KEYS
from ltnode.training.config_values import RULES


def test_every_key_has_a_rule():
    assert set(RULES) == {entry.name for entry in dataclasses.fields(TrainConfig)}


def test_json_gives_the_same_configuration_back():
    config = TrainConfig(
        lr=0.1, milestones=(3, 5), role_lr={"diffusion": 0.5}, model_options={"objective": {"kl_weight": 0.2}, "width": 8}
    )
    assert TrainConfig.from_json(config.to_json()) == config


def test_overrides_are_read_in_the_type_of_their_key():
    config = TrainConfig().with_overrides(
        [
            "lr=1",
            "epochs=7",
            "nesterov=true",
            "optimizer=sgd",
            "batch_size=none",
            "milestones=[2, 4]",
            "device=cuda:1",
            "role_lr.diffusion=5e-3",
            "model_options.objective.kl_weight=0.2",
            "model_options.objective.weighting=density",
        ]
    )
    assert (config.lr, type(config.lr)) == (1.0, float)
    assert (config.epochs, config.nesterov, config.optimizer, config.batch_size) == (7, True, "sgd", None)
    assert config.milestones == (2, 4) and config.device == "cuda:1" and config.role_lr == {"diffusion": 5e-3}
    assert config.model_options == {"objective": {"kl_weight": 0.2, "weighting": "density"}}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("learning_rate=1", "unknown configuration key 'learning_rate'. Did you mean 'lr'"),
        ("epoch=3", "Did you mean 'epochs'"),
        ("weight_deacy=3", "Did you mean 'weight_decay'"),
        ("lr", "key=value"),
        ("lr.big=1", "single value"),
        ("lr=fast", "lr must be a finite number >= 0, not 'fast'"),
        ("epochs=2.5", "epochs must be an integer >= 1, not 2.5"),
        ("epochs=true", "an integer"),
        ("epochs=0", "an integer >= 1, not 0"),
        ("batch_size=0", "an integer >= 1"),
        ("optimizer=lbfgs", "'sgd', 'adam'"),
        ("milestones=[5,3]", "increasing"),
        ("milestones=[0]", "increasing"),
        ("milestones=4", "list of increasing epochs"),
        ("momentum=1.0", "a number >= 0 and < 1"),
        ("lr=-1", "lr must be a finite number >= 0, not -1"),
        ("lr=inf", "finite"),
        ("weight_decay=nan", "finite"),
        ("role_lr.diffusion=-1", "role_lr.diffusion must be a finite number >= 0"),
        ("role_lr.weights=1", "set lr instead"),
        ("role_lr.variational=-1", "role_lr.variational must be a finite number >= 0"),
        ("decay=0", "a number > 0"),
        ("validation_fraction=1", "< 1"),
        ("calibration_fraction=-0.1", "a number >= 0 and < 1"),
        ("averaging=1.0", "averaging must be a number > 0 and < 1, or none, not 1.0"),
        ("averaging=0", "or none"),
        ("split_seed=0.5", "an integer, or none"),
        ("distill_weight=0", "> 0 and <= 1"),
        ("precision=fp8", "'fp32', 'tf32', 'bf16'"),
        ("device=tpu", "'cuda:N'"),
        ("checkpoint_minutes=0", "> 0"),
        ("nesterov=true", "sgd"),
        ("keep_checkpoints=0", "an integer >= 1"),
    ],
)
def test_an_impossible_setting_is_refused_with_what_is_allowed(setting: str, words: str):
    with pytest.raises(ConfigError, match=words):
        TrainConfig().with_overrides([setting])


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("epoch", "epochs"),
        ("n_epochs", "epochs"),
        ("batchsize", "batch_size"),
        ("optimiser", "optimizer"),
        ("learning_rate", "lr"),
        ("random_state", "seed"),
    ],
)
def test_an_unknown_key_is_refused_everywhere_with_the_nearest_one(key: str, nearest: str):
    """The constructor, ``replace``, files and settings raise the same error."""
    words = f"unknown configuration key '{key}'. Did you mean '{nearest}'"
    for attempt in (
        lambda: TrainConfig(**{key: 3}),
        lambda: TrainConfig().replace(**{key: 3}),
        lambda: TrainConfig.from_json({key: 3}),
        lambda: TrainConfig().with_overrides([f"{key}=3"]),
    ):
        with pytest.raises(ConfigError, match=words):
            attempt()


def test_keys_of_earlier_versions_are_understood():
    """``variational_lr`` became an entry of ``role_lr``: code gets a warning, files do not, and None removes the entry."""
    expected = TrainConfig(role_lr={"variational": 0.1}, role_weight_decay={"variational": 0.2})
    with pytest.warns(DeprecationWarning, match="use role_lr"):
        assert TrainConfig(variational_lr=0.1, variational_weight_decay=0.2) == expected
    with pytest.warns(DeprecationWarning):
        assert TrainConfig().replace(variational_lr=0.1, variational_weight_decay=0.2) == expected
    with pytest.warns(DeprecationWarning):
        assert TrainConfig().with_overrides(["variational_lr=0.1", "variational_weight_decay=0.2"]) == expected
    with pytest.warns(DeprecationWarning):
        assert expected.replace(variational_lr=None, variational_weight_decay=0.0) == TrainConfig()
    with pytest.warns(DeprecationWarning):
        assert TrainConfig(variational_lr=None) == TrainConfig()
    assert expected.with_overrides(["role_lr.variational=none"]).role_lr == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old = {"variational_lr": 0.1, "variational_weight_decay": 0.2, "role_lr": {}, "role_weight_decay": {}}
        assert TrainConfig.from_json(old) == expected
        assert TrainConfig.from_json({"variational_lr": None, "variational_weight_decay": 0.0}) == TrainConfig()


@pytest.mark.no_typecheck
def test_values_are_checked_in_python_too():
    with pytest.raises(ConfigError, match="lr must be a finite number >= 0, not '0.1'"):
        TrainConfig(lr="0.1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="plain values"):
        TrainConfig(model_options={"parts": torch.nn.Linear(1, 1)})


def test_a_toml_file_starts_from_its_preset(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('model = "alt-node"\ndata = "cifar10"\npreset = "paper"\nseed = 4\n[model_options.objective]\nsamples = 2\n')
    config = TrainConfig.from_toml(path)
    paper = train_preset("alt-node", "cifar10", "paper")
    assert config == paper.replace(seed=4, model_options={"objective": {"samples": 2}})
    path.write_text("epochs = 3\n")
    assert TrainConfig.from_toml(path) == TrainConfig(epochs=3)


@pytest.mark.parametrize("content", ["epochs = ", "epoch = 3", "model = 'lt-nod'\ndata = 'mnist'"])
def test_a_bad_toml_file_is_a_configuration_error(tmp_path, content: str):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(ConfigError):
        TrainConfig.from_toml(path)
    with pytest.raises(ConfigError, match="cannot read"):
        TrainConfig.from_toml(tmp_path / "missing.toml")


def test_the_hash_sees_what_decides_the_result_and_nothing_else():
    config = TrainConfig()
    assert config.hash == TrainConfig(device="cpu", checkpoint_minutes=1.0, keep_checkpoints=5).hash
    assert config.hash != TrainConfig(seed=1).hash
    assert len(config.hash) == 16


def test_a_configuration_of_an_earlier_version_keeps_its_hash_and_can_be_resumed():
    """Version 0.1 had none of the later keys: their defaults describe its trainings, and its hash of the defaults is known."""
    old = {key: value for key, value in TrainConfig(seed=5).to_json().items() if key not in LATER_KEYS}
    read = TrainConfig.from_json(old)
    assert read == TrainConfig(seed=5) and not read.differences(TrainConfig(seed=5))
    decisive = {key: value for key, value in old.items() if key not in FREE_ON_RESUME}
    assert read.hash == hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
    for key, value in (("averaging", 0.99), ("calibration_fraction", 0.1), ("split_seed", 0), ("distill_weight", 0.5)):
        changed = read.replace(**{key: value})
        assert changed.hash != read.hash and read.differences(changed) == [f"{key}: {LATER_KEYS[key]!r} -> {value!r}"]


def test_held_out_parts_must_leave_something_and_have_their_own_seed():
    with pytest.raises(ConfigError, match="their sum must be < 1, not 1.1"):
        TrainConfig(validation_fraction=0.5, calibration_fraction=0.6)
    assert TrainConfig(seed=3).parts_seed == 3 and TrainConfig(seed=3, split_seed=0).parts_seed == 0


def test_milestones_and_cosine_are_functions_of_the_epoch():
    """The factors are 0.1 per passed milestone, and (1 + cos(pi e / n)) / 2."""
    steps = TrainConfig(epochs=10, milestones=(3, 6), decay=0.1)
    assert [steps.lr_factor(e) for e in (0, 2, 3, 5, 6, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    cosine = TrainConfig(epochs=10, schedule="cosine")
    assert [cosine.lr_factor(e) for e in range(10)] == pytest.approx([(1 + math.cos(math.pi * e / 10)) / 2 for e in range(10)])


def test_the_paper_presets_are_the_tables_of_the_paper():
    """Momentum 0.9 everywhere; weight decay 5e-4 for the baselines and 1e-4 for the others (the table's columns are swapped)."""
    for data, epochs, milestones in (("mnist", 90, (40, 70)), ("svhn", 90, (40, 70)), ("cifar10", 300, (150, 225))):
        for model, decay in (("node", 5e-4), ("uni-node", 5e-4), ("lt-node", 1e-4), ("alt-node", 1e-4)):
            config = train_preset(model, data, "paper")
            assert (config.epochs, config.milestones, config.batch_size) == (epochs, milestones, 256)
            assert (config.optimizer, config.lr, config.momentum, config.nesterov) == ("sgd", 0.1, 0.9, False)
            assert (config.weight_decay, config.role_options("variational")[0]) == (decay, 0.01)
    assert train_preset("lt-node", "mnist", "paper").role_options("variational") == (0.01, 0.0)
    assert train_preset("alt-node", "mnist", "paper").role_options("variational") == (0.01, 5e-4)
    line = train_preset("lt-node", "synthetic", "paper")
    assert (line.epochs, line.batch_size, line.milestones, line.lr) == (3000, None, (1000, 2000), 1e-3)
    assert line.weight_decay == 1e-4 and line.role_options("variational") == (1e-3, 0.0)
    for model, data in itertools.product(MODELS, ("mnist", "svhn", "cifar10", "synthetic")):
        config = train_preset(model, data, "paper").to_json()
        assert {key: config[key] for key in LATER_KEYS} == LATER_KEYS  # nothing averaged, nothing held out for calibration


@pytest.mark.parametrize(
    ("data", "epochs", "milestone"), [("mnist", 20, 13), ("fashion-mnist", 60, 40), ("svhn", 45, 30), ("cifar10", 300, 200)]
)
def test_the_default_recipe_averages_weights_and_holds_out_two_parts(data: str, epochs: int, milestone: int):
    """The same for all models but for the weight decay, which a search chose; comparisons keep the paper's values."""
    for model, weight_decay in {"node": 3e-4, "uni-node": 2e-4, "lt-node": 5e-4, "alt-node": 5e-4}.items():
        config = train_preset(model, data)
        assert (config.epochs, config.milestones, config.decay) == (epochs, (milestone,), 0.2)
        assert (config.optimizer, config.lr, config.momentum, config.weight_decay) == ("sgd", 0.1, 0.9, weight_decay)
        assert (config.averaging, config.validation_fraction, config.calibration_fraction) == (0.999, 0.02, 0.05)
        assert config.split_seed == 0
    for model in ("sde-net", "node-gp"):
        assert train_preset(model, data) == train_preset(model, data, "paper").replace(preset="default")
        assert train_preset(model, "synthetic").calibration_fraction == 0
    vectors = train_preset("lt-node", "synthetic")
    assert (vectors.averaging, vectors.validation_fraction, vectors.calibration_fraction) == (None, 0.1, 0.05)


def test_presets_know_their_names_and_reject_others():
    config = train_preset("node", ltnode.InputSpec((4,), "classification", 3))
    assert (config.model, config.preset, config.optimizer) == ("node", "default", "adam")
    with pytest.raises(ConfigError, match="Did you mean 'lt-node'"):
        train_preset("ltnode", "mnist")
    with pytest.raises(ConfigError, match="unknown preset"):
        train_preset("lt-node", "mnist", "papers")
