"""Take screenshots of the explorer page: ``python docs/figures/shoot_explorer.py http://127.0.0.1:8000``.

Start ``ltnode serve zoo`` first. Writes explorer-light.png and explorer-phone.png (the initial view) and explorer-dark.png (an
MNIST model on a letter), reduced to 256 colours.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FOLDER = Path(__file__).parent
SETTLED = """() => document.getElementById("result").getAttribute("aria-busy") === "false"
    && document.getElementById("sweep-card").getAttribute("aria-busy") === "false"
    && document.querySelector("#sweep-entropy path.line") !== null"""
VIEWS = {
    "light": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "light", "device_scale_factor": 1.5},
    "dark": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "dark", "device_scale_factor": 1.5},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


def shoot(browser: Any, address: str, name: str) -> bytes:
    """Screenshot of the whole page as a PNG."""
    page = browser.new_context(**VIEWS[name]).new_page()
    page.goto(address)
    page.wait_for_function(SETTLED, timeout=60_000)
    if name == "dark":
        page.select_option("#model", "lt-node-mnist")
        page.wait_for_function(SETTLED, timeout=60_000)
        page.click('[data-sample="letter-k"]')
        page.wait_for_timeout(2_000)
        page.wait_for_function(SETTLED, timeout=60_000)
    page.wait_for_timeout(500)  # the bars are animated
    return bytes(page.screenshot(full_page=True))


def reduced(picture: Image.Image) -> Image.Image:
    """Reduce to at most 256 colours; frequent colours stay exact, so that flat areas do not change."""
    colours, place, counts = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    colours = colours.astype(int)
    chosen: list[np.ndarray] = []
    for colour in colours[np.argsort(-counts)]:
        if len(chosen) < 256 and all(np.abs(colour - other).sum() > 9 for other in chosen):
            chosen.append(colour)
    nearest = np.array([np.abs(np.stack(chosen) - colour).sum(1).argmin() for colour in colours])
    small = Image.fromarray(nearest[place.ravel()].reshape(picture.height, picture.width).astype(np.uint8), "P")
    small.putpalette(np.stack(chosen).astype(np.uint8).tobytes())
    return small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    address = parser.parse_args().address
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in VIEWS:
            picture = Image.open(io.BytesIO(shoot(browser, address, name))).convert("RGB")
            reduced(picture).save(FOLDER / f"explorer-{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
