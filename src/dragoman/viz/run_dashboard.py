"""The page of a run as it goes: one HTML file without script or request, that browsers load anew while the run is going."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from dragoman.viz.html_report import Table, drawing_width, html_page, html_table, html_text

_STYLE = """
:root{--good:#1a7f37;--alarm:#cf222e;--card:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--good:#3fb950;--alarm:#ff7b72;--card:#161b22}}
body{max-width:84rem}
h1{margin:0}
.state{margin:.25rem 0 .75rem;font-variant-numeric:tabular-nums}
.running,.finished{color:var(--good);font-weight:600}
.stopped,.failed,.silent{color:var(--alarm);font-weight:600}
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
.sentence p,.versions div{min-width:0;overflow-wrap:anywhere}
.sentence .reference{color:var(--muted);margin-bottom:.6rem}
.versions{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,14rem),1fr));gap:.6rem 1.25rem}
.versions small{display:block;color:var(--muted)}
mark{background:none;color:inherit;text-decoration:underline;text-decoration-color:var(--good);text-decoration-thickness:.12em;
text-underline-offset:.15em}
footer{color:var(--muted);font-size:.9rem;margin-top:2rem}
"""

# The comparison takes time by the product of both lengths.
_MOST_COMPARED = 1_000_000


@dataclass(frozen=True)
class Tile:
    """One number, with what it is and a remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Sentence:
    """A source, what was expected, and what the model made of it at some steps, oldest first."""

    source: str
    reference: str
    versions: Sequence[tuple[str, str]]


def watch_page(
    title: str,
    *,
    state: str,
    sentence: str,
    share: float,
    tiles: Sequence[Tile] = (),
    charts: Sequence[str] = (),
    sentences: Sequence[Sentence] = (),
    tables: Sequence[Table] = (),
    footer: str = "",
    refresh: int | None = None,
) -> str:
    """A whole page. `state` is running, finished, stopped, failed or silent; `sentence` goes on after it.

    share: of the budget that is spent
    refresh: seconds after which a browser loads the page anew; never when not given
    """
    percent = f"{100.0 * min(max(share, 0.0), 1.0):.1f}"
    parts = [
        f'<h1 dir="auto">{html_text(title)}</h1>',
        f'<p class="state"><span class="{html_text(state)}">{html_text(state)}</span>{html_text(sentence)}</p>',
        f'<progress max="100" value="{percent}" aria-label="share of the budget">{percent} %</progress>',
    ]
    if tiles:
        parts += ['<dl class="tiles">', *map(_tile, tiles), "</dl>"]
    if charts:
        parts += ['<div class="charts">', *map(_chart, charts), "</div>"]
    if sentences:
        parts += ["<section>", "<h2>Translations</h2>", *map(_sentence, sentences), "</section>"]
    parts += [html_table(table) for table in tables]
    parts.append(f"<footer>{html_text(footer)}</footer>")
    return html_page(title, "\n".join(parts), style=_STYLE, refresh=refresh)


def _tile(tile: Tile) -> str:
    remark = f"<small>{html_text(tile.remark)}</small>" if tile.remark else ""
    return f'<div><dt>{html_text(tile.name)}</dt><dd dir="auto">{html_text(tile.value)}{remark}</dd></div>'


def _chart(svg: str) -> str:
    drawing_width(svg)
    return f"<div>{svg}</div>"


def _sentence(sentence: Sentence) -> str:
    versions = []
    before: str | None = None
    for name, text in sentence.versions:
        shown = "".join(
            f"<mark>{html_text(part)}</mark>" if is_new else html_text(part) for part, is_new in changed(before, text)
        )
        versions.append(f'<div dir="auto"><small>{html_text(name)}</small>{shown or "–"}</div>')
        before = text
    return "\n".join(
        [
            f'<div class="sentence">\n<p dir="auto"><strong>{html_text(sentence.source)}</strong></p>',
            f'<p class="reference" dir="auto">{html_text(sentence.reference)}</p>\n<div class="versions">',
            *versions,
            "</div>\n</div>",
        ]
    )


def changed(before: str | None, text: str) -> list[tuple[str, bool]]:
    """`text` in parts, each with whether it is new since `before`: by words, or by letters where no spaces part words."""
    if before is None or before == text:
        return [(text, False)] if text else []
    old, new = (_pieces(one, by_letter=" " not in text.strip()) for one in (before, text))
    if len(old) * len(new) > _MOST_COMPARED:
        return [(text, False)]
    parts: list[tuple[str, bool]] = []
    for operation, _, _, begin, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        part = "".join(new[begin:end])
        kept = len(part) if operation == "equal" else len(part.rstrip())  # a space that ends what is new is not worth a mark
        parts += [(part[:kept], operation != "equal"), (part[kept:], False)]
    return [part for part in parts if part[0]]


def _pieces(text: str, *, by_letter: bool) -> list[str]:
    return list(text) if by_letter else re.findall(r"\s+|\S+", text)
