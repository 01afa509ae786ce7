"""Bracketing scores: sentence by sentence what the C program EVALB prints, and failures that count."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dragoman.cli.main import cli
from dragoman.errors import DataError
from dragoman.evaluation.evalb import EvalbScorer, SentenceScore, score_files, score_trees, sum_scores
from dragoman.evaluation.evalb_params import COLLINS, KEYWORDS, EvalbParams, read_params, symmetric_pairs
from dragoman.evaluation.evalb_report import format_report, format_sentence
from dragoman.trees import ptb as penn
from dragoman.trees.tree import Tree

PARITY = Path(__file__).parents[3] / "shared" / "data" / "evalb-parity"
needs_parity = pytest.mark.skipif(not PARITY.is_dir(), reason="the trees and results of EVALB are not here")

GOLD = "(TOP (S (NP (DT The) (NN cat)) (VP (VBD sat) (ADVP (RB down))) (. .)))"


def put(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def scored(gold: str, test: str, rules: EvalbParams = COLLINS) -> SentenceScore:
    trees = [[placed.tree for placed in penn.iter_trees([line], "a")] for line in (gold, test)]
    return EvalbScorer(rules).score(trees[0], trees[1])


# --- the C program ----------------------------------------------------------------------------------------------------


@needs_parity
def test_the_listing_is_that_of_the_c_program_on_three_thousand_pairs() -> None:
    scores = score_files(PARITY / "gold.mrg.gz", PARITY / "test.mrg.gz", read_params(PARITY / "collins.prm"))
    theirs = gzip.decompress((PARITY / "evalb-output.txt.gz").read_bytes()).decode()
    assert format_report(scores, 40).splitlines() == theirs.splitlines()


@needs_parity
def test_the_sample_of_the_c_program_comes_out_as_it_says() -> None:
    """Its result is of an older version, which named the gold tree's words where a sentence had no score."""
    rules = read_params(PARITY / "sample.prm")
    scores = score_files(PARITY / "sample.gld", PARITY / "sample.tst", rules)
    theirs = (PARITY / "sample.rsl").read_text().splitlines()[3:27]
    for line, score in zip(theirs, scores, strict=True):
        named = format_sentence(score).split()
        named[9] = str(score.words)
        assert named == line.split()
    summary = [line for line in format_report(scores, rules.cutoff_length).splitlines()[30:] if "FMeasure" not in line]
    assert summary == (PARITY / "sample.rsl").read_text().splitlines()[30:]


# What the C program prints for these pairs. Quotes that one side deletes as punctuation count after all, labels and words
# have others that are the same, brackets are deleted by label, and their function tags are cut.
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
def test_quotes_and_equivalences_count_as_in_the_c_program(gold: str, test: str, line: str) -> None:
    assert format_sentence(scored(gold, test, RULES)).strip() == line


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "matched", "brackets", "crossing", "tags"),
    [
        (GOLD, 4, 4, 0, 4),
        (GOLD.replace("ADVP", "PRT"), 4, 4, 0, 4),
        (GOLD.replace("(NP ", "(NP-SBJ=1 "), 4, 4, 0, 4),
        (GOLD.replace("ADVP", "NP"), 3, 4, 0, 4),
        (GOLD.replace("RB", "RP"), 4, 4, 0, 3),
        (GOLD.replace("(. .)", "(: .)"), 4, 4, 0, 4),
        ("(S (DT The) (XP (NN cat) (VBD sat)) (RB down))", 1, 2, 1, 4),
        ("(S (S (S (DT The) (NN cat) (VBD sat) (RB down))))", 1, 3, 0, 4),
        ("(DT The) (NN cat) (VBD sat) (RB down)", 0, 0, 0, 4),
    ],
)
def test_brackets_are_counted(test: str, matched: int, brackets: int, crossing: int, tags: int) -> None:
    score = scored(GOLD, test)
    assert (score.matched, score.gold, score.test, score.crossing, score.tags) == (matched, 4, brackets, crossing, tags)
    assert (score.status, score.length, score.words, score.reason) == (0, 5, 4, "")


def test_labels_may_be_left_aside() -> None:
    assert scored(GOLD, GOLD.replace("(NP", "(X").replace("(VP", "(Y"), EvalbParams(labeled=False)).matched == 5
    assert scored(GOLD, GOLD.replace("(NP", "(X").replace("(VP", "(Y"), EvalbParams()).matched == 3


