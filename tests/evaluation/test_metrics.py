"""Metrics against closed forms, numbers of other programs and a naive bootstrap."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from dragoman.errors import DataError
from dragoman.evaluation.bootstrap import paired_bootstrap
from dragoman.evaluation.metrics import (
    Score,
    bleu,
    character_error_rate,
    chrf,
    exact_match,
    moses_bleu,
    moses_tokenize,
    ter,
    tokenized_bleu,
)
from expected_errors import raises_code

Scorer = Callable[[Sequence[str], Sequence[Sequence[str]]], Score]

# Plain text on which the metrics differ: case, punctuation, hyphens, a shift, a short line.
HYPOTHESES = ["The cat sat on the mat.", "It is, they say, a well-known rich-text format!", "Yes", "old men and dogs"]
REFERENCES = [
    ["The cat sat on a mat.", "This is, they say, a well-known rich text format.", "Yes, yes.", "dogs and old men"],
    ["A cat is on the mat.", "It is said to be a well-known format!", "Yes.", "the dogs and the old men"],
]


def noisy_systems(sentences: int, noise_a: float, noise_b: float) -> tuple[list[str], list[str], list[str]]:
    """Return the outputs of two systems that replace each word with these probabilities, and random references."""
    rng = random.Random(7)
    words = [f"w{number}" for number in range(50)]
    references = [rng.choices(words, k=rng.randint(5, 15)) for _ in range(sentences)]

    def system(noise: float) -> list[str]:
        return [" ".join(rng.choice(words) if rng.random() < noise else word for word in line) for line in references]

    return system(noise_a), system(noise_b), [" ".join(line) for line in references]


# --- metrics: closed forms ---


def test_bleu_is_geometric_mean_of_precisions() -> None:
    # Precisions 5/6 (the second "the" is clipped), 3/5, 2/4, 1/3; equal lengths. Their product is 1/12.
    score = bleu(["the cat sat on the mat"], [["the cat sat on a mat"]])
    assert score.value == pytest.approx(100 * (1 / 12) ** 0.25, abs=1e-9)
    assert score.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"


def test_exact_match_accepts_any_reference() -> None:
    score = exact_match(["a b", "c", "C", "d ", "e"], [["a b", "x", "c", "d", "e"], ["y", "c", "c", "d", "e"]])
    assert (score.value, score.signature) == (60.0, "nrefs:2|case:mixed|space:kept")


# --- metrics: other programs' numbers ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "scorer"),
    [
        (["--metrics", "bleu"], bleu),
        (["--metrics", "bleu", "--lowercase"], lambda lines, sets: bleu(lines, sets, lowercase=True)),
        (["--metrics", "bleu", "--tokenize", "intl"], lambda lines, sets: bleu(lines, sets, tokenize="intl")),
        (["--metrics", "chrf"], chrf),
        (["--metrics", "chrf", "--chrf-word-order", "2"], lambda lines, sets: chrf(lines, sets, word_order=2)),
        (["--metrics", "ter"], ter),
        (["--metrics", "ter", "--ter-normalized", "--ter-asian-support"], partial(ter, splits_characters=True)),
    ],
    ids=["bleu", "bleu-lowercase", "bleu-intl", "chrf", "chrf++", "ter", "ter-asian"],
)
def test_scores_and_signatures_equal_sacrebleu_command(options: list[str], scorer: Scorer, tmp_path: Path) -> None:
    paths = []
    for name, lines in zip(("hypotheses", "first", "second"), (HYPOTHESES, *REFERENCES), strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(str(tmp_path / name))
    command = [sys.executable, "-m", "sacrebleu", *paths[1:], "--input", paths[0], "--width", "9", *options]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout)
    score = scorer(HYPOTHESES, REFERENCES)
    assert score.value == pytest.approx(printed["score"], abs=1e-8)
    assert (score.name, score.signature) == (printed["name"], printed["signature"])


MULTI_BLEU_HYPOTHESES = [
    "The cat sat on the mat .",
    "there is a dog in the big park near the river",
    "a b c d e f g",
]
MULTI_BLEU_REFERENCES = [
    ["the cat sat on a mat .", "there is a dog in the large park near the old river", "a b c d e x g h"],
    ["a cat is on the mat .", "a dog is in the big park by the river", "a b c y e f g"],
]


@pytest.mark.parametrize(("sets", "lowercase", "printed"), [(2, False, 73.72), (2, True, 78.46), (1, False, 49.53)])
def test_tokenized_bleu_equals_multi_bleu(sets: int, lowercase: bool, printed: float) -> None:
    # Printed by mosesdecoder's scripts/generic/multi-bleu.perl (31473d8), with -lc for lowercase.
    score = tokenized_bleu(MULTI_BLEU_HYPOTHESES, MULTI_BLEU_REFERENCES[:sets], lowercase=lowercase)
    assert round(score.value, 2) == printed
    case = "lc" if lowercase else "mixed"
    version = sacrebleu.__version__
    assert score.signature == f"nrefs:{sets}|case:{case}|eff:no|tok:none|smooth:none|version:{version}"


def test_tokenized_bleu_neither_smooths_nor_tokenizes() -> None:
    assert tokenized_bleu(["a x b y"], [["a b x y"]]).value == 0.0  # no pair of words in common
    assert tokenized_bleu(["a b c d e."], [["a b c d e ."]]).value < tokenized_bleu(["a b c d e ."], [["a b c d e ."]]).value


def test_moses_tokens_depend_on_the_language() -> None:
    # "bzw." is in Moses' German list of abbreviations; French leaves the apostrophe to the left-hand token.
    assert moses_tokenize(["bzw. Anna", "l'ami"], "de") == ["bzw. Anna", "l &apos; ami"]
    assert moses_tokenize(["bzw. Anna", "l'ami"], "en") == ["bzw . Anna", "l &apos;ami"]
    assert moses_tokenize(["bzw. Anna", "l'ami"], "fr") == ["bzw . Anna", "l&apos; ami"]


def test_compounds_split_like_the_perl_expression() -> None:
    # printf 'rich-text a-b-c ab-cd-ef a--b -b b-' | perl -pe 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g'
    assert moses_tokenize(["rich-text a-b-c ab-cd-ef a--b -b b-"], "de", split_hyphens=True) == [
        "rich ##AT##-##AT## text a ##AT##-##AT## b-c ab ##AT##-##AT## cd ##AT##-##AT## ef a ##AT##-##AT## -b -b b-"
    ]


def test_compound_split_bleu_matches_closed_form() -> None:
    hypotheses, references = ["A rich-text format is here."], [["A rich text format is here."]]
    # Six tokens against seven, "rich-text" wrong: precisions 5/6, 3/5, 2/4, 1/3, product 1/12.
    whole = moses_bleu(hypotheses, references, "en")
    assert whole.value == pytest.approx(100 * math.exp(1 - 7 / 6) * (1 / 12) ** 0.25, abs=1e-9)
    # Eight tokens against seven, the hyphen wrong: precisions 7/8, 5/7, 3/6, 2/5, product 1/8.
    split = moses_bleu(hypotheses, references, "en", split_hyphens=True)
    assert split.value == pytest.approx(100 * (1 / 8) ** 0.25, abs=1e-9)

    start, end = "nrefs:1|case:mixed|eff:no|", f"|smooth:none|version:{sacrebleu.__version__}"
    tokens = f"tok:moses-en|sacremoses:{version('sacremoses')}"
    assert whole.signature == f"{start}{tokens}{end}"
    assert split.signature == f"{start}{tokens}|compounds:split{end}"
    assert (whole.name, split.name) == ("Moses BLEU", "compound-split BLEU")


# --- metrics: shape and errors ---


def moses_bleu_en(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    return moses_bleu(hypotheses, references, "en")


def test_unequal_and_empty_sets_raise_errors(subtests: pytest.Subtests) -> None:
    cases: list[Scorer] = [bleu, chrf, ter, tokenized_bleu, moses_bleu_en, exact_match]
    for scorer in cases:
        with subtests.test(scorer=scorer):
            with raises_code("length-mismatch", "2 hypotheses", "3 references", "set 2"):
                scorer(["a", "b"], [["a", "b"], ["a", "b", "c"]])
            with raises_code("length-mismatch", "set 1"):
                scorer([], [[]])
            with raises_code("invalid-argument", "[lines]"):
                scorer(["a", "b"], ["aa", "bb"])
            with raises_code("invalid-argument", "[lines]"):
                scorer(["a", "b"], [])


def test_unavailable_tokenizers_raise_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code("unknown-metric", "'moses'", "none, zh, 13a, intl"):
        bleu(["a"], [["a"]], tokenize="moses")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with raises_code("unknown-metric", "'ja-mecab'", "pip install sacrebleu[ja]"):
        bleu(["a"], [["a"]], tokenize="ja-mecab")


# --- significance ---


def test_equal_systems_have_no_significant_difference() -> None:
    system, _, references = noisy_systems(30, 0.3, 0.3)
    for metric in ("bleu", "chrf", "ter"):
        comparison = paired_bootstrap(system, system, [references], metric=metric, resamples=100)
        assert (comparison.difference, comparison.interval, comparison.p_value) == (0.0, (0.0, 0.0), 1.0)
        assert not comparison.is_significant
        assert comparison.describe().startswith("The difference is not significant: ")


@pytest.mark.parametrize(("tokenize", "warned"), [("none", False), ("13a", True)])
def test_only_detokenized_scoring_warns_of_tokens(tokenize: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Check for sacreBLEU's warning about a hundred lines that end in a separate period."""
    lines = [f"line {number} ends ." for number in range(120)]
    paired_bootstrap(lines, lines, [lines], tokenize=tokenize, resamples=100)
    assert ("forgot to detokenize" in caplog.text) is warned


