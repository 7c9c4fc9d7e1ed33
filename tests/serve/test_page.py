"""The explorer page in a browser: every control works, and the page shows the answers of the API.

Server and browser are real. The models are narrow and untrained (`serving`), except for one of the zoo where a correct answer
matters. Every test ends with a check for console errors, dialogs and requests to other hosts.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="the server needs the extra serve")

from PIL import Image

import ltnode
from ltnode.data.augment import Normalisation
from ltnode.models.build import InputSpec
from ltnode.serve import create_app
from ltnode.trained import TrainedModel
from serve.page_browser import Watched, find_browser, serving
from serve.serving import classifier, familiar

ZOO = Path(__file__).parents[2] / "zoo" / "lt-node-mnist-paper"
PHONE = {"width": 390, "height": 844}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def small(name: str, shape: tuple[int, ...], classes: tuple[str, ...]) -> TrainedModel:
    """An untrained LT-NODE for inputs of another shape than 28 x 28."""
    model = ltnode.build("lt-node", InputSpec(shape, "classification", len(classes)), seed=0, width=8)
    constants = Normalisation((0.5,) * 3, (0.25,) * 3) if len(shape) == 3 else None
    x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
    model.finish_training(x, torch.zeros(16, dtype=torch.long))
    return TrainedModel(name, None, model.eval(), shape, "classification", classes, constants, None, None)


@pytest.fixture(scope="module")
def address(trained: dict[str, TrainedModel]) -> Iterator[str]:
    find_browser()
    colour = small("colour", (3, 32, 32), ("airplane", "automobile", "a class of a rather long name", "ship"))
    zoo = [TrainedModel.open(ZOO)] if ZOO.is_dir() else []
    with serving(create_app([*trained.values(), colour, small("plane", (2,), ("left", "right")), *zoo])) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def context(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    options = getattr(request, "param", {})
    made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "color_scheme": "light", **options})
    yield made
    made.close()


@pytest.fixture
def seen(context: Any, address: str) -> Iterator[Watched]:
    """The page after it has loaded, with its errors and requests recorded."""
    watched = Watched(context.new_page(), address).watch().open()
    yield watched
    watched.check()


def choose_model(seen: Watched, name: str) -> None:
    seen.page.select_option("#model", name)
    seen.settled()


def shown_probabilities(seen: Watched) -> list[str]:
    return [str(text) for text in seen.page.locator("#bars .bar-value").all_inner_texts()]


def picture(kind: str, side: int = 40) -> bytes:
    image = Image.new("L", (side, side))
    image.paste(255, (side // 2 - 3, 5, side // 2 + 3, side - 5))
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def draw_line(seen: Watched, points: list[tuple[float, float]]) -> None:
    """Draw with the mouse through points that are given as fractions of the pad."""
    seen.page.locator("#pad").scroll_into_view_if_needed()
    box = seen.page.locator("#pad").bounding_box()
    (x, y), *rest = [(box["x"] + u * box["width"], box["y"] + v * box["height"]) for u, v in points]
    seen.page.mouse.move(x, y)
    seen.page.mouse.down()
    for x, y in rest:
        seen.page.mouse.move(x, y, steps=3)
    seen.page.mouse.up()


def test_page_and_api_agree(seen: Watched, trained: dict[str, TrainedModel]) -> None:
    """Every number on the page equals that of the API to the digits shown, and curves, ticks and shading are drawn."""
    asked, answer = seen.ask(lambda: seen.page.click("[data-sample=digit-3]"))
    assert asked["model"] == "lt" and asked["sample"] == "digit-3"
    row = answer["prediction"]
    assert seen.text("#verdict .big") == row["name"]
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in row["probs"]]
    assert seen.text("#probability") == f"{100 * row['probability']:.1f} %"
    for part in ("aleatoric", "epistemic", "entropy"):
        assert seen.text(f"[data-part={part}]") == f"{row[part]:.3f}"
    assert seen.text("[data-fact=evaluations]") == str(answer["evaluations"])
    assert seen.text('[data-fact="end-time T"]') == f"{row['end_time'][1]:.2f}"
    assert f"{math.log(10):.2f} nats" in seen.text("#entropy")

    plot = seen.page.locator("#trajectory")
    assert plot.locator(".times .tick").count() == len(answer["times"]) == 10
    assert plot.locator("path.line").count() == 10
    assert 3 <= plot.locator("path.line:not(.muted)").count() <= 4
    assert plot.locator(".q-area").count() == 1
    labels = " ".join(plot.locator("text.label").all_text_contents())
    assert f"{row['name']} {row['probability']:.2f}" in labels

    point = trained["lt"].operating_point
    assert point is not None
    assert seen.text("#flag-abstain").startswith("Abstains." if row["abstain"] else "Answers.")
    assert f"{row['entropy']:.3f}" in seen.text("#flag-abstain") and f"{point.entropy_threshold:.3f}" in seen.text(
        "#flag-abstain"
    )
    assert seen.text("#flag-unfamiliar").startswith("Familiarity unknown.")
    assert seen.page.locator("#profile-part").is_hidden()


def test_noise_is_shown_as_unfamiliar(context: Any, trained: dict[str, TrainedModel]) -> None:
    """The page opens with noise on the model that can flag it; words, rank and distances over t are those of the API."""
    with serving(create_app([trained["lt"], familiar("knows")])) as address:
        seen = Watched(context.new_page(), address).watch()
        _, answer = seen.ask(lambda: seen.page.goto(address))
        row, profile = answer["prediction"], answer["profile"]
        assert seen.page.input_value("#model") == "knows"
        assert "LT-NODE, MNIST (knows)" in seen.page.locator("#model option").all_inner_texts()
        assert seen.page.locator("#samples [aria-pressed=true]").get_attribute("data-sample") == "noise-grey"
        assert row["unfamiliar"] is True and "Unfamiliar" in seen.text("#verdict")
        assert "than all 100 held-out examples" in seen.text("#flag-unfamiliar")
        assert seen.text("[data-fact=familiarity]") == f"{row['familiarity']:.3f}"
        assert seen.page.locator("#profile circle.dot.far").count() == len(profile["t"])
        assert seen.page.locator("#profile line.typical").count() == 1
        asked, answer = seen.ask(lambda: seen.page.click("#explain"))
        assert asked["explain"] is True
        seen.page.wait_for_function(
            "(words) => document.getElementById('why').textContent.includes(words)", arg=answer["explanation"]["description"]
        )
        seen.ask(lambda: seen.page.click("[data-sample=digit-3]"))
        assert seen.text("#why") == ""
        seen.check()


def test_the_picture_is_the_one_that_the_network_saw(seen: Watched) -> None:
    """The canvas shows the PNG of the answer, pixel by pixel, for a rotated and noisy digit."""
    seen.page.fill("#rotation", "30")
    _, answer = seen.ask(lambda: seen.page.fill("#noise", "0.2"))
    expected = list(Image.open(io.BytesIO(base64.b64decode(answer["image"]))).convert("L").getdata())
    same = """(expected) => {
        const canvas = document.getElementById("seen");
        const shown = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.filter((_, m) => m % 4 === 0);
        return shown.length === expected.length && expected.every((value, m) => value === shown[m]);
    }"""
    seen.page.wait_for_function(same, arg=expected, timeout=5000)


@pytest.mark.parametrize(("name", "value"), [("rotation", "90"), ("noise", "0.5"), ("epsilon", "0.3")])
def test_a_slider_changes_request_number_and_result(seen: Watched, name: str, value: str) -> None:
    """Slider and number follow each other, the request has the value, and the reset button sets it to 0."""
    before = shown_probabilities(seen)
    asked, _ = seen.ask(lambda: seen.page.fill(f"#{name}", value))
    assert asked["change"] == {"rotation": 0, "noise": 0, "epsilon": 0, name: float(value)}
    assert seen.page.input_value(f"#{name}-value") == value
    changed = shown_probabilities(seen)
    assert changed != before

    def type_number() -> None:
        seen.page.fill(f"#{name}-value", "1")
        seen.page.press(f"#{name}-value", "Enter")

    asked, _ = seen.ask(type_number)
    assert asked["change"][name] == 1 and seen.page.input_value(f"#{name}") == "1"
    asked, _ = seen.ask(lambda: seen.page.click("#reset"))
    assert set(asked["change"].values()) == {0}
    assert seen.page.input_value(f"#{name}") == seen.page.input_value(f"#{name}-value") == "0"
    assert shown_probabilities(seen) == before


def test_samples_are_offered_and_marked(seen: Watched) -> None:
    """There is one button per sample for the model; the chosen one is marked, and the first has no correct answer."""
    models = seen.page.evaluate("fetch('api/models').then((answer) => answer.json())")["models"]
    offered = next(model["samples"] for model in models if model["name"] == "lt")
    assert seen.page.locator("#samples button").count() == len(offered)
    pressed = seen.page.locator("#samples [aria-pressed=true]")
    first = next(sample for sample in offered if sample["label"] is None)
    assert pressed.get_attribute("data-sample") == first["id"]
    before = shown_probabilities(seen)
    seen.ask(lambda: seen.page.click("[data-sample=digit-7]"))
    assert pressed.get_attribute("data-sample") == "digit-7"
    assert shown_probabilities(seen) != before


def test_a_drawing_is_predicted(seen: Watched) -> None:
    """Each stroke changes the request and the result; undo removes the last stroke, and clear leaves nothing to predict."""
    seen.page.check("input[value=draw]", force=True)
    seen.settled()
    assert seen.text("#verdict") == "Draw something on the pad."
    seen.ask(lambda: draw_line(seen, [(0.5, 0.2), (0.5, 0.8)]))
    one = shown_probabilities(seen)
    _, answer = seen.ask(lambda: draw_line(seen, [(0.2, 0.5), (0.8, 0.5)]))
    seen.settled()
    two = shown_probabilities(seen)
    assert one != two
    asked, answer = seen.ask(lambda: seen.page.click("#undo"))
    assert shown_probabilities(seen) == one == [f"{p:.3f}" for p in answer["prediction"]["probs"]]
    (rows,) = asked["input"]
    drawn = torch.tensor(rows)
    assert drawn.shape == (28, 28) and drawn.min() == 0 and 0.8 < drawn.max() <= 1
    # The layout of MNIST: 20 pixels high (up to one more at either end from antialiasing), centre of mass in the middle.
    assert int((drawn.amax(1) > 0.1).sum()) in {20, 21, 22}
    middle = (drawn.sum(1) * (torch.arange(28) + 0.5)).sum() / drawn.sum()
    assert abs(float(middle) - 14) < 0.5
    seen.page.click("#clear")
    seen.settled()
    assert seen.text("#verdict") == "Draw something on the pad."


def test_a_trained_model_reads_a_drawn_one(seen: Watched) -> None:
    """The LT-NODE of the zoo reads a stroke from top to bottom as a 1."""
    if not ZOO.is_dir():
        pytest.skip("the zoo is in the repository only")
    choose_model(seen, ZOO.name)
    seen.page.check("input[value=draw]", force=True)
    seen.ask(lambda: draw_line(seen, [(0.53, 0.12), (0.47, 0.88)]))
    seen.settled()
    assert seen.text("#verdict .big") == "1"
    assert seen.page.locator("#trajectory .beyond").count() == 1  # its posterior reaches beyond the training window


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_an_uploaded_image_is_predicted(seen: Watched, kind: str) -> None:
    """The page sends the file unchanged, and shows the notes on its conversion."""
    seen.page.check("input[value=upload]", force=True)
    file = {"name": f"mine.{kind.lower()}", "mimeType": f"image/{kind.lower()}", "buffer": picture(kind)}
    asked, answer = seen.ask(lambda: seen.page.set_input_files("#file", file))
    assert base64.b64decode(asked["image"]) == file["buffer"]
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in answer["prediction"]["probs"]]
    assert seen.text("#file-name") == file["name"]
    assert answer["notes"] and seen.page.locator("#notes li").all_inner_texts() == answer["notes"]


def test_a_dropped_image_is_predicted(seen: Watched) -> None:
    """Dropping a file has the same effect as choosing it."""
    seen.page.check("input[value=upload]", force=True)
    drop = """([text]) => {
        const transfer = new DataTransfer();
        const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        transfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
        const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
        document.getElementById("drop").dispatchEvent(drop);
    }"""
    content = picture("PNG")
    asked, _ = seen.ask(lambda: seen.page.evaluate(drop, [base64.b64encode(content).decode()]))
    assert base64.b64decode(asked["image"]) == content
    assert seen.text("#file-name") == "dropped.png"


def test_a_bad_file_shows_the_reason_in_place(seen: Watched, tmp_path: Path) -> None:
    """The page shows the reason of the server and removes the numbers of other inputs; the next good file is predicted."""
    seen.expected = ("status of 4",)  # the browser logs the refusal in its console
    seen.page.check("input[value=upload]", force=True)
    bad = {"name": "notes.png", "mimeType": "image/png", "buffer": b"these are words"}
    _, answer = seen.ask(lambda: seen.page.set_input_files("#file", bad))
    reason = answer["error"]["reason"]
    assert seen.text("#input-message").rstrip(".").lower() == reason.rstrip(".").lower()
    assert seen.text("#verdict") == "No prediction for this input."
    assert not seen.page.locator("#bars").is_visible()
    (tmp_path / "large.png").write_bytes(bytes(6_000_001))
    seen.page.set_input_files("#file", tmp_path / "large.png")
    assert "large.png has 6.0 MB" in seen.text("#input-message")
    good = {"name": "good.png", "mimeType": "image/png", "buffer": picture("PNG")}
    seen.ask(lambda: seen.page.set_input_files("#file", good))
    assert not seen.page.locator("#input-message").is_visible() and seen.page.locator("#bars").is_visible()


def test_another_model_answers_about_the_same_image(seen: Watched) -> None:
    """The image stays the same; a fixed end-time has no posterior, and the page says if there is no operating point."""
    seen.ask(lambda: seen.page.click("[data-sample=digit-5]"))
    asked, answer = seen.ask(lambda: seen.page.select_option("#model", "node"))
    assert (asked["model"], asked["sample"]) == ("node", "digit-5")
    assert answer["posterior"] is None and seen.page.locator("#trajectory .q-area").count() == 0
    assert "node" in seen.text("#about") and "No operating point" in seen.text("#flags")
    asked, answer = seen.ask(lambda: seen.page.select_option("#model", "alt"))
    assert asked["model"] == "alt" and seen.page.locator("#trajectory .q-area").count() == 1
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in answer["prediction"]["probs"]]


def test_the_sweep_compares_with_the_plain_node(seen: Watched) -> None:
    """Both curves come from the API, the readout shows its numbers at the angle, and the current rotation is marked."""
    asked, answer = seen.ask(lambda: seen.page.click("[data-sample=digit-2]"), "/api/sweep")
    assert asked["models"] == ["lt", "node"] and asked["sample"] == "digit-2"
    assert asked["angles"][0] == 0 and asked["angles"][-1] == 180
    for plot in ("#sweep-probability", "#sweep-entropy"):
        assert seen.page.locator(f"{plot} path.latent").count() == seen.page.locator(f"{plot} path.plain").count() == 1
    seen.page.focus("#sweep-probability svg")
    seen.page.keyboard.press("End")
    words = seen.text("#sweep-readout")
    for curve in answer["curves"]:
        assert f"probability {curve['probability'][-1]:.2f}, entropy {curve['entropy'][-1]:.2f}" in words
    seen.ask(lambda: seen.page.fill("#rotation", "60"))
    assert seen.page.locator("#sweep-entropy .here").count() == 1


def test_without_a_plain_node_the_sweep_says_so(seen: Watched) -> None:
    """The colour model has no counterpart with the same shape."""
    choose_model(seen, "colour")
    assert "No plain NODE" in seen.text("#sweep-caption")
    assert seen.page.locator("#sweep-probability path.plain").count() == 0
    assert seen.page.locator("input[value=draw]").is_disabled()
    assert seen.page.locator("#samples button").count() == 8


def test_a_model_without_end_time_still_predicts(seen: Watched) -> None:
    """An SDE-Net has no trajectory: the page shows the reason instead of the plot, and the prediction."""
    _, answer = seen.ask(lambda: seen.page.select_option("#model", "sde"), "/api/predict")
    assert "no end-time" in seen.text("#trajectory-message")
    assert not seen.page.locator("#trajectory").is_visible()
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in answer["predictions"][0]["probs"]]


def test_a_regression_run_shows_its_curve(seen: Watched) -> None:
    """The curve has a mean, two bands and one line per member; a number or a click on the curve chooses x."""
    _, curve = seen.ask(lambda: seen.page.select_option("#model", "line"), "/api/curve")
    assert seen.page.locator("#curve .band").count() == 2
    assert seen.page.locator("#curve path.member").count() == len(curve["members"])
    assert seen.page.locator("#curve .observed").count() == len((curve["points"] or {"x": []})["x"])
    for hidden in ("#image-input", "#bars", "#sweep-card", "#entropy-card"):
        assert not seen.page.locator(hidden).is_visible()
    asked, answer = seen.ask(lambda: seen.page.fill("#x-value", "0.25") or seen.page.press("#x-value", "Enter"))
    assert asked["input"] == [0.25]
    assert seen.text("#verdict .big") == f"{answer['prediction']['mean']:.3f}"
    assert seen.text('[data-fact="model std"]') == f"{answer['prediction']['std']:.3f}"
    assert seen.page.locator("#trajectory path.line").count() == 1
    box = seen.page.locator("#curve svg").bounding_box()
    place = {"x": box["width"] * 0.8, "y": box["height"] / 2}
    asked, answer = seen.ask(lambda: seen.page.click("#curve svg", position=place))
    assert asked["input"][0] in curve["x"] and asked["input"][0] > 0.25
    assert seen.text("#verdict .big") == f"{answer['prediction']['mean']:.3f}"


def test_a_vector_model_takes_numbers(seen: Watched) -> None:
    """The page predicts the right count of numbers, and shows a reason for anything else."""
    choose_model(seen, "plane")
    seen.page.fill("#numbers", "1, 2, 3")
    seen.page.click("#numbers-form button")
    assert "takes 2 numbers" in seen.text("#input-message")
    seen.page.fill("#numbers", "one two")
    seen.page.click("#numbers-form button")
    assert "Only numbers" in seen.text("#input-message")
    seen.page.fill("#numbers", "1.5; -2")
    asked, answer = seen.ask(lambda: seen.page.click("#numbers-form button"))
    assert asked["input"] == [1.5, -2]
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in answer["prediction"]["probs"]]


def test_hovering_reads_the_values_at_t(seen: Watched) -> None:
    """The readout shows the numbers of the API at the nearest time until the pointer leaves the plot."""
    _, answer = seen.ask(lambda: seen.page.click("[data-sample=digit-4]"))
    hint = seen.text("#trajectory-readout")
    seen.page.hover("#trajectory svg", position={"x": 200, "y": 60})
    words = seen.text("#trajectory-readout")
    m = min(range(len(answer["t"])), key=lambda n: abs(answer["t"][n] - float(words.split()[2])))
    assert words.startswith(f"t = {answer['t'][m]:.2f}")
    row = answer["prediction"]
    assert f"{row['name']} {answer['probs'][m][row['label']]:.3f}" in words
    seen.page.hover("h1")
    assert seen.text("#trajectory-readout") == hint


def test_stale_answers_are_dropped(seen: Watched) -> None:
    """A request about another image aborts the pending one, which this test delays, and only the newer answer is shown."""
    held: list[Any] = []
    failed: list[str] = []
    seen.page.on("requestfailed", lambda request: failed.append(request.post_data_json["sample"]))
    seen.page.route("**/api/trajectory", lambda route: route.continue_() if held else held.append(route))
    seen.page.click("[data-sample=digit-0]")
    while not held:
        seen.page.wait_for_timeout(20)
    asked, answer = seen.ask(lambda: seen.page.click("[data-sample=digit-1]"))
    assert asked["sample"] == "digit-1" and failed == ["digit-0"]
    assert seen.page.locator("#samples [aria-pressed=true]").get_attribute("data-sample") == "digit-1"
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in answer["prediction"]["probs"]]


def test_a_moving_slider_has_one_pending_request(seen: Watched) -> None:
    """While the slider moves, at most one request is pending, and the answer for the last position is shown."""
    under_way: list[int] = [0, 0]

    def began(request: Any) -> None:
        if "/api/trajectory" in request.url:
            under_way[0] += 1
            under_way[1] = max(under_way)

    def ended(request: Any) -> None:
        under_way[0] -= "/api/trajectory" in request.url

    seen.page.on("request", began)
    seen.page.on("requestfinished", ended)
    seen.page.on("requestfailed", ended)
    for angle in range(5, 100, 5):
        seen.page.fill("#rotation", str(angle))
    seen.settled()
    assert under_way == [0, 1]
    asked, answer = seen.ask(lambda: seen.page.fill("#rotation", "95") or seen.page.fill("#rotation", "96"))
    assert shown_probabilities(seen) == [f"{p:.3f}" for p in answer["prediction"]["probs"]]
    assert asked["change"]["rotation"] == 96


def test_the_theme_follows_the_system_until_chosen(seen: Watched) -> None:
    """The theme is that of the system until the button is pressed; the choice survives a reload."""
    theme = "document.documentElement.dataset.theme"
    ground = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(ground)
    seen.page.emulate_media(color_scheme="dark")
    seen.page.wait_for_function(f"() => {theme} === 'dark'")
    assert seen.page.evaluate(ground) != light
    seen.page.click("#theme")
    assert seen.page.evaluate(theme) == "light" and seen.page.evaluate(ground) == light
    assert seen.page.get_attribute("#theme", "aria-label") == "Switch to the dark theme"
    seen.open()
    assert seen.page.evaluate(theme) == "light"


def test_everything_works_from_the_keyboard(seen: Watched) -> None:
    """Tab reaches every control in reading order with a visible focus ring; keys choose, slide, read the plot and draw."""
    page = seen.page
    page.click("h1")
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => {
                    const now = document.activeElement;
                    if (!now || now === document.body) return "body";
                    const ring = getComputedStyle(now).outlineStyle !== "none" || now.matches(".segments input, #file");
                    const name = now.id || now.dataset?.sample || now.closest("[id]")?.id || now.tagName;
                    return ring ? name : `no ring: ${name}`;
                }"""
            )
        )
        if reached[-1] == "body":
            break
    order = [
        "model",
        "theme",
        "image-input",
        "digit-0",
        "shirt",
        "rotation",
        "rotation-value",
        "noise",
        "epsilon",
        "reset",
        "trajectory",
    ]
    positions = [reached.index(name) for name in order]
    assert positions == sorted(positions), reached
    assert {"chosen", "sweep-probability", "sweep-entropy"} <= set(reached)
    assert not [name for name in reached if name.startswith("no ring")]

    page.focus("[data-sample=digit-6]")
    asked, _ = seen.ask(lambda: page.keyboard.press("Enter"))
    assert asked["sample"] == "digit-6"
    page.focus("#rotation")
    asked, _ = seen.ask(lambda: page.keyboard.press("ArrowRight"))
    assert asked["change"]["rotation"] == 1
    page.focus("#trajectory svg")
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    step = page.get_attribute("#trajectory svg", "aria-valuetext")
    assert step == page.locator("#trajectory-readout").text_content() and not step.startswith("t = 0.00")
    page.keyboard.press("Escape")
    assert page.get_attribute("#trajectory svg", "aria-valuetext") != step

    page.focus("input[value=samples]")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("input[value=draw]") and page.locator("#pad").is_visible()
    page.focus("#pad")
    page.keyboard.press("Space")
    asked, _ = seen.ask(lambda: [page.keyboard.press("ArrowDown") for _ in range(6)])
    seen.settled()
    assert seen.page.locator("#bars").is_visible()
    page.keyboard.press("Delete")
    assert seen.text("#verdict") == "Draw something on the pad."


