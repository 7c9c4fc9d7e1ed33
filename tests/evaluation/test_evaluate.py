"""`ltnode.evaluation.evaluate`: every row is compared with the metric computed directly on the model's predictions.

The tolerance is 1e-5 unless stated otherwise: evaluation averages members in float64, `predict` in float32.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics

import pytest
import torch
from tiny_problem import image_data, image_run, other_data

import ltnode
from ltnode import metrics
from ltnode.accelerate.joint_batches import predict_batches
from ltnode.data import gap_data
from ltnode.errors import InputError
from ltnode.evaluation import PROTOCOLS, ResultRow, default_protocols, evaluate, predict
from ltnode.evaluation.attacks import fgsm
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.shifts import corrupt, rotate
from ltnode.training import Run, TrainConfig, fit

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data() -> ltnode.data.Dataset:
    return image_data()


@pytest.fixture(scope="module")
def other() -> ltnode.data.Dataset:
    return other_data()


@pytest.fixture(scope="module")
def lt(data) -> Run:
    return image_run("lt-node", data)


@pytest.fixture(scope="module")
def alt(data) -> Run:
    return image_run("alt-node", data, epochs=2)


@pytest.fixture(scope="module")
def node(data) -> Run:
    return image_run("node", data, epochs=1)


def pick(rows: list[ResultRow], metric: str, **setting: object) -> ResultRow:
    """The only row of a metric in a setting (not the spread over draws)."""
    found = [r for r in rows if r.metric == metric and dict(r.setting) == setting]
    assert len(found) == 1, f"{len(found)} rows of {metric} in {setting}"
    return found[0]


def content(rows: list[ResultRow]) -> list[dict]:
    """Everything that must be identical in every run: all fields but the cost, which contains times."""
    return [{k: v for k, v in row.to_json().items() if k != "cost"} for row in rows]


def probabilities(run: Run, data: ltnode.data.Dataset, raw: torch.Tensor) -> torch.Tensor:
    return run.model.predict(data.prepare(raw)).probs


def test_clean_rows_are_the_metrics_of_the_predictions(lt, data):
    rows = evaluate(lt, data, ["clean"], batch_size=32)
    probs, y = probabilities(lt, data, data.test.x), data.test.y
    for name in ("error", "log_likelihood", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc"):
        row = pick(rows, name)
        assert row.number == pytest.approx(getattr(metrics, name)(probs, y), abs=TOLERANCE)
        assert (row.model, row.data, row.preset, row.seed, row.n) == ("lt-node", "patterns", "default", 0, len(data.test))
        assert row.cost.evaluations > 0 and row.cost.seconds_per_1000 > 0
    assert pick(rows, "mean_entropy").number == pytest.approx(metrics.entropy(probs).mean().item(), abs=TOLERANCE)
    split = sum(pick(rows, name).number for name in ("mean_aleatoric", "mean_epistemic"))
    assert split == pytest.approx(pick(rows, "mean_entropy").number, abs=1e-12)
    counts = pick(rows, "reliability_count")
    assert sum(counts.curve) == len(data.test)
    assert counts.extra["x"] == pytest.approx([k / 10 for k in range(10)])


def test_the_learnt_posterior_and_the_size_are_part_of_the_results(lt, data):
    rows = evaluate(lt, data, ["clean"], draws=0)
    assert pick(rows, "parameters").number == sum(p.numel() for p in lt.model.parameters())
    for name in ("alpha", "beta"):
        assert pick(rows, f"learnt.{name}").number == pytest.approx(getattr(lt.model.end_time, name).item())


def test_rotation_rotates_raw_images_and_then_normalises(lt, data):
    rows = evaluate(lt, data, ["rotation"], angles=(0, 45), batch_size=64)
    for angle in (0, 45):
        probs = probabilities(lt, data, rotate(data.test.x, angle))
        assert pick(rows, "error", angle=angle).number == metrics.error(probs, data.test.y)
        assert pick(rows, "brier", angle=angle).number == pytest.approx(metrics.brier(probs, data.test.y), abs=TOLERANCE)
    counts = pick(rows, "confidence_count", angle=45).curve
    assert counts[0] == len(data.test) and list(counts) == sorted(counts, reverse=True)


def test_corruption_covers_every_kind_and_severity(node, data):
    rows = evaluate(node, data, ["corruption"], corruptions=("contrast", "jpeg"), severities=(1, 5))
    assert len(rows) == 2 * 2 * 4
    probs = probabilities(node, data, corrupt(data.test.x, "contrast", 5))
    assert pick(rows, "error", corruption="contrast", severity=5).number == metrics.error(probs, data.test.y)


def test_ood_uses_the_constants_of_the_training_data(lt, data, other):
    """The other set has different constants; both parts must be normalised with those of the training set."""
    assert other.normalise != data.normalise
    rows = evaluate(lt, data, ["ood"], ood=other, draws=0)
    inside, outside = (probabilities(lt, data, split.x) for split in (data.test, other.test))
    where = {"ood": "others"}
    for name in ("auroc", "aupr_in", "aupr_out", "fpr95", "detection_accuracy"):
        row = pick(rows, name, **where, score="max_probability")
        assert row.number == pytest.approx(getattr(metrics, name)(inside.amax(1), outside.amax(1)), abs=1e-3)
        assert row.n == len(data.test) + len(other.test)
    expected = metrics.auroc(-metrics.entropy(inside), -metrics.entropy(outside))
    assert pick(rows, "auroc", **where, score="entropy").number == pytest.approx(expected, abs=1e-3)
    mean = pick(rows, "mean_entropy", **where, part="out")
    assert mean.number == pytest.approx(metrics.entropy(outside).mean().item(), abs=TOLERANCE)
    assert sum(pick(rows, "entropy_histogram", **where, part="out").curve) == len(other.test)
    rejection = pick(rows, "rejection_accuracy", **where)
    curve = metrics.rejection_curve(inside, data.test.y, outside)
    assert rejection.curve == pytest.approx(tuple(curve.accuracy.tolist()), abs=1e-2)


def test_a_deterministic_model_has_no_mutual_information_and_no_spread(node, data, other):
    """All of its members are identical: a score that is pure rounding noise must not be reported."""
    rows = evaluate(node, data, ["clean", "ood"], ood=other)
    assert not [r for r in rows if r.setting.get("score") == "mutual_information" or "statistic" in r.setting]
    assert pick(rows, "mean_epistemic").number == pytest.approx(0.0, abs=1e-12)


def test_the_spread_over_draws_is_that_of_separate_evaluations(lt, data):
    """Reference: separate evaluations with random draws from consecutive seeds; sums in float64, hence 1e-12."""
    rows = evaluate(lt, data, ["clean"], draws=3, draw_seed=7)
    spread = next(r for r in rows if r.metric == "log_likelihood" and "statistic" in r.setting)
    alone = [
        pick(evaluate(lt, data, ["clean"], draws=0, draw="random", draw_seed=seed), "log_likelihood").number for seed in (7, 8, 9)
    ]
    assert spread.extra["values"] == pytest.approx(alone, abs=1e-12)
    assert spread.number == pytest.approx(statistics.pstdev(alone), abs=1e-12)
    assert len(set(alone)) == 3


def test_one_set_of_random_times_serves_every_batch_of_lt_node(lt, data):
    """The numbers do not depend on the batch size: neither do the end-times, nor the steps of the stored grid."""
    small, large = (
        content(evaluate(lt, data, ["clean"], draw="random", draw_seed=3, draws=0, batch_size=size)) for size in (7, 60)
    )
    for one, two in zip(small, large, strict=True):
        assert one["draw_seed"] == two["draw_seed"] == 3
        assert one["value"] == pytest.approx(two["value"], abs=TOLERANCE, nan_ok=True)


def test_fgsm_is_the_attack_on_the_averaged_prediction_in_both_units(lt, data):
    """Reference: `fgsm` on the whole test set with the model's log-probabilities; quantile draws make everything exact."""
    epsilons = (0.0, 0.3)
    rows = evaluate(lt, data, ["clean", "fgsm"], epsilons=epsilons, draws=0, batch_size=60)
    x, y = data.prepare(data.test.x), data.test.y
    mean, std = data.normalise.mean[0], data.normalise.std[0]
    low, high = (0 - mean) / std, (1 - mean) / std
    clean = pick(rows, "error").number
    for units, strength in (("normalised", 0.3), ("pixel", 0.3 / std)):
        attack = fgsm(lt.model.log_probs, x, y, strength, low, high)
        expected = metrics.error(lt.model.predict(attack.x).probs, y)
        assert pick(rows, "error", units=units, epsilon=0.3).number == pytest.approx(expected, abs=1 / len(y))
        assert pick(rows, "error", units=units, epsilon=0.0).number == clean
        assert expected > clean
    assert pick(rows, "zero_gradient_share").number == attack.zero_gradient_share