@pytest.mark.parametrize(
    ("test", "status", "brackets", "reason"),
    [
        ("(S (DT The) (NN cat))", 1, 1, "2 words count, but 4 in the gold tree"),
        (GOLD.replace("cat", "dog"), 1, 4, "word 2 of those that count is 'dog', but 'cat' in the gold tree"),
        (GOLD.replace("(. .)", "(PUNCT .)"), 1, 4, "5 words count, but 4 in the gold tree"),
        ("(S (. .))", 2, 0, "no words that count"),
        ("", 2, 0, "no tree"),
        ("(S a b)", 1, 0, "the word 'a' stands in its bracket without a tag"),
    ],
)
def test_what_cannot_be_scored_counts_as_zero(test: str, status: int, brackets: int, reason: str) -> None:
    failed, fine = scored(GOLD, test), scored(GOLD, GOLD)
    assert (failed.status, failed.matched, failed.gold, failed.test, failed.words) == (status, 0, 4, brackets, 4)
    assert (failed.reason, failed.is_failed) == (reason, True)
    zero, dropped = sum_scores([failed, fine]), sum_scores([failed, fine], "dropped")
    assert (zero.recall, zero.precision) == (50.0, 100 * 4 / (4 + brackets))
    assert zero.f1 == pytest.approx(2 * 4 / (8 + 4 + brackets) * 100)
    assert (zero.complete_match, zero.no_crossing, zero.tagging_accuracy) == (50.0, 50.0, 50.0)
    assert (dropped.recall, dropped.precision, dropped.f1, dropped.complete_match, dropped.tagging_accuracy) == (100.0,) * 5
    assert (zero.sentences, zero.scored, zero.errors + zero.skipped) == (2, 1, 1)


def test_nothing_is_no_failure_where_there_is_nothing_to_find() -> None:
    score = scored("(S (. .))", "(X (. .))")
    assert (score.status, score.is_failed) == (2, False)
    assert sum_scores([score, scored(GOLD, GOLD)]).complete_match == 100.0
    assert sum_scores([]) == sum_scores([score], max_length=0)


def test_length_is_no_limit() -> None:
    """EVALB ends at 200 words and at 200 brackets."""
    tree = penn.read_tree("(NP " * 3000 + "(NN x) " * 2000 + ")" * 3000)
    [score] = score_trees([tree], [tree])
    assert (score.matched, score.gold, score.words, score.length) == (3000, 3000, 2000, 2000)


def test_trees_are_scored_one_for_one() -> None:
    tree = penn.read_tree(GOLD)
    assert [one.status for one in score_trees([tree, tree], [tree, None])] == [0, 2]
    assert [one.line for one in score_trees([tree, tree], [tree, None])] == [1, 2]
    with pytest.raises(DataError, match="1 gold trees, but 2 to score"):
        score_trees([tree], [tree, tree])
    with pytest.raises(DataError, match="the word 'a' stands in its bracket without a tag"):
        score_trees([Tree("S", ("a", "b"))], [tree])


def test_a_tree_has_all_its_brackets_and_a_shuffled_one_has_not() -> None:
    """Against a count by hand: spans as multisets, crossing by pairs."""
    chance = random.Random(3)
    for _ in range(200):
        size = chance.randint(1, 9)
        gold, test = (_random(chance, [f"w{place}" for place in range(size)]) for _ in range(2))
        score = scored(gold[0], test[0], EvalbParams())
        left = list(test[1])
        matched = 0
        for one in gold[1]:
            if one in left:
                left.remove(one)
                matched += 1
        crossing = sum(any(a < s < b < e or s < a < e < b for _, a, b in gold[1]) for _, s, e in test[1])
        assert (score.matched, score.crossing, score.gold, score.test) == (matched, crossing, len(gold[1]), len(test[1]))


def _random(chance: random.Random, words: list[str], start: int = 0) -> tuple[str, list[tuple[str, int, int]]]:
    """A tree and its spans."""
    label = chance.choice("AB")
    text, found, place = "", [(label, start, start + len(words))], 0
    while place < len(words):
        size = chance.randint(1, len(words) - place)
        if size == 1 or size == len(words):
            text += f" (T {words[place]})"
            place += 1
            continue
        inner, spans = _random(chance, words[place : place + size], start + place)
        text, found, place = f"{text} {inner}", found + spans, place + size
    return f"({label}{text})", found


# --- parameter files --------------------------------------------------------------------------------------------------


def test_a_parameter_file_is_read(tmp_path: Path) -> None:
    path = put(
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
    assert read_params(put(path)) == EvalbParams()


@needs_parity
def test_the_rules_that_need_no_file_are_those_of_collins() -> None:
    assert read_params(PARITY / "collins.prm") == COLLINS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("DELETE_LABELS TOP", f"'DELETE_LABELS' is no parameter of EVALB; known are {', '.join(KEYWORDS)}"),
        ("DELETE_LABEL", "DELETE_LABEL takes 1 value, not 0"),
        ("EQ_LABEL A B C", "EQ_LABEL takes 2 values, not 3"),
        ("CUTOFF_LEN forty", "CUTOFF_LEN takes a whole number, not 'forty'"),
        ("LABELED 2", "LABELED takes 0 or 1, not '2'"),
        ("DISC_ONLY 1", "DISC_ONLY 1 counts discontinuous brackets alone, and trees in brackets have none; set it to 0"),
    ],
)
def test_what_no_parameter_file_says_is_refused(tmp_path: Path, line: str, said: str) -> None:
    path = put(tmp_path / "a.prm", "# a", line)
    with pytest.raises(DataError) as caught:
        read_params(path)
    assert str(caught.value) == f"{path}, line 2: {said}"


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "test", "said"),
    [
        ([GOLD, "(S (NN x)"], [GOLD, GOLD], "{gold}, line 2: the tree that begins here has 1 brackets that never close"),
        ([GOLD, "(S)"], [GOLD, GOLD], "{gold}, line 2: a tree without words; take it out of both files"),
        ([GOLD, "", GOLD], [GOLD] * 3, "{gold}, line 2: no tree; take it out of both files"),
        ([GOLD, "(S a b)"], [GOLD] * 2, "{gold}, line 2: the word 'a' stands in its bracket without a tag"),
        ([GOLD], [GOLD] * 2, "{gold} has 1 lines but {test} has 2: a line of one stands for that of the other"),
        ([GOLD] * 2, [GOLD], "{gold} has 2 lines but {test} has 1: a line of one stands for that of the other"),
        ([], [GOLD], "{gold}: is empty"),
        ([""], [GOLD], "{gold}: is empty"),
        ([GOLD], [], "{test}: is empty"),
    ],
)
def test_files_that_are_wrong_are_named(tmp_path: Path, gold: list[str], test: list[str], said: str) -> None:
    golds, tests = put(tmp_path / "a.gld", *gold), put(tmp_path / "a.tst", *test)
    with pytest.raises(DataError) as caught:
        score_files(golds, tests)
    assert str(caught.value) == said.format(gold=golds, test=tests)


