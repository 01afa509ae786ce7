"""Bracketing scores: equality with the C program EVALB, and both policies for failures."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dragoman.cli.main import cli
from dragoman.errors import DataError
from dragoman.parsing.evalb.params import COLLINS, KEYWORDS, EvalbParams, read_params, symmetric_pairs
from dragoman.parsing.evalb.report import format_report, format_sentence
from dragoman.parsing.evalb.scorer import EvalbScorer, SentenceScore, score_files, score_trees, sum_scores
from dragoman.parsing.trees import ptb
from dragoman.parsing.trees.tree import Tree
from expected_errors import raises_code

PARITY = Path(__file__).parents[3] / "shared" / "data" / "evalb-parity"
needs_parity = pytest.mark.skipif(not PARITY.is_dir(), reason="the trees and results of EVALB are missing")

GOLD = "(TOP (S (NP (DT The) (NN cat)) (VP (VBD sat) (ADVP (RB down))) (. .)))"


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def score_lines(gold: str, test: str, params: EvalbParams = COLLINS) -> SentenceScore:
    trees = [[located.tree for located in ptb.iter_trees([line], "a")] for line in (gold, test)]
    return EvalbScorer(params).score(trees[0], trees[1])


# --- the C program ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_parity
def test_report_equals_evalb_on_three_thousand_pairs() -> None:
    scores = score_files(PARITY / "gold.mrg.gz", PARITY / "test.mrg.gz", read_params(PARITY / "collins.prm"))
    theirs = gzip.decompress((PARITY / "evalb-output.txt.gz").read_bytes()).decode()
    assert format_report(scores, 40).splitlines() == theirs.splitlines()


@needs_parity
def test_report_equals_evalb_sample() -> None:
    """Use EVALB's sample, whose result is from an older version that prints the gold words of failed sentences."""
    rules = read_params(PARITY / "sample.prm")
    scores = score_files(PARITY / "sample.gld", PARITY / "sample.tst", rules)
    theirs = (PARITY / "sample.rsl").read_text().splitlines()[3:27]
    for line, score in zip(theirs, scores, strict=True):
        cells = format_sentence(score).split()
        cells[9] = str(score.words)
        assert cells == line.split()
    summary = [line for line in format_report(scores, rules.cutoff_length).splitlines()[30:] if "FMeasure" not in line]
    assert summary == (PARITY / "sample.rsl").read_text().splitlines()[30:]


# Output of the C program for pairs with quotes that one side deletes, equal labels and words, deleted brackets, function tags.
RULES = EvalbParams(
    deleted_labels=frozenset({"TOP", "-NONE-", "``", "''", ".", "Z"}),
    length_deleted_labels=frozenset({"-NONE-"}),
    quote_labels=frozenset({"``", "''", "POS", "NN"}),
    equal_labels=symmetric_pairs([("A", "B"), ("B", "C"), ("Y", "Z")]),
    equal_words=symmetric_pairs([("a", "b")]),
)
PRINTED = [
    (
        "(A (S (A \") ('' ')) (-NONE- b))",
        "(A-SBJ (Y (S (TOP (A \") (NN '))) (-NONE- b)))",
        "1    2    0  100.00 100.00     2      2    2      0      2     1    50.00",
    ),
    (
        "(D=2 (-NONE- (D=2 (Z (A (C (NN '))) (A (Z (POS \"))) (B a)) (Z (Z (POS /) (S (-NONE- b)) (. b))) (-NONE- x))))",
        "(A (B (-NONE- (C (NN ')) (Z (POS \")) (Y (B a)) ('' /)) (-NONE- b)) (D=2 (S (. b) (-NONE- x))))",
        "1    5    0   33.33  50.00     2      6    4      0      4     3    75.00",
    ),
    (
        "(C (-NONE- (S (B (A-SBJ (-NONE- (B (A x))))) (Z (. b)))) (Z (Y (B (Z (NN b)) (D=2 (C ('' \")))))))",
        "(C (-NONE- (A x)) (B (Y (S (. b) (Y (NN b))))) (NN \"))",
        "1    4    0   20.00  50.00     2     10    4      0      3     2    66.67",
    ),
    (
        "(B (S (Y (A-SBJ (Y ('' /) (A c)))) ('' ')))",
        "(S (Y (TOP (-NONE- (A-SBJ (TOP ('' /)) (A c)))) (POS ')))",
        "1    3    0   66.67  66.67     2      3    3      0      2     1    50.00",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "test", "line"), PRINTED)
