"""Check the built site: ``python docs/site/check.py build/site``.

Every link and anchor leads somewhere, nothing is loaded from another server, links into the repository name files that exist,
no list or table is left as text, and every page can be reached from the first one. Exits with 1 and one line per problem.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset", "audio": "src", "video": "src"}
UNLOADED_RELATIONS = {"canonical", "prev", "next", "edit"}
LEFT_AS_TEXT = re.compile(r"^\s*(?:[-*] |\d+\. |\|.*\||```|:::)", flags=re.MULTILINE)


class Page(HTMLParser):
    """What a page links to, what it loads, its anchors, and the text of its paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.repeated: list[str] = []
        self.paragraphs: list[str] = []
        self.without_text = 0
        self._depth = 0
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            if values["id"] in self.anchors:
                self.repeated.append(values["id"])
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") not in UNLOADED_RELATIONS:
            self.loaded.append(values[LOADED[tag]])
        self.without_text += tag == "img" and not values.get("alt")
        if tag == "p":
            self._depth += 1
            self.paragraphs.append("")
        self._code += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._depth -= 1
        self._code -= tag == "code"

    def handle_data(self, data: str) -> None:
        if self._depth > 0 and self._code == 0:
            self.paragraphs[-1] += data


def problems(site: Path, repository: str, root: Path = ROOT) -> list[str]:
    """One line per problem of the site."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path] = page
    found = [line for path, page in pages.items() for line in _of_page(path, page, pages, site, repository, root)]
    found += [f"{path.relative_to(site)}: loads {url}" for path in sorted(site.rglob("*.css")) for url in _css_urls(path)]
    return [*found, *_unreachable(site, pages)]


def _of_page(path: Path, page: Page, pages: dict[Path, Page], site: Path, repository: str, root: Path) -> list[str]:
    name = path.relative_to(site)
    found = [f"{name}: loads {url}" for url in page.loaded if urlsplit(url).netloc]
    found += [f"{name}: the anchor {anchor} is there twice" for anchor in page.repeated]
    found += [f"{name}: an image without a description"] * page.without_text
    found += [f"{name}: left as text: {text.strip()[:80]!r}" for text in page.paragraphs if LEFT_AS_TEXT.search(text)]
    if path.name == "404.html":  # its links are those of the server's root
        return found
    for link in [*page.links, *page.loaded]:
        parts = urlsplit(link)
        if link.startswith(f"{repository}/"):
            place = re.fullmatch(r"(?:blob|tree|raw)/main/(.+)", parts.path.removeprefix(urlsplit(repository).path + "/"))
            if place and not (root / unquote(place[1])).exists():
                found.append(f"{name}: {link} is no file of the repository")
        elif not parts.scheme and not parts.netloc:
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{name}: {link} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors | {"__top"}:
                found.append(f"{name}: {link} has no such anchor")
    return found


def _css_urls(path: Path) -> list[str]:
    return [url for url in re.findall(r"url\(['\"]?([^)'\"]+)", path.read_text(encoding="utf-8")) if urlsplit(url).netloc]


def _unreachable(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Pages to which no chain of links leads from the first one."""
    reached, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop()
        if path in reached or path not in pages:
            continue
        reached.add(path)
        waiting += [
            (path.parent / unquote(urlsplit(link).path)).resolve() for link in pages[path].links if not urlsplit(link).netloc
        ]
    return [f"{path.relative_to(site)}: no link leads here" for path in pages if path not in reached and path.name != "404.html"]


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    (repository,) = re.findall(r"^  repository: (\S+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = problems(site, repository)
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages: every link and anchor leads somewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
