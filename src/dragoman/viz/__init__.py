"""Pictures from plain numbers: learning curves, attention heatmaps, parse trees, one-file report pages.

Every function returns text (SVG or HTML) and writes nothing; equal arguments give equal text.
"""

from dragoman.viz.heatmap import attention_heatmap
from dragoman.viz.html_report import Table, report_page
from dragoman.viz.line_chart import Mark, Panel, Series, learning_curve
from dragoman.viz.run_dashboard import Sentence, Tile, watch_page
from dragoman.viz.tree_diagram import tree_picture

__all__ = [
    "Mark",
    "Panel",
    "Sentence",
    "Series",
    "Table",
    "Tile",
    "attention_heatmap",
    "learning_curve",
    "report_page",
    "tree_picture",
    "watch_page",
]
