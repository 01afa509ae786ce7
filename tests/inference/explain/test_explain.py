"""Explanations of translations: numbers are the model's, and translations do not change."""

from __future__ import annotations

import dataclasses
import html
import json
import pickle
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import m2m100_folders
from dragoman import Translator, convert, load
from dragoman.bundle import BundleMetadata, load_bundle
from dragoman.cli.main import cli
from dragoman.config import update_section
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.errors import DataError, DragomanError, MissingDependencyError, OutputError, RecipeError
from dragoman.inference.explain.explain_translation import explain
from dragoman.inference.translation_result import Translation
from dragoman.model.factory import build_model
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.forced_decoding import compute_cross_attentions
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.viz import explanation_figures
from dragoman.viz.attention_page import render_attention_page
from dragoman.viz.explanation import (
    ATTENTION_KINDS,
    HeadSelection,
    merge_tokens,
)
from dragoman.viz.explanation_figures import list_figure_names, render_figures
from expected_errors import raises_code
from torch_models import bundle_model

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def translator(bundle: Path) -> Translator:
    return load(bundle, task="translation", device="cpu", precision="float32")


# The model's numbers


def test_explain_does_not_change_translations(translator: Translator) -> None:
    before = translator.translate(["three red five"], nbest=4)
    explanation = explain(translator, "three red five")
    assert translator.translate(["three red five"], nbest=4) == before
    assert (explanation.target, explanation.output_tokens[:-1]) == (before[0].text, before[0].tokens)


def test_explained_weights_equal_cross_attention(translator: Translator) -> None:
    explanation = explain(translator, "three red five")
    source = translator.bundle.tokenizer.encode_source("three red five")
    ids = ids_of(translator.bundle.tokenizer.target, explanation.output_tokens[:-1])
    start_id = get_decoder_start_id(translator.recipe.model)
    [cross] = compute_cross_attentions(
        translator.session.forced_decoders[0], [source], [ids], start_id=start_id, finished=[True]
    )
    np.testing.assert_allclose(explanation.cross.weights_LHTS, cross, rtol=1e-5, atol=1e-6)


def ids_of(subword: Vocabulary, pieces: Sequence[str]) -> list[int]:
    all_pieces = subword.ids_to_pieces(range(len(subword)))
    return [all_pieces.index(piece) for piece in pieces]


def test_alignment_head_is_selected_first(bundle: Path) -> None:
    named = load(bundle, task="translation", device="cpu")
    metadata = dataclasses.replace(named.metadata, alignment=AlignmentHead(layer=0, head=1, error_rate=0.25))
    named.bundle = dataclasses.replace(named.bundle, metadata=metadata)
    assert explain(named, "three red").selections["cross"] == HeadSelection(0, (1,))
    assert explain(named, "three red", layer=1).selections["cross"] == HeadSelection(0, (0, 1))
    assert explain(named, "three red").selections["encoder"] == HeadSelection(0, (0, 1))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beam_size": 1},
        {"method": "greedy"},
        {"beam_size": 3, "alpha": 0.0, "early_stopping": "best"},
        {"beam_size": 6, "length_penalty": "power", "alpha": 1.0, "early_stopping": "best"},
        {"beam_size": 3, "early_stopping": "beam_full"},
        {"beam_size": 2, "max_extra_tokens": 0},
        {"beam_size": 60},  # more than the extensions of the first step
    ],
    ids=str,
)
def test_recorded_search_finds_the_translation(translator: Translator, settings: dict[str, Any]) -> None:
    config = update_section(translator.recipe.decoding, settings, where="decoding")
    for text in ("three red five", "one", "small green nine blue seven", "xylophone"):
        explanation = explain(translator, text, **settings)
        assert explanation.beam, explanation.notes
        best_nodes = [branch for branch in explanation.beam if branch.is_best]
        assert tuple(branch.token for branch in best_nodes) == explanation.output_tokens
        width = 1 if settings.get("method") == "greedy" else config.beam_size
        for step in range(len(explanation.output_tokens)):
            same = [branch for branch in explanation.beam if branch.step == step]
            assert sum(branch.status == "kept" for branch in same) <= width
            assert len(same) <= 2 * width
            totals = [branch.score for branch in same if branch.status != "finished"]
            assert totals == sorted(totals, reverse=True)


def test_candidates_have_the_models_probabilities(translator: Translator) -> None:
    explanation = explain(translator, "three red five", target="drei rot sechs")
    scored = translator.score(["three red five"], ["drei rot sechs"])[0]
    assert tuple(choice.output.log_prob for choice in explanation.predictions) == pytest.approx(
        scored.token_log_probs, rel=1e-5
    )
    assert explanation.teacher_forced
    assert not explanation.beam
    for choice in explanation.predictions:
        log_probs = [candidate.log_prob for candidate in choice.candidates]
        assert len(log_probs) == 10
        assert log_probs == sorted(log_probs, reverse=True)
        assert sum(np.exp(log_probs)) <= 1 + 1e-6
        assert choice.rank == 1 + sum(log_prob > choice.output.log_prob for log_prob in log_probs) or choice.rank > 10
    assert max(choice.rank for choice in explanation.predictions) > 1  # the model prefers "fünf"


