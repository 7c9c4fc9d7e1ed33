"""What the build of the site does beyond MkDocs: pages from other files of the repository, and their links."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook as a file of its own

from drawings import in_theme
from mkdocs.structure.files import File, Files
from notebooks import notebook
from notebooks import page as script_page
from pages import PAGES, images_outside, site_markdown

from ltnode.report.style import DARK, LIGHT

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that live outside of ``docs``, the images that they show, and rendered figures in both themes."""
    images = set()
    for source, name in PAGES.items():
        is_script = source.endswith(".py")
        repository = config.extra["repository"]
        text = script_page(ROOT / source, repository) if is_script else (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
        if is_script:
            converted = notebook(ROOT / source, repository)
            files.append(File.generated(config, f"{name.removesuffix('.md')}.ipynb", content=converted))
        images |= images_outside(text, source, ROOT)
    for path in sorted(images):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    for drawing in [file for file in files if file.src_uri.startswith("rendered/") and file.src_uri.endswith(".svg")]:
        files.remove(drawing)
        for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
            name = f"{drawing.src_uri.removesuffix('.svg')}{suffix}.svg"
            files.append(File.generated(config, name, content=in_theme(drawing.content_string, theme)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Adapt links and pictures of a page."""
    sources = {name: source for source, name in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return site_markdown(markdown, source, ROOT, config.extra["repository"])
