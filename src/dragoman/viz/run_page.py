"""Page of a run: one HTML file without scripts, which browsers reload while the run is running."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from dragoman.viz.html_report import ReportTable, parse_drawing_width, render_figure, render_page, render_table, text_to_html

_STYLE = """
:root{--good:#1a7f37;--alarm:#cf222e;--card:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--good:#3fb950;--alarm:#ff7b72;--card:#161b22}}
body{max-width:84rem}
h1{margin:0}
.state{margin:.25rem 0 .75rem;font-variant-numeric:tabular-nums}
.running,.finished{color:var(--good);font-weight:600}
.stopped,.failed,.stalled{color:var(--alarm);font-weight:600}
progress{display:block;width:100%;height:.75rem;margin:0 0 1.25rem;accent-color:var(--good)}
dl.tiles{grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem}
.tiles div{background:var(--card);border-radius:.5rem;padding:.5rem .75rem;min-width:0}
.tiles dt{font-size:.8rem}
.tiles dd{font-size:1.2rem;font-weight:600;margin:0;overflow-wrap:anywhere}
.tiles small{display:block;font-size:.8rem;font-weight:400;color:var(--muted)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:1rem;margin:1.5rem 0}
.charts svg{display:block;width:100%;height:auto}
.sentence{background:var(--card);border-radius:.5rem;padding:.75rem 1rem;margin:.75rem 0}
.sentence p{margin:0}
.diagnosis{border-inline-start:.25rem solid var(--alarm)}
.sentence p,.versions div{min-width:0;overflow-wrap:anywhere}
.sentence .reference{color:var(--muted);margin-bottom:.6rem}
.versions{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,14rem),1fr));gap:.6rem 1.25rem}
.versions small{display:block;color:var(--muted)}
mark{background:none;color:inherit;text-decoration:underline;text-decoration-color:var(--good);text-decoration-thickness:.12em;
text-underline-offset:.15em}
footer{color:var(--muted);font-size:.9rem;margin-top:2rem}
"""

# The time of the comparison grows with the product of both lengths.
_MAX_DIFF_SIZE = 1_000_000


@dataclass(frozen=True)
class MetricTile:
    """One number with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class SentenceHistory:
    """One source with its reference and its translations at several steps, oldest first."""

    source: str
    reference: str
    versions: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class PageState:
    """State of a run.

    name: running, finished, stopped, failed or stalled
    detail: text after the state
    progress: share of the budget that is spent, from 0 to 1
    """

    name: str
    detail: str
    progress: float


def render_run_page(
    title: str,
    state: PageState,
    *,
    tiles: Sequence[MetricTile] = (),
    charts: Sequence[str] = (),
    figures: Sequence[tuple[str, str]] = (),
    sentences: Sequence[SentenceHistory] = (),
    diagnoses: Sequence[tuple[str, str]] = (),
    tables: Sequence[ReportTable] = (),
    footer: str = "",
    refresh_seconds: int | None = None,
) -> str:
    """Return the whole page.

    diagnoses: problems that were found, as (name, text)
    figures: drawings as (caption, svg)
    refresh_seconds: seconds until a browser reloads the page; None for never
    """
    percent = f"{100.0 * min(max(state.progress, 0.0), 1.0):.1f}"
    name = text_to_html(state.name)
    parts = [
        f'<h1 dir="auto">{text_to_html(title)}</h1>',
        f'<p class="state"><span class="{name}">{name}</span>{text_to_html(state.detail)}</p>',
        f'<progress max="100" value="{percent}" aria-label="share of the budget">{percent} %</progress>',
    ]
    parts += [
        f'<div class="sentence diagnosis"><p dir="auto"><strong>{text_to_html(name)}</strong>: {text_to_html(text)}</p></div>'
        for name, text in diagnoses
    ]
    if tiles:
        parts += ['<dl class="tiles">', *map(_render_tile, tiles), "</dl>"]
    if charts:
        parts += ['<div class="charts">', *map(_render_chart, charts), "</div>"]
    if sentences:
        parts += ["<section>", "<h2>Translations</h2>", *map(_render_sentence, sentences), "</section>"]
    parts += [render_figure(caption, svg) for caption, svg in figures]
    parts += [render_table(table) for table in tables]
    parts.append(f"<footer>{text_to_html(footer)}</footer>")
    return render_page(title, "\n".join(parts), style=_STYLE, refresh_seconds=refresh_seconds)


def _render_tile(tile: MetricTile) -> str:
    note = f"<small>{text_to_html(tile.note)}</small>" if tile.note else ""
    return f'<div><dt>{text_to_html(tile.name)}</dt><dd dir="auto">{text_to_html(tile.value)}{note}</dd></div>'


def _render_chart(svg: str) -> str:
    parse_drawing_width(svg)
    return f"<div>{svg}</div>"


def _render_sentence(sentence: SentenceHistory) -> str:
    versions = []
    previous: str | None = None
    for name, text in sentence.versions:
        marked_text = "".join(
            f"<mark>{text_to_html(part)}</mark>" if is_new else text_to_html(part) for part, is_new in diff_text(previous, text)
        )
        versions.append(f'<div dir="auto"><small>{text_to_html(name)}</small>{marked_text or "–"}</div>')
        previous = text
    return "\n".join(
        [
            f'<div class="sentence">\n<p dir="auto"><strong>{text_to_html(sentence.source)}</strong></p>',
            f'<p class="reference" dir="auto">{text_to_html(sentence.reference)}</p>\n<div class="versions">',
            *versions,
            "</div>\n</div>",
        ]
    )


def diff_text(previous: str | None, text: str) -> list[tuple[str, bool]]:
    """Return `text` in parts, each with whether it is new compared with `previous`.

    The comparison is by words, or by characters if the texts have no spaces.
    """
    if previous is None or previous == text:
        return [(text, False)] if text else []
    previous_parts, text_parts = (
        _split_for_diff(version, by_character=" " not in text.strip()) for version in (previous, text)
    )
    if len(previous_parts) * len(text_parts) > _MAX_DIFF_SIZE:
        return [(text, False)]
    parts: list[tuple[str, bool]] = []
    for operation, _, _, start, end in SequenceMatcher(None, previous_parts, text_parts, autojunk=False).get_opcodes():
        part = "".join(text_parts[start:end])
        marked_length = len(part) if operation == "equal" else len(part.rstrip())  # a trailing space is not marked
        parts += [(part[:marked_length], operation != "equal"), (part[marked_length:], False)]
    return [part for part in parts if part[0]]


def _split_for_diff(text: str, *, by_character: bool) -> list[str]:
    return list(text) if by_character else re.findall(r"\s+|\S+", text)
