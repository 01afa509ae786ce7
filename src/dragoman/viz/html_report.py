"""Report as one HTML file without scripts and without requests, for screens, phones and print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from dragoman.viz.svg import DARK, FONT, LIGHT, ColorScheme, escape_text


@dataclass(frozen=True)
class ReportTable:
    """Table of text cells. A column of numbers is aligned to the right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def build_css_variables(color_scheme: ColorScheme, **further_colors: str) -> str:
    colors = {**color_scheme._asdict(), **further_colors}
    return ":root{" + ";".join(f"--{name}:{color}" for name, color in colors.items()) + "}"


_STYLE = f"""
:root{{color-scheme:light dark}}
{build_css_variables(LIGHT)}
@media (prefers-color-scheme:dark){{{build_css_variables(DARK)}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 {FONT};-webkit-text-size-adjust:100%}}
h1{{font-size:1.6rem;line-height:1.25;margin:0 0 1.25rem}}
h2{{font-size:1.15rem;margin:2rem 0 .5rem}}
h1,p,dt,dd,td,th,caption,figcaption{{overflow-wrap:break-word}}
dt,dd{{min-width:0}}
dl{{display:grid;grid-template-columns:fit-content(40%) 1fr;gap:.3rem 1.25rem;margin:0}}
dt{{color:var(--muted)}}
dd{{margin:0;font-variant-numeric:tabular-nums}}
figure,section{{margin:2rem 0}}
.scroll{{overflow-x:auto}}
.scroll svg{{display:block;max-width:100%;height:auto}}
figcaption,caption{{color:var(--muted);font-size:.9rem;margin-top:.5rem}}
table{{border-collapse:collapse;width:max-content;font-size:.95rem}}
caption{{text-align:start;margin:0;padding:0 max(0px,calc(100% - 100vw + 2rem)) .5rem 0}}
th,td{{padding:.35rem .75rem;border-bottom:1px solid var(--line);text-align:start;vertical-align:top;max-width:22rem}}
thead th{{border-bottom-width:2px}}
.number{{text-align:end;font-variant-numeric:tabular-nums;white-space:nowrap}}
@media (max-width:30rem){{dl{{grid-template-columns:1fr;gap:0}}dd{{margin-bottom:.6rem}}}}
@media print{{figure,tr{{break-inside:avoid}}}}
"""


def render_report(
    title: str,
    *,
    facts: Sequence[tuple[str, str]] = (),
    tables: Sequence[ReportTable] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return a whole page: `facts` as (name, value), then `tables` and `notes`. All texts are escaped.

    Raises `ValueError` for a table whose rows differ in length.
    """
    parts = [f'<h1 dir="auto">{text_to_html(title)}</h1>']
    if facts:
        entries = "\n".join(f'<dt>{text_to_html(name)}</dt><dd dir="auto">{text_to_html(value)}</dd>' for name, value in facts)
        parts.append(f"<dl>\n{entries}\n</dl>")
    parts += [render_table(table) for table in tables]
    if notes:
        paragraphs = "\n".join(f'<p dir="auto">{text_to_html(note)}</p>' for note in notes)
        parts.append(f"<section>\n<h2>Notes</h2>\n{paragraphs}\n</section>")
    return render_page(title, "\n".join(parts))


def render_page(title: str, body: str, *, style: str = "", refresh_seconds: int | None = None) -> str:
    """Return a page around `body` and `style`, which are not escaped. With `refresh_seconds`, browsers reload it."""
    refresh_tag = "" if refresh_seconds is None else f'<meta http-equiv="refresh" content="{refresh_seconds}">\n'
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n{refresh_tag}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape_text(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def text_to_html(text: str) -> str:
    """Return escaped text with visible hidden characters and with line breaks."""
    return "<br>".join(map(escape_text, text.split("\n")))


def wrap_scrollable(name: str, content: str) -> str:
    """Return a region that scrolls horizontally on a narrow screen, also by keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape_text(name)}">{content}</div>'


