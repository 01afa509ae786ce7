"""Constraint automaton: its outputs are exactly the well-formed trees over the words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dragoman.decoding.arrays import NUMPY
from dragoman.decoding.constraints import AllowedTokensFn
from dragoman.parsing.tree_constraint import TreeConstraint
from dragoman.parsing.treebank import read_trees
from dragoman.parsing.trees.constraint_automaton import ConstraintAutomaton
from dragoman.parsing.trees.linearization import LINEARIZATION_NAMES, Linearization, LinearizationName, linearization
from dragoman.parsing.trees.repair import repair_tree
from dragoman.parsing.trees.simplify import simplify
from dragoman.parsing.trees.tree import get_leaves, get_spans

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "craft"
PAD, UNKNOWN, END = 0, 1, 2
SPECIAL = ["<pad>", "<unk>", "</s>"]
TOKENS: dict[LinearizationName, list[str]] = {
    "typed": ["(S", ")S", "(NP", ")NP", "XX", "(LOST", ")NEVER", "junk"],
    "tensor2tensor": ["S", "/S", "NP", "/NP", "DT", "+NP"],
    "topdown": ["(S", ")", "(NP", "XX"],
}
WORDS = ["the", "(", "cat", "the", "the", "("]
"""Words of a sentence of six; a shorter sentence has the first of them."""


def make_automaton(name: LinearizationName, **limits: int) -> ConstraintAutomaton:
    return ConstraintAutomaton(linearization(name), [*SPECIAL, *TOKENS[name]], end_id=END, special_ids=[PAD, UNKNOWN], **limits)


def make_allowed_tokens_fn(
    name: LinearizationName, lengths: Sequence[int], max_tokens: Sequence[int], **limits: int
) -> AllowedTokensFn:
    return TreeConstraint(make_automaton(name, **limits), NUMPY).build_allowed_tokens_fn(lengths, max_tokens)


def assert_well_formed(tree_format: Linearization, tokens: Sequence[str], length: int) -> None:
    words = WORDS[:length]
    tree, repairs = (result := repair_tree(tree_format, tokens, words)).tree, result.repairs
    assert [leaf.word for leaf in get_leaves(tree)] == words
    assert all(start < end for _, start, end in get_spans(tree))
    assert not repairs


def enumerate_outputs(name: LinearizationName, length: int, max_tokens: int, **limits: int) -> set[tuple[str, ...]]:
    """Return every output that the automaton allows, without its end token."""
    allowed_tokens_fn = make_allowed_tokens_fn(name, [length], [max_tokens], **limits)
    vocabulary = [*SPECIAL, *TOKENS[name]]
    outputs: set[tuple[str, ...]] = set()
    unfinished_NT = np.zeros((1, 0), np.int64)
    while len(unfinished_NT):
        rows, tokens = np.nonzero(allowed_tokens_fn(unfinished_NT, np.zeros(len(unfinished_NT), np.int64)))
        assert set(rows) == set(range(len(unfinished_NT)))  # every hypothesis has an allowed token
        expanded_NT = np.concatenate([unfinished_NT[rows], tokens[:, None]], axis=1)
        outputs |= {tuple(vocabulary[token] for token in output[:-1]) for output in expanded_NT[tokens == END].tolist()}
        unfinished_NT = expanded_NT[tokens != END]
    return outputs


def count_trees(length: int, *, labels: int, tags: int, max_depth: int, max_consecutive_opens: int) -> int:
    """Return the number of trees over `length` words, by recurrence over the first child."""

    @cache
    def count_brackets(words: int, levels: int, opens: int) -> int:
        if not words or not levels or not opens:
            return 0
        first_word = tags * count_siblings(words - 1, levels - 1)
        inner = sum(
            count_brackets(size, levels - 1, opens - 1) * count_siblings(words - size, levels - 1)
            for size in range(1, words + 1)
        )
        return labels * (first_word + inner)

    @cache
    def count_siblings(words: int, levels: int) -> int:
        if not words:
            return 1
        inner = sum(
            count_brackets(size, levels, max_consecutive_opens) * count_siblings(words - size, levels)
            for size in range(1, words + 1)
        )
        return tags * count_siblings(words - 1, levels) + inner

    return count_brackets(length, max_depth, max_consecutive_opens)


LIMITS = [(1, 4, 4), (2, 3, 3), (3, 2, 2), (2, 4, 2), (3, 3, 1), (4, 2, 1)]


def test_outputs_are_the_well_formed_trees(subtests: pytest.Subtests) -> None:
    for (length, max_depth, max_consecutive_opens), name in product(LIMITS, LINEARIZATION_NAMES):
        with subtests.test(length=length, max_depth=max_depth, max_consecutive_opens=max_consecutive_opens, name=name):
            limits = {"max_depth": max_depth, "max_consecutive_opens": max_consecutive_opens}
            outputs = enumerate_outputs(name, length, 99, **limits)
            tags = 2 if name == "tensor2tensor" else 1
            assert len(outputs) == count_trees(length, labels=2, tags=tags, **limits)
            for tokens in outputs:
                assert_well_formed(linearization(name, constituents=["NP"]), tokens, length)


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_no_output_exceeds_max_tokens(name: LinearizationName) -> None:
    min_tokens, limits = ConstraintAutomaton.min_tokens(3), {"max_depth": 3, "max_consecutive_opens": 3}
    all_outputs = enumerate_outputs(name, 3, 99, **limits)
    for max_tokens in range(min_tokens, min_tokens + 6):
        expected = {output for output in all_outputs if len(output) < max_tokens}
        assert enumerate_outputs(name, 3, max_tokens, **limits) == expected
    with pytest.raises(ValueError, match=f"max_tokens = {min_tokens - 1}: a tree over 3 words needs {min_tokens}"):
        make_allowed_tokens_fn(name, [3], [min_tokens - 1])


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("typed", ["(S", "XX"]), ("typed", ["(S", ")S"]), ("tensor2tensor", ["S", "NN"]), ("topdown", ["(S", "XX", ")a"])],
)
def test_vocabulary_without_trees_raises_error(name: LinearizationName, tokens: list[str]) -> None:
    with pytest.raises(ValueError, match="vocabulary: no label has both brackets, or no token stands for a word"):
        ConstraintAutomaton(linearization(name), [*SPECIAL, *tokens], end_id=END, special_ids=[PAD, UNKNOWN])


def test_limit_below_one_raises() -> None:
    with pytest.raises(ValueError, match="max_depth = 0, max_consecutive_opens = 16: too small; use 1 or more"):
        make_automaton("typed", max_depth=0)


@pytest.mark.slow
@pytest.mark.skipif(not CRAFT.is_dir(), reason="the CRAFT trees are missing")
@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_automaton_allows_every_craft_tree(name: LinearizationName) -> None:
    trees = [simplify(tree) for tree, _ in read_trees(CRAFT / "dev.tsv.gz")]
    tree_format = linearization(name)
    sequences = [tree_format.linearize(tree) for tree in trees]
    vocabulary = [*SPECIAL, *sorted({token for sequence in sequences for token in sequence})]
    ids = {token: token_id for token_id, token in enumerate(vocabulary)}
    automaton = ConstraintAutomaton(tree_format, vocabulary, end_id=END, special_ids=[PAD, UNKNOWN])
    outputs = [[ids[token] for token in sequence] + [END] for sequence in sequences]
    lengths = [len(get_leaves(tree)) for tree in trees]
    limits = [len(output) for output in outputs]
    allowed_tokens_fn = TreeConstraint(automaton, NUMPY).build_allowed_tokens_fn(lengths, limits)
    outputs_NT = np.array([output + [END] * (max(limits) - len(output)) for output in outputs])
    for step in range(max(limits)):
        allowed_NV = allowed_tokens_fn(outputs_NT[:, :step], np.arange(len(outputs)))
        assert np.take_along_axis(allowed_NV, outputs_NT[:, step, None], axis=1).all(), step
