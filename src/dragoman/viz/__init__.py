"""Drawings and pages: learning curves, attention heatmaps, parse trees and reports of one file.

Each function returns text (SVG or HTML) and writes nothing. Equal arguments give equal text.
"""

from dragoman.viz.charts import Panel, Series, VerticalMarker, render_attention_heatmap, render_learning_curve
from dragoman.viz.html_report import ReportTable, render_report
from dragoman.viz.run_page import MetricTile, PageState, SentenceHistory, render_run_page
from dragoman.viz.tree_diagram import render_tree

__all__ = [
    "MetricTile",
    "PageState",
    "Panel",
    "ReportTable",
    "SentenceHistory",
    "Series",
    "VerticalMarker",
    "render_attention_heatmap",
    "render_learning_curve",
    "render_report",
    "render_run_page",
    "render_tree",
]