def render_figure(caption: str, svg: str) -> str:
    """Return a figure that scrolls on a narrow screen. Raises `ValueError` if the SVG is more than a plain drawing."""
    # Below two thirds of its width, text is too small to read, so the figure scrolls.
    min_width = round(parse_drawing_width(svg) * 2 / 3)
    drawing = wrap_scrollable(caption, f'<div style="min-width:{min_width}px">\n{svg}</div>')
    return f'<figure>\n{drawing}\n<figcaption dir="auto">{text_to_html(caption)}</figcaption>\n</figure>'


_SVG_NAMESPACE = "{http://www.w3.org/2000/svg}"
_ALLOWED_ELEMENTS = {
    "svg", "title", "desc", "style", "g", "rect", "circle", "line", "path", "polyline", "polygon", "text", "tspan",
}  # fmt: skip


def parse_drawing_width(svg: str) -> float:
    """Return the width of an SVG. Raises `ValueError` if it runs or loads anything."""
    try:
        root = ElementTree.fromstring(svg)
        width = float(root.get("width", ""))
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"a figure must be an SVG with a width in pixels: {error}") from None
    if root.tag != f"{_SVG_NAMESPACE}svg" or "<!" in svg or "<?" in svg:
        raise ValueError("a figure must be a bare <svg> element, without a declaration")
    for element in root.iter():
        name = element.tag.removeprefix(_SVG_NAMESPACE)
        if name not in _ALLOWED_ELEMENTS:
            raise ValueError(f"a figure must not hold <{name}>")
        for attribute, value in element.items():
            if attribute.lower().startswith("on") or attribute.endswith(("href", "src")) or "url(" in value:
                raise ValueError(f"a figure must not hold {attribute}={value!r}")
        if name == "style" and ("@import" in (element.text or "") or "url(" in (element.text or "")):
            raise ValueError("a figure must not load files in its style")
    return width


_NUMBER_PATTERN = re.compile(r"[-+−~<>≤≥]? ?\d[\d.,' ]*(e[-+]?\d+)? ?%?( ?± ?\d[\d.]*)?")


def render_table(table: ReportTable) -> str:
    """Return a table in a region that scrolls. Raises `ValueError` if its rows differ in length."""
    for index, row in enumerate(table.rows):
        if len(row) != len(table.header):
            raise ValueError(
                f"row {index} of {table.caption!r}: has {len(row)} cells for {len(table.header)} columns; give one for each"
            )
    numeric_columns = [_is_numeric([row[column] for row in table.rows]) for column in range(len(table.header))]
    header_cells = "".join(
        _render_cell('th scope="col"', text, is_number) for text, is_number in zip(table.header, numeric_columns, strict=True)
    )
    rows = []
    for row in table.rows:
        cells = "".join(_render_cell("td", text, is_number) for text, is_number in zip(row, numeric_columns, strict=True))
        rows.append(f"<tr>{cells}</tr>")
    lines = [
        f'<table>\n<caption dir="auto">{text_to_html(table.caption)}</caption>',
        f"<thead><tr>{header_cells}</tr></thead>\n<tbody>",
        *rows,
        "</tbody>\n</table>",
    ]
    return "<section>\n" + wrap_scrollable(table.caption, "\n".join(lines)) + "\n</section>"


def _is_numeric(cells: Sequence[str]) -> bool:
    filled = [cell.strip() for cell in cells if cell.strip() not in {"", "-", "–", "—"}]
    return bool(filled) and all(_NUMBER_PATTERN.fullmatch(cell) for cell in filled)


def _render_cell(tag: str, text: str, is_number: bool) -> str:
    attributes = ' class="number"' if is_number else ' dir="auto"'
    return f"<{tag}{attributes}>{text_to_html(text)}</{tag.split()[0]}>"
