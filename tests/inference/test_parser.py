"""Parsers: whatever is said, what comes out is a tree over exactly the words, one for each line; and a mistake is one line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import dragoman
from dragoman import Parse, Parser
from dragoman.cli.main import cli
from dragoman.errors import BundleError, DataError, DeviceError, DragomanError, RecipeError
from dragoman.inference.parser import load_parser
from dragoman.inference.translator import load_translator
from dragoman.tasks.inference_model import as_inference_model
from dragoman.tasks.tree_constraint import TreeConstraint
from dragoman.trees.constraint_automaton import ConstraintAutomaton
from dragoman.trees.linearization import LINEARIZATION_NAMES, LinearizationName, linearization
from dragoman.trees.ptb import format_tree, read_tree, split_words
from dragoman.trees.ptb_tokenizer import tokenize_ptb
from dragoman.trees.repair import repair_tree
from dragoman.trees.tree import get_leaves, get_spans, get_words
from random_parsers import parser_bundle

pytestmark = pytest.mark.usefixtures("one_core")

ROOMS_OF_PARSING = ("dragoman.inference.parse", "dragoman.tasks.parsing", "dragoman.evaluation.evalb", "dragoman.trees")
ODD = [
    "",
    "x",
    "( ) [ ]",
    "-LRB- ))) (((",
    "😀 🏳️‍🌈 zero\u200dwidth",
    "不 語 한국어 ไทย",
    "\u202eright left",
    "▁ ▁▁ <unk> </s> XX (S )S",
    "tab\tand  two",
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parser_bundle(tmp_path_factory.mktemp("parser") / "bundle")


@pytest.fixture(scope="module")
def parser(bundle: Path) -> Parser:
    return opened(bundle)


def opened(path: Path, *others: Path, **rest: Any) -> Parser:
    """On one core, exactly; which way is the fastest is not measured."""
    placing: dict[str, Any] = {"device": "cpu", "threads": 1, "replicas": 1, "precision": "float32"}
    found = dragoman.load(path, *others, **placing | rest)
    assert isinstance(found, Parser)
    return found


def assert_alike(found: Sequence[Parse], wanted: Sequence[Parse]) -> None:
    """The same trees; scores by rounding alone others."""
    assert [one.brackets for one in found] == [one.brackets for one in wanted]
    assert [one.status for one in found] == [one.status for one in wanted]
    assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=1e-4)


def assert_tree(parse: Parse, given: Sequence[str]) -> None:
    """A tree over exactly these words, on one line, with no empty bracket, that a reader finds again."""
    assert parse.words == tuple(given)
    assert parse.tree is not None
    assert get_words(parse.tree) == list(given)
    assert [leaf.tag for leaf in get_leaves(parse.tree)] == list(parse.tags)
    assert all(start < end for _, start, end in get_spans(parse.tree))
    assert "\n" not in parse.brackets
    again = read_tree(parse.brackets)
    assert [leaf.word for leaf in get_leaves(again)] == [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in given]
    assert get_spans(again) == get_spans(parse.tree)


# The automaton beside a search


TOKENS: dict[LinearizationName, list[str]] = {
    "typed": ["(S", ")S", "(NP", ")NP", "XX", "(LOST", ")NEVER", "junk"],
    "tensor2tensor": ["S", "/S", "NP", "/NP", "DT", "+NP"],
    "topdown": ["(S", ")", "(NP", "the", "\\(", "cat"],
}


def made(name: LinearizationName, chance: random.Random) -> ConstraintAutomaton:
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", *TOKENS[name]]
    limits = {"deepest": chance.choice([2, 5, 64]), "most_opens": chance.choice([1, 3, 16])}
    return ConstraintAutomaton(linearization(name), vocabulary, end_id=3, special_ids=[0, 1, 2], **limits)


def sentences(automaton: ConstraintAutomaton, chance: random.Random) -> tuple[list[int], list[int], list[list[int]] | None]:
    """Lengths, limits and words."""
    lengths = [chance.randint(1, 7) for _ in range(5)]
    own = [[chance.choice([7, 8, 9]) for _ in range(length)] for length in lengths] if automaton.has_word_tokens else None
    return lengths, [automaton.min_tokens(length) + chance.randint(0, 25) for length in lengths], own


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_the_constraint_allows_what_the_automaton_does(name: LinearizationName) -> None:
    """Along random walks whose rows a search drops, doubles and moves; the automaton's state goes along, and is the source."""
    for seed in range(8):
        chance = random.Random(seed)
        one = made(name, chance)
        lengths, limits, own = sentences(one, chance)
        allow = TreeConstraint(one, torch.device("cpu")).build_allowed_tokens_fn(lengths, limits, own)
        state, of_N, outputs_NT = one.initial_state(lengths, limits, own), np.arange(5), np.zeros((5, 0), dtype=np.int64)
        for _ in range(max(limits) + 2):
            allowed_NV = allow(torch.from_numpy(outputs_NT), torch.from_numpy(of_N)).numpy()
            np.testing.assert_array_equal(allowed_NV, one.get_allowed_mask(state))
            rows = np.array(chance.choices(range(len(of_N)), k=6))
            tokens = np.array([chance.choice(np.flatnonzero(allowed_V)) for allowed_V in allowed_NV[rows]])
            state, of_N = one.advance(state.reorder(rows), tokens), of_N[rows]
            outputs_NT = np.concatenate([outputs_NT[rows], tokens[:, None]], axis=1)


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_a_row_alone_is_under_the_same_masks(name: LinearizationName) -> None:
    """One sentence after the other, some of them cut short, as a search with a beam of one goes."""
    for seed in range(8):
        chance = random.Random(seed)
        one = made(name, chance)
        lengths, limits, own = sentences(one, chance)
        allow = TreeConstraint(one, torch.device("cpu")).build_allowed_tokens_fn(lengths, limits, own)
        for sentence in [*range(5), 2, 2]:
            state = one.initial_state([lengths[sentence]], [limits[sentence]], own and [own[sentence]])
            said: list[int] = []
            for _ in range(chance.randint(1, limits[sentence] + 1)):
                allowed_NV = allow(torch.tensor([said], dtype=torch.long), torch.tensor([sentence])).numpy()
                np.testing.assert_array_equal(allowed_NV, one.get_allowed_mask(state))
                said.append(int(chance.choice(np.flatnonzero(allowed_NV[0]))))
                state = one.advance(state, said[-1:])


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
def test_a_dead_row_disturbs_nothing(name: LinearizationName) -> None:
    """What a search says in rows that are dead already may be anything; the masks of the others stay what they were."""
    for seed in range(20):
        chance = random.Random(seed)
        one = made(name, chance)
        lengths, limits, own = sentences(one, chance)
        allow = TreeConstraint(one, torch.device("cpu")).build_allowed_tokens_fn(lengths, limits, own)
        size = len(one.kind_V)
        dead_T = [chance.randrange(size) for _ in range(9)]
        alive = [next(token for token in range(size) if one.kind_V[token] == 1)]  # any bracket that opens
        state = one.advance(one.initial_state(lengths[:1], limits[:1], own and own[:1]), alive)
        both = torch.tensor([alive, dead_T[:1]])
        np.testing.assert_array_equal(allow(both, torch.tensor([0, 1]))[:1].numpy(), one.get_allowed_mask(state))
        assert allow(torch.tensor([dead_T]), torch.tensor([4])).shape == (1, size)


