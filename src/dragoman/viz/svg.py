"""What every picture shares: text made visible and inert, scoped colours, the outer `<svg>`.

A picture holds no id and no reference, so any number of them fit in one page. A style inside an inlined SVG applies
to the whole page: so each selector starts with the class of its kind of picture, and one kind has one set of rules.
Colours are written out, not as CSS variables, which librsvg and Inkscape do not know.
"""

from __future__ import annotations

import html
import unicodedata
from typing import NamedTuple

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif"


class Colours(NamedTuple):
    """What a picture and a page have in common in one colour scheme."""

    paper: str
    ink: str
    muted: str
    line: str


LIGHT = Colours(paper="#ffffff", ink="#1f2328", muted="#57606a", line="#d8dee4")
DARK = Colours(paper="#0d1117", ink="#e6edf3", muted="#9198a1", line="#30363d")

_JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    """`text` with nothing hidden in it: NUL reads ␀, a right-to-left override reads \\u202e.

    A zero-width joiner between two characters stays, for Persian, Hindi and emoji are written with it.
    """
    if text.isprintable():
        return text
    shown = []
    for position, character in enumerate(text):
        joins = character in _JOINERS and 0 < position < len(text) - 1 and text[position - 1] not in _JOINERS
        shown.append(_mark(character) if _is_hidden(character) and not joins else character)
    return "".join(shown)


def _is_hidden(character: str) -> bool:
    code = ord(character)
    non_character = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return non_character or unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def _mark(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def inert(text: str) -> str:
    """`text` made visible and escaped for XML and HTML, in content and in quoted attributes."""
    return html.escape(visible(text))


def text_width(text: str, size: float) -> float:
    """About how wide `text` is at font size `size`; generous, since the reader's font is unknown."""
    ems = 0.0
    for character in text:
        if not unicodedata.combining(character):
            ems += 1.0 if unicodedata.east_asian_width(character) in "WF" else 0.6
    return ems * size


def fitted(text: str, width: float, size: float) -> str:
    """`text` made visible and, where it is wider than `width`, cut short with an ellipsis. Not yet escaped."""
    text = visible(text)
    room = width - text_width("…", size)
    if text_width(text, size) <= width:
        return text
    used, end = 0.0, 0
    while end < len(text) and (used := used + text_width(text[end], size)) <= room:
        end += 1
    return text[:end] + "…"


def number(value: float) -> str:
    """A coordinate: two decimals at most, no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def label(
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    kind: str = "ink",
    anchor: str = "start",
    extra: str = "",
) -> str:
    """A `<text>` at (x, y). `text` is made inert here; `extra` holds further attributes as they are."""
    place = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}{extra}>{inert(text)}</text>'


def picture(
    kind: str,
    *,
    width: float,
    height: float,
    title: str,
    description: str,
    body: str,
    light: dict[str, str],
    dark: dict[str, str],
) -> str:
    """The whole `<svg>` of class `kind`, on its own paper, so that it reads on a page of either colour.

    `light` and `dark` map a selector below `kind` to its declarations.
    """
    w, h = number(width), number(height)
    dark_style = f"@media (prefers-color-scheme:dark){{\n{_rules(kind, DARK, dark)}\n}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="img" '
        f'width="{w}" height="{h}" viewBox="0 0 {w} {h}">\n'
        f"<title>{inert(title)}</title>\n<desc>{inert(description)}</desc>\n"
        f"<style>\n{_rules(kind, LIGHT, light)}\n{dark_style}\n</style>\n"
        f'<rect class="paper" width="{w}" height="{h}"/>\n{body}\n</svg>\n'
    )


def _rules(kind: str, colours: Colours, own: dict[str, str]) -> str:
    rules = {
        "text": f"font-family:{FONT}",
        ".paper": f"fill:{colours.paper}",
        ".ink": f"fill:{colours.ink}",
        ".muted": f"fill:{colours.muted}",
        ".grid": f"stroke:{colours.line};fill:none",
        **own,
    }
    return "\n".join(f".{kind} {selector}{{{declarations}}}" for selector, declarations in rules.items())
