"""Result of parsing one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.parsing.sentence_parser import ParseStatus
from dragoman.parsing.trees.ptb import format_tree
from dragoman.parsing.trees.tree import Span, Tree, get_spans
from dragoman.viz.tree_diagram import render_tree

Sentence = str | Sequence[str]
"""Text, or the list of its words."""
PosTags = Sequence[str]
"""POS tag of each word of a sentence."""


@dataclass(frozen=True)
class Parse:
    """One parse of one sentence.

    words: words of the sentence
    tree: tree over exactly these words; None for a sentence that is empty or too long
    tags: POS tag of each word, from the caller or predicted
    score: log-probability of the output over the length penalty, higher is better; 0 without a tree
    tokens: output tokens: the brackets, and the tokens that stand for words
    token_log_probs: natural logarithms, one for each token, and one for the end token if the output ends with it
    status: "ok", or the reason why there is no tree or a repaired tree; see `ParseStatus`
    repairs: descriptions of the repairs, one a sentence; empty if the automaton constrains the search
    alternatives: the other parses, best first
    """

    words: tuple[str, ...]
    tree: Tree | None = None
    tags: tuple[str, ...] = ()
    score: float = 0.0
    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_log_probs: tuple[float, ...] = field(default=(), repr=False)
    status: ParseStatus = "ok"
    repairs: tuple[str, ...] = ()
    alternatives: tuple[Parse, ...] = field(default=(), repr=False)

    @property
    def brackets(self) -> str:
        """Tree on one line, in the format of treebank files; empty without a tree."""
        return "" if self.tree is None else format_tree(self.tree)

    @property
    def spans(self) -> list[Span]:
        """Label, first word and end (exclusive) of each bracket; outer brackets come first."""
        return [] if self.tree is None else get_spans(self.tree)

    def to_svg(self, title: str = "") -> str:
        """Return the tree as an SVG image."""
        return render_tree(self.words if self.tree else (), self.spans, tags=self.tags, title=title)

    def show(self) -> TreeImage:
        """Return the tree as an image that a notebook displays."""
        return TreeImage(self.to_svg())


@dataclass(frozen=True)
class TreeImage:
    """Tree image that a notebook displays."""

    svg: str = field(repr=False)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg}</div>'
