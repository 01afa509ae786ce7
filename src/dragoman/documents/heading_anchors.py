"""Anchors of headings: the names under which sites link to a heading, which they form from its text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping


def find_linked(headings: Iterable[str], fragments: Iterable[str]) -> Mapping[int, list[str]]:
    """Return the fragments of links that name a heading, by the number of the heading.

    headings: plain texts in the order of the file
    fragments: what stands behind `#` in links
    """
    sought = dict.fromkeys(fragments)
    counts: Counter[str] = Counter()
    linked: dict[int, list[str]] = {}
    for number, heading in enumerate(headings):
        for stem in list_anchors(heading):
            count = counts[stem]
            counts[stem] += 1
            names = (stem,) if not count else (f"{stem}-{count}", f"{stem}_{count}")
            linked.setdefault(number, []).extend(name for name in names if name in sought)
    return {number: names for number, names in linked.items() if names}


def list_anchors(heading: str) -> list[str]:
    """Return the names that GitHub (also Docusaurus, Hugo and mdBook), Python-Markdown, and Pandoc give to a heading."""
    text = heading.strip().lower()
    github = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
    ascii_text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    python = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_text).strip().lower())
    pandoc = re.sub(r"^[^a-zA-Z]+", "", re.sub(r"\s+", "-", re.sub(r"[^\w\s.-]", "", text)))
    return list(dict.fromkeys((github, python, pandoc)))
