"""Page for a reviewer: the flagged texts of files, with their translations, the reason and the place."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.documents.file_report import FileReport, describe
from dragoman.viz.html_report import ReportTable, render_page, render_table, text_to_html

_HEADER = ("place", "source", "translation", "reason")
_STYLE = """
body{max-width:90rem}
table{width:100%;table-layout:fixed}
th,td{max-width:none;white-space:pre-wrap}
th:first-child{width:14%}
.number{text-align:start}
@media (max-width:45rem){thead{display:none}tr{display:block;border-bottom:2px solid var(--line);padding:.5rem 0}
td{display:block;border:0;padding:.1rem 0}td:first-child,td:last-child{color:var(--muted)}}
"""


def render_review(reports: Sequence[FileReport]) -> str:
    """Return a whole page: a line of counts for each file, then a table of the flagged texts of each file."""
    counts = "".join(f"<li>{text_to_html(describe(report)[-1])}</li>" for report in reports)
    parts = [f"<h1>Texts to check</h1>\n<ul>{counts}</ul>"]
    for report in reports:
        if report.flagged:
            rows = [(text.context or text.id, text.source, text.text or "stays as it is", text.note) for text in report.flagged]
            parts.append(render_table(ReportTable(report.output or report.file, _HEADER, rows)))
    return render_page("Texts to check", "\n".join(parts), style=_STYLE)
