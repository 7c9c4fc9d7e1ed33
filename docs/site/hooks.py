"""What the build of the site does beyond MkDocs: pages from other files of the repository, and their links."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook as a file of its own

from mkdocs.structure.files import File, Files
from pages import PAGES, images_outside, site_markdown

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that live outside of ``docs``, and the images that they show."""
    images = set()
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
        images |= images_outside(text, source, ROOT)
    for path in sorted(images):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Adapt links and pictures of a page."""
    sources = {name: source for source, name in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return site_markdown(markdown, source, ROOT, config.extra["repository"])
