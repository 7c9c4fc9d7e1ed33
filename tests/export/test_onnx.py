"""Exported ONNX files in onnxruntime, compared with the library.

Reference: ``model.predict``, or the library's solver on the same steps. The tolerance of 1e-5 is that of `export_model`; float32
rounding over tens of layers gives about 1e-7.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_exports import CASES, SAMPLES, inputs_for, network_input, shared_files, small_model  # noqa: F401  (a fixture)

import ltnode
from ltnode.models import Prediction
from ltnode.ode import odesolve
from ltnode.trained import TrainedModel

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
TOLERANCE = 1e-5
OnnxFile = Callable[[str], Path]


def run(path: Path, x: torch.Tensor) -> dict[str, np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": x.numpy()}), strict=True))


def expected_outputs(prediction: Prediction) -> dict[str, torch.Tensor]:
    if prediction.task == "regression":
        names = ("mean", "std", "member_means", "times")
    else:
        names = ("probs", "entropy", "aleatoric", "epistemic", "member_probs", "times")
    return {name: getattr(prediction, name) for name in names}


def check_against_predict(path: Path, name: str, batch: int) -> None:
    """Every output equals `predict` for the inputs whose error check passes, and most inputs do."""
    case = CASES[name]
    model, raw = small_model(case.model, case.spec), inputs_for(case, batch)
    prediction = model.predict(network_input(case, raw), 1 if name == "node" else SAMPLES)
    got = run(path, raw)
    passes = got["error_ratio"] < 1
    assert passes.mean() > 0.5
    for output, value in expected_outputs(prediction).items():
        where = (..., passes) if got[output].shape[-1:] == (batch,) else slice(None)
        if output in ("probs", "member_probs"):
            where = (..., passes, slice(None))
        np.testing.assert_allclose(got[output][where], value.numpy()[where], rtol=TOLERANCE, atol=TOLERANCE, err_msg=output)


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", ["lt", "alt", "uni", "node"])
def test_a_file_agrees_with_predict_in_batches_of_any_size(onnx_file: OnnxFile, name: str, batch: int) -> None:
    # LT and ALT on vectors, Uni on images from raw pixels, NODE for regression.
    check_against_predict(onnx_file(name), name, batch)


def test_members_differ_so_that_agreement_means_something(onnx_file: OnnxFile) -> None:
    # A model whose members are equal would pass with any end-times.
    for name in ("lt", "alt", "uni"):
        members = run(onnx_file(name), inputs_for(CASES[name], 64))["member_probs"]
        assert np.abs(members[0] - members[-1]).max() > 0.01


def test_amortised_end_times_come_from_the_input(onnx_file: OnnxFile) -> None:
    # The file computes the quantiles (S, B): increasing in S, different for every input, equal to the library's to 1e-6.
    case = CASES["alt"]
    x = inputs_for(case, 64)
    times = run(onnx_file("alt"), x)["times"]
    model = small_model(case.model, case.spec)
    assert isinstance(model, ltnode.LatentTimeODE)
    assert times.shape == (SAMPLES, 64)
    assert (np.diff(times, axis=0) > 0).all()
    assert times.std(axis=1).min() > 1e-3
    np.testing.assert_allclose(times, model.prediction_times(x, SAMPLES).detach().numpy(), rtol=0, atol=2e-6)


def test_an_answer_does_not_depend_on_its_batch(onnx_file: OnnxFile) -> None:
    # Inputs are independent of each other; matrix products of another size round differently, hence 1e-6.
    case = CASES["alt"]
    x = inputs_for(case, 64)
    together, alone = run(onnx_file("alt"), x), run(onnx_file("alt"), x[7:8])
    np.testing.assert_allclose(together["probs"][7:8], alone["probs"], rtol=0, atol=1e-6)


def test_the_error_ratio_is_that_of_the_library(onnx_file: OnnxFile) -> None:
    # The ratio is a difference of nearly equal stages over a tolerance of 0.1: rounding enters with about 1e-5.
    case = CASES["uni"]
    model, raw = small_model(case.model, case.spec), inputs_for(case, 64)
    assert isinstance(model, ltnode.LatentTimeODE)
    with torch.no_grad():
        x = network_input(case, raw)
        h, times = model.initial_state(x), model.prediction_times(x, SAMPLES)
        o = model.solver
        solution = odesolve(model.field, h, times, o.rtol, o.atol, grid=model.grid, control="sample")
    got = run(onnx_file("uni"), raw)["error_ratio"]
    np.testing.assert_allclose(got, solution.error_norms.amax(dim=0).numpy(), rtol=1e-3, atol=1e-4)


def test_metadata_say_what_the_file_is(onnx_file: OnnxFile) -> None:
    session = onnxruntime.InferenceSession(onnx_file("lt"), providers=["CPUExecutionProvider"])
    facts = {key.removeprefix("ltnode."): value for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert facts["version"] == ltnode.__version__
    assert (facts["model"], facts["task"], facts["end_time"]) == ("lt-node", "classification", "gamma")
    assert facts["opset"] == str(onnx.load(onnx_file("lt")).opset_import[0].version)
    assert facts["tolerance"] == "1e-05"
    assert 0 < float(facts["difference"]) <= 1e-5
    assert facts["verified_inputs"] == "100"
    assert json.loads(facts["class_names"]) == ["a", "b", "c"]
    assert json.loads(facts["operating_point"]) == {"entropy_threshold": 0.5}
    model = small_model("lt-node", CASES["lt"].spec)
    assert isinstance(model, ltnode.LatentTimeODE)
    np.testing.assert_allclose(json.loads(facts["times"]), model.prediction_times(torch.zeros(1, 2), SAMPLES).detach(), rtol=1e-6)
    assert len(facts["config_sha256"]) == 64
    assert "x (B, D), float32" in facts["input"]


def test_a_file_tells_nothing_about_the_machine(onnx_file: OnnxFile) -> None:
    # The exporter records stack traces with file names in every node; none may remain.
    content = onnx_file("alt").read_bytes()
    for secret in (
        str(Path(ltnode.__file__).parent),
        str(Path.home()),
        str(Path.cwd()),
        socket.gethostname(),
        ".py",
        "site-packages",
    ):
        assert secret.encode() not in content, secret


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("name", ["lt-adaptive", "alt-adaptive"])
def test_adaptive_steps_inside_the_file_agree_with_per_sample_control(onnx_file: OnnxFile, name: str, batch: int) -> None:
    # Reference: odesolve with control="sample". No answer is flagged: every sample reached its end.
    case = CASES[name]
    model, raw = small_model(case.model, case.spec), inputs_for(case, batch)
    assert isinstance(model, ltnode.LatentTimeODE)
    with torch.no_grad():
        x = network_input(case, raw)
        h, times = model.initial_state(x), model.prediction_times(x, SAMPLES)
        states = odesolve(model.field, h, times, model.solver.rtol, model.solver.atol, control="sample").states
        prediction = Prediction("classification", model.outputs_at(states), times)
    got = run(onnx_file(name), raw)
    assert (got["error_ratio"] < 1).all()
    np.testing.assert_allclose(got["probs"], prediction.probs.numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_equal_steps_agree_with_the_library_on_the_same_steps(onnx_file: OnnxFile) -> None:
    case = CASES["mixture"]
    model, x = small_model(case.model, case.spec), inputs_for(case, 64)
    assert isinstance(model, ltnode.LatentTimeODE)
    with torch.no_grad():
        times = model.prediction_times(x, SAMPLES)
        grid = [float(times.max()) * m / 3 for m in range(4)]
        states = odesolve(model.field, model.initial_state(x), times, grid=grid).states
        probs = Prediction("classification", model.outputs_at(states), times).probs
    np.testing.assert_allclose(run(onnx_file("mixture"), x)["probs"], probs.numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_end_times_without_an_upper_limit_are_flagged_beyond_the_steps(tmp_path: Path) -> None:
    # The paper's ALT-NODE does not truncate T. The steps of the file reach the end-times of the inputs that it was verified on;
    # for an input with later end-times, error_ratio is infinite. Reference: predict (1e-5) for the inputs that pass.
    model = ltnode.build("alt-node", "synthetic", "paper", seed=0).eval()
    assert isinstance(model, ltnode.LatentTimeODE)
    near, far = torch.randn(20, 1), torch.tensor([[40.0]])
    with torch.no_grad():
        bias = model.end_time.get_parameter("encoder.1.bias")
        model.end_time.get_parameter("encoder.1.weight").mul_(0.2)
        bias.copy_(torch.tensor([0.5, 0.5]))
        model.finish_training(near, torch.zeros(20))
        own_end = model.prediction_times(torch.cat([near, far]), SAMPLES).amax(dim=0)
    kept = ltnode.export_model(model, tmp_path / "m.onnx", samples=SAMPLES, inputs=near)
    got, prediction = run(kept.path, torch.cat([near, far])), model.predict(near, SAMPLES)
    edges = json.loads(kept.metadata["edges"])
    passes = got["error_ratio"][:20] < 1
    assert passes.any()
    np.testing.assert_allclose(got["mean"][:20][passes], prediction.mean.numpy()[passes], rtol=TOLERANCE, atol=TOLERANCE)
    assert edges[-1] >= max(float(own_end[:20].max()), 3.0)
    assert np.isinf(got["error_ratio"][20]) == bool(own_end[20] > edges[-1])


@pytest.mark.slow
@pytest.mark.parametrize("run_name", ["lt-node-cifar10", "uni-node-mnist"])
def test_trained_image_models_agree_with_the_library(tmp_path: Path, run_name: str) -> None:
    # Full-size networks with trained weights, from raw pixels; the export compares 100 inputs and refuses differences above 1e-5.
    folder = Path(__file__).parents[2] / "zoo" / run_name
    if not folder.is_dir():
        pytest.skip("needs the trained models in zoo/")
    trained = TrainedModel.open(folder)
    kept = ltnode.export_model(trained.model, tmp_path / "m.onnx", shape=trained.shape, normalise=trained.normalise)
    assert kept.agreement.inputs == 100
    raw = torch.rand(3, *trained.shape)
    got, prediction = run(kept.path, raw), trained.predict(raw)
    passes = got["error_ratio"] < 1
    np.testing.assert_allclose(got["probs"][passes], prediction.probs.numpy()[passes], rtol=0, atol=TOLERANCE)
