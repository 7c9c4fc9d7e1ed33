"""Exported models in a browser: onnxruntime-web in headless Chromium, using local files only."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_exports import CASES, SAMPLES, inputs_for, network_input, shared_files, small_model  # noqa: F401  (a fixture)

INSTALL = "npm install --prefix ~/.cache/ltnode-npm onnxruntime-web@1.30.0"
BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
NEEDED = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
# Run in one thread: several threads need headers that isolate the page from other sites.
PAGE = """<!doctype html><link rel="icon" href="data:,"><script type="module">
import * as ort from "./ort.wasm.min.mjs";
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = new URL("./", location.href).href;
window.predict = async (file, values, shape) => {
  const session = await ort.InferenceSession.create(file, {executionProviders: ["wasm"]});
  const out = await session.run({x: new ort.Tensor("float32", Float32Array.from(values), shape)});
  return Object.fromEntries(Object.entries(out).map(([name, t]) => [name, {values: Array.from(t.data), shape: t.dims}]));
};
window.ready = true;
</script>"""


def runtime() -> Path:
    """The folder that contains the built files of onnxruntime-web."""
    cache = Path.home() / ".cache" / "ltnode-npm"
    named = os.environ.get("LTNODE_ONNXRUNTIME_WEB")
    for place in [Path(named)] if named else [cache / "node_modules" / "onnxruntime-web", cache / "onnxruntime-web"]:
        if all((place / "dist" / name).is_file() for name in NEEDED):
            return place / "dist"
    pytest.skip(f"needs onnxruntime-web: {INSTALL} (or set LTNODE_ONNXRUNTIME_WEB to its folder)")


def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    return found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, onnx_file: Callable[[str], Path]) -> Iterator[str]:
    """A local server with the page, the runtime and the three models."""
    browser()
    folder = tmp_path_factory.mktemp("site")
    for name in NEEDED:
        (folder / name).symlink_to(runtime() / name)
    for name in ("lt", "alt", "uni"):
        shutil.copy(onnx_file(name), folder / f"{name}.onnx")
    (folder / "index.html").write_text(PAGE, encoding="utf-8")

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_exported_models_give_the_library_s_answers_in_a_browser(address: str) -> None:
    # LT-, ALT- and Uni-NODE in batches of 1 and 64; reference: predict, to 1e-5. Inputs that fail the error check are solved with
    # finer steps by the library only, so they are skipped; most inputs must pass. No request leaves this machine.
    sync_api = pytest.importorskip("playwright.sync_api")
    requests: list[str] = []
    errors: list[str] = []
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        page = chromium.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/index.html")
        page.wait_for_function("window.ready === true")
        for name in ("lt", "alt", "uni"):
            case = CASES[name]
            model = small_model(case.model, case.spec)
            for batch in (1, 64):
                raw = inputs_for(case, batch)
                got = page.evaluate(
                    "([file, values, shape]) => window.predict(file, values, shape)",
                    [f"{name}.onnx", raw.flatten().tolist(), list(raw.shape)],
                )
                outputs = {key: np.array(value["values"]).reshape(value["shape"]) for key, value in got.items()}
                prediction = model.predict(network_input(case, raw), SAMPLES)
                passes = outputs["error_ratio"] < 1
                assert passes.mean() > 0.5
                for key in ("probs", "entropy", "epistemic"):
                    expected = getattr(prediction, key).numpy()
                    np.testing.assert_allclose(outputs[key][passes], expected[passes], rtol=0, atol=1e-5, err_msg=f"{name} {key}")
                np.testing.assert_allclose(outputs["times"], prediction.times.numpy(), rtol=0, atol=1e-5)
        chromium.close()
    assert errors == []
    assert f"{address}/alt.onnx" in requests
    assert all(url.startswith((address, "data:", "blob:")) for url in requests), requests
