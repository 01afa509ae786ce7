"""Trees: what is read is what was written, each linearization goes back, any tokens become a tree over exactly the words."""

from __future__ import annotations

import copy
import pickle
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import DataError
from dragoman.formats.treebank import read_trees
from dragoman.trees import ptb as penn
from dragoman.trees.linearization import LINEARIZATION_NAMES, Linearization, LinearizationName, delinearize, linearization
from dragoman.trees.repair import RepairedTree, repair_tree
from dragoman.trees.simplify import AnnotationMode, RootMode, simplify
from dragoman.trees.tree import (
    Leaf,
    Span,
    Tree,
    build_tree,
    format_brackets,
    get_depth,
    get_leaves,
    get_spans,
    get_words,
    iter_events,
)

CRAFT = Path(__file__).parents[3] / "shared" / "data" / "craft"
needs_craft = pytest.mark.skipif(not CRAFT.is_dir(), reason="the CRAFT trees are not here")

CAT = "(S (NP (DT The) (NN cat)) (VP (VBD sat)) (. .))"
AWKWARD = ["(", ")", "-LRB-", "\\", "\\(", "/NP", "+NN", "XX", ")NP", "(NP", "*", "▁a", "NP", "the", "😀", "कखग", "\u00a0", "'"]
LABELS = ["S", "NP", "NP-SBJ-1", "VP", "/NP", "+NP", "\\NP", "XX", "-LRB-", "NN"]


def tagged(tree: Tree) -> tuple[list[str], list[str]]:
    """The words and their tags, of which there is one for each."""
    told = get_leaves(tree)
    return [leaf.word for leaf in told], [leaf.tag for leaf in told if leaf.tag is not None]


def nested(levels: int) -> Tree:
    tree = Tree("NN", ("x",))
    for _ in range(levels):
        tree = Tree("NP", (tree,))
    return tree


def random_tree(chance: random.Random, size: int, labels: Sequence[str] = LABELS, told: Sequence[str] = AWKWARD) -> Tree:
    """A constituent with this many words, chains and empty brackets in it, no word without a tag."""
    children: list[Tree | str] = []
    while size:
        part = chance.randint(1, size)
        if chance.random() < 0.6:
            children.append(Tree(chance.choice(labels), (chance.choice(told),)))
            size -= 1
        else:
            children.append(random_tree(chance, part, labels, told))
            size -= part
    if chance.random() < 0.1:
        children.append(Tree(chance.choice(labels), ()))
    return Tree(chance.choice(labels), tuple(children))


trees = st.builds(lambda seed, size: random_tree(random.Random(seed), size), st.integers(0, 2**32), st.integers(1, 15))
ways = st.sampled_from(LINEARIZATION_NAMES).map(linearization)


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_tree_is_a_value() -> None:
    tree, same = penn.read_tree(CAT), penn.read_tree(CAT)
    assert tree == same
    assert hash(tree) == hash(same)
    assert tree != penn.read_tree(CAT.replace("sat", "lay"))
    assert tree != penn.read_tree(CAT.replace("VP", "NP"))
    assert tree != CAT
    assert repr(tree) == f"<Tree {CAT}>"
    assert pickle.loads(pickle.dumps(tree)) == tree == copy.deepcopy(tree)
    with pytest.raises(AttributeError):
        tree.label = "X"  # type: ignore[misc]


def test_what_is_in_a_tree() -> None:
    tree = penn.read_tree("(S (NP (-NONE- *)) (VP (VB Go) (ADV) (NP (NN home))) (. .))")
    assert get_words(tree) == ["Go", "home", "."]
    assert get_leaves(tree) == [Leaf("*", "-NONE-"), Leaf("Go", "VB"), Leaf("home", "NN"), Leaf(".", ".")]
    assert get_spans(tree) == [Span("S", 0, 4), Span("NP", 0, 1), Span("VP", 1, 3), Span("ADV", 2, 2), Span("NP", 2, 3)]
    assert get_depth(tree) == 3
    assert get_depth(penn.read_tree("(NN x)")) == 0