def test_quotes_and_equal_labels_count_like_evalb(gold: str, test: str, line: str) -> None:
    assert format_sentence(score_lines(gold, test, RULES)).strip() == line


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_brackets_are_counted_by_collins_rules(subtests: pytest.Subtests) -> None:
    for test, matched, brackets, crossing, tags in [
        (GOLD, 4, 4, 0, 4),
        (GOLD.replace("ADVP", "PRT"), 4, 4, 0, 4),
        (GOLD.replace("(NP ", "(NP-SBJ=1 "), 4, 4, 0, 4),
        (GOLD.replace("ADVP", "NP"), 3, 4, 0, 4),
        (GOLD.replace("RB", "RP"), 4, 4, 0, 3),
        (GOLD.replace("(. .)", "(: .)"), 4, 4, 0, 4),
        ("(S (DT The) (XP (NN cat) (VBD sat)) (RB down))", 1, 2, 1, 4),
        ("(S (S (S (DT The) (NN cat) (VBD sat) (RB down))))", 1, 3, 0, 4),
        ("(DT The) (NN cat) (VBD sat) (RB down)", 0, 0, 0, 4),
    ]:
        with subtests.test(test=test, matched=matched, brackets=brackets, crossing=crossing, tags=tags):
            score = score_lines(GOLD, test)
            assert (score.matched, score.gold, score.test, score.crossing, score.tags) == (matched, 4, brackets, crossing, tags)
            assert (score.status, score.length, score.words, score.reason) == (0, 5, 4, "")


def test_failed_sentences_count_as_zero(subtests: pytest.Subtests) -> None:
    for test, status, brackets, reason in [
        ("(S (DT The) (NN cat))", 1, 1, "2 words count, but 4 in the gold tree"),
        (GOLD.replace("cat", "dog"), 1, 4, "word 2 of those that count is 'dog', but 'cat' in the gold tree"),
        (GOLD.replace("(. .)", "(PUNCT .)"), 1, 4, "5 words count, but 4 in the gold tree"),
        ("(S (. .))", 2, 0, "no words count"),
        ("", 2, 0, "no tree"),
        ("(S a b)", 1, 0, "word 'a': has no tag; write it as (TAG word)"),
    ]:
        with subtests.test(test=test, status=status, brackets=brackets, reason=reason):
            failed, perfect = score_lines(GOLD, test), score_lines(GOLD, GOLD)
            assert (failed.status, failed.matched, failed.gold, failed.test, failed.words) == (status, 0, 4, brackets, 4)
            assert (failed.reason, failed.is_failed) == (reason, True)
            zero, dropped = sum_scores([failed, perfect]), sum_scores([failed, perfect], "dropped")
            assert (zero.recall, zero.precision) == (50.0, 100 * 4 / (4 + brackets))
            assert zero.f1 == pytest.approx(2 * 4 / (8 + 4 + brackets) * 100)
            assert (zero.complete_match, zero.no_crossing, zero.tagging_accuracy) == (50.0, 50.0, 50.0)
            assert (dropped.recall, dropped.precision, dropped.f1, dropped.complete_match, dropped.tagging_accuracy) == (
                100.0,
            ) * 5
            assert (zero.sentences, zero.scored, zero.errors + zero.skipped) == (2, 1, 1)


def test_gold_tree_without_words_is_no_failure() -> None:
    score = score_lines("(S (. .))", "(X (. .))")
    assert (score.status, score.is_failed) == (2, False)
    assert sum_scores([score, score_lines(GOLD, GOLD)]).complete_match == 100.0
    assert sum_scores([]) == sum_scores([score], max_length=0)


def test_long_sentences_are_scored() -> None:
    """Score a tree beyond EVALB's limits of 200 words and 200 brackets."""
    tree = ptb.read_tree("(NP " * 3000 + "(NN x) " * 2000 + ")" * 3000)
    [score] = score_trees([tree], [tree])
    assert (score.matched, score.gold, score.words, score.length) == (3000, 3000, 2000, 2000)


