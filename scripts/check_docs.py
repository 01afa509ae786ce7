"""Check the built documentation: links, anchors, page titles, and docstrings of public names.

Run by `make docs`:  python scripts/check_docs.py SITE

Each finding is one line. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dragoman

ROOT = Path(__file__).resolve().parents[1]
API_PAGE = ROOT / "docs" / "reference" / "python-api.md"


class PageParser(HTMLParser):
    """Collector of the anchors, links and images of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.headings = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchors and links of a tag."""
        attributes = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := attributes.get(name)))
        for name in ("href", "src"):
            value = attributes.get(name)
            if value:
                self.links.append(value)
        self.headings += tag == "h1"


def read_pages(site: Path) -> dict[Path, PageParser]:
    """Return the parsed pages of a site."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        parser = PageParser()
        parser.feed(path.read_text(encoding="utf-8"))
        pages[path.resolve()] = parser
    return pages


def has_anchor(page: PageParser, anchor: str) -> bool:
    """Return whether a page has the anchor. The theme's own anchors begin with `__`."""
    return not anchor or anchor.startswith("__") or anchor in page.anchors


def check_links(site: Path) -> Iterator[str]:
    """Yield the links of a site that lead to no file or no anchor."""
    pages = read_pages(site)
    for path, page in pages.items():
        # 404.html has absolute paths, and pages among the assets are no pages of the site.
        if path.name == "404.html" or "assets" in path.relative_to(site.resolve()).parts:
            continue
        name = path.relative_to(site.resolve())
        if page.headings != 1:
            yield f"{name}: has {page.headings} titles; write one line that starts with `# `"
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                yield f"{name}: {link}: there is no such page or file"
            elif target in pages and not has_anchor(pages[target], unquote(parts.fragment)):
                yield f"{name}: {link}: the page has no such anchor"


def import_object(path: str) -> Any:
    """Return the object with a dotted path."""
    names = path.split(".")
    for end in range(len(names), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError:
            continue
        for name in names[end:]:
            value = getattr(value, name)
        return value
    raise AttributeError(f"{path}: there is no such module")


def list_documented_names() -> list[str]:
    """Return the dotted paths that the API page documents."""
    return re.findall(r"^::: (\S+)", API_PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def check_public_names() -> Iterator[str]:
    """Yield the public names that the API page leaves out, or that have no docstring."""
    documented = list_documented_names()
    for name in dragoman.__all__:
        if not name.startswith("__") and f"dragoman.{name}" not in documented and name != "DragomanError":
            yield f"dragoman.{name}: is public; document it on {API_PAGE.relative_to(ROOT)}"
    for path in documented:
        try:
            value = import_object(path)
        except AttributeError as error:
            yield f"{path}: cannot be imported: {error}"
            continue
        if not inspect.getdoc(value):
            yield f"{path}: has no docstring"
        for name in getattr(value, "__all__", ()) if inspect.ismodule(value) else ():
            if not inspect.getdoc(getattr(value, name)):
                yield f"{path}.{name}: has no docstring"
        if inspect.isclass(value):
            for name, member in vars(value).items():
                if name.startswith("_"):
                    continue
                function = member.fget if isinstance(member, property) else getattr(member, "func", member)
                if callable(function) and not inspect.isclass(function) and not inspect.getdoc(function):
                    yield f"{path}.{name}: has no docstring"


def main(arguments: list[str]) -> int:
    """Check the site and print the findings; return the exit status."""
    site = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    findings = [*check_links(site), *check_public_names()]
    print("\n".join(findings) if findings else f"documentation: no findings in {len(list(site.rglob('*.html')))} pages")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
