"""What may follow: every end that can be reached is a well-formed tree over the words, and every such tree can be reached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dragoman.formats.treebank import read_trees
from dragoman.trees.constraint_automaton import AutomatonState, ConstraintAutomaton
from dragoman.trees.linearization import (
    LINEARIZATION_NAMES,
    Linearization,
    LinearizationName,
    TopDownLinearization,
    delinearize,
    linearization,
)
from dragoman.trees.repair import RepairedTree, repair_tree
from dragoman.trees.simplify import simplify
from dragoman.trees.tree import get_depth, get_leaves, get_spans

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "craft"
PAD, UNKNOWN, END = 0, 1, 2
SPECIAL = ["<pad>", "<unk>", "</s>"]
TOKENS: dict[LinearizationName, list[str]] = {
    "typed": ["(S", ")S", "(NP", ")NP", "XX", "(LOST", ")NEVER", "junk"],
    "tensor2tensor": ["S", "/S", "NP", "/NP", "DT", "+NP"],
    "topdown": ["(S", ")", "(NP", "the", "\\(", "cat"],
}
WORDS = ["the", "(", "cat", "the", "the", "("]
"""Of a sentence; a shorter one has the first of them."""


def automaton(name: LinearizationName, **limits: int) -> ConstraintAutomaton:
    return ConstraintAutomaton(linearization(name), [*SPECIAL, *TOKENS[name]], end_id=END, special_ids=[PAD, UNKNOWN], **limits)


def begin(one: ConstraintAutomaton, name: LinearizationName, lengths: Sequence[int], rooms: Sequence[int]) -> AutomatonState:
    ids = {"the": 6, "(": 7, "cat": 8}
    words = [[ids[word] for word in WORDS[:length]] for length in lengths]
    return one.initial_state(lengths, rooms, words if name == "topdown" else None)


def well_formed(how: Linearization, tokens: Sequence[str], length: int) -> None:
    words = WORDS[:length]
    tree = delinearize(how, tokens, words)
    assert [leaf.word for leaf in get_leaves(tree)] == words
    assert all(start < end for _, start, end in get_spans(tree))
    assert repair_tree(how, tokens, words) == RepairedTree(tree, ())


def ends(name: LinearizationName, length: int, room: int, **limits: int) -> set[tuple[str, ...]]:
    """Every sequence that can be reached, without its end."""
    one = automaton(name, **limits)
    vocabulary = [*SPECIAL, *TOKENS[name]]
    found: set[tuple[str, ...]] = set()
    state = begin(one, name, [length], [room])
    written: list[tuple[str, ...]] = [()]
    while written:
        hypotheses, tokens = np.nonzero(one.get_allowed_mask(state))
        assert set(hypotheses) == set(range(len(written)))  # nothing is a dead end
        grown = [(*written[row], vocabulary[token]) for row, token in zip(hypotheses, tokens, strict=True)]
        state = one.advance(state.reorder(hypotheses), tokens)
        ended = state.is_finished_N
        found |= {sequence[:-1] for sequence, done in zip(grown, ended, strict=True) if done}
        state = state.reorder(np.flatnonzero(~ended))
        written = [sequence for sequence, done in zip(grown, ended, strict=True) if not done]
    return found


def number_of_trees(length: int, *, labels: int, tags: int, deepest: int, most_opens: int) -> int:
    """How many there are, by recurrence over the first child."""

    @cache
    def brackets(words: int, levels: int, opens: int) -> int:
        if not words or not levels or not opens:
            return 0
        first_word = tags * rest(words - 1, levels - 1)
        inner = sum(brackets(part, levels - 1, opens - 1) * rest(words - part, levels - 1) for part in range(1, words + 1))
        return labels * (first_word + inner)

    @cache
    def rest(words: int, levels: int) -> int:
        if not words:
            return 1
        inner = sum(brackets(part, levels, most_opens) * rest(words - part, levels) for part in range(1, words + 1))
        return tags * rest(words - 1, levels) + inner

    return brackets(length, deepest, most_opens)


LIMITS = [(1, 4, 4), (2, 3, 3), (3, 2, 2), (2, 4, 2), (3, 3, 1), (4, 2, 1)]


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
@pytest.mark.parametrize(("length", "deepest", "most_opens"), LIMITS)
def test_the_ends_are_the_well_formed_trees(name: LinearizationName, length: int, deepest: int, most_opens: int) -> None:
    found = ends(name, length, 99, deepest=deepest, most_opens=most_opens)
    tags = 2 if name == "tensor2tensor" else 1
    assert len(found) == number_of_trees(length, labels=2, tags=tags, deepest=deepest, most_opens=most_opens)
    for tokens in found:
        well_formed(linearization(name, constituents=["NP"]), tokens, length)


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_no_end_is_beyond_the_room(name: LinearizationName) -> None:
    least = ConstraintAutomaton.min_tokens(3)
    everything = ends(name, 3, 99, deepest=3, most_opens=3)
    for room in range(least, least + 6):
        assert ends(name, 3, room, deepest=3, most_opens=3) == {one for one in everything if len(one) < room}
    with pytest.raises(ValueError, match=f"a tree over 3 words takes {least} tokens at least, not {least - 1}"):
        begin(automaton(name), name, [3], [least - 1])


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_a_batch_walks_as_its_hypotheses_alone(name: LinearizationName) -> None:
    """A random beam of several sentences, reordered as it goes, in tight rooms; each is as if it were alone."""
    chance = random.Random(7)
    how, one = linearization(name, constituents=["NP"]), automaton(name, deepest=5, most_opens=3)
    vocabulary = [*SPECIAL, *TOKENS[name]]
    lengths = [chance.choice([0, 1, 2, 6]) for _ in range(60)]
    rooms = [one.min_tokens(length) + chance.choice([0, 1, 2, 40]) for length in lengths]
    state, written = begin(one, name, lengths, rooms), [list[int]() for _ in lengths]
    for _ in range(max(rooms)):
        rows = [chance.randrange(len(lengths)) if chance.random() < 0.1 else row for row in range(len(lengths))]
        state, written = state.reorder(rows), [list(written[row]) for row in rows]
        lengths, rooms = [lengths[row] for row in rows], [rooms[row] for row in rows]
        mask = one.get_allowed_mask(state)
        assert mask.any(axis=1).all()
        if name != "topdown":
            np.testing.assert_array_equal(mask, one.mask_table_RV[one.get_mask_rows(state)])
        tokens = [chance.choice(np.flatnonzero(row).tolist()) for row in mask]
        state = one.advance(state, tokens)
        for sequence, token in zip(written, tokens, strict=True):
            sequence.append(token)
    for sequence, length, room in zip(written, lengths, rooms, strict=True):
        told = [vocabulary[token] for token in sequence[: sequence.index(END)]]
        assert set(sequence[len(told) :]) == {END}
        assert len(told) < room
        if length:
            well_formed(how, told, length)
        else:
            assert told == []
    assert state.is_finished_N.all()
    np.testing.assert_array_equal(state.next_word_positions(), lengths)


def test_the_pointer_is_at_the_next_word() -> None:
    one = automaton("typed")
    state = begin(one, "typed", [3], [20])
    for token, pointer in (("(S", 0), ("XX", 1), ("(NP", 1), ("XX", 2), (")NP", 2), ("XX", 3), (")S", 3), ("</s>", 3)):
        state = one.advance(state, [[*SPECIAL, *TOKENS["typed"]].index(token)])
        assert state.next_word_positions() == [pointer]


def test_what_may_follow_is_told_step_by_step() -> None:
    one = automaton("typed", deepest=2)
    vocabulary = np.array([*SPECIAL, *TOKENS["typed"]])
    state = begin(one, "typed", [2], [99])
    for may, token in (
        ("(S (NP", "(S"),
        ("(S (NP XX", "(NP"),
        ("XX", "XX"),
        (")NP XX", "XX"),
        (")NP", ")NP"),
        (")S", ")S"),
        ("</s>", "</s>"),
        ("</s>", "</s>"),
    ):
        assert set(vocabulary[one.get_allowed_mask(state)[0]]) == set(may.split()), token
        state = one.advance(state, [vocabulary.tolist().index(token)])


@pytest.mark.parametrize(
    ("name", "tokens", "said"),
    [
        ("typed", ["(S", "XX"], "has no label that opens and closes, or no token for a word"),
        ("typed", ["(S", ")S"], "has no label that opens and closes, or no token for a word"),
        ("tensor2tensor", ["S", "NN"], "has no label that opens and closes, or no token for a word"),
        ("topdown", ["(S", "a"], "has no label that opens and closes, or no token for a word"),
    ],
)
def test_a_vocabulary_without_trees_is_refused(name: LinearizationName, tokens: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConstraintAutomaton(linearization(name), [*SPECIAL, *tokens], end_id=END, special_ids=[PAD, UNKNOWN])


def test_what_cannot_be_begun_is_refused() -> None:
    with pytest.raises(ValueError, match="deepest 0 and most_opens 16 must be at least 1"):
        automaton("typed", deepest=0)
    with pytest.raises(ValueError, match="so the id of each is needed"):
        automaton("topdown").initial_state([1], [9])
    with pytest.raises(ValueError, match="a word of sentence 0 has no token in the vocabulary"):
        automaton("topdown").initial_state([1], [9], [[UNKNOWN]])


@pytest.mark.slow
@pytest.mark.skipif(not CRAFT.is_dir(), reason="the CRAFT trees are not here")
@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_every_tree_of_craft_may_be_written(name: LinearizationName) -> None:
    trees = [simplify(tree) for tree, _ in read_trees(CRAFT / "dev.tsv.gz")]
    assert max(map(get_depth, trees)) <= 64
    how = linearization(name)
    sequences = [how.linearize(tree) for tree in trees]
    vocabulary = [*SPECIAL, *sorted({token for sequence in sequences for token in sequence})]
    ids = {token: number for number, token in enumerate(vocabulary)}
    one = ConstraintAutomaton(how, vocabulary, end_id=END, special_ids=[PAD, UNKNOWN])
    told = [[ids[token] for token in sequence] + [END] for sequence in sequences]
    lengths = [len(get_leaves(tree)) for tree in trees]
    words = (
        [[ids[how.format_word(leaf.word)] for leaf in get_leaves(tree)] for tree in trees]
        if isinstance(how, TopDownLinearization)
        else None
    )
    state = one.initial_state(lengths, [len(sequence) for sequence in told], words)
    for step in range(max(map(len, told))):
        tokens = np.array([sequence[step] if step < len(sequence) else END for sequence in told])
        assert np.take_along_axis(one.get_allowed_mask(state), tokens[:, None], axis=1).all(), step
        state = one.advance(state, tokens)
    assert state.is_finished_N.all()