def test_trees_are_scored_in_pairs() -> None:
    tree = ptb.read_tree(GOLD)
    assert [score.status for score in score_trees([tree, tree], [tree, None])] == [0, 2]
    assert [score.line for score in score_trees([tree, tree], [tree, None])] == [1, 2]
    with raises_code("length-mismatch"):
        score_trees([tree], [tree, tree])
    with raises_code("invalid-tree", "'a'"):
        score_trees([Tree("S", ("a", "b"))], [tree])


# --- parameter files --------------------------------------------------------------------------------------------------


def test_read_params_reads_all_keywords(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.prm",
        "## comment ##", "", "DEBUG 0", "MAX_ERROR\t10", "CUTOFF_LEN 70", "LABELED 0   ", "DISC_ONLY 0",
        "DELETE_LABEL TOP", "DELETE_LABEL -NONE-", "DELETE_LABEL_FOR_LENGTH -NONE-", "QUOTE_LABEL ``",
        "EQ_LABEL ADVP PRT", "EQ_WORD Example example",
    )  # fmt: skip
    assert read_params(path) == EvalbParams(
        deleted_labels=frozenset({"TOP", "-NONE-"}),
        length_deleted_labels=frozenset({"-NONE-"}),
        quote_labels=frozenset({"``"}),
        equal_labels=frozenset({("ADVP", "PRT"), ("PRT", "ADVP")}),
        equal_words=frozenset({("Example", "example"), ("example", "Example")}),
        cutoff_length=70,
        labeled=False,
    )
    assert read_params(write_lines(path)) == EvalbParams()


@needs_parity
def test_default_params_equal_collins_file() -> None:
    assert read_params(PARITY / "collins.prm") == COLLINS


