"""Tests of annotated terms: the layout, removal, and arguments that are no terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.text.term_annotation import annotate_terms, has_marks, remove_annotations


def test_annotation_follows_the_documented_layout() -> None:
    source = "The network (net) is closed."
    annotated = annotate_terms(source, [(13, 16, "Netz"), (4, 11, " Netzwerk ")])
    assert annotated == "The⟦t⟧ network⟦=⟧ Netzwerk⟦/t⟧ (⟦t⟧net⟦=⟧ Netz⟦/t⟧) is closed."
    assert annotate_terms("我的网络。", [(2, 4, "network")]) == "我的⟦t⟧网络⟦=⟧ network⟦/t⟧。"
    assert has_marks(annotated)
    assert has_marks("Open ⟦31⟧.")
    assert not has_marks("⟦a⟧ ⟦⟧ ⟦123⟧ [0]")


@given(st.text("ab .⟧", min_size=1), st.lists(st.integers(0, 8), min_size=2, max_size=6, unique=True))
def test_removal_restores_the_source(text: str, positions: list[int]) -> None:
    ends = sorted(position for position in positions if position <= len(text))
    terms = [(start, end, "x y") for start, end in zip(ends[::2], ends[1::2], strict=False)]
    annotated = annotate_terms(text, reversed(terms))
    assert annotated.count("⟦t⟧") == len(terms)
    assert remove_annotations(annotated) == text


@pytest.mark.parametrize(
    "terms", [[(1, 1, "x")], [(3, 99, "x")], [(0, 4, "x"), (3, 6, "y")], [(0, 3, " ")], [(0, 3, "a\nb")], [(0, 3, "⟦=⟧")]]
)
def test_impossible_terms_raise(terms: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match="the t"):
        annotate_terms("The network", terms)
