"""A run with a CTC decoder: training, resuming, the bundle, translation, and each feature that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

import dragoman
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.errors import BundleError, DragomanError, RecipeError
from dragoman.export.ctranslate2 import export_ctranslate2
from dragoman.export.huggingface import export_huggingface
from dragoman.export.onnx import export_onnx
from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.explain.explain_translation import explain
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.translator import Translator
from dragoman.training.adapt_recipe import prepare_adaptation

CTC = ["model.decoder=ctc", "decoding.method=greedy", "training.label_smoothing=0"]
BUDGET = ["training.max_steps=6", "training.checkpoint_every_steps=2", "training.checkpoint_averaging=none"]


@pytest.fixture(scope="module")
def run(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a short run with one position for each source token, so that some targets do not fit."""
    folder = tmp_path_factory.mktemp("ctc") / "run"
    dragoman.train(tiny(folder, *CTC, *BUDGET, "model.ctc_upsampling=1"))
    return folder


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return dragoman.load(run / "bundle", task="translation", precision="float32")


def test_run_counts_targets_that_do_not_fit(run: Path) -> None:
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    events = [entry["text"] for entry in log if entry.get("event") == "infeasible_pairs"]
    assert report["infeasible_pairs"] > 0
    assert f"{report['infeasible_pairs']} so far; raise model.ctc_upsampling" in events[-1]
    losses = [entry["loss"] for entry in log if entry["type"] in ("train", "valid")]
    assert torch.tensor(losses).isfinite().all()
    assert report["flops"] > 0


@pytest.mark.slow
def test_interrupted_run_equals_unbroken_run(run: Path, tiny: Any, tmp_path: Path) -> None:
    settings = [*CTC, *BUDGET, "model.ctc_upsampling=1"]
    dragoman.train(tiny(tmp_path / "run", *settings, "training.max_steps=3"))
    dragoman.train(tiny(tmp_path / "run", *settings))
    weights, expected = (load_file(folder / "bundle" / "weights.safetensors") for folder in (tmp_path / "run", run))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    counts = [json.loads((folder / "report.json").read_text())["infeasible_pairs"] for folder in (tmp_path / "run", run)]
    assert counts[0] == counts[1]


def test_whole_texts_are_translated_without_a_second_search(translator: Translator) -> None:
    """An untrained model fails the checks, whose second search is a beam for other models."""
    (result,) = translator.translate_texts(["one red two. 12 big small.\n\nbig"])
    assert result.text.count("\n\n") == 1
    assert len(result.segments) >= 2