def test_invalid_parameter_lines_raise_errors(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for line, message in [
        ("DELETE_LABELS TOP", f"'DELETE_LABELS' is not a parameter of EVALB; use one of {', '.join(KEYWORDS)}"),
        ("DELETE_LABEL", "DELETE_LABEL takes 1 value, not 0"),
        ("EQ_LABEL A B C", "EQ_LABEL takes 2 values, not 3"),
        ("CUTOFF_LEN forty", "CUTOFF_LEN takes a whole number, not 'forty'"),
        ("LABELED 2", "LABELED takes 0 or 1, not '2'"),
        ("DISC_ONLY 1", "DISC_ONLY 1 counts discontinuous brackets only, but bracketed trees have none; set it to 0"),
    ]:
        with subtests.test(line=line, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            path = write_lines(tmp_path / "a.prm", "# a", line)
            with pytest.raises(DataError) as raised:
                read_params(path)
            assert (str(raised.value), raised.value.code) == (f"{path}, line 2: {message}", "invalid-format")


# --- files ------------------------------------------------------------------------------------------------------------


def test_invalid_files_raise_errors(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for gold, test, message in [
        ([GOLD, "(S (NN x)"], [GOLD, GOLD], "{gold}, line 2: the tree that begins here has 1 brackets that never close"),
        ([GOLD, "(S)"], [GOLD, GOLD], "{gold}, line 2: the tree has no words; remove it from both files"),
        ([GOLD, "", GOLD], [GOLD] * 3, "{gold}, line 2: no tree; remove it from both files"),
        ([GOLD, "(S a b)"], [GOLD] * 2, "{gold}, line 2: word 'a': has no tag; write it as (TAG word)"),
        ([GOLD], [GOLD] * 2, "{gold} has 1 line but {test} has 2; write one line a sentence in both"),
        ([GOLD] * 2, [GOLD], "{gold} has 2 lines but {test} has 1; write one line a sentence in both"),
        ([], [GOLD], "{gold}: has no trees; write one tree a line"),
        ([""], [GOLD], "{gold}: has no trees; write one tree a line"),
        ([GOLD], [], "{test}: has no trees; write one tree a line"),
    ]:
        with subtests.test(gold=gold, test=test, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            golds, tests = write_lines(tmp_path / "a.gld", *gold), write_lines(tmp_path / "a.tst", *test)
            with pytest.raises(DataError) as raised:
                score_files(golds, tests)
            assert str(raised.value) == message.format(gold=golds, test=tests)


def test_unreadable_parses_are_failures(tmp_path: Path) -> None:
    gold = write_lines(tmp_path / "a.gld", *["id\t" + GOLD] * 5, "", "")
    test = write_lines(tmp_path / "a.tst", GOLD, "(S (NN x)", GOLD + ")", "no tree", "")
    assert [(score.line, score.status, score.reason) for score in score_files(gold, test)] == [
        (1, 0, ""),
        (2, 1, "the tree that begins here has 1 brackets that never close"),
        (3, 1, "a bracket closes that never opened"),
        (4, 1, "'no' is outside of any tree"),
        (5, 2, "no tree"),
    ]


def test_gold_tags_avoid_tag_failures(tmp_path: Path) -> None:
    gold = write_lines(tmp_path / "a.gld", GOLD.replace("(RB down)", "(-NONE- *) (RB down)"), GOLD)
    test = write_lines(tmp_path / "a.tst", GOLD.replace("(. .)", "(NN .)").replace("RB", "XX"), GOLD.replace("cat", "dog"))
    assert [score.status for score in score_files(gold, test)] == [1, 1]
    first, second = score_files(gold, test, gold_tags=True)
    assert (first.status, first.matched, first.tags, first.words) == (0, 4, 4, 4)
    assert second.status == 1


# --- the command ------------------------------------------------------------------------------------------------------


def run_cli(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_evalb_command_prints_both_policies(tmp_path: Path) -> None:
    lines = [GOLD.replace("cat", "dog"), *[""] * 6, GOLD]
    gold, test = write_lines(tmp_path / "a.gld", *[GOLD] * 8), write_lines(tmp_path / "a.tst", *lines)
    answer = run_cli("tree", "evalb", gold, test)
    assert answer.exit_code == 0
    rows = [re.split("  +", line) for line in answer.stdout.splitlines()]
    assert ["F1", "20.00", "100.00", "20.00", "100.00"] in rows
    assert ["scored", "1", "1", "1", "1"] in rows
    assert answer.stderr.splitlines() == [
        f"{test}, line 1: counts as zero: word 2 of those that count is 'dog', but 'cat' in the gold tree",
        *(f"{test}, line {line}: counts as zero: no tree" for line in range(2, 6)),
        "2 more count as zero; --json lists them all",
        "if only the tags of punctuation differ, --gold-tags scores a sentence",
    ]
    scores = score_files(gold, test)
    assert run_cli("tree", "evalb", gold, test, "--sentences").stdout == format_report(scores, 40)
    output = json.loads(run_cli("tree", "evalb", gold, test, "--json", "--sentences").stdout)
    assert output["failures_zero"] == {
        "all": asdict(sum_scores(scores)),
        "length<=40": asdict(sum_scores(scores, max_length=40)),
    }
    assert output["failures_dropped"]["all"] == asdict(sum_scores(scores, "dropped"))
    assert output["sentences"] == [asdict(score) for score in scores]
    assert [failure["line"] for failure in output["failures"]] == [1, 2, 3, 4, 5, 6, 7]
    assert "sentences" not in json.loads(run_cli("tree", "evalb", gold, test, "--json").stdout)


def test_evalb_command_reads_parameter_file(tmp_path: Path) -> None:
    gold, prm = write_lines(tmp_path / "a.gld", GOLD), write_lines(tmp_path / "a.prm", "LABELED 0", "CUTOFF_LEN 3")
    test = write_lines(tmp_path / "a.tst", GOLD.replace("NP", "XP"))
    output = json.loads(run_cli("tree", "evalb", gold, test, "--prm", prm, "--json").stdout)
    assert output["parameters"] == str(prm)
    assert output["failures_zero"]["all"]["matched"] == 5
    assert output["failures_zero"]["length<=3"]["sentences"] == 0
    assert "labels ignored" in " ".join(run_cli("tree", "evalb", gold, test, "--prm", prm).stdout.split())
    answer = run_cli("tree", "evalb", gold, write_lines(tmp_path / "b.tst"))
    assert str(answer.exception) == f"{tmp_path / 'b.tst'}: has no trees; write one tree a line"