def test_the_fgsm_attack_has_one_set_of_times_and_its_evaluation_new_ones(lt, data, monkeypatch):
    """The attacker knows the posterior, but not its next draws (as in the paper's code)."""
    seeds: dict[bool, list[int]] = {True: [], False: []}
    original = type(lt.model).prediction_times

    def recording(self, x, samples=10, draw="quantile", seed=0):
        seeds[torch.is_grad_enabled()].append(seed)
        return original(self, x, samples, draw, seed)

    monkeypatch.setattr(type(lt.model), "prediction_times", recording)
    evaluate(lt, data, ["fgsm"], epsilons=(0.1,), draw="random", draw_seed=5, batch_size=20)
    assert seeds[True] == [5, 5, 5]
    assert len(set(seeds[False])) == 3 and 5 not in seeds[False]


def test_what_several_protocols_need_is_predicted_once(lt, data, other, monkeypatch):
    """The unchanged test set is predicted once, and once per draw of the spread; images at epsilon 0 once for both units.

    Reference: the rows of each protocol alone.
    """
    sets: list[torch.Tensor] = []
    attacked: list[None] = []
    original, original_inputs = predict.Predictor.classify, predict.Predictor.classify_inputs

    def counting(self, raw, *args, **kwargs):
        sets.append(raw)
        return original(self, raw, *args, **kwargs)

    def counting_inputs(self, batches, *args, **kwargs):
        attacked.append(None)
        return original_inputs(self, batches, *args, **kwargs)

    protocols = ["clean", "rotation", "ood", "fgsm", "temperature", "conformal"]
    options = {"ood": other, "draws": 2, "angles": (0, 45), "epsilons": (0.0, 0.1)}
    with monkeypatch.context() as patch:
        patch.setattr(predict.Predictor, "classify", counting)
        patch.setattr(predict.Predictor, "classify_inputs", counting_inputs)
        together = content(evaluate(lt, data, protocols, **options))
    assert sum(torch.equal(raw, data.test.x) for raw in sets if raw.shape == data.test.x.shape) == 1 + 2
    assert len(attacked) - len(sets) == 2 * 2 - 1
    assert together == [row for name in protocols for row in content(evaluate(lt, data, [name], **options))]


