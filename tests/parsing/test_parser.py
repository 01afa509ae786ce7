"""Parser: every output is a tree over exactly the words, one for each line, and every error is one line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from click.testing import CliRunner, Result

import dragoman
from dragoman import Parse, Parser
from dragoman.cli.main import cli
from dragoman.decoding.arrays import NUMPY, Arrays
from dragoman.errors import BundleError, DataError, DeviceError, DragomanError
from dragoman.parsing.tree_constraint import TreeConstraint
from dragoman.parsing.trees.constraint_automaton import ConstraintAutomaton
from dragoman.parsing.trees.linearization import LINEARIZATION_NAMES, LinearizationName, linearization
from dragoman.parsing.trees.ptb import format_tree, read_tree
from dragoman.parsing.trees.ptb_tokenizer import tokenize_ptb
from dragoman.parsing.trees.repair import repair_tree
from dragoman.parsing.trees.tree import get_leaves, get_spans, get_words
from expected_errors import raises_code
from random_parsers import parser_bundle
from tree_automaton import find_allowed_tokens

pytestmark = pytest.mark.usefixtures("one_core")

PARSING_MODULES = (
    "dragoman.parsing.parse_result",
    "dragoman.parsing.sentence_parser",
    "dragoman.parsing.evalb.scorer",
    "dragoman.parsing.trees",
)
Method = Literal["greedy", "beam", "sample"]
METHODS: tuple[Method, ...] = ("greedy", "beam", "sample")
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


def opened(path: Path, *members: Path, **changes: Any) -> Parser:
    """Return a parser on one core, in float32, so that no layout is measured."""
    options: dict[str, Any] = {"device": "cpu", "intra_threads": 1, "inter_threads": 1, "precision": "float32"}
    parser = dragoman.load(path, *members, **options | changes)
    assert isinstance(parser, Parser)
    return parser


def assert_alike(actual: Sequence[Parse], expected: Sequence[Parse]) -> None:
    """Assert equal trees, and equal scores within rounding."""
    assert [parse.brackets for parse in actual] == [parse.brackets for parse in expected]
    assert [parse.status for parse in actual] == [parse.status for parse in expected]
    assert [parse.score for parse in actual] == pytest.approx([parse.score for parse in expected], abs=1e-4)


def assert_tree(parse: Parse, words: Sequence[str]) -> None:
    """Assert a tree over exactly these words, on one line, without empty brackets, that can be read again."""
    assert parse.words == tuple(words)
    assert parse.tree is not None
    assert get_words(parse.tree) == list(words)
    assert [leaf.tag for leaf in get_leaves(parse.tree)] == list(parse.tags)
    assert all(start < end for _, start, end in get_spans(parse.tree))
    assert "\n" not in parse.brackets
    again = read_tree(parse.brackets)
    assert [leaf.word for leaf in get_leaves(again)] == [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]
    assert get_spans(again) == get_spans(parse.tree)


# Tree constraint


TOKENS: dict[LinearizationName, list[str]] = {
    "typed": ["(S", ")S", "(NP", ")NP", "XX", "(LOST", ")NEVER", "junk"],
    "tensor2tensor": ["S", "/S", "NP", "/NP", "DT", "+NP"],
    "topdown": ["(S", ")", "(NP", "XX"],
}


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest) -> Arrays:
    """Library of the arrays."""
    if request.param == "numpy":
        return NUMPY
    torch = pytest.importorskip("torch")
    from dragoman.torch_engine.arrays import TorchArrays

    return TorchArrays(torch.device("cpu"))


def make_automaton(name: LinearizationName, rng: random.Random) -> ConstraintAutomaton:
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", *TOKENS[name]]
    limits = {"max_depth": rng.choice([2, 5, 64]), "max_consecutive_opens": rng.choice([1, 3, 16])}
    return ConstraintAutomaton(linearization(name), vocabulary, end_id=3, special_ids=[0, 1, 2], **limits)


def make_sentences(rng: random.Random) -> tuple[list[int], list[int]]:
    """Return lengths and limits."""
    lengths = [rng.randint(1, 7) for _ in range(5)]
    return lengths, [ConstraintAutomaton.min_tokens(length) + rng.randint(0, 25) for length in lengths]


def test_constraint_allows_what_the_rules_allow(subtests: pytest.Subtests, arrays: Arrays) -> None:
    """Compare along random walks whose rows are dropped, copied and moved."""
    for name in LINEARIZATION_NAMES:
        with subtests.test(name=name):
            for seed in range(8):
                rng = random.Random(seed)
                automaton = make_automaton(name, rng)
                lengths, limits = make_sentences(rng)
                allowed_tokens_fn = TreeConstraint(automaton, arrays).build_allowed_tokens_fn(lengths, limits)
                of_N, outputs_NT = np.arange(5), np.zeros((5, 0), dtype=np.int64)
                for _ in range(max(limits) + 2):
                    allowed_NV = arrays.to_numpy(allowed_tokens_fn(arrays.asarray(outputs_NT), arrays.asarray(of_N)))
                    for output, sentence, allowed_V in zip(outputs_NT.tolist(), of_N, allowed_NV, strict=True):
                        expected_V = find_allowed_tokens(automaton, output, lengths[sentence], limits[sentence])
                        np.testing.assert_array_equal(allowed_V, expected_V)
                    rows = np.array(rng.choices(range(len(of_N)), k=6))
                    tokens = np.array([rng.choice(np.flatnonzero(allowed_V)) for allowed_V in allowed_NV[rows]])
                    of_N, outputs_NT = of_N[rows], np.concatenate([outputs_NT[rows], tokens[:, None]], axis=1)


def test_single_row_has_the_same_masks(subtests: pytest.Subtests, arrays: Arrays) -> None:
    """Decode one sentence after the other, some of them truncated, as a beam of one does."""
    for name in LINEARIZATION_NAMES:
        with subtests.test(name=name):
            for seed in range(4):
                rng = random.Random(seed)
                automaton = make_automaton(name, rng)
                lengths, limits = make_sentences(rng)
                allowed_tokens_fn = TreeConstraint(automaton, arrays).build_allowed_tokens_fn(lengths, limits)
                for sentence in [*range(5), 2, 2]:
                    output_ids: list[int] = []
                    for _ in range(rng.randint(1, limits[sentence] + 1)):
                        output_1T = arrays.asarray([output_ids], arrays.xp.int64)
                        allowed_NV = arrays.to_numpy(allowed_tokens_fn(output_1T, arrays.asarray([sentence])))
                        expected_V = find_allowed_tokens(automaton, output_ids, lengths[sentence], limits[sentence])
                        np.testing.assert_array_equal(allowed_NV[0], expected_V)
                        output_ids.append(int(rng.choice(np.flatnonzero(allowed_NV[0]))))


def test_limit_too_small_for_a_tree_raises() -> None:
    automaton = make_automaton("typed", random.Random(1))
    with pytest.raises(ValueError, match="max_tokens = 6: a tree over 4 words needs 7"):
        TreeConstraint(automaton, NUMPY).build_allowed_tokens_fn([4], [6])


# Parsers


def test_every_parse_is_over_its_words(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in LINEARIZATION_NAMES:
        for method in METHODS:
            with subtests.test(name=name, method=method):
                tmp_path = tmp_path_factory.mktemp("case")
                parser = opened(parser_bundle(tmp_path / "bundle", how=name))
                for text, parse in zip(
                    ODD, parser.parse(ODD, method=method, nbest=1 if method == "greedy" else 2), strict=True
                ):
                    words = text.split()
                    if not words:
                        assert (parse.status, parse.tree, parse.brackets, parse.tags, parse.score) == (
                            "empty",
                            None,
                            "",
                            (),
                            0.0,
                        )
                        continue
                    assert len(parse.alternatives) == (method != "greedy")
                    for candidate in (parse, *parse.alternatives):
                        assert (candidate.status, candidate.repairs) == ("ok", ())
                        assert_tree(candidate, words)
                        assert len(candidate.token_log_probs) == len(candidate.tokens) + 1
                    scores = [candidate.score for candidate in (parse, *parse.alternatives)]
                    assert scores == sorted(scores, reverse=True)


def test_text_words_and_streams_give_equal_parses(parser: Parser) -> None:
    listed = parser.parse(ODD)
    assert parser.parse([text.split() for text in ODD]) == listed
    assert_alike(list(parser.stream(iter(ODD), window=2)), listed)
    assert_alike([parser.parse(ODD[2])], listed[2:3])
    assert parser.parse("It doesn't work.", tokenize="ptb").words == ("It", "does", "n't", "work", ".")


def test_parse_keeps_the_tags_of_the_caller(parser: Parser, tmp_path: Path) -> None:
    parse, other = parser.parse(["the cat", "dogs"], tags=[["DT", "NEW"], None])
    assert parse.tags == ("DT", "NEW")
    assert "(NEW cat)" in parse.brackets
    assert set(other.tags) <= {"XX", *parser.labels.tags}
    strict = opened(parser_bundle(tmp_path / "given", tags="given"))
    with pytest.raises(DataError, match="sentence 2: has no tags, and this parser predicts none"):
        strict.parse(["a", "b"], tags=[["DT"], None])
    assert strict.parse(["a", ""], tags=[["DT"], None])[0].tags == ("DT",)


def test_unconstrained_output_is_repaired(parser: Parser) -> None:
    lines = ["the cat sat on the mat"] * 8
    parses = parser.parse(lines, constrained=False, method="sample", seed=2)
    assert {parse.status for parse in parses} <= {"ok", "repaired", "truncated"}
    assert any(parse.status == "repaired" for parse in parses)
    for parse in parses:
        assert_tree(parse, lines[0].split())
        same = repair_tree(parser.labels.linearization, parse.tokens, parse.words, parse.tags)
        assert parse.repairs == tuple(map(str, same.repairs))
        assert bool(parse.repairs) == (parse.status != "ok")
        assert format_tree(same.tree) == parse.brackets


def test_parsers_form_an_ensemble(bundle: Path, parser: Parser, tmp_path: Path) -> None:
    twice = Parser.from_bundles(
        [parser.bundle, parser.bundle], device="cpu", intra_threads=1, inter_threads=1, precision="float32"
    )
    assert_alike(twice.parse(ODD), parser.parse(ODD))
    other = parser_bundle(tmp_path / "other", seed=2)
    assert_tree(opened(bundle, other).parse("the cat"), ["the", "cat"])
    foreign = parser_bundle(tmp_path / "foreign", how="topdown")
    with pytest.raises(BundleError, match="cannot form an ensemble"):
        opened(bundle, foreign)


def test_translator_and_parser_cannot_form_an_ensemble(bundle: Path, trained: Path) -> None:
    openers: list[Callable[..., object]] = [
        dragoman.load,
        *(partial(dragoman.load, task=task) for task in ("parsing", "translation")),
    ]
    cases = [
        (trained / "bundle", bundle, "tiny and parser: a translator and a parser cannot form an ensemble"),
        (bundle, trained / "bundle", "parser and tiny: a parser and a translator cannot form an ensemble"),
    ]
    for first, second, message in cases:
        for open_both in openers:
            with pytest.raises(BundleError, match=message):
                open_both(first, second, device="cpu")


def test_loading_a_translator_imports_no_parsing_code(trained: Path) -> None:
    opening = (
        "import sys\nimport dragoman.inference.load, dragoman.inference.translator\n"
        "dragoman.load(sys.argv[1], device='cpu', precision='float32')\n"
        f"print([name for name in sys.modules if name.startswith({PARSING_MODULES!r})])"
    )
    done = subprocess.run([sys.executable, "-c", opening, str(trained / "bundle")], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("pointer", ["true", "false"])
def test_packed_and_plain_models_agree(tmp_path: Path, pointer: str) -> None:
    torch_models = pytest.importorskip("dragoman.torch_engine.inference_model")
    path = parser_bundle(tmp_path / "bundle", f"model.pointer={pointer}")
    parser = opened(path, precision="float32")
    plain = opened(path, precision="float32")
    plain.session.inference_model = torch_models.as_inference_model(plain.models)
    assert_alike(parser.parse(ODD), plain.parse(ODD))
    assert_alike(parser.parse(ODD, beam_size=3, nbest=3), plain.parse(ODD, beam_size=3, nbest=3))


def test_too_long_sentence_is_not_parsed(parser: Parser) -> None:
    parses = parser.parse(["the cat", "the cat " * 9], max_source_tokens=8)
    assert [parse.status for parse in parses] == ["ok", "too_long"]
    assert (parses[1].brackets, parses[1].words) == ("", ("the", "cat") * 9)


def test_odd_spaces_stay_in_their_words(parser: Parser) -> None:
    """CRAFT has such words; in bracket files only plain spaces and tabs separate words."""
    (parse,) = parser.parse([["Bmp7\u2009", "a\u00a0b"]])
    assert parser.parse("Bmp7\u2009 a\u00a0b").brackets == parse.brackets
    assert get_words(read_tree(parse.brackets)) == ["Bmp7\u2009", "a\u00a0b"]
    assert parser.parse("\u3000 ").status == "empty"


def test_a_notebook_shows_the_tree(parser: Parser) -> None:
    shown = parser.parse("<b> cat").show()
    assert "<svg" in shown._repr_html_()
    assert "&lt;b&gt;" in shown._repr_html_()
    assert "<b>" not in shown._repr_html_()


def test_wrong_arguments_raise_errors(parser: Parser, bundle: Path, trained: Path) -> None:
    wrong_inputs: list[tuple[Any, Any, str]] = [
        ([["a b"]], None, r"sentence 1: 'a b' is not a word"),
        ([["a"], [""]], None, r"sentence 2: '' is not a word"),
        (["a b"], [["X"]], r"sentence 1: 1 tag for 2 words"),
        (["a"], [["X Y"]], r"sentence 1: 'X Y' is not a tag"),
        (["a b"], ["DT"], r"sentence 1: its tags are one text, 'DT'"),
        ([1], None, r"sentence 1: '1' is neither a text nor a list of words"),
        ([["a", 1]], None, r"neither a text nor a list of words"),
        (["a", "b"], [["X"]], r"2 sentences but tags for 1"),
    ]
    for sentences, tags, message in wrong_inputs:
        with pytest.raises(DataError, match=message):
            parser.parse(sentences, tags=tags)
    with pytest.raises(DataError, match="tags end after sentence 1, before the sentences"):
        list(parser.stream(["a", "b"], tags=[["X"]]))
    with pytest.raises(DataError, match="sentences end after sentence 1, before the tags"):
        list(parser.stream(["a"], tags=[["X"], ["Y"]]))
    with pytest.raises(TypeError, match="a sequence of sentences is needed"):
        parser.stream("a")
    with pytest.raises(DataError, match="tokenize = 'foo' is not known; give ptb, ontonotes or None"):
        parser.parse("a", tokenize="foo")  # type: ignore[call-overload]
    decodings: list[dict[str, Any]] = [
        {"mbr": "chrf"},
        {"max_extra_tokens": 0},
        {"min_length": 50},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": ["XX"]},
    ]
    for options in decodings:
        with raises_code("invalid-recipe", f"decoding.{next(iter(options))}"):
            parser.parse("a", **options)
    with raises_code("invalid-recipe", "nbest = 9", "beam_size = 2"):
        parser.parse("a", nbest=9)
    with raises_code("invalid-encoding"):
        parser.parse("\ud800")
    with pytest.raises(BundleError, match="is a translator, not a parser; use dragoman translate"):
        dragoman.load(trained / "bundle", task="parsing")
    with pytest.raises(DeviceError, match="shortlist"):
        opened(bundle, shortlist="here")


# Words


def test_text_becomes_words(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [  # from the treebank's guidelines
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
    ]
    for text, expected in cases:
        with subtests.test(text=text, expected=expected):
            assert tokenize_ptb(text) == expected.split()
            assert tokenize_ptb(" ".join(tokenize_ptb(text))) == expected.split()


def test_hyphens_split_words_on_request() -> None:
    assert tokenize_ptb("a well-known and/or non-smoking 3-fold", style="ontonotes") == (
        ["a", "well", "-", "known", "and", "/", "or", "non-smoking", "3-fold"]
    )


# The command


LINES = "the cat sat on ( the ) mat .\n\n  \n😀 不 -LRB- [\nx\n"


def call(*arguments: str | Path, stdin: str = "") -> Result:
    options = ["--intra-threads=1", "--inter-threads=1", "--precision=float32"]
    return CliRunner().invoke(cli, ["parse", *options, *map(str, arguments)], input=stdin)


def error_message(result: Result) -> str:
    assert isinstance(result.exception, DragomanError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text(LINES, encoding="utf-8")
    return path


def test_command_writes_a_tree_a_line(bundle: Path, parser: Parser, lines: Path, tmp_path: Path) -> None:
    expected = [parse.brackets for parse in parser.parse(LINES.splitlines())]
    assert expected[1:3] == ["", ""]
    done = call(bundle, lines)
    assert (done.exit_code, done.stdout.splitlines()) == (0, expected)
    assert call(bundle, stdin=LINES).stdout == done.stdout
    assert call(bundle, lines, "-o", tmp_path / "out.mrg").exit_code == 0
    assert (tmp_path / "out.mrg").read_text(encoding="utf-8").splitlines() == expected
    assert "out.mrg" in error_message(call(bundle, lines, "-o", tmp_path / "out.mrg"))
    assert call(bundle, "--tokenize=ptb", stdin="It doesn't.\n").stdout.count("(") > 4


def test_command_writes_nbest_with_scores(bundle: Path, parser: Parser, lines: Path) -> None:
    rows = [line.split("\t") for line in call(bundle, lines, "--nbest", "2").stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [(line, rank) for line in "145" for rank in "12"]
    best = parser.parse(LINES.splitlines()[0], nbest=2)
    assert rows[0][2:] == [f"{best.score:.4f}", best.brackets]
    assert rows[1][3] == best.alternatives[0].brackets


def test_command_writes_json(bundle: Path, parser: Parser, lines: Path) -> None:
    entries = [json.loads(line) for line in call(bundle, lines, "--json", "nbest=2").stdout.splitlines()]
    parses = parser.parse(LINES.splitlines(), nbest=2)
    for number, (entry, parse) in enumerate(zip(entries, parses, strict=True), start=1):
        assert (entry["line"], entry["tree"], entry["status"]) == (number, parse.brackets, parse.status)
        assert (entry["words"], entry["tags"]) == (list(parse.words), list(parse.tags))
        assert [tuple(bracket.values()) for bracket in entry["brackets"]] == parse.spans
        assert len(entry["alternatives"]) == len(parse.alternatives)


def test_command_reads_tags(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "tags").write_text("DT NN\n\n", encoding="utf-8")
    from_file = call(bundle, "--tags", tmp_path / "tags", stdin="the cat\n\n").stdout
    assert "(DT the)" in from_file
    assert call(bundle, "--tagged", stdin="the_DT cat_NN\n\n").stdout == from_file
    assert "(X a_b)" in call(bundle, "--tagged", stdin="a_b_X\n").stdout
    assert error_message(call(bundle, "--tagged", stdin="the_DT cat\n")) == (
        "standard input, line 1: 'cat' is not a word with a tag; write word_TAG, such as cat_NN"
    )
    assert "line 1: has 2 tags for the 3 words" in error_message(call(bundle, "--tags", tmp_path / "tags", stdin="a b c\n\n"))
    assert "has 2 lines, fewer than" in error_message(call(bundle, "--tags", tmp_path / "tags", stdin="a b\n\nc\n"))
    assert "has more than the 1 line of" in error_message(call(bundle, "--tags", tmp_path / "tags", stdin="a b\n"))
    both = call(bundle, "--tags", tmp_path / "tags", "--tagged", stdin="a\n")
    assert "do not go together" in str(both.stderr)
    both = call(bundle, "--tagged", "--tokenize=ontonotes", stdin="a\n")
    assert "--tagged and --tokenize do not go together" in str(both.stderr)


def test_command_reports_malformed_outputs(bundle: Path, lines: Path) -> None:
    done = call(bundle, lines, "--unconstrained")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 5
    assert "malformed and repaired: " in done.stderr
    assert " of 3 lines" in done.stderr
    assert "malformed" not in call(bundle, lines).stderr


def test_command_reports_unparsed_lines(bundle: Path, lines: Path) -> None:
    done = call(bundle, lines, "max_source_tokens=8")
    assert done.exit_code == 3
    assert "lines left unparsed (more than 8 tokens" in done.stderr
    assert [bool(line) for line in done.stdout.splitlines()] == [False, False, False, False, True]


def test_command_draws_the_first_trees(bundle: Path, lines: Path, tmp_path: Path) -> None:
    assert call(bundle, lines, "--svg", tmp_path / "trees.svg").exit_code == 0
    svg = (tmp_path / "trees.svg").read_text(encoding="utf-8")
    assert [svg.count(f">line {number}<") for number in (1, 4, 5)] == [1, 1, 1]
    assert "trees.svg" in error_message(call(bundle, lines, "--svg", tmp_path / "trees.svg"))
    assert "nothing to draw" in error_message(call(bundle, "--svg", tmp_path / "none.svg", stdin="\n\n"))


def test_command_errors_are_one_line(bundle: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    assert "there is no such file" in error_message(call(bundle, tmp_path / "nowhere"))
    assert "line 1: not UTF-8" in error_message(call(bundle, tmp_path / "latin"))
    assert "is a translator, not a parser" in error_message(call(trained / "bundle", stdin="a\n"))
    assert "nbest = 7 is more than beam_size" in error_message(call(bundle, "--nbest", "7", stdin="a\n"))
    other = CliRunner().invoke(cli, ["translate", str(bundle)], input="a\n")
    assert error_message(other).endswith("is a parser, not a translator; use dragoman parse, or a Parser")


def test_explain_rejects_nbest(bundle: Path, trained: Path) -> None:
    for path in (bundle, trained / "bundle"):
        result = CliRunner().invoke(cli, ["explain", str(path), "the cat", "--json", "nbest=3"])
        assert error_message(result) == "nbest = 3: only the best output is explained; leave nbest out"
