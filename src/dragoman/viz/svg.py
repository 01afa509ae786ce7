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


class ColorScheme(NamedTuple):
    """What a picture and a page have in common in one colour scheme."""

    paper: str
    ink: str
    muted: str
    line: str


LIGHT = ColorScheme(paper="#ffffff", ink="#1f2328", muted="#57606a", line="#d8dee4")
DARK = ColorScheme(paper="#0d1117", ink="#e6edf3", muted="#9198a1", line="#30363d")

_ZERO_WIDTH_JOINERS = "\u200c\u200d"


def escape_hidden(text: str) -> str:
    """`text` with nothing hidden in it: NUL reads ␀, a right-to-left override reads \\u202e.

    A zero-width joiner between two characters stays, for Persian, Hindi and emoji are written with it.
    """
    if text.isprintable():
        return text
    characters = []
    for position, character in enumerate(text):
        is_joiner = (
            character in _ZERO_WIDTH_JOINERS and 0 < position < len(text) - 1 and text[position - 1] not in _ZERO_WIDTH_JOINERS
        )
        characters.append(_escape_character(character) if _is_hidden(character) and not is_joiner else character)
    return "".join(characters)


def _is_hidden(character: str) -> bool:
    code = ord(character)
    non_character = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return non_character or unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def _escape_character(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def escape_text(text: str) -> str:
    """`text` made visible and escaped for XML and HTML, in content and in quoted attributes."""
    return html.escape(escape_hidden(text))


def estimate_text_width(text: str, size: float) -> float:
    """About how wide `text` is at font size `size`; generous, since the reader's font is unknown."""
    ems = 0.0
    for character in text:
        if not unicodedata.combining(character):
            ems += 1.0 if unicodedata.east_asian_width(character) in "WF" else 0.6
    return ems * size


def truncate_text(text: str, width: float, size: float) -> str:
    """`text` made visible and, where it is wider than `width`, cut short with an ellipsis. Not yet escaped."""
    text = escape_hidden(text)
    available_width = width - estimate_text_width("…", size)
    if estimate_text_width(text, size) <= width:
        return text
    used_width, end = 0.0, 0
    while end < len(text) and (used_width := used_width + estimate_text_width(text[end], size)) <= available_width:
        end += 1
    return text[:end] + "…"


def format_number(value: float) -> str:
    """A coordinate: two decimals at most, no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def render_label(
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    css_class: str = "ink",
    anchor: str = "start",
    attributes: str = "",
) -> str:
    """A `<text>` at (x, y). `text` is made inert here; `extra` holds further attributes as they are."""
    position = f'x="{format_number(x)}" y="{format_number(y)}" font-size="{format_number(size)}" text-anchor="{anchor}"'
    return f'<text class="{css_class}" {position}{attributes}>{escape_text(text)}</text>'


def render_svg(
    css_class: str,
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
    w, h = format_number(width), format_number(height)
    dark_style = f"@media (prefers-color-scheme:dark){{\n{_build_rules(css_class, DARK, dark)}\n}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css_class}" role="img" '
        f'width="{w}" height="{h}" viewBox="0 0 {w} {h}">\n'
        f"<title>{escape_text(title)}</title>\n<desc>{escape_text(description)}</desc>\n"
        f"<style>\n{_build_rules(css_class, LIGHT, light)}\n{dark_style}\n</style>\n"
        f'<rect class="paper" width="{w}" height="{h}"/>\n{body}\n</svg>\n'
    )


def _build_rules(css_class: str, color_scheme: ColorScheme, extra_rules: dict[str, str]) -> str:
    rules = {
        "text": f"font-family:{FONT}",
        ".paper": f"fill:{color_scheme.paper}",
        ".ink": f"fill:{color_scheme.ink}",
        ".muted": f"fill:{color_scheme.muted}",
        ".grid": f"stroke:{color_scheme.line};fill:none",
        **extra_rules,
    }
    return "\n".join(f".{css_class} {selector}{{{declarations}}}" for selector, declarations in rules.items())
