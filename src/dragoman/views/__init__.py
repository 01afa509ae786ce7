"""Pictures from plain numbers: learning curves, attention heatmaps, parse trees, one-file report pages.

Every function returns text (SVG or HTML) and writes nothing; equal arguments give equal text.
"""

from dragoman.views.curve import Mark, Panel, Series, learning_curve
from dragoman.views.heatmap import attention_heatmap
from dragoman.views.report import Table, report_page
from dragoman.views.tree import tree_picture
from dragoman.views.watch import Sentence, Tile, watch_page

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
