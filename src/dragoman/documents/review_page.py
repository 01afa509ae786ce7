"""Page for a reviewer: the flagged texts of files, with their translations, the reason and the place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.runtime.counts import format_count
from dragoman.viz.html_report import ReportTable, render_page, render_table, text_to_html

if TYPE_CHECKING:
    from dragoman.documents.file_report import FileReport

_HEADER = ("place", "source", "translation", "reason")
_STYLE = """
body{max-width:90rem}
table{width:100%;table-layout:fixed}
th,td{max-width:none;white-space:pre-wrap}
th:first-child{width:14%}
@media (max-width:45rem){thead{display:none}tr{display:block;border-bottom:2px solid var(--line);padding:.5rem 0}
td{display:block;border:0;padding:.1rem 0}td:first-child,td:last-child{color:var(--muted)}}
"""


def render_review(reports: Sequence[FileReport]) -> str:
    """Return a whole page: a table of the files with their counts, then a table of the flagged texts of each file."""
    counts = ReportTable(
        "Files",
        ("file", "output", "texts", "translated", "kept", "left", "flagged"),
        [
            (
                report.file,
                report.output or report.error or "",
                *(str(number) for number in (report.texts, report.translated, report.kept, report.left, len(report.flagged))),
            )
            for report in reports
        ],
    )
    parts = [f"<h1>{text_to_html('Texts to check')}</h1>", render_table(counts)]
    for report in reports:
        if report.flagged:
            rows = [(text.context or text.id, text.source, text.text or "stays as it is", text.note) for text in report.flagged]
            caption = f"{report.output or report.file}: {format_count(len(rows), 'text')}"
            parts.append(render_table(ReportTable(caption, _HEADER, rows)))
    return render_page("Texts to check", "\n".join(parts), style=_STYLE)