def test_a_parse_that_is_wrong_is_a_failure(tmp_path: Path) -> None:
    gold = put(tmp_path / "a.gld", *["id\t" + GOLD] * 5, "", "")
    test = put(tmp_path / "a.tst", GOLD, "(S (NN x)", GOLD + ")", "no tree", "")
    assert [(one.line, one.status, one.reason) for one in score_files(gold, test)] == [
        (1, 0, ""),
        (2, 1, "the tree that begins here has 1 brackets that never close"),
        (3, 1, "a bracket closes that never opened"),
        (4, 1, "'no' is outside of any tree"),
        (5, 2, "no tree"),
    ]


def test_tags_of_the_gold_tree_have_sentences_scored(tmp_path: Path) -> None:
    gold = put(tmp_path / "a.gld", GOLD.replace("(RB down)", "(-NONE- *) (RB down)"), GOLD)
    test = put(tmp_path / "a.tst", GOLD.replace("(. .)", "(NN .)").replace("RB", "XX"), GOLD.replace("cat", "dog"))
    assert [one.status for one in score_files(gold, test)] == [1, 1]
    first, second = score_files(gold, test, gold_tags=True)
    assert (first.status, first.matched, first.tags, first.words) == (0, 4, 4, 4)
    assert second.status == 1


# --- the command ------------------------------------------------------------------------------------------------------


def ask(*words: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, words)])


def test_the_command_shows_both_ways_to_count(tmp_path: Path) -> None:
    lines = [GOLD.replace("cat", "dog"), *[""] * 6, GOLD]
    gold, test = put(tmp_path / "a.gld", *[GOLD] * 8), put(tmp_path / "a.tst", *lines)
    answer = ask("evalb", gold, test)
    assert answer.exit_code == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in answer.stdout.splitlines() if line.startswith("│")]
    assert ["F1", "20.00", "100.00", "20.00", "100.00"] in rows
    assert ["scored", "1", "1", "1", "1"] in rows
    assert answer.stderr.splitlines() == [
        f"{test}, line 1: counts as zero: word 2 of those that count is 'dog', but 'cat' in the gold tree",
        *(f"{test}, line {line}: counts as zero: no tree" for line in range(2, 6)),
        "2 more count as zero; --json lists them all",
        "where only the tags of punctuation differ, --gold-tags has a sentence scored",
    ]
    scores = score_files(gold, test)
    assert ask("evalb", gold, test, "--sentences").stdout == format_report(scores, 40)
    found = json.loads(ask("evalb", gold, test, "--json", "--sentences").stdout)
    assert found["failures_zero"] == {
        "all": asdict(sum_scores(scores)),
        "length<=40": asdict(sum_scores(scores, max_length=40)),
    }
    assert found["failures_dropped"]["all"] == asdict(sum_scores(scores, "dropped"))
    assert found["sentences"] == [asdict(one) for one in scores]
    assert [one["line"] for one in found["failures"]] == [1, 2, 3, 4, 5, 6, 7]
    assert "sentences" not in json.loads(ask("evalb", gold, test, "--json").stdout)


def test_the_command_takes_a_parameter_file(tmp_path: Path) -> None:
    gold, prm = put(tmp_path / "a.gld", GOLD), put(tmp_path / "a.prm", "LABELED 0", "CUTOFF_LEN 3")
    test = put(tmp_path / "a.tst", GOLD.replace("NP", "XP"))
    found = json.loads(ask("evalb", gold, test, "--prm", prm, "--json").stdout)
    assert found["parameters"] == str(prm)
    assert found["failures_zero"]["all"]["matched"] == 5
    assert found["failures_zero"]["length<=3"]["sentences"] == 0
    assert "labels left aside" in " ".join(ask("evalb", gold, test, "--prm", prm).stdout.split())
    answer = ask("evalb", gold, put(tmp_path / "b.tst"))
    assert str(answer.exception) == f"{tmp_path / 'b.tst'}: is empty"
