"""One parse of one sentence: its tree, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dragoman.tasks.parsing import ParseStatus
from dragoman.trees.ptb import format_tree
from dragoman.trees.tree import Span, Tree, get_spans
from dragoman.viz.tree_diagram import render_tree


@dataclass(frozen=True)
class Parse:
    """One parse of one sentence.

    words: the sentence as it was read
    tree: over exactly these words; none where there are none, or the sentence was refused
    tags: a word's each, as they were given or predicted
    score: log-probability of the brackets over the length penalty, higher is better; 0 where there is no tree
    tokens: the brackets as the model said them, and what it says for a word
    token_log_probs: natural logarithms, one for each token and one for the end token if the output came to it
    status: "ok"; "mended" where what was said was no tree over the words; "truncated" where it was cut, too; "empty" where
        there are no words; "refused" for a sentence that is longer than the model reads
    mended: what was mended, a sentence each; nothing in a search that the automaton constrains
    alternatives: the other trees, best first
    """

    words: tuple[str, ...]
    tree: Tree | None = None
    tags: tuple[str, ...] = ()
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    status: ParseStatus = "ok"
    repairs: tuple[str, ...] = ()
    alternatives: tuple[Parse, ...] = field(default=(), repr=False)

    @property
    def brackets(self) -> str:
        """The tree on one line as files have it; nothing where there is none."""
        return "" if self.tree is None else format_tree(self.tree)

    @property
    def spans(self) -> list[Span]:
        """Label, first word and the word behind the last of each bracket, those around others before them."""
        return [] if self.tree is None else get_spans(self.tree)

    def to_svg(self, title: str = "") -> str:
        """The tree as an SVG."""
        return render_tree(self.words if self.tree else (), self.spans, tags=self.tags, title=title)

    def show(self) -> TreeImage:
        """The tree as a notebook shows it."""
        return TreeImage(self.to_svg())


@dataclass(frozen=True)
class TreeImage:
    """A picture that a notebook shows by itself."""

    svg: str

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self.svg}</div>'
