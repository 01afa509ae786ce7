"""Simplification of treebank annotation: function tags, traces and the root; and copying of gold tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dragoman.parsing.trees.tree import TRACE, Tree, TreeEvent, build_tree, get_leaves, iter_events

AnnotationMode = Literal["keep", "strip"]
RootMode = Literal["keep", "bare", "top"]
"""Treatment of the root: `keep` leaves it; `bare` removes one that only names the tree; `top` puts TOP around each tree."""

TOP = "TOP"
ROOT_LABELS = ("", TOP, "ROOT", "S1")
"""Labels of roots that only name the tree."""


def simplify(
    tree: Tree, *, function_tags: AnnotationMode = "strip", traces: AnnotationMode = "strip", root: RootMode = "bare"
) -> Tree:
    """Return the tree without function tags (`NP-SBJ-1`, `NP=2` → `NP`), traces and root, each as the arguments choose.

    Brackets that are empty without their traces are removed, too; a tree of traces alone becomes an empty root. Tags of words
    do not change. `bare` removes a root only if it has one constituent; other roots are renamed TOP.
    """
    if function_tags == "strip" or traces == "strip":
        tree = _strip_annotation(tree, strip_functions=function_tags == "strip", strip_traces=traces == "strip")
    return tree if root == "keep" else _normalize_root(tree, root)


def strip_function_tags(label: str) -> str:
    """Return a constituent label without function tags and indices; a label that begins with a hyphen does not change."""
    return label if label.startswith("-") else (label.partition("-")[0].partition("=")[0] or label)


def copy_tags(gold_trees: Sequence[Tree], test_trees: Sequence[Tree]) -> list[Tree]:
    """Return the test trees with the gold tags, or unchanged if the words differ from the gold words; traces keep their tag."""
    gold_leaves, test_leaves = (
        [leaf for tree in trees for leaf in get_leaves(tree) if leaf.tag != TRACE] for trees in (gold_trees, test_trees)
    )
    if [leaf.word for leaf in gold_leaves] != [leaf.word for leaf in test_leaves]:
        return list(test_trees)
    tags = iter(gold_leaves)
    return [
        build_tree(
            TreeEvent("leaf", next(tags).tag, word) if kind == "leaf" and label != TRACE else TreeEvent(kind, label, word)
            for kind, label, word in iter_events(tree)
        )
        for tree in test_trees
    ]


def _strip_annotation(tree: Tree, *, strip_functions: bool, strip_traces: bool) -> Tree:
    if strip_traces and tree.is_preterminal and tree.label == TRACE:
        return Tree("", ())
    tree_events: list[TreeEvent] = []
    for event in iter_events(tree):
        kind, label, _ = event
        if kind == "leaf":
            if not (strip_traces and label == TRACE):
                tree_events.append(event)
        elif kind == "close" and strip_traces and tree_events[-1].is_open and len(tree_events) > 1:
            tree_events.pop()
        else:
            tree_events.append(event._replace(label=strip_function_tags(label or "")) if strip_functions else event)
    return build_tree(tree_events)


def _normalize_root(tree: Tree, root: RootMode) -> Tree:
    while tree.label in ROOT_LABELS and len(tree.children) == 1:
        [child] = tree.children
        if isinstance(child, str) or (child.is_preterminal and root == "bare"):
            break
        tree = child
    if root == "bare":
        return Tree(TOP, tree.children) if tree.label == "" and not tree.is_preterminal else tree
    return Tree(TOP, tree.children) if tree.label in ROOT_LABELS and not tree.is_preterminal else Tree(TOP, (tree,))