def test_no_room_for_a_tree_is_said_at_once() -> None:
    one = made("typed", random.Random(1))
    with pytest.raises(ValueError, match="a tree over 4 words takes 7 tokens at least, not 6"):
        TreeConstraint(one, torch.device("cpu")).build_allowed_tokens_fn([4], [6])


# Parsers


@pytest.mark.parametrize("name", LINEARIZATION_NAMES)
@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_every_sentence_becomes_a_tree_over_its_words(tmp_path: Path, name: LinearizationName, method: str) -> None:
    parser = opened(parser_bundle(tmp_path / "bundle", how=name))
    for text, parse in zip(ODD, parser.parse(ODD, method=method, nbest=1 if method == "greedy" else 2), strict=True):
        given = text.split()
        if not given:
            assert (parse.status, parse.tree, parse.brackets, parse.tags, parse.score) == ("empty", None, "", (), 0.0)
            continue
        assert len(parse.alternatives) == (method != "greedy")
        for one in (parse, *parse.alternatives):
            assert (one.status, one.repairs) == ("ok", ())
            assert_tree(one, given)
            assert len(one.token_log_probs) == len(one.tokens) + 1
        scores = [one.score for one in (parse, *parse.alternatives)]
        assert scores == sorted(scores, reverse=True)


def test_text_words_and_streams_come_to_the_same(parser: Parser) -> None:
    listed = parser.parse(ODD)
    assert parser.parse([text.split() for text in ODD]) == listed
    assert_alike(list(parser.stream(iter(ODD), window=2)), listed)
    assert_alike([parser.parse(ODD[2])], listed[2:3])
    assert parser.parse("It doesn't work.", tokenise="kept").words == ("It", "does", "n't", "work", ".")


