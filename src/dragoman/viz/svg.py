"""Common parts of all drawings: escaped text, scoped colors and the `<svg>` element.

A drawing has no ids and no references, so a page can hold any number of them. A style inside an inline SVG applies to the
whole page. So each selector starts with the class of its kind of drawing, and one kind has one set of rules. Colors are
literal, because librsvg and Inkscape do not support CSS variables.
"""

from __future__ import annotations

import html
import unicodedata
from typing import NamedTuple

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif"


class ColorScheme(NamedTuple):
    """Colors of drawings and pages in one color scheme."""

    paper: str
    ink: str
    muted: str
    line: str


LIGHT = ColorScheme(paper="#ffffff", ink="#1f2328", muted="#57606a", line="#d8dee4")
DARK = ColorScheme(paper="#0d1117", ink="#e6edf3", muted="#9198a1", line="#30363d")

_ZERO_WIDTH_JOINERS = "\u200c\u200d"


def escape_hidden(text: str) -> str:
    """Return `text` with visible hidden characters: NUL becomes ␀, a right-to-left override becomes \\u202e.

    A zero-width joiner between two characters stays, because Persian, Hindi and emoji need it.
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
    """Return `text` with visible hidden characters, escaped for content and quoted attributes of XML and HTML."""
    return html.escape(escape_hidden(text))


def estimate_text_width(text: str, size: float) -> float:
    """Return an upper estimate of the width of `text` at font size `size`; the font of the reader is unknown."""
    ems = 0.0
    for character in text:
        if not unicodedata.combining(character):
            ems += 1.0 if unicodedata.east_asian_width(character) in "WF" else 0.6
    return ems * size


def truncate_text(text: str, width: float, size: float) -> str:
    """Return `text` with visible hidden characters, cut with an ellipsis if it is wider than `width`. It is not escaped."""
    text = escape_hidden(text)
    available_width = width - estimate_text_width("…", size)
    if estimate_text_width(text, size) <= width:
        return text
    used_width, end = 0.0, 0
    while end < len(text) and (used_width := used_width + estimate_text_width(text[end], size)) <= available_width:
        end += 1
    return text[:end] + "…"


def format_number(value: float) -> str:
    """Return a coordinate with at most two decimals and without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def format_attributes(**values: float) -> str:
    """Return coordinates as XML attributes, such as `x="1.5" width="20"`."""
    return " ".join(f'{name}="{format_number(value)}"' for name, value in values.items())


def box_path(x: float, y: float, width: float, height: float) -> str:
    w, h = format_number(width), format_number(height)
    return f"M{format_number(x)} {format_number(y)}h{w}v{h}h-{w}z"


def line_path(x: float, y: float, end_x: float, end_y: float) -> str:
    return f"M{format_number(x)} {format_number(y)}L{format_number(end_x)} {format_number(end_y)}"


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
    """Return a `<text>` at (x, y). `text` is escaped; `attributes` holds further attributes, which are not."""
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
    """Return the whole `<svg>` with its own background, so that it is readable on light and dark pages.

    light, dark: declarations of each selector below `css_class` in the two color schemes
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
