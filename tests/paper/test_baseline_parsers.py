"""Baselines of Table 4: right-branching trees, the PCFG and its chart parser."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from dragoman.paper.cky import ChartParser
from dragoman.paper.pcfg import BinaryRule, Grammar, Symbol, UnaryRule, induce_pcfg
from dragoman.paper.right_branching import RightBranchingLabels, build_right_branching_tree, find_most_common_labels
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.tree import Leaf, TreeEvent, build_tree, format_brackets
from toy_treebank import TREES

# --- right-branching ---------------------------------------------------------------------------------------------------------


def test_right_branching_tree_leaves_full_stop_outside() -> None:
    sentence = [Leaf("the", "DT"), Leaf("cat", "NN"), Leaf("sat", "VBD"), Leaf(".", ".")]
    assert format_brackets(build_right_branching_tree(sentence)) == "(TOP (S (DT the) (VP (NN cat) (VBD sat)) (. .)))"
    assert format_brackets(build_right_branching_tree(sentence, RightBranchingLabels("FRAG", "NP"))) == (
        "(TOP (FRAG (DT the) (NP (NN cat) (VBD sat)) (. .)))"
    )


def test_short_sentences_have_right_branching_trees(subtests: pytest.Subtests) -> None:
    for sentence, expected in [
        ([], "(TOP)"),
        ([Leaf("no", "UH")], "(TOP (S (UH no)))"),
        ([Leaf(".", ".")], "(TOP (S (. .)))"),
        ([Leaf(".", "."), Leaf(".", ".")], "(TOP (S (. .) (. .)))"),
        ([Leaf("no", "UH"), Leaf(".", ".")], "(TOP (S (UH no) (. .)))"),
        ([Leaf("oh", None), Leaf("no", None)], "(TOP (S oh no))"),
    ]:
        with subtests.test(sentence=sentence, expected=expected):
            assert format_brackets(build_right_branching_tree(sentence)) == expected


def test_right_branching_labels_are_the_most_common() -> None:
    # Around sentences: S four times, and one NP of one word. At their ends, before the full stop: NP 4, VP 3, PP 2.
    assert find_most_common_labels(TREES) == RightBranchingLabels("S", "NP")
    assert find_most_common_labels([read_tree("(TOP (X (A a) (Y (A b) (A c)) (. .)))")]) == RightBranchingLabels("X", "Y")
    assert find_most_common_labels([]) == RightBranchingLabels("S", "VP")


# --- the grammar -------------------------------------------------------------------------------------------------------------


def label(name: str, parent: str) -> Symbol:
    return Symbol("label", name, parent)


def test_rule_probabilities_have_a_closed_form() -> None:
    grammar = induce_pcfg(TREES)
    top, sentence = Symbol("label", "TOP", ""), label("S", "TOP")
    assert grammar.root == top
    # TOP → S four times of five; S → NP VP twice of four; S → NP S|NP, S|NP → VP . the other two.
    assert grammar.unary_chains[UnaryRule(top, sentence)][0] == pytest.approx(math.log(4 / 5))
    rest = Symbol("remainder", "S", "TOP", ("NP",))
    assert grammar.binary_rules[BinaryRule(sentence, label("NP", "S"), label("VP", "S"))] == pytest.approx(math.log(2 / 4))
    assert grammar.binary_rules[BinaryRule(sentence, label("NP", "S"), rest)] == pytest.approx(math.log(2 / 4))
    assert grammar.binary_rules[BinaryRule(rest, label("VP", "S"), Symbol("tag", ".", "S"))] == pytest.approx(0.0)
    # Chains multiply: TOP → NP (1/5), then NP → NN (1/1).
    score, chain = grammar.unary_chains[UnaryRule(top, Symbol("tag", "NN", "NP"))]
    assert score == pytest.approx(math.log(1 / 5))
    assert chain == (top, label("NP", "TOP"), Symbol("tag", "NN", "NP"))


def test_rules_of_each_symbol_sum_to_one() -> None:
    grammar = induce_pcfg(TREES)
    sums = Counter[Symbol]()
    for rule, score in grammar.binary_rules.items():
        sums[rule.parent] += math.exp(score)  # type: ignore[assignment]
    for ends, (score, chain) in grammar.unary_chains.items():
        if len(chain) == 2:
            sums[ends.parent] += math.exp(score)  # type: ignore[assignment]
    assert set(sums) == {symbol for symbol in grammar.log_prior if symbol.kind != "tag"}
    assert all(value == pytest.approx(1.0) for value in sums.values())
    assert sum(map(math.exp, grammar.log_prior.values())) == pytest.approx(1.0)


def test_unknown_word_is_tagged_by_its_suffix() -> None:
    verbs = [f"(TOP (S (NN x{end}tion) (VBD x{end}ed)))" for end in "abcdefgh"]
    lexicon = induce_pcfg([read_tree(line) for line in verbs]).lexicon
    for word, tag in (("jumped", "VBD"), ("station", "NN")):
        scores = lexicon.score_symbols(word)
        assert max(scores, key=scores.__getitem__).label == tag
    assert {symbol.label for symbol in lexicon.score_symbols("jumped", "NN")} == {"NN"}
    assert {symbol.label for symbol in lexicon.score_symbols("jumped", "never met")} >= {"VBD"}


def test_pcfg_needs_trees() -> None:
    with pytest.raises(ValueError, match="at least one tree"):
        induce_pcfg([])


# --- the chart ---------------------------------------------------------------------------------------------------------------


def derivations(grammar: Grammar, symbol: Symbol, sentence: Sequence[Leaf]) -> Iterator[tuple[float, tuple[TreeEvent, ...]]]:
    """Yield all derivations with at most one unary chain a node, with their scores, by exhaustive search."""
    chains = [(0.0, (symbol,)), *(chain for ends, chain in grammar.unary_chains.items() if ends.parent == symbol)]
    for chain_score, chain in chains:
        labels = [part for part in chain if part.kind == "label"]
        before = tuple(TreeEvent("open", part.label) for part in labels)
        after = tuple(TreeEvent("close", part.label) for part in reversed(labels))
        if chain[-1].kind == "tag":
            if len(sentence) == 1 and (score := grammar.lexicon.score_symbols(*sentence[0]).get(chain[-1])) is not None:
                yield chain_score + score, (*before, TreeEvent("leaf", chain[-1].label, sentence[0].word), *after)
            continue
        for rule, score in grammar.binary_rules.items():
            if rule.parent != chain[-1]:
                continue
            for cut in range(1, len(sentence)):
                for left, left_steps in derivations(grammar, rule.left, sentence[:cut]):
                    for right, right_steps in derivations(grammar, rule.right, sentence[cut:]):
                        yield chain_score + score + left + right, (*before, *left_steps, *right_steps, *after)


def test_chart_parse_is_the_best_derivation(subtests: pytest.Subtests) -> None:
    grammar = induce_pcfg(TREES)
    for text in ["the cat saw a dog", "it saw the cat with a telescope", "telescope", "it slept .", "a zebra slept"]:
        with subtests.test(text=text):
            sentence = [Leaf(word, None) for word in text.split()]
            by_score = sorted(derivations(grammar, grammar.root, sentence), key=lambda derivation: derivation[0])
            everything = {build_tree(steps): score for score, steps in by_score}
            tree = ChartParser(grammar, beam=math.inf).parse(sentence)
            assert tree is not None
            assert everything[tree] == pytest.approx(max(everything.values()))
            assert len(everything) > 1 or text == "telescope"


def test_sentence_without_derivation_has_no_tree() -> None:
    parser = ChartParser(induce_pcfg(TREES))
    assert parser.parse([]) is None
    assert parser.parse([Leaf("saw", "VBD"), Leaf("saw", "VBD")]) is None
    assert parser.parse([Leaf("a", "DT")]) is None


@pytest.mark.parametrize(
    ("bank", "derivable", "not_derivable"),
    [("(TOP (NP (NN a)))", "a", "a b"), ("(TOP (A a) (B b))", "a b", "a")],
    ids=["unary", "binary"],
)
def test_grammar_may_have_one_rule_type(bank: str, derivable: str, not_derivable: str) -> None:
    parser = ChartParser(induce_pcfg([read_tree(bank)]))
    assert parser.parse([Leaf(word, None) for word in derivable.split()]) == read_tree(bank)
    assert parser.parse([Leaf(word, None) for word in not_derivable.split()]) is None


def test_pcfg_accepts_deep_trees() -> None:
    depth = 1_000
    deep = read_tree("(TOP " + "(S (A a) " * depth + "(S (A a) (A a))" + ")" * depth + ")")
    assert induce_pcfg([deep]).binary_rules