def run_command(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_commands_translate_and_evaluate(run: Path, corpus: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("one red two\n\nbig\n", encoding="utf-8")
    result = run_command("translate", run / "bundle", source, "--json")
    assert result.exit_code in (0, 3), result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 3
    assert {"text", "score", "status"} <= lines[0].keys()
    result = run_command("evaluate", run / "bundle", "--src", corpus / "test.en", "--ref", corpus / "test.de", "--json")
    assert result.exit_code in (0, 3), result.output
    assert "BLEU" in result.stdout


WITHOUT_PYTORCH = """
import sys
sys.modules["torch"] = None  # an import raises ImportError
from dragoman.cli.main import main
main()
"""


@pytest.mark.skipif(get_instruction_set() is None, reason="the kernels have no instruction set of this processor")
def test_bundle_translates_without_pytorch(run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH, "translate", str(run / "bundle"), "method=greedy", "--precision", "float32"],
        input="one red two\nbig\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode in (0, 3), done.stdout.count("\n")) == (True, 2), done.stderr
    model = dragoman.load(run / "bundle", task="translation")
    assert model.precision == "int8"
    assert len(model.translate(["one red two"], method="beam", beam_size=3, nbest=3)[0].alternatives) == 2


BAD_RECIPES = {
    "model.ctc_cross_attention=window": "set attention_window",
    "decoding.method=sample": "set method = 'greedy' or 'beam'",
    "decoding.no_repeat_ngram_size=3": "no_repeat_ngram_size",
    "decoding.min_length=2": "min_length",
    "decoding.repetition_penalty=1.2": "repetition_penalty",
    "decoding.replace_unknowns=true": "replace_unknowns",
    "training.label_smoothing=0.1": "set label_smoothing = 0",
    "training.guided_alignment_weight=0.1": "guided_alignment_weight",
    "model.decoder_mixer=recurrent": "self-attention",
    "model.decoder_autoregression=ssru": "self-attention",
    "model.position_encoding=learned": "more positions than its source",
    "model.position_encoding=relative": "for earlier positions only",
    "model.tie_embeddings=none": "set 'all' or 'decoder'",
}


def test_recipe_refuses_what_ctc_has_not(
    subtests: pytest.Subtests, tiny: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for setting in BAD_RECIPES:
        with subtests.test(setting=setting):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(RecipeError, match=BAD_RECIPES[setting]) as error:
                tiny(tmp_path, *CTC, setting)
            assert "\n" not in str(error.value)
            assert "ctc" in str(error.value).lower()


def test_recipe_refuses_upsampling_without_ctc(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="ctc_upsampling = 3 is for decoder = 'ctc'"):
        tiny(tmp_path, "model.ctc_upsampling=3")


Refusal = tuple[Callable[[Translator, Path, Path], object], type[DragomanError], str]
REFUSALS: dict[str, Refusal] = {
    "sampling": (lambda model, *_: model.translate(["big"], method="sample"), RecipeError, "set method = 'greedy'"),
    "constraints": (
        lambda model, *_: model.translate(["big"], constraints=[TranslationConstraints(include=("gross",))]),
        BundleError,
        "constraints: needs a model that predicts token by token",
    ),
    "prefix": (
        lambda model, *_: model.translate(["big"], constraints=[TranslationConstraints("eins")]),
        BundleError,
        "constraints: needs",
    ),
    "groups": (
        lambda model, *_: model.translate(["big"], method="beam", beam_size=4, num_beam_groups=2),
        RecipeError,
        "has no groups",
    ),
    "alternatives": (lambda model, *_: model.list_alternatives("big"), RecipeError, "has no groups"),
    "attention": (lambda model, *_: model.translate(["big"], attention=True), BundleError, "attention: needs"),
    "confidence": (lambda model, *_: model.translate(["big"], confidence=True), BundleError, "confidence: needs"),
    "alignment": (lambda model, *_: model.align(["big"], ["gross"]), BundleError, "an alignment: needs"),
    "score": (lambda model, *_: model.score(["big"], ["gross"]), BundleError, "the score of a given target: needs"),
    "explain": (lambda model, *_: explain(model, "big"), BundleError, "explain: needs"),
    "ensemble": (lambda _, bundle, __: dragoman.load(bundle, bundle), BundleError, "translate with it alone"),
    "onnx": (lambda _, bundle, out: export_onnx(load_bundle(bundle), out), BundleError, "layers of the Transformer"),
    "ctranslate2": (lambda _, bundle, out: export_ctranslate2(load_bundle(bundle), out), BundleError, "layers of the"),
    "huggingface": (lambda _, bundle, out: export_huggingface(load_bundle(bundle), out), BundleError, "layers of the"),
}


def test_feature_is_refused_in_one_line(
    subtests: pytest.Subtests, translator: Translator, run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for feature in REFUSALS:
        with subtests.test(feature=feature):
            tmp_path = tmp_path_factory.mktemp("case")
            call, error_class, message = REFUSALS[feature]
            with pytest.raises(error_class, match=message) as error:
                call(translator, run / "bundle", tmp_path / "out")
            assert "\n" not in str(error.value)


def test_command_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    source, bundle, out = tmp_path / "in.txt", run / "bundle", tmp_path / "weights.json"
    source.write_text("one red two\n" * 60, encoding="utf-8")
    for words in (
        ("model", "calibrate", bundle, source),
        ("rerank", bundle, source, "--reverse", bundle, "--tune", source, "--weights", out),
    ):
        result = run_command(*words)
        assert isinstance(result.exception, DragomanError), (result.output, result.exception)
        assert "\n" not in str(result.exception)
        assert not out.exists()


def test_adaptation_has_no_regularization_towards_the_bundle(run: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"one {word}\teins {word}\n" for word in map(str, range(40))), encoding="utf-8")
    adaptation = prepare_adaptation(run / "bundle", [pairs], tmp_path / "adapted")
    assert adaptation.recipe.training.extensions == ()
    assert not adaptation.recipe.model.is_autoregressive