@pytest.mark.parametrize("metric", ["bleu", "chrf", "chrf++", "ter"])
def test_better_system_wins_in_either_order(metric: str) -> None:
    good, bad, references = noisy_systems(60, 0.1, 0.5)
    forth = paired_bootstrap(good, bad, [references], metric=metric, resamples=200)
    back = paired_bootstrap(bad, good, [references], metric=metric, resamples=200)
    assert forth.p_value == back.p_value == pytest.approx(2 / 201)  # good led in every resample
    assert forth.describe("good", "bad").startswith("good is better than bad: ")
    assert back.describe("bad", "good").startswith("good is better than bad: ")
    low, high = forth.interval
    assert forth.difference == -back.difference
    assert back.interval == pytest.approx((-high, -low))
    assert (high < 0) if metric == "ter" else (low > 0)
    assert low < forth.difference < high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "scorer"),
    [
        ("bleu", bleu),
        ("chrf", chrf),
        ("chrf++", lambda lines, sets: chrf(lines, sets, word_order=2)),
        ("ter", ter),
    ],
)
def test_bootstrap_equals_scoring_resampled_texts(metric: str, scorer: Scorer) -> None:
    a, b, first = noisy_systems(50, 0.30, 0.36)
    references = [first, a[::-1]]
    comparison = paired_bootstrap(a, b, references, metric=metric, resamples=50, seed=3)

    rng = np.random.default_rng(3)
    differences = []
    for _ in range(50):
        draw = rng.integers(50, size=50)
        resampled = [[lines[index] for index in draw] for lines in (a, b, *references)]
        differences.append(scorer(resampled[0], resampled[2:]).value - scorer(resampled[1], resampled[2:]).value)
    differences.sort()
    # 2.5 % of the way from the first of 50 to the last is 1.225 steps.
    low = 0.775 * differences[1] + 0.225 * differences[2]
    high = 0.775 * differences[48] + 0.225 * differences[47]
    tail = min(sum(d <= 0 for d in differences), sum(d >= 0 for d in differences))
    assert tail > 0, "the case is too clear to test the p-value"

    assert comparison.a.value == pytest.approx(scorer(a, references).value, abs=1e-9)
    assert comparison.b.value == pytest.approx(scorer(b, references).value, abs=1e-9)
    assert comparison.difference == comparison.a.value - comparison.b.value
    assert comparison.interval == pytest.approx((low, high), abs=1e-9)
    assert comparison.p_value == pytest.approx(2 * (tail + 1) / 51)
    assert comparison.a.signature == scorer(a, references).signature
    assert comparison.signature == f"{comparison.a.signature}|bs:50|seed:3|p:two-sided"