def test_a_sampled_parse_depends_on_its_place_alone(parser: Parser) -> None:
    lines = ["the cat sat", "dogs and cats", "Not now"] * 2
    whole = parser.parse(lines, method="sample", seed=3)
    assert_alike(list(parser.stream(lines, window=4, method="sample", seed=3)), whole)
    assert whole[0].brackets != whole[3].brackets


def test_tags_are_as_given(parser: Parser, tmp_path: Path) -> None:
    parse, other = parser.parse(["the cat", "dogs"], tags=[["DT", "NEW"], None])
    assert parse.tags == ("DT", "NEW")
    assert "(NEW cat)" in parse.brackets
    assert set(other.tags) <= {"XX", *parser.labels.tags}
    strict = opened(parser_bundle(tmp_path / "given", tags="given"))
    with pytest.raises(DataError, match="sentence 2: has no tags, and this parser predicts none"):
        strict.parse(["a", "b"], tags=[["DT"], None])
    assert strict.parse(["a", ""], tags=[["DT"], None])[0].tags == ("DT",)


def test_unconstrained_output_is_mended_and_told(parser: Parser) -> None:
    lines = ["the cat sat on the mat"] * 8
    parses = parser.parse(lines, constrained=False, method="sample", seed=2)
    assert {parse.status for parse in parses} <= {"ok", "mended", "truncated"}
    assert any(parse.status == "mended" for parse in parses)
    for parse in parses:
        assert_tree(parse, lines[0].split())
        same = repair_tree(parser.labels.linearization, parse.tokens, parse.words, parse.tags)
        assert parse.repairs == tuple(map(str, same.repairs))
        assert bool(parse.repairs) == (parse.status != "ok")
        assert format_tree(same.tree) == parse.brackets


def test_two_parsers_vote(bundle: Path, parser: Parser, tmp_path: Path) -> None:
    twice = Parser([parser.bundle, parser.bundle], device="cpu", intra_threads=1, inter_threads=1)
    assert_alike(twice.parse(ODD), parser.parse(ODD))
    other = parser_bundle(tmp_path / "other", seed=2)
    assert_tree(opened(bundle, other).parse("the cat"), ["the", "cat"])
    foreign = parser_bundle(tmp_path / "foreign", how="topdown")
    with pytest.raises(BundleError, match="cannot vote as an ensemble"):
        opened(bundle, foreign)


def test_a_translator_and_a_parser_cannot_vote(bundle: Path, trained: Path) -> None:
    said = "tiny and parser: a translator and a parser cannot vote together"
    openers: list[Callable[..., object]] = [dragoman.load, load_parser, load_translator]
    for first, second in ((bundle, trained / "bundle"), (trained / "bundle", bundle)):
        for open_both in openers:
            with pytest.raises(BundleError, match=said):
                open_both(first, second, device="cpu")


