"""Constraint automaton: its outputs are exactly the well-formed trees over the words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dragoman.parsing.treebank import read_trees
from dragoman.parsing.trees.constraint_automaton import AutomatonState, ConstraintAutomaton
from dragoman.parsing.trees.linearization import (
    LINEARIZATION_NAMES,
    Linearization,
    LinearizationName,
    TopDownLinearization,
    linearization,
)
from dragoman.parsing.trees.repair import repair_tree
from dragoman.parsing.trees.simplify import simplify
from dragoman.parsing.trees.tree import get_leaves, get_spans

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "craft"
PAD, UNKNOWN, END = 0, 1, 2
SPECIAL = ["<pad>", "<unk>", "</s>"]
TOKENS: dict[LinearizationName, list[str]] = {
    "typed": ["(S", ")S", "(NP", ")NP", "XX", "(LOST", ")NEVER", "junk"],
    "tensor2tensor": ["S", "/S", "NP", "/NP", "DT", "+NP"],
    "topdown": ["(S", ")", "(NP", "the", "\\(", "cat"],
}
WORDS = ["the", "(", "cat", "the", "the", "("]
"""Words of a sentence of six; a shorter sentence has the first of them."""


def make_automaton(name: LinearizationName, **limits: int) -> ConstraintAutomaton:
    return ConstraintAutomaton(linearization(name), [*SPECIAL, *TOKENS[name]], end_id=END, special_ids=[PAD, UNKNOWN], **limits)


def initial_state(
    automaton: ConstraintAutomaton, name: LinearizationName, lengths: Sequence[int], max_tokens: Sequence[int]
) -> AutomatonState:
    ids = {"the": 6, "(": 7, "cat": 8}
    words = [[ids[word] for word in WORDS[:length]] for length in lengths]
    return automaton.initial_state(lengths, max_tokens, words if name == "topdown" else None)


def assert_well_formed(tree_format: Linearization, tokens: Sequence[str], length: int) -> None:
    words = WORDS[:length]
    tree, repairs = (result := repair_tree(tree_format, tokens, words)).tree, result.repairs
    assert [leaf.word for leaf in get_leaves(tree)] == words
    assert all(start < end for _, start, end in get_spans(tree))
    assert not repairs


def enumerate_outputs(name: LinearizationName, length: int, max_tokens: int, **limits: int) -> set[tuple[str, ...]]:
    """Return every output that the automaton allows, without its end token."""
    automaton = make_automaton(name, **limits)
    vocabulary = [*SPECIAL, *TOKENS[name]]
    outputs: set[tuple[str, ...]] = set()
    state = initial_state(automaton, name, [length], [max_tokens])
    unfinished: list[tuple[str, ...]] = [()]
    while unfinished:
        hypotheses, tokens = np.nonzero(automaton.get_allowed_mask(state))
        assert set(hypotheses) == set(range(len(unfinished)))  # every hypothesis has an allowed token
        expanded = [(*unfinished[row], vocabulary[token]) for row, token in zip(hypotheses, tokens, strict=True)]
        state = automaton.advance(state.reorder(hypotheses), tokens)
        ended = state.is_finished_N
        outputs |= {output[:-1] for output, done in zip(expanded, ended, strict=True) if done}
        state = state.reorder(np.flatnonzero(~ended))
        unfinished = [output for output, done in zip(expanded, ended, strict=True) if not done]
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
        initial_state(make_automaton(name), name, [3], [min_tokens - 1])


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_batch_advances_like_single_hypotheses(name: LinearizationName) -> None:
    """Decode a random beam of several sentences with reordering and small token limits."""
    rng = random.Random(7)
    tree_format = linearization(name, constituents=["NP"])
    automaton = make_automaton(name, max_depth=5, max_consecutive_opens=3)
    vocabulary = [*SPECIAL, *TOKENS[name]]
    lengths = [rng.choice([0, 1, 2, 6]) for _ in range(60)]
    max_tokens = [automaton.min_tokens(length) + rng.choice([0, 1, 2, 40]) for length in lengths]
    state, outputs = initial_state(automaton, name, lengths, max_tokens), [list[int]() for _ in lengths]
    for _ in range(max(max_tokens)):
        rows = [rng.randrange(len(lengths)) if rng.random() < 0.1 else row for row in range(len(lengths))]
        state, outputs = state.reorder(rows), [list(outputs[row]) for row in rows]
        lengths, max_tokens = [lengths[row] for row in rows], [max_tokens[row] for row in rows]
        mask = automaton.get_allowed_mask(state)
        assert mask.any(axis=1).all()
        if name != "topdown":
            np.testing.assert_array_equal(mask, automaton.mask_table_RV[automaton.get_mask_rows(state)])
        tokens = [rng.choice(np.flatnonzero(row).tolist()) for row in mask]
        state = automaton.advance(state, tokens)
        for output, token in zip(outputs, tokens, strict=True):
            output.append(token)
    for output, length, limit in zip(outputs, lengths, max_tokens, strict=True):
        output_tokens = [vocabulary[token] for token in output[: output.index(END)]]
        assert set(output[len(output_tokens) :]) == {END}
        assert len(output_tokens) < limit
        if length:
            assert_well_formed(tree_format, output_tokens, length)
        else:
            assert output_tokens == []
    assert state.is_finished_N.all()
    np.testing.assert_array_equal(state.next_word_positions(), lengths)


def test_next_word_position_advances_with_words() -> None:
    automaton = make_automaton("typed")
    state = initial_state(automaton, "typed", [3], [20])
    for token, position in (("(S", 0), ("XX", 1), ("(NP", 1), ("XX", 2), (")NP", 2), ("XX", 3), (")S", 3), ("</s>", 3)):
        state = automaton.advance(state, [[*SPECIAL, *TOKENS["typed"]].index(token)])
        assert state.next_word_positions() == [position]


def test_allowed_tokens_of_each_step() -> None:
    automaton = make_automaton("typed", max_depth=2)
    vocabulary = np.array([*SPECIAL, *TOKENS["typed"]])
    state = initial_state(automaton, "typed", [2], [99])
    for allowed, token in (
        ("(S (NP", "(S"),
        ("(S (NP XX", "(NP"),
        ("XX", "XX"),
        (")NP XX", "XX"),
        (")NP", ")NP"),
        (")S", ")S"),
        ("</s>", "</s>"),
        ("</s>", "</s>"),
    ):
        assert set(vocabulary[automaton.get_allowed_mask(state)[0]]) == set(allowed.split()), token
        state = automaton.advance(state, [vocabulary.tolist().index(token)])


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("typed", ["(S", "XX"]), ("typed", ["(S", ")S"]), ("tensor2tensor", ["S", "NN"]), ("topdown", ["(S", "a"])],
)
def test_vocabulary_without_trees_raises_error(name: LinearizationName, tokens: list[str]) -> None:
    with pytest.raises(ValueError, match="vocabulary: no label has both brackets, or no token stands for a word"):
        ConstraintAutomaton(linearization(name), [*SPECIAL, *tokens], end_id=END, special_ids=[PAD, UNKNOWN])


def test_invalid_automaton_arguments_raise_errors() -> None:
    with pytest.raises(ValueError, match="max_depth = 0, max_consecutive_opens = 16: too small; use 1 or more"):
        make_automaton("typed", max_depth=0)
    with pytest.raises(ValueError, match="word_ids: this linearization has words as tokens"):
        make_automaton("topdown").initial_state([1], [9])
    with pytest.raises(ValueError, match="word_ids: a word of sentence 0 is not in the vocabulary"):
        make_automaton("topdown").initial_state([1], [9], [[UNKNOWN]])


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
    words = (
        [[ids[tree_format.format_word(leaf.word)] for leaf in get_leaves(tree)] for tree in trees]
        if isinstance(tree_format, TopDownLinearization)
        else None
    )
    state = automaton.initial_state(lengths, [len(output) for output in outputs], words)
    for step in range(max(map(len, outputs))):
        tokens = np.array([output[step] if step < len(output) else END for output in outputs])
        assert np.take_along_axis(automaton.get_allowed_mask(state), tokens[:, None], axis=1).all(), step
        state = automaton.advance(state, tokens)
    assert state.is_finished_N.all()
