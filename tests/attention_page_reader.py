"""Reader of attention pages, for tests: their text, attributes, pictures and vectors."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from typing import Any

import numpy as np

from dragoman.viz.explanation import AttentionHeads


class Page(HTMLParser):
    """Parser of tags, attributes, and the text of styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.text = ""
        self.is_raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.is_raw = False

    def handle_data(self, data: str) -> None:
        if self.is_raw:
            self.raw.append((*self.tags[-1], data))
        else:
            self.text += data

    def images(self) -> list[bytes]:
        return [base64.b64decode((attributes["src"] or "").split(",")[1]) for tag, attributes in self.tags if tag == "img"]

    def data(self) -> Any:
        return next(json.loads(text) for _, attributes, text in self.raw if attributes.get("id") == "data")

    def vectors(self) -> bytes:
        return base64.b64decode(next((text for _, attributes, text in self.raw if attributes.get("id") == "vectors"), ""))


def vectors_of(page: Page, heads: AttentionHeads, name: str) -> list[Any]:
    """Return query, key and value of a head from the page: three scales, then 16-bit numbers."""
    start, packed = page.data()["vectors"][name], page.vectors()
    scales = np.frombuffer(packed, "<f4", 3, start)
    position, vectors = start + 12, []
    for scale, whole in zip(scales, (heads.query_LHTK, heads.key_LHSK, heads.value_LHSU), strict=True):
        rows, width = whole.shape[2:]
        vectors.append(np.frombuffer(packed, "<i2", rows * width, position).reshape(rows, width) * scale)
        position += 2 * rows * width
    return vectors