def test_a_translator_is_opened_without_what_parsing_needs(trained: Path) -> None:
    opening = (
        "import sys\nimport dragoman.inference.load, dragoman.inference.translator\n"
        "dragoman.load(sys.argv[1], device='cpu', precision='float32')\n"
        f"print([name for name in sys.modules if name.startswith({ROOMS_OF_PARSING!r})])"
    )
    done = subprocess.run([sys.executable, "-c", opening, str(trained / "bundle")], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("pointer", ["true", "false"])
def test_packed_and_plain_models_say_the_same(tmp_path: Path, pointer: str) -> None:
    path = parser_bundle(tmp_path / "bundle", f"model.pointer={pointer}")
    parser = opened(path, precision="float32")
    plain = opened(path, precision="float32")
    plain.inference_model = as_inference_model(plain.models)
    assert_alike(parser.parse(ODD), plain.parse(ODD))
    assert_alike(parser.parse(ODD, beam_size=3, nbest=3), plain.parse(ODD, beam_size=3, nbest=3))


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_every_precision_gives_trees(bundle: Path, precision: str) -> None:
    for line, parse in zip(ODD, opened(bundle, precision=precision).parse(ODD), strict=True):
        assert list(parse.words) == split_words(line)
        assert parse.status == ("ok" if parse.words else "empty")


def test_a_sentence_that_is_too_long_is_refused(parser: Parser) -> None:
    parses = parser.parse(["the cat", "the cat " * 9], max_source_tokens=8)
    assert [parse.status for parse in parses] == ["ok", "refused"]
    assert (parses[1].brackets, parses[1].words) == ("", ("the", "cat") * 9)


def test_odd_spaces_stay_in_their_words(parser: Parser) -> None:
    """CRAFT has such words: brackets part words by plain spaces and tabs alone."""
    (parse,) = parser.parse([["Bmp7\u2009", "a\u00a0b"]])
    assert parser.parse("Bmp7\u2009 a\u00a0b").brackets == parse.brackets
    assert get_words(read_tree(parse.brackets)) == ["Bmp7\u2009", "a\u00a0b"]
    assert parser.parse("\u3000 ").status == "empty"


def test_a_notebook_shows_the_tree(parser: Parser) -> None:
    shown = parser.parse("<b> cat").show()
    assert "<svg" in shown._repr_html_()
    assert "&lt;b&gt;" in shown._repr_html_()
    assert "<b>" not in shown._repr_html_()


def test_mistakes_are_answered(parser: Parser, bundle: Path, trained: Path) -> None:
    wrong: list[tuple[Any, Any, str]] = [
        ([["a b"]], None, r"sentence 1: 'a b' is no word"),
        ([["a"], [""]], None, r"sentence 2: '' is no word"),
        (["a b"], [["X"]], r"sentence 1: 1 tags for 2 words"),
        (["a"], [["X Y"]], r"sentence 1: 'X Y' is no tag"),
        (["a b"], ["DT"], r"sentence 1: its tags are one text, 'DT'"),
        ([1], None, r"sentence 1: '1' is neither a text nor a list of words"),
        ([["a", 1]], None, r"neither a text nor a list of words"),
        (["a", "b"], [["X"]], r"2 sentences but tags for 1"),
    ]
    for given, tags, message in wrong:
        with pytest.raises(DataError, match=message):
            parser.parse(given, tags=tags)
    with pytest.raises(DataError, match="more sentences than tags, which there are for 1"):
        list(parser.stream(["a", "b"], tags=[["X"]]))
    with pytest.raises(DataError, match="tags for more sentences than there are, which is 1"):
        list(parser.stream(["a"], tags=[["X"], ["Y"]]))
    with pytest.raises(TypeError, match="takes sentences"):
        parser.stream("a")
    with pytest.raises(DataError, match="tokenise = 'foo'; one of: kept, split, or None"):
        parser.parse("a", tokenise="foo")  # type: ignore[call-overload]
    asked: list[dict[str, Any]] = [
        {"mbr": "chrf"},
        {"max_extra_tokens": 0},
        {"min_length": 50},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": ["XX"]},
    ]
    for knob in asked:
        with pytest.raises(RecipeError, match=f"decoding.{next(iter(knob))}"):
            parser.parse("a", **knob)
    with pytest.raises(RecipeError, match="nbest = 9 is more than beam_size = 2"):
        parser.parse("a", nbest=9)
    with pytest.raises(DragomanError, match="half of a surrogate pair"):
        parser.parse("\ud800")
    with pytest.raises(BundleError, match="is a translator, not a parser: use dragoman translate"):
        load_parser(trained / "bundle")
    with pytest.raises(DeviceError, match="shortlist"):
        opened(bundle, shortlist="here")


# Words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [  # by the treebank's guidelines
        ('He said "I can\'t, you know."', "He said `` I ca n't , you know . ''"),
        ("They cannot.", "They can not ."),
        (
            "The dogs' owners didn't pay $3,000.50 (U.S.) at 10:30.",
            "The dogs ' owners did n't pay $ 3,000.50 ( U.S. ) at 10:30 .",
        ),
        ("It's John’s; we'll see -- maybe... 50%?", "It 's John ’s ; we 'll see -- maybe ... 50 % ?"),
        ("“Yes”, [he] said: http://a.org/b-c works.", "`` Yes '' , [ he ] said : http://a.org/b-c works ."),
        ("a well-known and/or non-smoking 3-fold", "a well-known and/or non-smoking 3-fold"),
        ("  ", ""),
    ],
)
def test_text_becomes_words(text: str, wanted: str) -> None:
    assert tokenize_ptb(text) == wanted.split()
    assert tokenize_ptb(" ".join(tokenize_ptb(text))) == wanted.split()