@pytest.mark.parametrize(
    "change",
    [
        {"attention_window": 2, "encoder_layers": 3},
        {"d_k": 5, "d_v": 11, "num_heads": 3, "decoder_start_token": "zero"},
        {"append_source_eos": False, "position_encoding": "learned", "max_positions": 70, "decoder_layers": 2},
    ],
    ids=lambda change: " ".join(change),
)
def test_explain_supports_models_of_several_shapes(bundle: Path, change: dict[str, Any]) -> None:
    """Compute equation 1 with its mask, for untrained models of several shapes."""
    loaded = load_bundle(bundle)
    config = update_section(loaded.recipe.model, change, where="model")
    recipe = loaded.recipe.model_copy(update={"model": config})
    tokenizer = PairTokenizer(loaded.tokenizer.source, loaded.tokenizer.target, append_source_eos=config.append_source_eos)
    torch.manual_seed(1)
    model = build_model(config, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target)).eval()
    translator = Translator.from_bundles(
        [bundle_model(recipe, tokenizer, model, BundleMetadata())], device="cpu", precision="float32"
    )
    explanation = explain(translator, "three red five")
    assert explanation.beam, explanation.notes
    for kind in ATTENTION_KINDS:
        heads = explanation.heads(kind)
        _, _, rows, columns = heads.shape
        scores = heads.query_LHTK @ heads.key_LHSK.swapaxes(-1, -2) / np.sqrt(heads.key_LHSK.shape[-1])
        row, column = np.ogrid[:rows, :columns]
        hidden = np.zeros((rows, columns), bool) if kind != "decoder" else column > row
        if kind != "cross" and config.attention_window is not None:
            hidden = hidden | (abs(row - column) > config.attention_window)
        powers = np.where(hidden, 0.0, np.exp(scores - scores.max()))
        assert np.abs(powers / powers.sum(-1, keepdims=True) - heads.weights_LHTS).max() < 1e-4
        assert all(explanation.is_visible(kind, *spot) != hidden[spot] for spot in np.ndindex(rows, columns))
    assert render_figures(explanation)
    assert render_attention_page(explanation)


