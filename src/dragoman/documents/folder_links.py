"""Links between the pages of a folder: the anchors of headings in one page that other pages link to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from dragoman.documents.formats import MAX_FILE_BYTES

_PAGES = frozenset((".md", ".markdown", ".mdx", ".adoc", ".asciidoc", ".html", ".htm"))
_FRAGMENT = re.compile(r"""#([^\s#"'()<>\[\]{},|]{1,300})""")
_PATH_LENGTH = 200
_NO_PATH = re.compile(r"""[\s"'()<>\[\]|]+""")
_TEMPLATE_LINK = re.compile(r"\{%-?[ \t]*(?:link|post_url)[ \t]+([^\s%]+)[ \t]*-?%\}$")
_FOLDER_PAGES = frozenset(("", "index", "_index", "readme"))
_NUMBER = re.compile(r"[\d._-]+")
_HUGO_FILES = ("hugo.toml", "hugo.yaml", "hugo.yml", "hugo.json", "archetypes")


@dataclass(frozen=True)
class LinkedAnchors:
    """Anchors of a page that other pages link to.

    names: the anchors, and some of other pages whose addresses do not tell the page
    is_hugo: the page is one of Hugo, which drops HTML and reads `{#name}`
    """

    names: frozenset[str] = field(default_factory=frozenset)
    is_hugo: bool = False


NO_ANCHORS = LinkedAnchors()


def find_linked_anchors(paths: Iterable[Path]) -> Mapping[Path, LinkedAnchors]:
    """Return the anchors that the pages among the paths link to, by the page that has them.

    Sites form the addresses of pages in many ways. So a link belongs to all pages whose name is the last part of its address,
    and to all pages if there is none. A page that cannot be read has no links here, and its own error later.
    """
    pages = [path for path in paths if path.suffix.lower() in _PAGES]
    own_names = {page: _list_names(page) for page in pages}
    known = frozenset().union(*own_names.values())
    linked: dict[str, set[str]] = {}
    for page in pages:
        for name, anchor in _read_links(page):
            linked.setdefault(name if name in known else "", set()).add(anchor)
    return {
        page: LinkedAnchors(frozenset().union(*(linked.get(name, ()) for name in ("", *names))), _is_hugo(page.parent))
        for page, names in own_names.items()
    }


def _list_names(page: Path) -> set[str]:
    """Return the names by which links call a page: its own, also without a number or a date, and its folder's for an index."""
    name = page.stem.lower()
    names = {name, _NUMBER.sub("", name, count=1) if _NUMBER.match(name) else name}
    return names | {page.parent.name.lower()} if name in _FOLDER_PAGES else names


def _read_links(page: Path) -> Iterable[tuple[str, str]]:
    """Yield the name of the page and the anchor of each link to another page."""
    try:
        with page.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for match in _FRAGMENT.finditer(text):
        before = text[max(match.start() - _PATH_LENGTH, 0) : match.start()]
        template = _TEMPLATE_LINK.search(before)
        path = template[1] if template else _NO_PATH.split(before)[-1]
        if not path or "://" in path:
            continue
        parts = [part for part in PurePosixPath(unquote(path)).parts if part not in ("/", ".", "..")]
        last = PurePosixPath(parts[-1] if parts else "")
        name = last.stem if last.suffix.lower() in _PAGES else last.name
        yield name.lower() or "index", unquote(match[1])


@cache
def _is_hugo(folder: Path) -> bool:
    """Return whether a folder is in a site of Hugo."""
    return any((parent / name).exists() for parent in (folder, *folder.absolute().parents) for name in _HUGO_FILES)