@pytest.mark.parametrize("kinds", ["open", "leaf leaf", "close", "open close close", "open close leaf", "leaf close", ""])
def test_a_walk_that_is_none_builds_nothing(kinds: str) -> None:
    step = {str(one.kind): one for one in iter_events(penn.read_tree("(S (NN x) (NN y))"))}
    with pytest.raises(ValueError, match="do not walk through one tree"):
        build_tree(step[kind] for kind in kinds.split())


def test_depth_is_no_limit() -> None:
    tree = nested(2_000)
    written = penn.format_tree(tree)
    assert written == "(NP " * 2_000 + "(NN x)" + ")" * 2_000
    assert penn.read_tree(written) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert len({tree, nested(2_000)}) == 1
    assert len(repr(tree)) == len(written) + len("<Tree >")
    assert get_spans(tree)[-1] == Span("NP", 0, 1)
    assert simplify(tree) == tree
    for name in LINEARIZATION_NAMES:
        how = linearization(name)
        tokens = how.linearize(tree)
        assert delinearize(how, tokens, ["x"], ["NN"]) == tree
        assert repair_tree(how, tokens[:-1], ["x"], ["NN"]).tree == tree


# --- brackets ---------------------------------------------------------------------------------------------------------


def test_trees_may_span_lines_and_share_them() -> None:
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
    assert [(format_brackets(tree), line) for tree, line in penn.iter_trees(lines, "a.mrg")] == [
        ("( (S (NP x) (VP y)))", 2),
        ("(A (B c))", 5),
        ("(D e)", 5),
        ("(F (G h))", 7),
        ("(NP (NN (X z)))", 9),
        ("( ())", 10),
        ("(S (T u))", 11),
    ]
    assert penn.read_tree("( (S (NN x)))") == Tree("", (Tree("S", (Tree("NN", ("x",)),)),))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["(S (NP x))", "(S (NP x)", ""], "a, line 2: the tree that begins here has 1 brackets that never close"),
        (["(S (NP x))", "", ")"], "a, line 3: a bracket closes that never opened"),
        (["(S (NN x)) y"], "a, line 1: 'y' is outside of any tree"),
        (["", "(" * 11], "a, line 2: the tree that begins in line 2 is deeper than 10 brackets"),
    ],
)
def test_brackets_out_of_balance_are_named(lines: list[str], said: str) -> None:
    with pytest.raises(DataError) as caught:
        list(penn.iter_trees(lines, "a", max_depth=10))
    assert str(caught.value) == said


def test_a_tree_without_end_is_refused() -> None:
    with pytest.raises(DataError, match="a, line 17: the tree that begins in line 1 is longer than 16 MiB"):
        list(penn.iter_trees(["(S"] + [" " * 2**20] * 17, "a"))


def test_reading_streams() -> None:
    lines = iter(["(A (B c))", "(D", "(E f))", ")"])
    reading = penn.iter_trees(lines, "a", start_line=5)
    assert next(reading) == (Tree("A", (Tree("B", ("c",)),)), 5)
    assert next(lines) == "(D"
    with pytest.raises(DataError, match="a, line 6: a bracket closes"):
        list(reading)


@pytest.mark.parametrize("text", ["", "(A (B c)) (A (B c))"])
def test_one_tree_is_one(text: str) -> None:
    with pytest.raises(DataError, match=r"^the tree: holds [02] trees, not one$"):
        penn.read_tree(text)


def test_bracket_words_have_names() -> None:
    text = "(S (-LRB- -LRB-) (X -LSB-) (Y x) (Z {) (-RRB- -RRB-))"
    kept, plain = penn.read_tree(text), penn.read_tree(text, word_form="plain")
    assert get_words(kept) == ["-LRB-", "-LSB-", "x", "{", "-RRB-"]
    assert get_words(plain) == ["(", "[", "x", "{", ")"]
    assert penn.format_tree(kept) == text
    assert penn.format_tree(plain, word_form="plain") == text.replace("{", "-LCB-")
    assert penn.format_tree(plain) == text.replace("-LSB-", "[")
    assert [penn.escape_word(word) for word in ("(", "f(x)", "[0]", "]")] == ["-LRB-", "f-LRB-x-RRB-", "[0]", "-RSB-"]