# Models whose decoder reads a language token


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Translator of a converted M2M-100 model with random weights."""
    folder = tmp_path_factory.mktemp("multilingual")
    convert(m2m100_folders.write_folder(folder / "source"), folder / "bundle")
    return load(folder / "bundle", task="translation", device="cpu", precision="float32")


def test_language_tokens_are_shown(multilingual: Translator) -> None:
    explanation = explain(multilingual, "abc lk", max_extra_tokens=4, target_language="fr")
    rows = len(explanation.output_tokens)
    assert explanation.source_tokens[0] == "__en__"
    assert explanation.decoder_input == ("</s>", "__fr__", *explanation.output_tokens[:-1])
    assert explanation.notes == ("The decoder reads the language token __fr__ before its output.",)
    assert merge_tokens(explanation.source_tokens, explanation.source_word_ids) == ["__en__", "abc", "lk", "</s>"]
    assert explanation.decoder.shape[2:] == (rows, rows + 1)
    assert explanation.cross.shape[2:] == (rows, len(explanation.source_tokens))
    page = render_attention_page(explanation)
    assert "__fr__" in page
    assert render_figures(explanation)


@pytest.mark.parametrize("settings", [{}, {"method": "greedy"}, {"beam_size": 3, "early_stopping": "exhaustive"}], ids=str)
def test_search_after_a_language_token_finds_the_translation(multilingual: Translator, settings: dict[str, Any]) -> None:
    explanation = explain(multilingual, "abc lk", max_extra_tokens=4, **settings)
    assert tuple(node.token for node in explanation.beam if node.is_best) == explanation.output_tokens
    (translation,) = multilingual.translate(["abc lk"], max_extra_tokens=4, **settings)
    log_probs = [prediction.output.log_prob for prediction in explanation.predictions]
    assert log_probs == pytest.approx(translation.token_log_probs, abs=1e-4)
    best_score = next(node.score for node in reversed(explanation.beam) if node.is_best)
    assert best_score == pytest.approx(translation.score if translation.status == "ok" else sum(log_probs), rel=1e-4)


def test_sampled_translation_has_no_beam(translator: Translator) -> None:
    explanation = explain(translator, "three red five", method="sample")
    assert explanation.target == translator.translate(["three red five"], method="sample")[0].text
    assert not explanation.beam
    assert "sampled" in explanation.notes[0]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the text is empty"),
        ("one\ntwo", {}, "the text has 2 lines"),
        ("one " * 200, {}, "a page holds 400"),
        ("one two three", {"max_source_tokens": 2}, "decoding.max_source_tokens is 2"),
        ("one", {"target": ""}, "the target is empty"),
        ("one", {"target": "eins 漢"}, r"the target has '\\u6f22'"),
        ("one \ud800", {}, "surrogate"),
        ("one", {"layer": 7}, "layer 7 does not exist; the decoder has layers 1 to 1"),
        ("one", {"heads": [3]}, "head 3 does not exist; a layer has heads 1 to 2"),
    ],
)
def test_explain_errors_are_one_line(translator: Translator, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        explain(translator, text, **options)
    assert "\n" not in str(caught.value)


# The explain command


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["explain", *map(str, arguments)])


def test_command_writes_page_and_figures(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call(bundle, "three red", "-o", page, "--svg", tmp_path / "svg", "--head", 2, "--include-head", "cross.1.1")
    assert result.exit_code == 0, result.output
    assert result.stdout == load(bundle, task="translation").translate(["three red"])[0].text + "\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "layer 1, head 2<" in page.read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "svg").iterdir()} == {f"{name}.svg" for name in list_figure_names()}
    second = call(bundle, "three red", "-o", page)
    assert isinstance(second.exception, OutputError)
    assert call(bundle, "three red", "-o", page, "--overwrite").exit_code == 0
    assert isinstance(call(bundle, "one", "-o", tmp_path / "b.html", "--svg", tmp_path / "svg").exception, OutputError)
    assert not (tmp_path / "b.html").exists()


def test_command_writes_png_or_names_the_extra(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(explanation_figures.__dict__, "svg_to_png", lambda svg: b"pixels")
    assert call(bundle, "three", "-o", tmp_path / "a.html", "--png", tmp_path / "png").exit_code == 0
    assert (tmp_path / "png" / "words.png").read_bytes() == b"pixels"
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    result = call(bundle, "three", "-o", tmp_path / "b.html", "--png", tmp_path / "more")
    assert isinstance(result.exception, MissingDependencyError)
    assert "dragoman[png]" in str(result.exception)


def test_command_prints_json(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(call(bundle, "three red", "--json").stdout)
    assert np.array(document["attention"]["cross"]).sum(axis=-1) == pytest.approx(1.0, abs=1e-3)
    assert [prediction["output"]["token"] for prediction in document["predictions"]] == document["output_tokens"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--include-head", "cross.9.1"], "there are 1 layers of 2 heads"),
        (["--include-head", "across.1.1"], "write encoder, decoder, cross"),
        (["beam_size=0"], "beam_size"),
    ],
)
def test_command_errors_precede_writing(bundle: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = call(bundle, "three", "-o", tmp_path / "a.html", *arguments)
    assert isinstance(result.exception, DragomanError)
    assert isinstance(result.exception, RecipeError | DataError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


# In a notebook


def test_show_returns_a_notebook_frame(translator: Translator, tmp_path: Path) -> None:
    line = "three one two"
    (translation,) = translator.translate([line], nbest=2, beam_size=2)
    assert "IPython" not in sys.modules
    shown = translation.show(height=500)
    assert shown.html == render_attention_page(explain(translator, line, nbest=2, beam_size=2))
    frame = shown._repr_html_()
    assert 'height="500"' in frame
    attributes, page = re.fullmatch(r'<iframe ([^<>]*) srcdoc="([^"]*)"></iframe>', frame).groups()  # type: ignore[union-attr]
    assert html.unescape(page) == shown.html
    assert attributes.startswith('sandbox="allow-scripts"')
    assert "page" not in repr(shown)
    alternative = translation.alternatives[0]
    assert alternative.text != translation.text
    assert "The translation is forced" in alternative.show().html
    assert translator.translate([line], nbest=2, beam_size=2) == [translation]  # unchanged, bit for bit
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == shown.html
    with raises_code("output-exists", "page.html"):
        shown.save(tmp_path / "page.html")


def test_show_needs_a_translation_of_this_process(translator: Translator) -> None:
    (translation,) = translator.translate(["three one"])
    unpickled = pickle.loads(pickle.dumps(translation))
    assert unpickled == translation
    assert "_explain" not in {*vars(translation), *dataclasses.asdict(translation)}
    for other in (unpickled, Translation("eins"), dataclasses.replace(translation)):
        with pytest.raises(DataError, match="this translation was not returned by translate in this process"):
            other.show()
    (split,) = translator.translate(["one two three four five"], max_source_tokens=4)
    assert split.num_segments > 1
    with pytest.raises(DataError, match=rf"translated in {split.num_segments} segments"):
        split.show()
    with pytest.raises(DataError, match="the text is empty"):
        translator.translate([""])[0].show()
