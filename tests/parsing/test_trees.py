"""Trees: reading and writing, linearizations and their inverses, and repair of any tokens."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import DataError
from dragoman.parsing.treebank import read_trees
from dragoman.parsing.trees import ptb
from dragoman.parsing.trees.linearization import LINEARIZATION_NAMES, Linearization, LinearizationName, linearization
from dragoman.parsing.trees.repair import RepairedTree, repair_tree
from dragoman.parsing.trees.simplify import AnnotationMode, RootMode, simplify
from dragoman.parsing.trees.tree import (
    Span,
    Tree,
    build_tree,
    format_brackets,
    get_leaves,
    get_spans,
    get_words,
    iter_events,
)
from expected_errors import raises_code

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "craft"
needs_craft = pytest.mark.skipif(not CRAFT.is_dir(), reason="the CRAFT trees are missing")

CAT = "(S (NP (DT The) (NN cat)) (VP (VBD sat)) (. .))"
AWKWARD = ["(", ")", "-LRB-", "\\", "\\(", "/NP", "+NN", "XX", ")NP", "(NP", "*", "▁a", "NP", "the", "😀", "कखग", "\u00a0", "'"]
LABELS = ["S", "NP", "NP-SBJ-1", "VP", "/NP", "+NP", "\\NP", "XX", "-LRB-", "NN"]


def split_leaves(tree: Tree) -> tuple[list[str], list[str]]:
    """Return the words and their tags."""
    leaves = get_leaves(tree)
    return [leaf.word for leaf in leaves], [leaf.tag for leaf in leaves if leaf.tag is not None]


def nested_tree(levels: int) -> Tree:
    tree = Tree("NN", ("x",))
    for _ in range(levels):
        tree = Tree("NP", (tree,))
    return tree


def random_tree(rng: random.Random, size: int, labels: Sequence[str] = LABELS, words: Sequence[str] = AWKWARD) -> Tree:
    """Return a constituent with this many tagged words, unary chains and empty brackets."""
    children: list[Tree | str] = []
    while size:
        child_size = rng.randint(1, size)
        if rng.random() < 0.6:
            children.append(Tree(rng.choice(labels), (rng.choice(words),)))
            size -= 1
        else:
            children.append(random_tree(rng, child_size, labels, words))
            size -= child_size
    if rng.random() < 0.1:
        children.append(Tree(rng.choice(labels), ()))
    return Tree(rng.choice(labels), tuple(children))


trees = st.builds(lambda seed, size: random_tree(random.Random(seed), size), st.integers(0, 2**32), st.integers(1, 15))
linearizations = st.sampled_from(LINEARIZATION_NAMES).map(linearization)


# --- values -----------------------------------------------------------------------------------------------------------


def test_build_tree_rejects_incomplete_events(subtests: pytest.Subtests) -> None:
    for kinds in ["open", "leaf leaf", "close", "open close close", "open close leaf", "leaf close", ""]:
        with subtests.test(kinds=kinds):
            event_by_kind = {str(event.kind): event for event in iter_events(ptb.read_tree("(S (NN x) (NN y))"))}
            with pytest.raises(ValueError, match="not the events of one tree"):
                build_tree(event_by_kind[kind] for kind in kinds.split())


def test_deep_trees_need_no_recursion() -> None:
    tree = nested_tree(2_000)
    written = ptb.format_tree(tree)
    assert written == "(NP " * 2_000 + "(NN x)" + ")" * 2_000
    assert ptb.read_tree(written) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert len({tree, nested_tree(2_000)}) == 1
    assert len(repr(tree)) == len(written) + len("<Tree >")
    assert get_spans(tree)[-1] == Span("NP", 0, 1)
    assert simplify(tree) == tree
    for name in LINEARIZATION_NAMES:
        tree_format = linearization(name)
        tokens = tree_format.linearize(tree)
        assert repair_tree(tree_format, tokens, ["x"], ["NN"]) == RepairedTree(tree, ())
        assert repair_tree(tree_format, tokens[:-1], ["x"], ["NN"]).tree == tree


# --- brackets ---------------------------------------------------------------------------------------------------------


def test_trees_may_span_and_share_lines() -> None:
    lines = [
        "",
        "( (S (NP",
        "  x)\t(VP",
        "y))",
        ") (A (B c))(D",
        "e)",
        "id 7\t(F (G",
        "h) )",
        "(NP (NN (X z)))",
        "(())",
        "( S (T u))",
    ]
    assert [(format_brackets(tree), line) for tree, line in ptb.iter_trees(lines, "a.mrg")] == [
        ("( (S (NP x) (VP y)))", 2),
        ("(A (B c))", 5),
        ("(D e)", 5),
        ("(F (G h))", 7),
        ("(NP (NN (X z)))", 9),
        ("( ())", 10),
        ("(S (T u))", 11),
    ]
    assert ptb.read_tree("( (S (NN x)))") == Tree("", (Tree("S", (Tree("NN", ("x",)),)),))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["(S (NP x))", "(S (NP x)", ""], "a, line 2: the tree that begins here has 1 brackets that never close"),
        (["(S (NP x))", "", ")"], "a, line 3: a bracket closes that never opened"),
        (["(S (NN x)) y"], "a, line 1: 'y' is outside of any tree"),
        (["", "(" * 11], "a, line 2: the tree that begins in line 2 is deeper than 10 brackets"),
    ],
)
def test_unbalanced_brackets_raise_error(lines: list[str], message: str) -> None:
    with pytest.raises(DataError) as raised:
        list(ptb.iter_trees(lines, "a", max_depth=10))
    assert (str(raised.value), raised.value.code) == (message, "invalid-tree")


def test_unclosed_tree_raises_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptb, "MAX_TREE_CHARACTERS", 2**20)
    with raises_code("invalid-tree", "a, line 17", "line 1 ", "1 MiB"):
        list(ptb.iter_trees(["(S"] + [" " * 2**16] * 17, "a"))


@pytest.mark.parametrize("text", ["", "(A (B c)) (A (B c))"])
def test_read_tree_requires_exactly_one(text: str) -> None:
    with raises_code("invalid-tree", "the tree: has "):
        ptb.read_tree(text)


def test_bracket_words_are_escaped() -> None:
    text = "(S (-LRB- -LRB-) (X -LSB-) (Y x) (Z {) (-RRB- -RRB-))"
    kept = ptb.read_tree(text)
    assert get_words(kept) == ["-LRB-", "-LSB-", "x", "{", "-RRB-"]
    assert ptb.format_tree(kept) == text
    assert ptb.format_tree(Tree("S", (Tree("(", ("(",)),))) == "(S (-LRB- -LRB-))"
    assert [ptb.escape_word(word) for word in ("(", "f(x)", "[0]", "]")] == ["-LRB-", "f-LRB-x-RRB-", "[0]", "-RSB-"]


@pytest.mark.parametrize("tree", [Tree("S", ("a b",)), Tree("A B", (Tree("N", ("x",)),)), Tree("S", ("",)), Tree("", ("x",))])
def test_format_tree_rejects_inexpressible_trees(tree: Tree) -> None:
    with pytest.raises(ValueError, match="which the bracket format cannot express"):
        ptb.format_tree(tree)


@given(trees)
@settings(deadline=None)
def test_formatted_trees_are_read_back(tree: Tree) -> None:
    written = ptb.format_tree(tree)
    assert ptb.format_tree(ptb.read_tree(written)) == written
    harmless = ptb.read_tree(written)
    assert ptb.read_tree(ptb.format_tree(harmless)) == harmless
    assert build_tree(iter_events(tree)) == tree


# --- simplification ---------------------------------------------------------------------------------------------------

FULL = "( (S=2 (NP-SBJ-1 (-NONE- *)) (VP (VBZ is) (NP=1 (-LRB- -LRB-) (NN-X it)) (PP (NP (-NONE- *T*-1)))) (. .)))"


def test_simplify_strips_chosen_annotation(subtests: pytest.Subtests) -> None:
    cases: list[tuple[AnnotationMode, AnnotationMode, RootMode, str]] = [
        ("keep", "keep", "keep", FULL),
        ("strip", "keep", "keep", FULL.replace("=2", "").replace("-SBJ-1", "").replace("=1", "")),
        ("keep", "strip", "bare", "(S=2 (VP (VBZ is) (NP=1 (-LRB- -LRB-) (NN-X it))) (. .))"),
        ("strip", "strip", "bare", "(S (VP (VBZ is) (NP (-LRB- -LRB-) (NN-X it))) (. .))"),
        ("strip", "strip", "top", "(TOP (S (VP (VBZ is) (NP (-LRB- -LRB-) (NN-X it))) (. .)))"),
    ]
    for functions, traces, root, expected in cases:
        with subtests.test(functions=functions, traces=traces, root=root, expected=expected):
            assert ptb.format_tree(simplify(ptb.read_tree(FULL), function_tags=functions, traces=traces, root=root)) == expected


def test_simplify_normalizes_the_root(subtests: pytest.Subtests) -> None:
    for text, bare, top in [
        ("(TOP (S1 (ROOT (S (NN x)))))", "(S (NN x))", "(TOP (S (NN x)))"),
        ("( (S (NN x)) (. .))", "(TOP (S (NN x)) (. .))", "(TOP (S (NN x)) (. .))"),
        ("(TOP (NN x))", "(TOP (NN x))", "(TOP (NN x))"),
        ("( (NN x))", "(TOP (NN x))", "(TOP (NN x))"),
        ("(NN x)", "(NN x)", "(TOP (NN x))"),
        ("( (NP (-NONE- *)))", "(TOP)", "(TOP)"),
    ]:
        with subtests.test(text=text, bare=bare, top=top):
            tree = ptb.read_tree(text)
            assert ptb.format_tree(simplify(tree)) == bare
            assert ptb.format_tree(simplify(tree, root="top")) == top
            assert get_words(simplify(Tree("-NONE-", ("*",)))) == []


# --- linearizations ---------------------------------------------------------------------------------------------------


def test_linearizations_match_published_examples(subtests: pytest.Subtests) -> None:
    cases: list[tuple[LinearizationName, str, str]] = [
        # Vinyals et al. 2015, figure 2, with XX for each tag
        (
            "typed",
            "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))",
            "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S",
        ),
        # output of tensor2tensor's wsj_parsing.py
        ("tensor2tensor", CAT, "S NP DT NN /NP VP VBD /VP . /S"),
        ("tensor2tensor", "(/ (/ (NN a) (+ b)) (\\ (/ d)))", "\\/ \\/ NN \\+ // \\\\ +/ /\\ //"),
        ("topdown", CAT, "(S (NP XX XX ) (VP XX ) XX )"),
    ]
    for name, text, tokens in cases:
        with subtests.test(name=name, text=text, tokens=tokens):
            assert linearization(name).linearize(ptb.read_tree(text)) == tokens.split()


@given(trees, linearizations)
def test_linearizations_are_invertible(tree: Tree, tree_format: Linearization) -> None:
    words, tags = split_leaves(tree)
    without_empty = simplify(tree, function_tags="keep", root="keep")
    assert repair_tree(tree_format, tree_format.linearize(without_empty), words, tags) == RepairedTree(without_empty, ())


def test_known_constituents_need_no_closing_token() -> None:
    known = linearization("tensor2tensor", constituents=["S", "NP"])
    tree = ptb.read_tree("(S (NP (NP x)))")
    assert known.linearize(tree) == linearization("tensor2tensor").linearize(tree) == ["S", "NP", "+NP", "/NP", "/S"]
    assert known.linearize(ptb.read_tree("(S (NP x))")) == ["S", "+NP", "/S"]
    cut = ["S", "NP", "DT"]
    assert ptb.format_tree(repair_tree(known, cut, ["a"]).tree) == "(S (NP (DT a)))"
    assert ptb.format_tree(repair_tree(linearization("tensor2tensor"), cut, ["a"]).tree) == "(TOP (S a))"


def test_untagged_words_survive_linearization() -> None:
    tree = ptb.read_tree("(S a (NP b c))")
    for name in ("typed", "topdown"):
        tree_format = linearization(name)
        read = repair_tree(tree_format, tree_format.linearize(tree), ["a", "b", "c"]).tree
        assert ptb.format_tree(read) == "(S (XX a) (NP (XX b) (XX c)))"
    with raises_code("invalid-tree", "'a'"):
        linearization("tensor2tensor").linearize(tree)


def test_numbers_of_tags_and_words_must_agree() -> None:
    with pytest.raises(ValueError, match="1 tags for 2 words"):
        repair_tree(linearization("typed"), [], ["a", "b"], ["X"])


# --- repair -----------------------------------------------------------------------------------------------------------


def test_repair_returns_the_tree_and_repairs(subtests: pytest.Subtests) -> None:
    cases: list[tuple[LinearizationName, str, str, list[str]]] = [
        ("typed", "(S (NP XX )NP XX XX )S", "(S (NP a) b c)", []),
        ("typed", "(S (NP XX )NP XX XX", "(S (NP a) b c)", ["closed late"]),
        ("typed", "(S (NP XX XX XX )S", "(S (NP a b c))", ["closed early"]),
        ("typed", "(S XX )VP XX XX )S", "(S a b c)", ["stray closer"]),
        ("typed", "(S XX oh XX XX </s> )S", "(S a b c)", ["unknown token"] * 2),
        ("typed", "(S XX XX XX XX )S", "(S a b c)", ["word dropped"]),
        ("typed", "(S (VP XX )VP )S", "(S (VP a) b c)", ["word added"] * 2),
        ("typed", "(S (VP XX", "(S (VP a b c))", ["word added"] * 2 + ["closed late"] * 2),
        ("typed", "(S (VP )VP XX XX XX (NP )S", "(S a b c)", ["empty bracket"] * 2),
        ("typed", "XX (S XX )S XX", "(S a b c)", ["word outside"] * 2),
        ("typed", "(A XX )A (B XX XX )B", "(TOP (A a) (B b c))", ["root added"]),
        ("typed", "XX XX XX", "(TOP a b c)", ["root added"]),
        ("typed", "", "(TOP a b c)", ["word added"] * 3 + ["root added"]),
        ("typed", "(S )S", "(TOP a b c)", ["empty bracket"] + ["word added"] * 3 + ["root added"]),
        ("topdown", "(S XX (NP XX ) XX ) )", "(S a (NP b) c)", ["stray closer"]),
        ("tensor2tensor", "S A /NP B /S C", "(S (A a) (B b) (C c))", ["stray closer", "word outside"]),
    ]
    for name, tokens, expected, kinds in cases:
        with subtests.test(name=name, tokens=tokens, expected=expected, kinds=kinds):
            repaired = repair_tree(linearization(name), tokens.split(), ["a", "b", "c"])
            assert re.sub(r"\(XX (\w)\)", r"\1", ptb.format_tree(repaired.tree)) == expected
            assert sorted(repair.kind for repair in repaired.repairs) == sorted(kinds)


def test_repairs_have_messages() -> None:
    repaired = repair_tree(linearization("typed"), ["(S", "what", "XX", ")VP"], ["a", "b"])
    assert [str(repair) for repair in repaired.repairs] == [
        "token 2: 'what' is not a token of the linearization: dropped",
        "token 4: ')VP' closes no open bracket: dropped",
        "token 5: word 'b' was missing: added",
        "token 5: bracket 'S' never closed: closed at the end",
    ]
    assert format_brackets(repair_tree(linearization("typed"), [], ["a", "b"]).tree) == "(TOP (XX a) (XX b))"
    assert repair_tree(linearization("typed"), ["(S", ")S"], []).tree == Tree("TOP", ())


def check_random_repair(seed: int) -> None:
    """Repair random tokens, or the tokens of a tree with random edits, and check the tree."""
    rng = random.Random(seed)
    tree_format = linearization(rng.choice(LINEARIZATION_NAMES))
    size = rng.choice([0, 1, 2, 5, 9, 400 if seed % 50 == 0 else 20])
    tree = random_tree(rng, size) if size else Tree("TOP", ())
    words, tags = split_leaves(tree)
    tokens = tree_format.linearize(tree)
    pool = [*tokens, *AWKWARD, *(f"({label}" for label in LABELS), *(f"){label}" for label in LABELS), "", "XX", ")", "/S"]
    if seed % 3 == 0:
        tokens = rng.choices(pool, k=rng.randint(0, 2 * size + 20))
    for _ in range(rng.randint(0, 6)):
        position = rng.randint(0, len(tokens))
        match rng.randrange(4):
            case 0:
                tokens = tokens[:position]
            case 1:
                tokens.insert(position, rng.choice(pool))
            case 2:
                tokens = tokens[:position] + tokens[position + rng.randint(1, 3) :]
            case _:
                tokens = tokens[position:] + tokens[:position]
    repaired = repair_tree(tree_format, tokens, words, rng.choice([None, tags])).tree
    assert [leaf.word for leaf in get_leaves(repaired)] == words, seed
    assert not size or not repaired.is_preterminal or size == 1
    assert all(start < end for _, start, end in get_spans(repaired)) or not size
    written = ptb.format_tree(repaired)
    assert len(get_leaves(ptb.read_tree(written))) == size
    new_tokens = tree_format.linearize(repaired)
    if size:
        assert repair_tree(tree_format, new_tokens, *split_leaves(repaired)) == RepairedTree(repaired, ())


def test_repair_of_random_tokens_returns_trees() -> None:
    for seed in range(600):
        check_random_repair(seed)


# --- CRAFT ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_craft
@pytest.mark.parametrize(("split", "num_trees"), [("train", 18_951), ("dev", 2_780)])
def test_craft_trees_survive_all_conversions(split: str, num_trees: int) -> None:
    count = 0
    for full, _ in read_trees(CRAFT / f"{split}.tsv.gz"):
        assert ptb.read_tree(ptb.format_tree(full)) == full
        count += 1
        tree = simplify(full)
        words, tags = split_leaves(tree)
        for name in LINEARIZATION_NAMES:
            tree_format = linearization(name)
            tokens = tree_format.linearize(tree)
            assert repair_tree(tree_format, tokens, words, None if name == "tensor2tensor" else tags) == RepairedTree(tree, ())
    assert count == num_trees