@pytest.mark.parametrize("tree", [Tree("S", ("a b",)), Tree("A B", (Tree("N", ("x",)),)), Tree("S", ("",)), Tree("", ("x",))])
def test_what_brackets_cannot_hold_is_not_written(tree: Tree) -> None:
    with pytest.raises(ValueError, match="brackets cannot hold"):
        penn.format_tree(tree)


@given(trees)
@settings(deadline=None)
def test_what_is_written_is_read_again(tree: Tree) -> None:
    written = penn.format_tree(tree)
    assert penn.format_tree(penn.read_tree(written)) == written
    assert penn.read_tree(penn.format_tree(tree, word_form="plain"), word_form="plain") == penn.read_tree(
        written, word_form="plain"
    )
    harmless = penn.read_tree(written)
    assert penn.read_tree(penn.format_tree(harmless)) == harmless
    assert build_tree(iter_events(tree)) == tree


# --- what is kept -----------------------------------------------------------------------------------------------------

FULL = "( (S=2 (NP-SBJ-1 (-NONE- *)) (VP (VBZ is) (NP=1 (-LRB- -LRB-) (NN-X it)) (PP (NP (-NONE- *T*-1)))) (. .)))"


@pytest.mark.parametrize(
    ("functions", "traces", "root", "wanted"),
    [
        ("keep", "keep", "keep", FULL),
        ("strip", "keep", "keep", FULL.replace("=2", "").replace("-SBJ-1", "").replace("=1", "")),
        ("keep", "strip", "bare", "(S=2 (VP (VBZ is) (NP=1 (-LRB- -LRB-) (NN-X it))) (. .))"),
        ("strip", "strip", "bare", "(S (VP (VBZ is) (NP (-LRB- -LRB-) (NN-X it))) (. .))"),
        ("strip", "strip", "top", "(TOP (S (VP (VBZ is) (NP (-LRB- -LRB-) (NN-X it))) (. .)))"),
    ],
)
def test_annotation_is_kept_or_stripped_by_choice(
    functions: AnnotationMode, traces: AnnotationMode, root: RootMode, wanted: str
) -> None:
    assert penn.format_tree(simplify(penn.read_tree(FULL), function_tags=functions, traces=traces, root=root)) == wanted


@pytest.mark.parametrize(
    ("text", "bare", "top"),
    [
        ("(TOP (S1 (ROOT (S (NN x)))))", "(S (NN x))", "(TOP (S (NN x)))"),
        ("( (S (NN x)) (. .))", "(TOP (S (NN x)) (. .))", "(TOP (S (NN x)) (. .))"),
        ("(TOP (NN x))", "(TOP (NN x))", "(TOP (NN x))"),
        ("( (NN x))", "(TOP (NN x))", "(TOP (NN x))"),
        ("(NN x)", "(NN x)", "(TOP (NN x))"),
        ("( (NP (-NONE- *)))", "(TOP)", "(TOP)"),
    ],
)
def test_a_root_is_bare_or_named(text: str, bare: str, top: str) -> None:
    tree = penn.read_tree(text)
    assert penn.format_tree(simplify(tree)) == bare
    assert penn.format_tree(simplify(tree, root="top")) == top
    assert get_words(simplify(Tree("-NONE-", ("*",)))) == []


# --- linearisations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        # Vinyals et al. 2015, figure 2, with XX for each tag
        (
            "typed",
            "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))",
            "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S",
        ),
        # what tensor2tensor's wsj_parsing.py makes of this sentence
        ("tensor2tensor", CAT, "S NP DT NN /NP VP VBD /VP . /S"),
        ("tensor2tensor", "(/ (/ (NN a) (+ b)) (\\ (/ d)))", "\\/ \\/ NN \\+ // \\\\ +/ /\\ //"),
        ("topdown", CAT, "(S (NP The cat ) (VP sat ) . )"),
        ("topdown", "(S (X \\a) (NN -LRB-))", "(S \\\\a -LRB- )"),
    ],
)
def test_tokens_are_those_of_the_sources(name: LinearizationName, text: str, tokens: str) -> None:
    assert linearization(name).linearize(penn.read_tree(text)) == tokens.split()