def test_the_result_is_announced(seen: Watched) -> None:
    """The verdict is a polite live region, and the result is marked as busy while a request is pending."""
    verdict = seen.page.locator("#verdict")
    assert verdict.get_attribute("aria-live") == "polite"
    assert seen.page.get_attribute("#result", "aria-busy") == "false"
    seen.page.click("[data-sample=digit-8]")
    assert seen.page.get_attribute("#result", "aria-busy") == "true"
    seen.settled()


@pytest.mark.parametrize("context", [{"viewport": PHONE, "has_touch": True}], indirect=True)
def test_a_phone_never_scrolls_sideways(seen: Watched) -> None:
    """At a width of 390 pixels, for every kind of model and input; no text is smaller than 11 pixels."""
    page = seen.page
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    for model in ("lt", "colour", "sde", "plane", "line"):
        choose_model(seen, model)
        assert page.evaluate(fits), model
    choose_model(seen, "lt")
    for source in ("draw", "upload", "samples"):
        page.check(f"input[value={source}]", force=True)
        assert page.evaluate(fits), source
    seen.settled()
    smallest = page.evaluate(
        """Math.min(...[...document.querySelectorAll("p, dt, dd, text, label, button, h2, h3, li")]
            .filter((node) => node.getClientRects().length).map((node) => parseFloat(getComputedStyle(node).fontSize)))"""
    )
    assert smallest >= 11