@pytest.mark.parametrize(
    ("model", "options", "sizes"),
    [
        ("lt", {}, {"clean": {60}, "fgsm": {60}}),
        ("lt", {"draw": "random"}, {"clean": {60}, "fgsm": {16, 12}}),
        ("alt", {}, {"clean": {60}, "fgsm": {60}}),
        ("alt", {"draw": "random"}, {"clean": {16, 12}, "fgsm": {16, 12}}),
        ("lt", {"steps": "adaptive"}, {"clean": {16, 12}, "fgsm": {16, 12}}),
        ("lt", {"batch_size": 20}, {"clean": {20}, "fgsm": {20}}),
    ],
)
def test_batches_are_larger_only_where_no_number_depends_on_them(model, options, sizes, data, request, monkeypatch):
    """On a device with room for 1,000 examples, batches of all 60 images replace batches of 16 if the user chose no size, except
    if random end-times are drawn per batch or steps depend on the batch. The numbers equal those of the usual size."""
    run = request.getfixturevalue(model)
    usual = ltnode.evaluation.EvaluationOptions.resolved

    def resolved(self, preset):
        return dataclasses.replace(usual(self, preset), batch_size=self.batch_size or 16)

    monkeypatch.setattr(ltnode.evaluation.EvaluationOptions, "resolved", resolved)
    settings = {"draws": 0, "epsilons": (0.1,), **options}
    plain = {name: content(evaluate(run, data, [name], **settings)) for name in sizes}
    monkeypatch.setattr(predict, "_fitting_examples", lambda predict, examples, device: 1000)
    seen: set[int] = set()
    original = type(run.model).predict

    def recording(self, x, *args, **kwargs):
        seen.add(len(x))
        return original(self, x, *args, **kwargs)

    monkeypatch.setattr(type(run.model), "predict", recording)
    for name, expected in sizes.items():
        seen.clear()
        rows = content(evaluate(run, data, [name], **settings))
        assert seen == expected
        for one, two in zip(rows, plain[name], strict=True):
            assert one["value"] == pytest.approx(two["value"], abs=TOLERANCE, nan_ok=True)


