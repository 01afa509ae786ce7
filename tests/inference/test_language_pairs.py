"""Tests of bundles of many languages: choice of the pair, scores of each pair, and pivot translation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dragoman
from dragoman.cli.main import cli
from dragoman.data.prepare import prepare
from dragoman.errors import DataError, RecipeError
from dragoman.evaluation.metrics import bleu
from dragoman.inference.pivot import PivotTranslator, build_pivot, join_steps
from dragoman.inference.translation_result import Translation
from dragoman.inference.translator import Translator
from dragoman.training.run import train
from expected_errors import raises_code
from multilingual import make_corpus, make_multilingual_recipe, write_corpus


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a model of three pairs after two steps, with a validation and a test set for two pairs each."""
    folder = tmp_path_factory.mktemp("many")
    write_corpus(folder)
    corpora = {"copy": make_corpus("train", "cc"), "reverse": make_corpus("train", "rr", both_directions=True)}
    tests = {"copy": make_corpus("test", "cc"), "reverse": make_corpus("test", "rr", both_directions=True)}
    valid = {name: make_corpus("valid", target) for name, target in (("copy", "cc"), ("reverse", "rr"))}
    settings = ["model.d_model=16", "model.d_ff=16", "training.validate_every_steps=2", "decoding.method=greedy"]
    settings += ["tokenizer.language_token_placement=both"]
    recipe = make_multilingual_recipe(
        folder, folder / "run", *settings, corpora=corpora, valid_corpora=valid, test_corpora=tests
    )
    train(recipe)
    return folder / "run"


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return dragoman.load(run / "bundle", task="translation", device="cpu", precision="float32")


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), input=stdin)


# --- one step -----------------------------------------------------------------------------------------------------------


def test_named_languages_choose_the_tokens(translator: Translator) -> None:
    vocabulary = translator.bundle.tokenizer.source
    copied, reversed_ = (translator.translate(["a b"], target_language=target)[0] for target in ("cc", "rr"))
    assert copied.source_tokens == reversed_.source_tokens == (">>xx<<", "▁a", "▁b", "</s>")
    back = translator.translate(["a b"], source_language="rr")[0]
    assert back.source_tokens[0] == ">>rr<<"
    prompts = [translator.bundle.tokenizer.select_languages(*pair).decoder_prompt for pair in (("xx", "cc"), ("rr", "xx"))]
    assert prompts == [(vocabulary.piece_to_id(">>cc<<"),), (vocabulary.piece_to_id(">>xx<<"),)]


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        ({}, "unsupported-language", ["--to de", "xx → cc, xx → rr, rr → xx"]),
        ({"target_language": "zz"}, "invalid-option", ["'zz'", "cc, rr, xx"]),
        ({"source_language": "cc", "target_language": "rr"}, "unsupported-pair", ["cc → rr", "xx → cc, xx → rr, rr → xx"]),
        ({"source_language": "xx"}, "unsupported-pair", ["target_language", "xx → cc, xx → rr"]),
    ],
)
def test_unserved_languages_are_refused(translator: Translator, options: Any, code: str, names: list[str]) -> None:
    with raises_code(code, *names):
        translator.translate(["a b"], **options)


def test_zero_shot_translates_an_untrained_pair(translator: Translator) -> None:
    (result,) = translator.translate(["a b"], source_language="rr", target_language="cc", zero_shot=True)
    assert result.source_tokens[0] == ">>rr<<"


def test_command_takes_languages(run: Path, translator: Translator) -> None:
    expected = translator.translate(["a b"], target_language="cc")[0].text
    options = ["translate", run / "bundle", "--device", "cpu", "--precision", "float32"]
    assert call(*options, "--to", "cc", "--from", "xx", "--no-split-sentences", stdin="a b\n").stdout == f"{expected}\n"
    error = call(*options, "--to", "cc", "target_language=cc", stdin="a b\n")
    assert (error.exit_code, "--to and target_language=" in error.stderr) == (2, True)


# --- scores of each pair ------------------------------------------------------------------------------------------------


