"""Entry of the hook `tasks`: what preparation and the tokenizers of a bundle ask about trees."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.config import TaskConfig
from dragoman.formats.pair import Pair
from dragoman.parsing.tree_labels import TreeLabels, collect_labels, read_labels
from dragoman.parsing.treebank import read_brackets
from dragoman.parsing.trees.ptb import read_tree

read_pairs = read_brackets
read_vocabulary = read_labels


def collect_vocabulary(targets: Iterable[Pair], task: TaskConfig) -> TreeLabels:
    """Return all labels of these trees, the most frequent first. Raise DataError if no tree has a bracket."""
    return collect_labels((read_tree(pair.target, name=pair.origin) for pair in targets), task)
