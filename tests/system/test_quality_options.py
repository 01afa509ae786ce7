"""Options that improve quality: minimum Bayes risk, synthetic data, and evaluation of ensembles."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman import Translation, Translator, load
from dragoman.cli.main import cli, main
from dragoman.config import CorpusConfig, DecodingConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import DataError
from dragoman.evaluation.pairwise_similarity import pairwise_bleu, pairwise_chrf
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.formats.resumable import resumable_file
from dragoman.formats.text import read_lines
from dragoman.inference import synthetic_data
from dragoman.inference.synthetic_data import Augmentation, augment
from dragoman.tasks.mbr import rerank_by_mbr
from dragoman.tasks.translation_status import TranslationStatus
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")

CHRF_SENTENCE, BLEU_SENTENCE = CHRF(), BLEU(effective_order=True)


# Minimum Bayes risk

WORDS = ["the", "a", "dog", ",", ".", "runs", "ran", "fast", "é", "中", "文", "aaaa", "ab", "ab.", "x-y", "3.5", "&amp;", '"q"']


def drawn_lines() -> Iterator[list[str]]:
    rng = random.Random(1)
    for number in range(40):
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(rng.randint(1, 6))]
        yield ["", *lines] if number % 5 == 0 else lines


def test_pairwise_scores_equal_sacrebleu() -> None:
    tokens = BLEU(effective_order=True, tokenize="none")
    for lines in drawn_lines():
        for table, metric in (
            (pairwise_chrf(lines), CHRF_SENTENCE),
            (pairwise_bleu(lines), BLEU_SENTENCE),
            (pairwise_bleu(lines, tokenize="none"), tokens),
        ):
            expected = [[metric.sentence_score(line, [reference]).score for reference in lines] for line in lines]
            np.testing.assert_allclose(table, expected, rtol=0, atol=1e-9)


def hypothesis(text: str, log_prob: float, *, finished: bool = True) -> tuple[Hypothesis, str]:
    return Hypothesis((len(text),), (log_prob,), log_prob, finished), text


CANDIDATES = [
    hypothesis("a dog runs fast", -1.0),
    hypothesis("the dog runs fast", -1.5),
    hypothesis("a cat sleeps", -2.0),
    hypothesis("the dog runs fast", -2.5),
    hypothesis("the dog runs", -3.0, finished=False),
]


@pytest.mark.parametrize("method", ["sample", "beam"])
@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_mbr_ranks_by_expected_utility(utility: str, method: str) -> None:
    hypotheses, texts = (list(side) for side in zip(*CANDIDATES, strict=True))
    decoding = DecodingConfig(method=method, mbr=utility, beam_size=8, nbest=4)  # type: ignore[arg-type]
    ranked = rerank_by_mbr(hypotheses, texts, decoding, bleu_tokenizer="13a")
    metric = CHRF_SENTENCE if utility == "chrf" else BLEU_SENTENCE
    weights = [np.exp(candidate.log_prob) if method == "beam" else 1.0 for candidate, _ in CANDIDATES]
    expected = {
        text: sum(w * metric.sentence_score(text, [other]).score for w, (_, other) in zip(weights, CANDIDATES, strict=True))
        / sum(weights)
        for text in texts
    }
    whole = sorted({text for candidate, text in CANDIDATES if candidate.finished}, key=lambda text: -expected[text])
    assert [texts[hypotheses.index(replace(best, mbr_score=None))] for best in ranked] == [*whole, "the dog runs"]
    for best in ranked:
        assert best.mbr_score == pytest.approx(expected[texts[hypotheses.index(replace(best, mbr_score=None))]])
    assert ranked[0].score == (
        -1.5 if whole[0] == "the dog runs fast" else -1.0
    )  # the likelier of two hypotheses with one text


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    return load(bundle, task="translation", device="cpu", precision="float32")


def test_mbr_compares_all_candidates(translator: Translator) -> None:
    settings: dict[str, Any] = {"method": "sample", "temperature": 3.0}
    (chosen,) = translator.translate(["one two three"], mbr="bleu", mbr_candidates=6, **settings)
    (listed,) = translator.translate(["one two three"], nbest=6, **settings)
    texts = [candidate.text for candidate in (listed, *listed.alternatives)]
    scores = {text: np.mean([BLEU_SENTENCE.sentence_score(text, [other]).score for other in texts]) for text in texts}
    assert chosen.mbr_score == pytest.approx(scores[chosen.text], rel=1e-5)
    assert chosen.alternatives == ()


def test_mbr_without_candidates_raises_error(subtests: pytest.Subtests, translator: Translator) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "greedy", "mbr": "chrf"}, "greedy search gives one"),
        ({"mbr": "chrf", "beam_size": 4, "mbr_candidates": 5}, "mbr_candidates = 5 is more than beam_size = 4"),
        ({"method": "sample", "mbr": "chrf", "nbest": 33}, "nbest = 33 is more than the 32 candidates"),
        ({"mbr_candidates": 5}, "mbr_candidates = 5 has no effect"),
        ({"mbr": "comet"}, "mbr"),
    ]
    for settings, message in cases:
        with subtests.test(settings=settings, message=message), raises_code("invalid-recipe", message):
            translator.translate(["one"], **settings)


def test_evaluate_takes_ensembles_and_mbr(bundle: Path, corpus: Path) -> None:
    files = ["--src", str(corpus / "test.en"), "--ref", str(corpus / "test.de"), "--device", "cpu", "--json"]
    sources, targets = (list(read_lines(corpus / f"test.{side}")) for side in ("en", "de"))
    outputs = [
        json.loads(CliRunner().invoke(cli, ["evaluate", str(bundle), *files, *options], catch_exceptions=False).stdout)
        for options in ([], ["--ensemble", str(bundle)], ["mbr=chrf"])
    ]
    assert [output["ensemble"] for output in outputs] == [[], [str(bundle)], []]
    assert outputs[1]["scores"] == outputs[0]["scores"]  # an ensemble of equal models
    translator = load(bundle, task="translation", device="cpu", precision="float32")
    chosen = [translation.text for translation in translator.translate(sources, mbr="chrf")]
    by_name = {score["name"]: score["value"] for score in outputs[2]["scores"]}
    assert by_name["chrF2"] == CHRF_SENTENCE.corpus_score(chosen, [targets]).score
    result = CliRunner().invoke(cli, ["translate", str(bundle), str(corpus / "test.en"), "mbr=chrf", "--json"])
    assert all(0 < json.loads(line)["mbr_score"] <= 100.0001 for line in result.stdout.splitlines())


# Synthetic data


def answer(text: str, status: TranslationStatus = "ok", alternatives: tuple[Translation, ...] = ()) -> Translation:
    """Return the translation of a line."""
    return Translation(text, score=-1.0, status=status, alternatives=alternatives)


def test_augmentation_drops_unusable_outputs(subtests: pytest.Subtests) -> None:
    for pair, output, outcome, source in [
        (Pair("ein Hund", ""), answer("a dog"), "written", "<BT> a dog"),
        (Pair(" ", ""), answer(" ", "empty"), "blank", None),
        (Pair("ein Hund", ""), answer("a dog a", "truncated"), "truncated", None),
        (Pair("ein Hund", ""), answer("a a a", "repetition"), "written", "<BT> a a a"),
        (Pair("ein Hund", ""), answer(" ", "repetition"), "empty", None),
        (Pair("ein Hund", ""), answer("ein Hund", "copied", alternatives=(answer("a dog"),)), "written", "<BT> a dog"),
        (Pair("ein Hund", ""), answer("", "too_long"), "too_long", None),
        (Pair("ein Hund", ""), answer("a\ndog"), "written", "<BT> a dog"),
        (Pair("\ufeff", ""), answer("a dog"), "blank", None),
        (Pair("ein Hund", ""), answer(" \ufeff"), "empty", None),
    ]:
        with subtests.test(pair=pair, output=output, outcome=outcome, source=source):
            augmentation = Augmentation("back-translate", tag="<BT>", keep_statuses=frozenset({"repetition"}))
            actual, result, _ = augmentation.apply(pair, output)
            assert (actual, result and result.source) == (outcome, source)
            assert result is None or result.target == pair.target or result.target == pair.source


def test_distillation_chooses_most_similar_output() -> None:
    texts = ["the cat sleeps here", "a dog runs very fast", "a dog is running fast today"]
    pair = Pair("ein Hund rennt schnell", "a dog is running fast", "x:1")
    made = answer(texts[0], alternatives=(answer(texts[1]), answer(texts[2]), answer(pair.target, "truncated")))
    for similarity, metric in (("bleu", BLEU_SENTENCE), ("chrf", CHRF_SENTENCE)):
        _, chosen, _ = Augmentation("distill", similarity=similarity).apply(pair, made)  # type: ignore[arg-type]
        best = max(texts, key=lambda text: metric.sentence_score(text, [pair.target]).score)
        assert chosen == Pair(pair.source, best, "x:1")
    repeated = answer("a a", "repetition")
    assert Augmentation("distill").apply(pair, repeated) == ("repetition", None, None)
    assert Augmentation("distill", fallback_to_reference=True).apply(pair, repeated) == ("original", pair, None)


def shouted(lines: Sequence[str], first: int) -> list[Translation]:
    return [answer(f"{line.upper()}\t{first + number}") for number, line in enumerate(lines)]


def killed(content: Path, after: int, lines: Sequence[str], first: int) -> list[Translation]:
    """Translate like `shouted`, but end the process after this number of lines, in the middle of a write."""
    if first >= after:
        with content.open("a", encoding="utf-8") as stream:
            stream.write("half a li")
        raise KeyboardInterrupt
    return shouted(lines, first)


def test_killed_augmentation_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_data, "WINDOW_LINES", 3)
    pairs = [Pair(f"line {number}" if number % 4 else "", "", f"x:{number}") for number in range(20)]
    augmentation, request = Augmentation("self-train"), {"text": "one"}
    for form in ("tsv", "jsonl"):
        with resumable_file(tmp_path / f"whole.{form}", request) as output:
            counts = augment(pairs, augmentation, shouted, output, file_format=form)
        assert counts == {"written": 15, "blank": 5, **({"tabs": 15} if form == "tsv" else {})}
        resumed = tmp_path / f"resumed.{form}"
        for window in range(8):  # each time killed one window later
            translate = partial(killed, tmp_path / f"resumed.{form}.part" / "content", 3 * window)
            progress: list[int] = []
            try:
                with resumable_file(resumed, request) as output:
                    assert output.num_read == min(max(0, window - 1) * 3, 18)
                    assert (
                        augment(pairs, augmentation, translate, output, file_format=form, on_progress=progress.append) == counts
                    )
            except KeyboardInterrupt:
                assert not resumed.exists()
        assert sum(progress) == 20
        assert resumed.read_bytes() == (tmp_path / f"whole.{form}").read_bytes()
        assert not resumed.with_name(f"{resumed.name}.part").exists()
    assert next(read_lines(tmp_path / "whole.tsv")) == "line 1\tLINE 1 1"


def begin(path: Path, request: dict[str, Any], *, overwrite: bool = False) -> int:
    """Write a line, end as if killed, and return the number of lines before."""
    with suppress(KeyboardInterrupt), resumable_file(path, request, overwrite=overwrite) as output:
        before = output.num_read
        output.append("a line\n", num_read=1, summary={"written": 1})
        raise KeyboardInterrupt
    return before


def test_output_of_other_settings_is_kept(tmp_path: Path) -> None:
    path, first = tmp_path / "a.tsv", {"text": ["x"], "decoding": {"beam_size": 4, "seed": 1}}
    assert begin(path, first) == 0
    assert begin(path, first) == 1
    for changed, difference in (
        ({**first, "text": ["y"]}, "another text"),
        ({**first, "decoding": {"beam_size": 5, "seed": 1}}, r"decoding.beam_size = 4, not 5"),
    ):
        with raises_code("output-mismatch", difference, "--overwrite"), resumable_file(path, changed):
            pass
    content = (tmp_path / "a.tsv.part" / "content").read_text()
    assert content == "a line\na line\n"
    assert begin(path, {**first, "text": ["y"]}, overwrite=True) == 0
    assert begin(path, {**first, "text": ["y"]}, overwrite=True) == 1  # the same request resumes
    (tmp_path / "a.tsv.part" / "progress.json").write_text("{")
    with raises_code("output-damaged", "a.tsv.part"), resumable_file(path, first):
        pass
    (tmp_path / "a.tsv.part" / "mine").write_text("")
    with raises_code("not-replaceable", "mine"), resumable_file(path, first):
        pass
    path.write_text("somebody's\n")
    with raises_code("output-exists", "a.tsv"), resumable_file(path, first):
        pass
    assert path.read_text() == "somebody's\n"


def test_back_translation_end_to_end(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "news.en"
    text.write_text("one two\n\nred big ten\n", encoding="utf-8")
    output = tmp_path / "news.jsonl"
    arguments = ["augment", "back-translate", bundle, text, "-o", output, "--tag", "<BT>", "--device", "cpu", "method=greedy"]
    monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, arguments), "--json"])
    main()
    summary = json.loads(capsys.readouterr().out)
    assert (summary["lines"], summary["pairs"], summary["dropped"]) == (3, 2, {"blank": 1})
    pairs = list(read_pairs(CorpusConfig(file=str(output)), Path()))
    targets = ["one two", "red big ten"]
    translator = load(bundle, task="translation", device="cpu")
    made = [f"<BT> {translation.text}" for translation in translator.translate(targets, method="greedy")]
    assert [(pair.source, pair.target) for pair in pairs] == list(zip(made, targets, strict=True))
    documents = [json.loads(line) for line in read_lines(output)]
    assert [document["origin"] for document in documents] == [f"{text}:1", f"{text}:3"]
    assert all((item["method"], item["status"]) == ("back-translate", "ok") and item["score"] < 0 for item in documents)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["news.en", "news.jsonl"]
    with pytest.raises(SystemExit):
        main()
    assert "exists already" in capsys.readouterr().err


def test_distillation_and_self_training_end_to_end(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    runner, teacher = CliRunner(), load(bundle, task="translation", device="cpu")
    sources, targets = (list(read_lines(corpus / f"test.{side}")) for side in ("en", "de"))
    sides = [str(corpus / "test.en"), str(corpus / "test.de")]
    made = {
        "best": ["distill", str(bundle), *sides, "--best-of", "6", "--device", "cpu"],
        "plain": ["distill", str(bundle), *sides, "--device", "cpu"],
        "self": ["self-train", str(bundle), sides[0], "--device", "cpu", "beam_size=2"],
    }
    written = {}
    for name, arguments in made.items():
        output = tmp_path / f"{name}.tsv"
        result = runner.invoke(cli, ["augment", *arguments, "-o", str(output)], catch_exceptions=False)
        assert result.exit_code == 0
        assert f"{len(sources)} pairs of {len(sources)} lines" in result.stdout
        written[name] = [tuple(line.split("\t")) for line in read_lines(output)]
    plain = [translation.text for translation in teacher.translate(sources)]
    assert written["plain"] == list(zip(sources, plain, strict=True))
    assert written["self"] == list(
        zip(sources, [translation.text for translation in teacher.translate(sources, beam_size=2)], strict=True)
    )
    for (source, target), reference, best in zip(
        written["best"], targets, teacher.translate(sources, beam_size=6, nbest=6), strict=True
    ):
        candidates = (best, *best.alternatives)
        scores = {item.text: BLEU_SENTENCE.sentence_score(item.text, [reference]).score for item in candidates}
        assert scores[target] == max(scores.values()), source


def test_augment_without_pairs_exits_with_3(bundle: Path, tmp_path: Path) -> None:
    runner, text, output = CliRunner(), tmp_path / "news.en", str(tmp_path / "out.tsv")
    arguments = ["augment", "self-train", str(bundle), str(text), "-o", output, "--device", "cpu"]
    text.write_text("")
    with pytest.raises(DataError, match=r"news\.en: is empty"):
        runner.invoke(cli, arguments, catch_exceptions=False)
    text.write_text("\n\n")
    result = runner.invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 3
    assert "0 pairs of 2 lines" in result.stdout


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_replaced_tabs_are_counted(bundle: Path, tmp_path: Path, form: str) -> None:
    """A .tsv file separates its columns with tabs; a .jsonl file can hold them."""
    sides, output, runner = [tmp_path / "x.en", tmp_path / "x.de"], tmp_path / f"made.{form}", CliRunner()
    for path, text in zip(sides, ("one\ttwo\nred big ten\none\t\ttwo\n", "a\nb\nc\n"), strict=True):
        path.write_text(text, encoding="utf-8")
    options = ["augment", "distill", str(bundle), *map(str, sides), "--fallback-to-reference", "--device", "cpu"]
    arguments = [*options, "-o", str(output), "--overwrite"]
    result = runner.invoke(cli, arguments, catch_exceptions=False)
    assert "3 pairs of 3 lines" in result.stdout
    assert ("pairs whose tabs became spaces, because a .tsv has tabs between columns: 2\n" in result.stderr) == (form == "tsv")
    second = json.loads(runner.invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert (second["pairs"], second["tabs_replaced"]) == (3, 2 if form == "tsv" else 0)
    sources = [pair.source for pair in read_pairs(CorpusConfig(file=str(output)), Path())]
    between = " " if form == "tsv" else "\t"
    assert sources == [f"one{between}two", "red big ten", f"one{2 * between}two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["self-train", "B", "nowhere.en", "-o", "a.tsv"], "nowhere.en"),
        (["self-train", "B", "nowhere.en", "-o", "a.txt"], "is not a .tsv or .jsonl"),
        (["self-train", "B", "nowhere.en", "-o", "a.tsv", "--tag", "a b"], "holds a space; give one word"),
        (["self-train", "B", "a.en", "b.en", "-o", "a.tsv"], "2 files are given; allowed: one file"),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--best-of", "4", "method=greedy"], "nbest = 4"),
        (["distill", "B", "x.unknown", "-o", "a.tsv"], "x.unknown: there is no such file"),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--best-of", "4", "beam_size=3"], "--best-of 4 sets nbest = 4: "),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--best-of", "4", "nbest=5"], "--best-of 4 and nbest=5 both set"),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--similarity", "chrf"], "--similarity chrf: needs --best-of"),
        (["self-train", "B", ".", "-o", "a.tsv"], "is not a regular file"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_augment_errors_are_one_line(
    arguments: list[str],
    message: str,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = [str(bundle) if word == "B" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", ["dragoman", "augment", *typed, "--device", "cpu"])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