@pytest.mark.parametrize("name", ["lt", "alt", "node"])
def test_jointly_solved_batches_have_the_predictions_that_they_have_alone(name, data, request, monkeypatch):
    """Four batches of 16 images jointly on a device with room for 70, then the remaining 12; every batch has its own draws.

    Reference: batch by batch; float32 sums in another order, and ReLUs amplify the difference.
    """
    calls: list[int] = []

    def recording(model, batches, *args):
        calls.append(len(batches))
        return predict_batches(model, batches, *args)

    model = copy.deepcopy(request.getfixturevalue(name).model)
    options = EvaluationOptions(steps="adaptive", draw="random", batch_size=16).resolved("paper")
    alone = predict.Predictor(model, data.prepare, options)
    together = predict.Predictor(model, data.prepare, options)
    monkeypatch.setattr(predict, "_fitting_examples", lambda *_: 70)
    monkeypatch.setattr(predict, "predict_batches", recording)
    together._solves_jointly = True
    raw = data.test.x.repeat(2, 1, 1, 1)[:92]
    got, expected = (predictor.classify(raw, 3, fresh=True) for predictor in (together, alone))
    assert calls == [4] and len(got) == len(expected) == 92
    assert torch.allclose(got.log_probs, expected.log_probs, atol=1e-3)
    assert got.cost.evaluations == expected.cost.evaluations


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lt", "alt", "node"])
def test_jointly_solved_batches_on_cuda_have_the_predictions_that_they_have_alone(name, data, request):
    """As above, with as many joint batches as the GPU has room for; rounding depends on the batch size."""
    model = copy.deepcopy(request.getfixturevalue(name).model).cuda()
    options = EvaluationOptions(steps="adaptive", draw="random", batch_size=16).resolved("paper")
    together, alone = (predict.Predictor(model, data.prepare, options) for _ in range(2))
    alone._solves_jointly = False
    got, expected = (predictor.classify(data.test.x, 3) for predictor in (together, alone))
    assert together._solves_jointly and (together._joint_batches or 0) > 1
    assert torch.allclose(got.log_probs, expected.log_probs, atol=2e-3)
    assert got.cost.evaluations == expected.cost.evaluations


@pytest.mark.gpu
def test_larger_batches_on_cuda_give_the_same_numbers(lt, data, monkeypatch):
    """All 600 images at once compared with batches of 100; 1e-3, since other sizes may use other kernels."""
    model, seen = copy.deepcopy(lt.model).to("cuda"), []
    original = type(model).predict
    monkeypatch.setattr(
        type(model), "predict", lambda self, x, *args, **steps: seen.append(len(x)) or original(self, x, *args, **steps)
    )
    x, y = data.test.x.repeat(10, 1, 1, 1), data.test.y.repeat(10)
    many = ltnode.data.Dataset.from_arrays(data.train.x, data.train.y, x, y, name="many", n_classes=3)
    protocols, options = ["clean", "fgsm"], {"draws": 0, "epsilons": (0.0, 0.1)}
    rows = content(evaluate(model, many, protocols, **options))
    assert max(seen) == 600
    usual = content(evaluate(model, many, protocols, batch_size=100, **options))
    for one, two in zip(rows, usual, strict=True):
        if not isinstance(one["value"], list):
            assert one["value"] == pytest.approx(two["value"], abs=1e-3, nan_ok=True), one["metric"]