def test_bootstrap_depends_only_on_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, references = noisy_systems(40, 0.3, 0.35)
    first = paired_bootstrap(a, b, [references], resamples=60, seed=5)
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    assert paired_bootstrap(a, b, [references], resamples=60, seed=5) == first
    assert paired_bootstrap(a, b, [references], resamples=60, seed=6).interval != first.interval


def test_bootstrap_uses_the_tokenizer() -> None:
    a, b = ["one, two three four five."] * 3, ["one , two three four six ."] * 3
    references = [["one , two three four five ."] * 3]
    comparison = paired_bootstrap(a, b, references, tokenize="none", resamples=50)
    expected = tokenized_bleu(a, references)  # without smoothing
    assert (comparison.a.value, comparison.a.signature) == (expected.value, expected.signature)
    assert comparison.a.value < bleu(a, references).value


def test_invalid_comparisons_raise_errors() -> None:
    with raises_code("length-mismatch", "system B", "set 1"):
        paired_bootstrap(["a", "b"], ["a"], [["a", "b"]])
    with raises_code("unknown-metric", "'meteor'", "bleu, chrf, chrf++ or ter"):
        paired_bootstrap(["a", "b"], ["a", "b"], [["a", "b"]], metric="meteor")
    with raises_code("invalid-option", "resamples = 39", "40"):
        paired_bootstrap(["a", "b"], ["a", "b"], [["a", "b"]], resamples=39)
    with pytest.raises(DataError, match="paired bootstrap: the test set has 1 sentence"):
        paired_bootstrap(["a"], ["b"], [["a"]])


def test_moses_bleu_can_ignore_case() -> None:
    references = [["Der Hund läuft über die Wiese ."]]
    for score in (moses_bleu, partial(moses_bleu, split_hyphens=True)):
        assert score(["der hund LÄUFT über die wiese ."], references, "de").value < 100.0
        lowered = score(["der hund LÄUFT über die wiese ."], references, "de", lowercase=True)
        assert lowered.value == pytest.approx(100.0)
        assert "case:lc" in lowered.signature


def test_character_error_rate_counts_edits_to_the_nearest_reference() -> None:
    score = character_error_rate(["abcd", "xy", ""], [["abd", "y", "zz"], ["abcde", "zzz", "zz"]])
    # One edit to "abd" (as near as "abcde", and shorter), one to "y" and two to "zz".
    assert score.value == pytest.approx(100 * 4 / (3 + 1 + 2))
    with pytest.raises(DataError, match="have no characters"):
        character_error_rate(["a"], [[""]])
