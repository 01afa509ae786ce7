"""What of a treebank's annotation is kept: function tags, traces, the root around the sentence, and whose tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dragoman.trees.tree import TRACE, Event, Tree, build, events, leaves

Kept = Literal["keep", "strip"]
Root = Literal["keep", "bare", "top"]
"""`keep` the root as it is; `bare`: take it off where it only names the tree; `top`: have one named TOP around each tree."""

TOP = "TOP"
ROOTS = ("", TOP, "ROOT", "S1")
"""Labels of brackets that only say: here is a tree."""


def simplify(tree: Tree, *, functions: Kept = "strip", traces: Kept = "strip", root: Root = "bare") -> Tree:
    """The tree without function tags (`NP-SBJ-1`, `NP=2` → `NP`), traces and its nameless root, each as it is chosen.

    With the traces go the brackets that hold no word; a tree of traces alone keeps its root, which is empty then. Tags of words
    stay as they are. A root is taken off where it holds one constituent; one that has to stay is named TOP.
    """
    if functions == "strip" or traces == "strip":
        tree = _stripped(tree, functions=functions == "strip", traces=traces == "strip")
    return tree if root == "keep" else _rooted(tree, root)


def plain_label(label: str) -> str:
    """A constituent's label without function tags and indices; one that begins with a hyphen is left whole."""
    return label if label.startswith("-") else (label.partition("-")[0].partition("=")[0] or label)


def with_tags_of(gold: Sequence[Tree], test: Sequence[Tree]) -> list[Tree]:
    """The trees, with the gold tags at their words, if their words are the gold ones; traces are left alone."""
    wanted, told = ([leaf for tree in trees for leaf in leaves(tree) if leaf.tag != TRACE] for trees in (gold, test))
    if [leaf.word for leaf in wanted] != [leaf.word for leaf in told]:
        return list(test)
    tags = iter(wanted)
    return [
        build(
            Event("leaf", next(tags).tag, word) if kind == "leaf" and label != TRACE else Event(kind, label, word)
            for kind, label, word in events(tree)
        )
        for tree in test
    ]


def _stripped(tree: Tree, *, functions: bool, traces: bool) -> Tree:
    if traces and tree.is_tag and tree.label == TRACE:
        return Tree("", ())
    steps: list[Event] = []
    for step in events(tree):
        kind, label, _ = step
        if kind == "leaf":
            if not (traces and label == TRACE):
                steps.append(step)
        elif kind == "close" and traces and steps[-1].kind == "open" and len(steps) > 1:
            steps.pop()
        else:
            steps.append(step._replace(label=plain_label(label or "")) if functions else step)
    return build(steps)


def _rooted(tree: Tree, root: Root) -> Tree:
    while tree.label in ROOTS and len(tree.children) == 1:
        [child] = tree.children
        if isinstance(child, str) or (child.is_tag and root == "bare"):
            break
        tree = child
    if root == "bare":
        return Tree(TOP, tree.children) if tree.label == "" and not tree.is_tag else tree
    return Tree(TOP, tree.children) if tree.label in ROOTS and not tree.is_tag else Tree(TOP, (tree,))