def test_pgd_is_at_least_as_strong_as_no_attack_and_reports_its_gradients(alt, data):
    rows = evaluate(alt, data, ["clean", "pgd"], pgd_epsilons=(0.4,), pgd_steps=3, pgd_restarts=2, draw="random", draws=0)
    setting = {"units": "normalised", "epsilon": 0.4, "steps": 3, "restarts": 2}
    attacked = pick(rows, "log_likelihood", **setting).number
    assert attacked < pick(rows, "log_likelihood").number - 0.05
    assert 0 <= pick(rows, "zero_gradient_share", **setting).number < 0.5


@pytest.mark.parametrize("model", ["lt", "alt"])
@pytest.mark.parametrize("draw", ["quantile", "random"])
def test_the_same_numbers_every_time(model, draw, data, other, request):
    """Results do not depend on the global random state, which is left unchanged, as is the model's mode."""
    run = request.getfixturevalue(model)
    run.model.train()
    options = {
        "ood": other, "draw": draw, "draws": 2, "angles": (0, 45), "epsilons": (0.1,), "pgd_epsilons": (0.1,), "pgd_steps": 2
    }  # fmt: skip
    protocols = ["clean", "rotation", "ood", "fgsm", "pgd", "temperature", "conformal"]
    first = content(evaluate(run, data, protocols, **options))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert content(evaluate(run, data, protocols, **options)) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in run.model.modules())
    run.model.eval()


def test_adaptive_steps_and_random_draws_are_the_papers_defaults(data):
    """A model of the paper's preset uses random draws; its adaptive steps give other numbers for other batch sizes."""
    run = image_run("lt-node", data, preset="paper", epochs=1)
    rows, again = (evaluate(run, data, ["clean"], draws=0, batch_size=size) for size in (60, 7))
    assert pick(rows, "error").draw_seed == 0
    assert pick(rows, "log_likelihood").number != pick(again, "log_likelihood").number
    stored = [evaluate(run, data, ["clean"], draws=0, batch_size=size, steps="stored") for size in (60, 7)]
    values = [pick(part, "log_likelihood").number for part in stored]
    assert values[0] == pytest.approx(values[1], abs=TOLERANCE)


def test_calibration_uses_the_validation_split_of_the_training(data):
    """Reference: temperature and threshold fitted by hand on the examples that training held out."""
    run = image_run("lt-node", data, epochs=1, validation_fraction=0.25)
    held = data.with_validation(0.25, seed=0)[1]
    rows = evaluate(run, data, ["temperature", "conformal"], alphas=(0.2,))
    fitted = pick(rows, "temperature")
    expected = metrics.fit_temperature(run.model.predict(data.prepare(held.x)).log_probs, held.y)
    assert fitted.extra == {"held_out": "validation split", "n_held_out": len(held)}
    assert fitted.number == pytest.approx(expected, rel=1e-3)
    before, after = (pick(rows, "error", scaling=scaling).number for scaling in ("none", "temperature"))
    assert before == after
    threshold = metrics.conformal_threshold(probabilities(run, data, held.x), held.y, 0.2)
    sets = metrics.prediction_sets(probabilities(run, data, data.test.x), threshold)
    assert pick(rows, "mean_set_size", alpha=0.2).number == pytest.approx(sets.sum(1).double().mean().item(), abs=2 / 60)


def test_without_a_validation_split_half_of_the_test_set_calibrates(node, data):
    rows = evaluate(node, data, ["temperature", "conformal"])
    assert {row.extra["held_out"] for row in rows} == {"half of the test set"}
    assert pick(rows, "error", scaling="none").n == len(data.test) // 2


@pytest.fixture(scope="module")
def regressor() -> Run:
    data = gap_data(n=60)
    model = ltnode.build("lt-node", data, seed=0, width=8)
    return fit(model, data, TrainConfig(model="lt-node", data="synthetic", preset="default", epochs=40, batch_size=None, lr=0.02))


