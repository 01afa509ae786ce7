"""Demonstrations that train or read a model: parents of words, heads, distances and intervals, against hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dragoman.model.attention import Attention
from dragoman.paper.demonstrations.attention_heads import (
    AttendedSentence,
    compare_classes,
    find_parents,
    remove_head,
    score_heads,
)
from dragoman.paper.demonstrations.extrapolation import MAX_TRAINED, build_copier, draw_copies, measure_copying
from dragoman.paper.demonstrations.long_range import NUM_LAYERS, count_step_operations, measure_recall
from dragoman.parsing.trees.ptb import read_tree

pytestmark = pytest.mark.usefixtures("one_core")


def test_parents_follow_the_heads_of_phrases() -> None:
    tree = read_tree(
        "(S (NP (DT the) (JJ old) (NN dog)) (VP (MD may) (VP (VB sleep) (PP (IN in) (NP (DT a) (NN house))))) (. .))"
    )
    words = ["the", "old", "dog", "may", "sleep", "in", "a", "house", "."]
    parents = [None if parent is None else words[parent] for parent in find_parents(tree)]
    assert parents == ["dog", "dog", "sleep", "sleep", None, "sleep", "house", "in", "sleep"]


def make_sentence(seed: int) -> AttendedSentence:
    """Return 60 determiners, each with a noun two words later; head 2 of layer 1 finds the nouns, head 1 the previous word."""
    tags = ["DT", "JJ", "NN"] * 60
    parents = [None if index % 3 == 2 else index - index % 3 + 2 for index in range(len(tags))]
    targets_LHW = np.zeros((1, 2, len(tags)), dtype=int)
    targets_LHW[0, 0] = np.arange(len(tags)) - 1
    targets_LHW[0, 1] = [0 if parent is None else parent for parent in parents]
    generator = np.random.default_rng(seed)
    for index in range(0, len(tags), 3):  # in half of the phrases, the noun is one word later
        if generator.random() < 0.5:
            parents[index] = index + 1
            targets_LHW[0, 1, index] = index + 1
    return AttendedSentence(tags, parents, targets_LHW)


def test_heads_are_scored_by_their_largest_weight() -> None:
    first, second = score_heads([make_sentence(1)])
    assert (first.previous, first.next, first.parent) == (1.0, 0.0, 0.0)
    assert (second.previous, second.parent, second.loss_change) == (0.0, 1.0, None)


def test_best_head_competes_with_best_distance() -> None:
    determiners, adjectives = compare_classes([make_sentence(1), make_sentence(2)])
    assert (determiners.word_class, determiners.num_words, determiners.head) == ("determiners", 60, (1, 2))
    assert determiners.head_accuracy == 1.0
    assert determiners.distance in (1, 2)
    assert determiners.distance_accuracy < 0.8
    assert determiners.head_accuracy - determiners.distance_accuracy > determiners.margin
    assert adjectives.distance == 1
    assert adjectives.distance_accuracy == 1.0  # the noun is always the next word
    assert adjectives.head_accuracy - adjectives.distance_accuracy <= adjectives.margin


def test_removed_head_has_an_output_of_zero() -> None:
    torch.manual_seed(1)
    attention = Attention(d_model=8, num_heads=2, d_k=4, d_v=4, bias=False, dropout=0.0)
    x_BTD = torch.randn(1, 5, 8)
    with torch.no_grad():
        query, key_value = attention.project_qkv(x_BTD)
        whole = attention.attend(query, key_value, None)
        heads_BHTU = attention.compute_heads(query, key_value, None, 0.0)
        with remove_head(attention, 1):
            removed = attention.attend(query, key_value, None)
        torch.testing.assert_close(removed, heads_BHTU[:, 0] @ attention.output.weight[:, :4].T)
        torch.testing.assert_close(attention.attend(query, key_value, None), whole)


@pytest.mark.slow
def test_all_layers_train_with_equal_operations() -> None:
    results = measure_recall((4,), 3)
    assert [result.kind for result in results] == list(NUM_LAYERS)
    budget = 3 * count_step_operations("recurrent (LSTM)", 4)
    for result in results:
        step = count_step_operations(result.kind, 4)
        assert abs(result.steps * step - budget) <= step / 2
        assert 0.0 <= result.accuracy.mean <= 1.0


def test_copies_are_predicted_from_earlier_symbols() -> None:
    torch.manual_seed(1)
    model = build_copier("learned").eval()
    logits_BTV, symbols_BT = draw_copies(model, 2, 5, torch.Generator().manual_seed(1))
    assert logits_BTV.shape[:2] == symbols_BT.shape == (2, 5)
    results = measure_copying((6, MAX_TRAINED + 2), steps=2)
    assert [(result.length, result.new_accuracy is None) for result in results] == [(6, True), (14, False)] * 2