def test_hyphens_part_words_where_it_is_asked() -> None:
    assert tokenize_ptb("a well-known and/or non-smoking 3-fold", hyphens="split") == (
        ["a", "well", "-", "known", "and", "/", "or", "non-smoking", "3-fold"]
    )


# The command


LINES = "the cat sat on ( the ) mat .\n\n  \n😀 不 -LRB- [\nx\n"


def call(*arguments: str | Path, given: str = "") -> Result:
    return CliRunner().invoke(cli, ["parse", "--threads=1", "--replicas=1", *map(str, arguments)], input=given)


def refused(result: Result) -> str:
    assert isinstance(result.exception, DragomanError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text(LINES, encoding="utf-8")
    return path


def test_a_tree_a_line(bundle: Path, parser: Parser, lines: Path, tmp_path: Path) -> None:
    wanted = [parse.brackets for parse in parser.parse(LINES.splitlines())]
    assert wanted[1:3] == ["", ""]
    done = call(bundle, lines)
    assert (done.exit_code, done.stdout.splitlines()) == (0, wanted)
    assert call(bundle, given=LINES).stdout == done.stdout
    assert call(bundle, lines, "-o", tmp_path / "out.mrg").exit_code == 0
    assert (tmp_path / "out.mrg").read_text(encoding="utf-8").splitlines() == wanted
    assert "out.mrg" in refused(call(bundle, lines, "-o", tmp_path / "out.mrg"))
    assert call(bundle, "--tokenise", given="It doesn't.\n").stdout.count("(") > 4


def test_the_best_with_their_scores(bundle: Path, parser: Parser, lines: Path) -> None:
    rows = [line.split("\t") for line in call(bundle, lines, "--nbest", "2").stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [(line, rank) for line in "145" for rank in "12"]
    best = parser.parse(LINES.splitlines()[0], nbest=2)
    assert rows[0][2:] == [f"{best.score:.4f}", best.brackets]
    assert rows[1][3] == best.alternatives[0].brackets


def test_json_tells_all(bundle: Path, parser: Parser, lines: Path) -> None:
    told = [json.loads(line) for line in call(bundle, lines, "--json", "nbest=2").stdout.splitlines()]
    parses = parser.parse(LINES.splitlines(), nbest=2)
    for number, (entry, parse) in enumerate(zip(told, parses, strict=True), start=1):
        assert (entry["line"], entry["tree"], entry["status"]) == (number, parse.brackets, parse.status)
        assert (entry["words"], entry["tags"]) == (list(parse.words), list(parse.tags))
        assert [tuple(one.values()) for one in entry["brackets"]] == parse.spans
        assert len(entry["alternatives"]) == len(parse.alternatives)


def test_tags_come_from_a_file_or_the_words(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "tags").write_text("DT NN\n\n", encoding="utf-8")
    beside = call(bundle, "--tags", tmp_path / "tags", given="the cat\n\n").stdout
    assert "(DT the)" in beside
    assert call(bundle, "--tagged", given="the_DT cat_NN\n\n").stdout == beside
    assert "(X a_b)" in call(bundle, "--tagged", given="a_b_X\n").stdout
    assert refused(call(bundle, "--tagged", given="the_DT cat\n")) == (
        "standard input, line 1: 'cat' is no word with its tag; write word_TAG, such as cat_NN"
    )
    assert "line 1: 2 tags for the 3 words" in refused(call(bundle, "--tags", tmp_path / "tags", given="a b c\n\n"))
    assert "has 2 lines, fewer than" in refused(call(bundle, "--tags", tmp_path / "tags", given="a b\n\nc\n"))
    assert "has more than the 1 lines" in refused(call(bundle, "--tags", tmp_path / "tags", given="a b\n"))
    both = call(bundle, "--tags", tmp_path / "tags", "--tagged", given="a\n")
    assert "do not go together" in str(both.stderr)
    both = call(bundle, "--tagged", "--tokenise-hyphens", given="a\n")
    assert "--tagged and --tokenise-hyphens do not go together" in str(both.stderr)


def test_what_was_malformed_is_told(bundle: Path, lines: Path) -> None:
    done = call(bundle, lines, "--unconstrained")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 5
    assert "malformed and mended: " in done.stderr
    assert " of 3 lines" in done.stderr
    assert "malformed" not in call(bundle, lines).stderr


def test_what_was_not_parsed_is_named(bundle: Path, lines: Path) -> None:
    done = call(bundle, lines, "max_source_tokens=8")
    assert done.exit_code == 3
    assert "lines left unparsed (more than 8 tokens" in done.stderr
    assert [bool(line) for line in done.stdout.splitlines()] == [False, False, False, False, True]


def test_a_picture_of_the_first_trees(bundle: Path, lines: Path, tmp_path: Path) -> None:
    assert call(bundle, lines, "--svg", tmp_path / "trees.svg").exit_code == 0
    drawn = (tmp_path / "trees.svg").read_text(encoding="utf-8")
    assert [drawn.count(f">line {number}<") for number in (1, 4, 5)] == [1, 1, 1]
    assert "trees.svg" in refused(call(bundle, lines, "--svg", tmp_path / "trees.svg"))
    assert "nothing to draw" in refused(call(bundle, "--svg", tmp_path / "none.svg", given="\n\n"))


def test_bad_input_is_one_line(bundle: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    assert "there is no such file" in refused(call(bundle, tmp_path / "nowhere"))
    assert "line 1: not UTF-8" in refused(call(bundle, tmp_path / "latin"))
    assert "is a translator, not a parser" in refused(call(trained / "bundle", given="a\n"))
    assert "nbest = 7 is more than beam_size" in refused(call(bundle, "--nbest", "7", given="a\n"))
    other = CliRunner().invoke(cli, ["translate", str(bundle)], input="a\n")
    assert refused(other).endswith("is a parser, not a translator: use dragoman parse, or a Parser")


def test_an_explanation_refuses_what_it_does_not_use(bundle: Path, trained: Path) -> None:
    for path in (bundle, trained / "bundle"):
        asked = CliRunner().invoke(cli, ["explain", str(path), "the cat", "--json", "nbest=3"])
        assert refused(asked) == "nbest = 3: one output is explained, the best; drop it"


# Anything at all


def strange_lines(count: int, seed: int) -> Iterator[str]:
    """Empty, one word, 400 words, emoji, brackets as words, unknown scripts, and all of them mixed."""
    chance = random.Random(seed)
    brackets = [
        "(",
        ")",
        "((",
        "-LRB-",
        "-RRB-",
        "[",
        "]",
        "{",
        "(S",
        ")S",
        "XX",
        "()",
        "(NP",
        "</s>",
        "<unk>",
        "▁",
        "\\(",
        "_",
    ]
    blocks = [
        (0x21, 0x7E),
        (0x600, 0x6FF),
        (0xE00, 0xE7F),
        (0x4E00, 0x9FFF),
        (0x1F300, 0x1FAFF),
        (0x10300, 0x1034F),
        (0xE000, 0xE0FF),
    ]
    known = ["the", "cat", "sat", "on", "red", "mat", "dogs", "and", "cats", "Not", "now", "."]

    def word(*, mostly_known: bool) -> str:
        kind = 0 if mostly_known and chance.random() < 0.9 else chance.randrange(4)
        if kind < 2:
            return chance.choice((known, brackets)[kind])
        low, high = chance.choice(blocks)
        return "".join(chr(chance.randint(low, high)) for _ in range(chance.randint(1, 5)))

    for number in range(count):
        length = 400 if number == count // 2 else chance.choice([0, 1, 1, 2, 3, 5, 8])
        yield chance.choice([" ", "  ", "\t"]).join(word(mostly_known=length == 400) for _ in range(length))


def fuzzed(tmp_path: Path, count: int) -> int:
    """Parse so many lines in every way, all of them well-formed; how many had words."""
    ways = [
        (name, method, pointer)
        for name in LINEARIZATION_NAMES
        for method in ("greedy", "beam", "sample")
        for pointer in ("true", "false")
    ]
    parsed = 0
    for number, (name, method, pointer) in enumerate(ways):
        parser = opened(parser_bundle(tmp_path / f"{number}", f"model.pointer={pointer}", how=name, seed=number))
        lines = list(strange_lines(count // len(ways) + 1, number))
        for line, parse in zip(lines, parser.parse(lines, method=method, temperature=1.5, max_extra_tokens=8), strict=True):
            assert parse.status == ("ok" if line.split() else "empty")
            if line.split():
                assert_tree(parse, line.split())
                parsed += 1
    return parsed


@pytest.mark.slow
def test_ten_thousand_strange_lines_are_well_formed(tmp_path: Path) -> None:
    assert fuzzed(tmp_path, 10_000) > 8000