@pytest.mark.parametrize("context", [{"reduced_motion": "reduce"}], indirect=True)
def test_nothing_moves_with_reduced_motion(seen: Watched) -> None:
    """The busy line is not animated, and the bars have no transition."""
    seen.page.evaluate("document.getElementById('result').classList.add('busy')")
    style = "getComputedStyle(document.querySelector('{}')).{}"
    assert seen.page.evaluate(style.format(".busy-line", "animationName")) == "none"
    assert seen.page.evaluate(style.format(".bar", "transitionDuration")) in {"0s", ""}


def test_a_stopped_server_is_reported(seen: Watched) -> None:
    """The page says what to check, without a dialog and without waiting forever."""
    seen.expected = ("ERR_FAILED",)
    seen.page.route("**/api/trajectory", lambda route: route.abort())
    seen.page.click("[data-sample=digit-9]")
    seen.page.wait_for_selector("#input-message:not([hidden])")
    assert "does not answer" in seen.text("#input-message")


def test_the_token_in_the_address_opens_the_page(context: Any, trained: dict[str, TrainedModel]) -> None:
    """Without the token, the page shows the reason and the remedy."""
    with serving(create_app([classifier("guarded")], token="open-sesame")) as address:
        seen = Watched(context.new_page(), address, expected=("status of 401",)).watch().open()
        assert "#token=" in seen.text("#fatal")
        seen.page.goto(f"{address}/#token=open-sesame")
        seen.page.wait_for_selector("#main:not([hidden])")
        seen.settled()
        assert shown_probabilities(seen)
        seen.check()
