"""What of a treebank's annotation is kept: function tags, traces, the root around the sentence, and whose tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dragoman.trees.tree import TRACE, Tree, TreeEvent, build_tree, get_leaves, iter_events

AnnotationMode = Literal["keep", "strip"]
RootMode = Literal["keep", "bare", "top"]
"""`keep` the root as it is; `bare`: take it off where it only names the tree; `top`: have one named TOP around each tree."""

TOP = "TOP"
ROOT_LABELS = ("", TOP, "ROOT", "S1")
"""Labels of brackets that only say: here is a tree."""


def simplify(
    tree: Tree, *, function_tags: AnnotationMode = "strip", traces: AnnotationMode = "strip", root: RootMode = "bare"
) -> Tree:
    """The tree without function tags (`NP-SBJ-1`, `NP=2` → `NP`), traces and its nameless root, each as it is chosen.

    With the traces go the brackets that hold no word; a tree of traces alone keeps its root, which is empty then. Tags of words
    stay as they are. A root is taken off where it holds one constituent; one that has to stay is named TOP.
    """
    if function_tags == "strip" or traces == "strip":
        tree = _strip_annotation(tree, strip_functions=function_tags == "strip", strip_traces=traces == "strip")
    return tree if root == "keep" else _normalize_root(tree, root)


def strip_function_tags(label: str) -> str:
    """A constituent's label without function tags and indices; one that begins with a hyphen is left whole."""
    return label if label.startswith("-") else (label.partition("-")[0].partition("=")[0] or label)


def copy_tags(gold_trees: Sequence[Tree], test_trees: Sequence[Tree]) -> list[Tree]:
    """The trees, with the gold tags at their words, if their words are the gold ones; traces are left alone."""
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
        elif kind == "close" and strip_traces and tree_events[-1].kind == "open" and len(tree_events) > 1:
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