@given(trees, ways)
@settings(max_examples=150, deadline=None)
def test_each_way_goes_back(tree: Tree, how: Linearization) -> None:
    told, tags = tagged(tree)
    assert delinearize(how, how.linearize(tree), told, None if how.name == "tensor2tensor" else tags) == tree
    without_empty = simplify(tree, function_tags="keep", root="keep")
    assert repair_tree(how, how.linearize(without_empty), told, tags) == RepairedTree(without_empty, ())


def test_constituents_that_are_known_need_not_close_to_be_brackets() -> None:
    known = linearization("tensor2tensor", constituents=["S", "NP"])
    tree = penn.read_tree("(S (NP (NP x)))")
    assert known.linearize(tree) == linearization("tensor2tensor").linearize(tree) == ["S", "NP", "+NP", "/NP", "/S"]
    assert known.linearize(penn.read_tree("(S (NP x))")) == ["S", "+NP", "/S"]
    cut = ["S", "NP", "DT"]
    assert penn.format_tree(repair_tree(known, cut, ["a"]).tree) == "(S (NP (DT a)))"
    assert penn.format_tree(repair_tree(linearization("tensor2tensor"), cut, ["a"]).tree) == "(TOP (S a))"


def test_words_without_tags_go_back_where_tags_are_not_in_the_tokens() -> None:
    tree = penn.read_tree("(S a (NP b c))")
    for name in ("typed", "topdown"):
        how = linearization(name)
        assert delinearize(how, how.linearize(tree), ["a", "b", "c"], [None] * 3) == tree
    with pytest.raises(DataError, match="the word 'a' stands in its bracket without a tag"):
        linearization("tensor2tensor").linearize(tree)
    assert penn.format_tree(delinearize(linearization("typed"), ["(S", "XX", ")S"], ["a"])) == "(S (XX a))"


@pytest.mark.parametrize(
    ("name", "tokens", "said"),
    [
        ("typed", "(S XX (NP )S", "token 4 of 4, ')S': closes no bracket; open is (NP"),
        ("typed", ")S", "token 1 of 1, ')S': closes no bracket; open is none"),
        ("typed", "(S XX XX XX )S", "token 4 of 5, 'XX': stands for a word, but there are 2, and all have been"),
        ("typed", "(S the", "token 2 of 2, 'the': is no token of the typed way"),
        ("typed", "(S XX XX )S )S", "token 5 of 5, ')S': the tree has come to its end before"),
        ("typed", "(S XX", "after 2 tokens: 1 brackets are open, 1 words have not been"),
        ("typed", "", "after 0 tokens: 0 brackets are open, 2 words have not been"),
        ("topdown", "(S a c )", "token 3 of 4, 'c': the next word is 'b'"),
        ("tensor2tensor", "S A /S", "after 3 tokens: 0 brackets are open, 1 words have not been"),
    ],
)
def test_what_is_no_tree_does_not_go_back(name: LinearizationName, tokens: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        delinearize(linearization(name), tokens.split(), ["a", "b"])
    assert str(caught.value) == said


def test_tags_are_as_many_as_words() -> None:
    for undo in (delinearize, repair_tree):
        with pytest.raises(ValueError, match="1 tags for 2 words"):
            undo(linearization("typed"), [], ["a", "b"], ["X"])


# --- mending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens", "wanted", "kinds"),
    [
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
        ("topdown", "(S a (NP b ) c ) )", "(S a (NP b) c)", ["stray closer"]),
        ("topdown", "(S a (NP x ) c )", "(S a (NP b) c)", ["word replaced"]),
        ("topdown", "(S (NP b ) c )", "(S (NP a b) c)", ["word added"]),
        ("topdown", "(S a x b (NP c ) )", "(S a b (NP c))", ["word dropped"]),
        ("topdown", "(S c c c c", "(S a b c)", ["word added"] * 2 + ["word dropped"] * 3 + ["closed late"]),
        ("tensor2tensor", "S A /NP B /S C", "(S (A a) (B b) (C c))", ["stray closer", "word outside"]),
    ],
)  # fmt: skip
def test_mending_says_what_it_did(name: LinearizationName, tokens: str, wanted: str, kinds: list[str]) -> None:
    found = repair_tree(linearization(name), tokens.split(), ["a", "b", "c"])
    assert re.sub(r"\(XX (\w)\)", r"\1", penn.format_tree(found.tree)) == wanted
    assert sorted(one.kind for one in found.repairs) == sorted(kinds)


