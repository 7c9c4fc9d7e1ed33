"""The answers of the server agree with the library."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
import torch

from ltnode.errors import InputError
from ltnode.evaluation.attacks import fgsm
from ltnode.evaluation.shifts import rotate
from ltnode.models import LatentTimeODE
from ltnode.serve import Limits, create_app
from ltnode.serve.samples import samples
from ltnode.trained import decode_image, to_png
from serve.conftest import TestClient
from serve.serving import classifier, close, familiar, images


def post(client: Any, path: str, **body: Any) -> Any:
    return client.post(f"/api/{path}", json=body)


def rows_of(trained: Any, raw: torch.Tensor, samples: int = 10) -> list[dict[str, Any]]:
    """Rows of the library after a round trip through JSON."""
    return [json.loads(json.dumps(row.to_json())) for row in trained.rows(raw, samples)]


@pytest.mark.parametrize("name", ["lt", "node", "alt", "sde"])
def test_predictions_equal_the_library(client: Any, trained: Any, name: str):
    """Rows equal `TrainedModel.rows` to 1e-5: the arithmetic is the same except for the batch size, and JSON does not round."""
    raw = images(3)
    answer = post(client, "predict", model=name, inputs=raw.double().tolist(), samples=7)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["model"] == name
    assert close(body["predictions"], rows_of(trained[name], raw, 7))
    stats = trained[name].predict(raw, 7).stats
    assert body["evaluations"] == (stats.n_evaluations if stats else 0)


def test_models_differ_between_inputs(trained: Any):
    """Guards the other tests: with constant models, they would not notice rows in the wrong order."""
    rows = rows_of(trained["lt"], images(8))
    assert len({round(row["probability"], 4) for row in rows}) == 8
    assert len({row["label"] for row in rows}) > 1


def test_regression_rows_equal_the_library(client: Any, trained: Any):
    raw = torch.tensor([[-1.5], [0.0], [0.7]])
    body = post(client, "predict", model="line", inputs=raw.tolist()).json()
    assert close(body["predictions"], rows_of(trained["line"], raw))
    common = {"task", "end_time", "distance", "familiarity", "unfamiliar"}
    assert set(body["predictions"][0]) == {"mean", "std", "noise_std", "interval"} | common


def test_arrays_files_and_forms_give_the_same_prediction(client: Any, trained: Any):
    """One image gives one prediction, whether it is sent as 0..255, (H, W), 0..1, PNG in base64, data address or form."""
    pixels = (images(1)[0] * 255).round().to(torch.uint8)
    png = to_png(pixels)
    text = base64.b64encode(png).decode()
    answers = [
        post(client, "predict", model="lt", inputs=[pixels.tolist()]),
        post(client, "predict", model="lt", inputs=[pixels[0].tolist()]),
        post(client, "predict", model="lt", inputs=[(pixels.double() / 255).tolist()]),
        post(client, "predict", model="lt", images=[text]),
        post(client, "predict", model="lt", images=["data:image/png;base64," + text]),
        client.post("/api/predict", data={"model": "lt"}, files={"file": ("../../digit.png", png)}),
    ]
    expected = rows_of(trained["lt"], pixels[None])
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert close(answer.json()["predictions"], expected)


def test_files_of_other_sizes_are_converted_with_notes(client: Any, trained: Any):
    from PIL import Image

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))
    file = io.BytesIO()
    picture.save(file, "PNG")
    answer = client.post("/api/predict", data={"model": "lt"}, files=[("file", ("a.png", file.getvalue()))] * 2)
    decoded = decode_image(file.getvalue(), (1, 28, 28))
    assert close(answer.json()["predictions"], rows_of(trained["lt"], torch.stack([decoded.pixels] * 2)))
    assert answer.json()["notes"] == [f"image {n}: {note}" for n in (0, 1) for note in decoded.notes]


@pytest.mark.parametrize("name", ["lt", "alt", "node"])
def test_a_trajectory_equals_solves_that_stop_at_each_time(client: Any, trained: Any, name: str):
    """The probabilities at t equal those of a separate solve to t, to 1e-5 (float32)."""
    raw = images(1)
    body = post(client, "trajectory", model=name, input=raw[0].double().tolist(), points=5, samples=4).json()
    model = trained[name].model
    x = trained[name].prepare(raw)
    with torch.no_grad():
        for t, probs in zip(body["t"], body["probs"], strict=True):
            expected = model(x, torch.tensor([t])).softmax(-1)[0, 0]
            assert np.allclose(probs, expected, atol=1e-5)
    assert close(body["prediction"], rows_of(trained[name], raw, 4)[0])
    assert close(body["times"], model.predict(x, 4).times.reshape(4).tolist())
    assert body["evaluations"] == model.predict(x, 4).stats.n_evaluations
    assert body["t"][0] == 0 and body["t"][-1] >= max(model.end_time.window[1], *body["times"]) - 1e-6


@pytest.mark.parametrize("name", ["lt", "alt"])
def test_the_posterior_is_the_density_of_this_input(client: Any, trained: Any, name: str):
    """The density equals exp(log_prob) of the library, and integrates to 1 by the trapezoid rule (within 2 % for 201 points)."""
    raw = images(1, seed=3)
    body = post(client, "trajectory", model=name, input=raw[0].double().tolist()).json()
    t, density = np.array(body["posterior"]["t"]), np.array(body["posterior"]["density"])
    model = trained[name].model
    x = trained[name].prepare(raw)
    at = torch.tensor(t, dtype=torch.float32)
    log_prob = model.end_time.log_prob(at[:, None] if name == "alt" else at, x if name == "alt" else None)
    assert np.allclose(density, log_prob.detach().reshape(-1).exp(), rtol=1e-4, atol=1e-6)
    assert torch.trapezoid(torch.tensor(density), torch.tensor(t)) == pytest.approx(1.0, abs=0.02)


def test_posteriors_of_an_amortised_model_differ_between_inputs(client: Any):
    found = [post(client, "trajectory", model="alt", input=raw.double().tolist()).json() for raw in images(2)]
    assert found[0]["posterior"] != found[1]["posterior"]


def test_a_fixed_end_time_has_no_density(client: Any):
    body = post(client, "trajectory", model="node", sample="digit-3").json()
    assert body["posterior"] is None
    assert body["t"][-1] == 1.0


def test_changes_are_applied_in_the_documented_order_and_units(client: Any, trained: Any):
    """Rotation is in degrees, noise in pixels clipped to [0, 1], FGSM in normalised units against the predicted class."""
    raw = images(1, seed=5)
    change = {"rotation": 30, "noise": 0.2, "epsilon": 0.1, "seed": 4}
    body = post(client, "trajectory", model="lt", input=raw[0].double().tolist(), change=change).json()
    lt = trained["lt"]
    noise = torch.randn((256, 1, 28, 28), generator=torch.Generator().manual_seed(4))[:1]
    noisy = (rotate(raw, 30) + 0.2 * noise).clamp(0, 1)
    x = lt.prepare(noisy)
    low, high = [-0.1307 / 0.3081], [(1 - 0.1307) / 0.3081]
    attacked = fgsm(lt.model.log_probs, x, lt.model.predict(x).labels, 0.1, low, high).x
    expected = lt.rows_of(lt.predict_inputs(attacked), attacked)[0]
    assert close(body["prediction"], json.loads(json.dumps(expected.to_json())), 1e-4)
    seen = decode_image(base64.b64decode(body["image"]), (1, 28, 28)).pixels
    pixels = (attacked[0] * 0.3081 + 0.1307).clamp(0, 1) * 255
    assert (seen.float() - pixels).abs().max() <= 0.51
    plain = post(client, "trajectory", model="lt", input=raw[0].double().tolist()).json()
    assert plain["prediction"] != body["prediction"]


def test_a_trajectory_of_a_regression_model_has_means(client: Any, trained: Any):
    body = post(client, "trajectory", model="line", input=[0.3], points=4).json()
    assert body["probs"] is None and body["image"] is None
    model = trained["line"].model
    with torch.no_grad():
        expected = model(torch.tensor([[0.3]]), torch.tensor(body["t"]).float())[:, 0, 0]
    assert np.allclose(body["means"], expected, atol=1e-5)


def test_a_sweep_follows_the_class_of_the_upright_image(client: Any, trained: Any):
    body = post(client, "sweep", models=["lt", "node"], sample="digit-3", angles=[0, 90, 45.5]).json()
    assert body["angles"] == [0, 90, 45.5]
    assert [curve["model"] for curve in body["curves"]] == ["lt", "node"]
    raw = decode_image(samples()["digit-3"].path.read_bytes(), (1, 28, 28)).pixels[None].float() / 255
    for curve in body["curves"]:
        rows = rows_of(trained[curve["model"]], torch.cat([rotate(raw, angle) for angle in body["angles"]]))
        upright = rows[0]["label"]
        assert close(curve["probability"], [row["probs"][upright] for row in rows])
        assert curve["labels"] == [row["label"] for row in rows]
        assert close(curve["entropy"], [row["entropy"] for row in rows])
        assert close(curve["epistemic"], [row["epistemic"] for row in rows])
        assert curve["unfamiliar"] == [row["unfamiliar"] for row in rows]
        assert curve["familiarity"] == [row["familiarity"] for row in rows]


def test_a_curve_covers_the_training_data_and_both_sides(client: Any, trained: Any):
    body = client.get("/api/curve", params={"model": "line", "points": 9, "samples": 3}).json()
    x = torch.tensor(body["x"])[:, None]
    prediction = trained["line"].predict(x, 3)
    assert np.allclose(body["mean"], prediction.mean, atol=1e-5)
    assert np.allclose(body["members"], prediction.member_means, atol=1e-5)
    assert body["noise_std"] == pytest.approx(float(prediction.noise_std))
    known = body["points"]
    assert len(known["x"]) == len(known["y"]) == 1500
    assert body["x"][0] < min(known["x"]) < max(known["x"]) < body["x"][-1]


def test_models_are_described(client: Any, trained: Any):
    found = {model["name"]: model for model in client.get("/api/models").json()["models"]}
    assert list(found) == list(trained)
    kinds = {name: model["end_time"]["kind"] for name, model in found.items()}
    assert kinds == {"lt": "gamma", "node": "fixed", "alt": "amortized", "sde": "none", "line": "gamma"}
    lt = found["lt"]
    assert (lt["kind"], lt["shape"], lt["classes"]) == ("image", [1, 28, 28], [str(digit) for digit in range(10)])
    assert lt["end_time"]["facts"]["q50"] == pytest.approx(trained["lt"].model.describe()["q50"])
    assert lt["operating_point"]["entropy_threshold"] == 1.5 and found["node"]["operating_point"] is None
    assert torch.trapezoid(torch.tensor(lt["posterior"]["density"]), torch.tensor(lt["posterior"]["t"])) == pytest.approx(
        1.0, abs=0.02
    )
    assert found["alt"]["posterior"] is None and found["node"]["posterior"] is None
    assert [sample["id"] for sample in lt["samples"]] == [s.id for s in samples().values() if s.shape == (1, 28, 28)]
    assert {sample["id"]: sample["label"] for sample in lt["samples"]}["digit-3"] == "3"
    assert found["line"]["samples"] == []


def test_every_sample_is_served_and_predicted(client: Any):
    for sample in samples().values():
        answer = client.get(f"/api/samples/{sample.id}.png")
        assert answer.headers["content-type"] == "image/png"
        assert answer.content == sample.path.read_bytes()
        if sample.shape == (1, 28, 28):
            assert post(client, "trajectory", model="lt", sample=sample.id, points=2).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("predict", {"model": "gone", "inputs": [[0]]}, 404, "Valid: alt, line, lt, node, sde"),
        ("predict", {"inputs": [[0]]}, 422, "model is required"),
        ("predict", {"model": "lt"}, 422, "inputs"),
        ("predict", {"model": "lt", "inputs": [[[0]]], "images": ["aa"]}, 422, "not inputs and images"),
        ("predict", {"model": "lt", "inputs": [[[0.5] * 27] * 28]}, 422, "1 x 28 x 28 numbers, not 28 x 27"),
        ("predict", {"model": "lt", "inputs": [[[0.5] * 28] * 27 + [0.5]]}, 422, "a number in place of a list"),
        ("predict", {"model": "lt", "inputs": [[[0.5] * 27 + [True]] * 28]}, 422, "true or false in place of a number"),
        ("predict", {"model": "lt", "inputs": [[[2.5] * 28] * 28]}, 422, "0..255"),
        ("predict", {"model": "lt", "inputs": [[[-1] * 28] * 28]}, 422, "0..255"),
        ("predict", {"model": "lt", "inputs": [[[256] * 28] * 28]}, 422, "0..255"),
        ("predict", {"model": "line", "images": ["aGFsbG8="]}, 422, "takes vectors"),
        ("predict", {"model": "line", "inputs": [[1e300]]}, 422, "too large"),
        (
            "predict",
            {"model": "lt", "inputs": [[[0] * 28] * 28], "sampels": 3},
            422,
            "unknown key 'sampels'. Did you mean 'samples'?",
        ),
        ("predict", {"model": "lt", "inputs": [[[0] * 28] * 28], "samples": "10"}, 422, "samples"),
        ("trajectory", {"model": "sde", "sample": "digit-3"}, 422, "SDENet"),
        ("trajectory", {"model": "lt"}, 422, "exactly one"),
        ("trajectory", {"model": "lt", "sample": "digit-3", "image": "aa"}, 422, "image and sample"),
        ("trajectory", {"model": "lt", "sample": "digit-33"}, 404, "no sample"),
        ("trajectory", {"model": "lt", "sample": "digit-3", "change": {"rotation": 181}}, 422, "change.rotation"),
        ("trajectory", {"model": "line", "input": [0.1], "change": {"noise": 0.1}}, 422, "for images"),
        ("sweep", {"models": ["lt", "line"], "sample": "digit-3"}, 422, "line is not one"),
        ("sweep", {"models": [], "sample": "digit-3"}, 422, "models"),
    ],
)
def test_a_wrong_request_gets_the_reason(client: Any, path: str, body: dict[str, Any], status: int, words: str):
    answer = post(client, path, **body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["reason"]


def test_a_curve_needs_a_regression_model_of_one_number(client: Any):
    assert "one number" in client.get("/api/curve", params={"model": "lt"}).json()["error"]["reason"]


def test_a_single_model_needs_no_name(client: Any):
    from starlette.testclient import TestClient

    with TestClient(create_app([classifier("only")]), "http://localhost") as own:
        assert own.post("/api/predict", json={"inputs": images(1).tolist()}).json()["model"] == "only"


def test_names_must_be_unique_and_a_model_is_required():
    with pytest.raises(InputError, match="called 'same'"):
        create_app([classifier("same"), classifier("same")])
    with pytest.raises(InputError, match="at least one"):
        create_app([])


@pytest.mark.parametrize("limits", [{"max_queue": 0}, {"seconds": 0}, {"images": 1.5}, {"max_wait_ms": -1}, {"pixels": True}])
@pytest.mark.no_typecheck
def test_invalid_limits_are_refused(limits: dict[str, Any]):
    with pytest.raises(InputError, match=next(iter(limits))):
        Limits(**limits)


def test_familiarity_in_answers_and_metrics() -> None:
    """Rows have the numbers of the library, trajectories the profile and on request an explanation; drift is counted."""
    trained = familiar("knows")
    with TestClient(create_app([trained]), base_url="http://localhost") as client:
        (info,) = client.get("/api/models").json()["models"]
        assert info["familiarity"] == {"n_calibration": 100, "false_alarm_rate": 0.05, "problem": None}
        assert info["title"] == "LT-NODE, MNIST"
        raw = torch.cat([images(3, seed=8), torch.zeros(1, 1, 28, 28)])
        rows = client.post("/api/predict", json={"inputs": raw.tolist()}).json()["predictions"]
        own = [row.to_json() for row in trained.rows(raw)]
        assert all(close(row, {key: expected[key] for key in row}) for row, expected in zip(rows, own, strict=True))
        assert rows[3]["unfamiliar"] is True
        metrics = client.get("/metrics").text
        assert 'ltnode_familiarity_count{model="knows"} 4.0' in metrics
        flagged = sum(row["unfamiliar"] for row in rows)
        assert f'ltnode_unfamiliar_inputs_total{{model="knows"}} {float(flagged)}' in metrics
        asked = {"input": raw[3].tolist(), "points": 5}
        answer = client.post("/api/trajectory", json=asked).json()
        assert isinstance(trained.model, LatentTimeODE)
        times, distance = trained.model.path_profile(trained.prepare(raw[3:]))
        assert close(answer["profile"], {"t": times.tolist(), "distance": distance[:, 0].tolist()}, 1e-4)
        assert answer["explanation"] is None
        explanation = client.post("/api/trajectory", json={**asked, "explain": True}).json()["explanation"]
        assert (len(explanation["map"]), len(explanation["map"][0])) == (8, 8)