def test_validation_and_test_have_scores_of_each_pair(run: Path, translator: Translator) -> None:
    """The scores are those of the bundle's own translations; the mean of the pairs is the score of the validation."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    (valid,) = [line for line in lines if line["type"] == "valid"]
    assert valid["pair_scores"].keys() == {"xx-cc", "xx-rr"}
    assert valid["bleu"] == pytest.approx(sum(scores["bleu"] for scores in valid["pair_scores"].values()) / 2, abs=1e-3)
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert list(report["test_sets"]) == ["copy", "reverse", "reverse.reversed"]
    sources, references = ((run.parent / name).read_text(encoding="utf-8").splitlines() for name in ("test.rr", "test.xx"))
    outputs = [result.text for result in translator.translate(sources, source_language="rr", target_language="xx")]
    assert report["test_sets"]["reverse.reversed"]["scores"]["bleu"] == pytest.approx(
        bleu(outputs, [references]).value, abs=0.01
    )


def test_evaluate_scores_each_pair(run: Path) -> None:
    files = [run.parent / name for name in ("test.xx", "test.cc", "test.rr")]
    pairs = ["--pair", "xx", "cc", files[0], files[1], "--pair", "rr", "xx", files[2], files[0]]
    options = ["evaluate", run / "bundle", "--device", "cpu"]
    output = json.loads(call(*options, *pairs, "--json").stdout)
    assert [(pair["source_language"], pair["target_language"]) for pair in output["pairs"]] == [("xx", "cc"), ("rr", "xx")]
    assert output["sentences"] == 200
    by_pair = [{score["name"]: score["value"] for score in pair["scores"]} for pair in output["pairs"]]
    mean = {score["name"]: score["value"] for score in output["scores"]}
    assert mean["chrF2"] == pytest.approx((by_pair[0]["chrF2"] + by_pair[1]["chrF2"]) / 2)
    single = json.loads(call(*options, "--src", files[0], "--ref", files[1], "--to", "cc", "--json").stdout)
    assert {score["name"]: score["value"] for score in single["scores"]} == by_pair[0]
    table = call(*options, *pairs).stdout
    assert "(xx → cc)" in table
    assert "mean of 2 pairs" in table
    assert call(*options, *pairs, "--src", files[0]).exit_code == 2


def test_fine_tuning_on_an_unknown_language_is_refused(run: Path, tmp_path: Path) -> None:
    settings = ["model.d_model=16", "model.d_ff=16", "tokenizer.language_token_placement=both"]
    settings += [f"training.init_from={run / 'bundle'}", "data.preprocessing_workers=1"]
    corpora = {"new": make_corpus("train", "cc") | {"target_language": "zz"}}
    recipe = make_multilingual_recipe(run.parent, tmp_path / "run", *settings, corpora=corpora)
    with raises_code("tokenizer-mismatch", ">>zz<<", "add it to tokenizer.extra_tokens"):
        prepare(recipe, tmp_path / "data")


def test_commands_take_the_languages_of_pairs(run: Path, translator: Translator, tmp_path: Path) -> None:
    """`score`, `align` and `shortlist` give the results of the library for a pair, and need a pair."""
    source, target = run.parent / "valid.rr", run.parent / "valid.xx"
    sources, targets = (path.read_text(encoding="utf-8").splitlines() for path in (source, target))
    options = ["--bundle", run / "bundle", "--from", "rr"]
    scored = json.loads(call("score", target, "--src", source, *options, "--json").stdout)
    expected = translator.score(sources, targets, source_language="rr")
    assert scored["model"]["scores"] == pytest.approx([result.score for result in expected], abs=1e-4)
    aligned = call("align", source, target, *options, "--json").stdout.splitlines()
    expected_links = translator.align(sources, targets, source_language="rr")
    assert [json.loads(line)["links"] for line in aligned] == [[list(link) for link in links] for links in expected_links]
    counted = call("model", "shortlist", run / "bundle", source, target, "--from", "rr", "-o", tmp_path / "shortlist", "--json")
    assert json.loads(counted.stdout)["pairs"] == len(sources)
    for arguments in (
        ["score", target, "--src", source, "--bundle", run / "bundle"],
        ["align", source, target, "--bundle", run / "bundle"],
        ["model", "shortlist", run / "bundle", source, target, "-o", tmp_path / "other"],
    ):
        error = call(*arguments).exception
        assert isinstance(error, DataError)
        assert error.code == "unsupported-language"
        error = call(*arguments, "--to", "zz").exception
        assert isinstance(error, RecipeError)
        assert error.code == "invalid-option"
    assert call("align", source, target, "--to", "xx").exit_code == 2
    assert call("score", target, "--ref", source, "--to", "xx").exit_code == 2


# --- pivot translation --------------------------------------------------------------------------------------------------


def test_pivot_translates_the_output_of_the_first_step(run: Path, translator: Translator) -> None:
    texts = ["a b c", "", "d e"]
    first = translator.translate(texts, source_language="rr", target_language="xx")
    second = translator.translate([result.text for result in first], source_language="xx", target_language="cc")
    pivot = build_pivot(translator, translator, "xx")
    results = pivot.translate(texts, source_language="rr", target_language="cc")
    assert [result.text for result in results] == [result.text for result in second]
    assert [result.pivot for result in results] == first
    assert results[0].score == pytest.approx(first[0].score + second[0].score)
    assert (results[1].text, results[1].status) == ("", "empty")


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [("ok", "ok", "ok"), ("truncated", "ok", "truncated"), ("ok", "short", "short"), ("truncated", "repetition", "repetition")],
)
def test_pivot_has_the_worse_status(first: Any, second: Any, status: str) -> None:
    other = Translation("c", score=-3.0)
    joined = join_steps(
        Translation("a", score=-1.0, status=first, source_tokens=("x",)),
        Translation("b", score=-2.0, status=second, source_tokens=("y",), alternatives=(other,)),
    )
    assert (joined.text, joined.score, joined.status, joined.source_tokens) == ("b", -3.0, status, ("x",))
    assert joined.alternatives[0].score == -4.0
    assert joined.pivot is not None
    assert joined.pivot.status == first


def test_command_prints_both_steps(run: Path) -> None:
    options = ["translate", run / "bundle", "--device", "cpu", "--precision", "float32", "--json", "--from", "rr", "--to", "cc"]
    results = [
        json.loads(call(*options, *steps, stdin="a b\n").stdout)
        for steps in (["--via", "xx"], ["--then", run / "bundle", "--via", "xx"])
    ]
    assert results[0] == results[1]
    assert results[0]["pivot"].keys() >= {"text", "score", "status"}
    assert call(*options, "--via", "xx", "--confidence", stdin="a b\n").exit_code == 2


def with_languages(translator: Translator, source: str, target: str) -> Any:
    """Return a stand-in of a translator of one pair of languages."""

    class OnePair:
        recipe = translator.recipe.with_languages((source, target))
        bundle = replace(translator.bundle, tokenizer=translator.bundle.tokenizer.with_languages(None))

    return OnePair()


@pytest.mark.parametrize(
    ("steps", "language", "code", "names"),
    [
        ((("de", "en"), ("fr", "de")), "", "unsupported-pair", ["'en'", "'fr'"]),
        ((("de", "en"), ("en", "fr")), "fr", "unsupported-pair", ["'en'", "'fr'"]),
        ((("de", ""), ("", "fr")), "", "missing-key", ["--via"]),
    ],
)
def test_steps_must_meet_in_one_language(
    translator: Translator, steps: tuple[tuple[str, str], tuple[str, str]], language: str, code: str, names: list[str]
) -> None:
    first, second = (with_languages(translator, *pair) for pair in steps)
    with raises_code(code, *names):
        build_pivot(first, second, language)


def test_bundles_of_one_pair_need_no_pivot_language(translator: Translator) -> None:
    pivot = build_pivot(with_languages(translator, "de", "en"), with_languages(translator, "en-GB", "fr"))
    assert pivot.language == "en"


def test_pivot_needs_a_served_pivot_language(run: Path) -> None:
    pivot = dragoman.load_pivot(run / "bundle", via="cc", device="cpu", precision="float32")
    assert isinstance(pivot, PivotTranslator)
    with raises_code("unsupported-pair", "cc"):
        pivot.translate(["a"], source_language="xx", target_language="rr")