def test_regression_rows_are_the_metrics_of_the_predictions(regressor):
    data = gap_data(n=60)
    rows = evaluate(regressor, data, draws=2)
    p, y = regressor.model.predict(data.test.x), data.test.y
    assert {row.protocol for row in rows} == {"regression"}
    assert pick(rows, "rmse").number == pytest.approx(metrics.rmse(p.mean, y), abs=TOLERANCE)
    assert pick(rows, "nll").number == pytest.approx(metrics.gaussian_nll(p.mean, p.total_std, y), abs=1e-4)
    assert pick(rows, "crps").number == pytest.approx(metrics.crps_gaussian(p.mean, p.total_std, y), abs=TOLERANCE)
    assert pick(rows, "coverage", level=0.95).number == metrics.interval_coverage(p.mean, p.total_std, y, 0.95)
    grid = torch.arange(-0.495, 0.4951, 0.005)[:, None]
    q = regressor.model.predict(grid)
    entropy = pick(rows, "entropy", interval=[-0.5, 0.5], noise=False)
    assert entropy.n == 199
    assert entropy.number == pytest.approx(metrics.gaussian_entropy(q.std.square()), abs=1e-3)
    assert pick(rows, "entropy", interval=[-0.5, 0.5], noise=True).number > entropy.number


def test_the_papers_protocols_that_fit_are_the_default(data, other):
    assert default_protocols(data) == ("clean", "rotation", "fgsm")
    assert default_protocols(data, other) == ("clean", "rotation", "ood", "fgsm")
    assert default_protocols(ltnode.data.concentric_annuli(n=10)) == ("clean",)
    assert default_protocols(gap_data(n=10)) == ("regression",)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("protocols", "options", "message"),
    [
        (["cleen"], {}, "Did you mean 'clean'"),
        (["ood"], {}, "pass ood"),
        (["regression"], {}, "is a classification problem"),
        (["clean"], {"sample": 3}, "Did you mean 'samples'"),
        (["clean"], {"samples": 0}, "at least 1"),
        (["clean"], {"draw": "randon"}, "Did you mean 'random'"),
        (["rotation"], {"angles": (0, 90)}, "must be one of the angles"),
        (["corruption"], {"corruptions": ("jpg",)}, "Did you mean 'jpeg'"),
    ],
)
def test_a_wrong_request_is_refused_before_any_work(protocols, options, message, node, data, monkeypatch):
    monkeypatch.setattr(type(node.model), "predict", lambda *a, **k: pytest.fail("it began to predict"))
    with pytest.raises(InputError, match=message):
        evaluate(node, data, protocols, **options)


def test_another_set_of_other_shape_is_refused(node, data):
    x = torch.zeros(4, 3, 10, 10, dtype=torch.uint8)
    colour = ltnode.data.Dataset.from_arrays(x, torch.zeros(4, dtype=torch.int64), x, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InputError, match="inputs of shape"):
        evaluate(node, data, ["ood"], ood=colour)


def test_protocols_for_images_refuse_vectors():
    data = ltnode.data.concentric_annuli(n=20)
    with pytest.raises(InputError, match="needs images"):
        evaluate(ltnode.build("node", data, width=4), data, ["rotation"])


@pytest.mark.no_typecheck
def test_a_data_set_from_numpy_arrays_is_evaluated_and_bare_arrays_are_refused(rng):
    """Reference: the same data as tensors, bit for bit."""
    x, y = rng.normal(size=(40, 2)), rng.integers(0, 2, 40)
    arrays, tensors = (
        ltnode.data.Dataset.from_arrays(*parts, *parts) for parts in ((x, y), (torch.from_numpy(x), torch.from_numpy(y)))
    )
    model = ltnode.build("lt-node", arrays, width=4, seed=0)
    assert content(evaluate(model, arrays, ["clean"], draws=0)) == content(evaluate(model, tensors, ["clean"], draws=0))
    with pytest.raises(InputError, match="must be a Dataset or the name of a data set, not ndarray"):
        evaluate(model, x, ["clean"])


def test_every_protocol_says_what_it_is():
    assert all(protocol.about and protocol.task in ("classification", "regression") for protocol in PROTOCOLS.values())


@pytest.mark.realdata
def test_the_four_image_sets_meet_their_partners(real_data_root):
    """Untrained networks on 24 images each: the protocols read the real sets and find their partners."""
    for name, partner in (("mnist", "fashion-mnist"), ("svhn", "cifar10")):
        data = ltnode.data.load(name)
        model = ltnode.build("lt-node", data, width=8, seed=0)
        rows = evaluate(model, data, limit=24, draws=0, angles=(45,), epsilons=(0.1,))
        assert {row.protocol for row in rows} == {"clean", "rotation", "ood", "fgsm"}
        assert {row.setting["ood"] for row in rows if row.protocol == "ood"} == {partner}