def test_a_mending_is_a_sentence() -> None:
    found = repair_tree(linearization("typed"), ["(S", "what", "XX", ")VP"], ["a", "b"], root="X")
    assert [str(one) for one in found.repairs] == [
        "token 2: 'what' is no token: dropped",
        "token 4: ')VP' closes what is not open: dropped",
        "token 5: the word 'b' was missing: added",
        "token 5: the bracket 'S' never closed: closed at the end",
    ]
    assert format_brackets(repair_tree(linearization("typed"), [], ["a", "b"], root="X").tree) == "(X (XX a) (XX b))"
    assert repair_tree(linearization("typed"), ["(S", ")S"], []).tree == Tree("TOP", ())


def fuzz(seed: int) -> None:
    """Tokens of no sense, and tokens of a tree that were cut, doubled, dropped and put elsewhere."""
    chance = random.Random(seed)
    how = linearization(chance.choice(LINEARIZATION_NAMES))
    size = chance.choice([0, 1, 2, 5, 9, 400 if seed % 50 == 0 else 20])
    tree = random_tree(chance, size) if size else Tree("TOP", ())
    told, tags = tagged(tree)
    tokens = how.linearize(tree)
    pool = [*tokens, *AWKWARD, *(f"({label}" for label in LABELS), *(f"){label}" for label in LABELS), "", "XX", ")", "/S"]
    if seed % 3 == 0:
        tokens = chance.choices(pool, k=chance.randint(0, 2 * size + 20))
    for _ in range(chance.randint(0, 6)):
        place = chance.randint(0, len(tokens))
        match chance.randrange(4):
            case 0:
                tokens = tokens[:place]
            case 1:
                tokens.insert(place, chance.choice(pool))
            case 2:
                tokens = tokens[:place] + tokens[place + chance.randint(1, 3) :]
            case _:
                tokens = tokens[place:] + tokens[:place]
    found = repair_tree(how, tokens, told, chance.choice([None, tags]))
    assert [leaf.word for leaf in get_leaves(found.tree)] == told, seed
    assert not size or not found.tree.is_preterminal or size == 1
    assert all(start < end for _, start, end in get_spans(found.tree)) or not size
    written = penn.format_tree(found.tree)
    assert len(get_leaves(penn.read_tree(written))) == size
    anew = how.linearize(found.tree)
    if size:
        assert repair_tree(how, anew, *tagged(found.tree)) == RepairedTree(found.tree, ())
        assert delinearize(how, anew, *tagged(found.tree)) == found.tree


def test_any_tokens_become_a_tree_over_the_words() -> None:
    for seed in range(600):
        fuzz(seed)


@pytest.mark.slow
def test_ten_thousand_sequences_become_trees_over_the_words() -> None:
    for seed in range(10_000, 20_000):
        fuzz(seed)


# --- CRAFT ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_craft
@pytest.mark.parametrize(("split", "number"), [("train", 18_951), ("dev", 2_780)])
def test_every_tree_of_craft_comes_back(split: str, number: int) -> None:
    counted = 0
    for full, _ in read_trees(CRAFT / f"{split}.tsv.gz"):
        assert penn.read_tree(penn.format_tree(full)) == full
        counted += 1
        for tree in (full, simplify(full)) if split == "dev" else (simplify(full),):
            told, tags = tagged(tree)
            for name in LINEARIZATION_NAMES:
                how = linearization(name)
                tokens = how.linearize(tree)
                assert delinearize(how, tokens, told, None if name == "tensor2tensor" else tags) == tree
    assert counted == number
