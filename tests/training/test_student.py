"""The recipe of a student: a short run learns the outputs of a teacher, and runs in int8 with a shortlist."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import dragoman
from dragoman.cli.main import cli
from dragoman.config import read_recipe
from dragoman.formats.text import read_lines
from dragoman.training.run import train
from tiny_runs import on_one_core

RECIPE = Path(__file__).parents[2] / "recipes" / "student.toml"


@pytest.mark.slow
def test_student_learns_outputs_of_teacher(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    """The student gives the teacher's output for the training lines, which it has seen, in float32 and in int8."""
    runner, sides = CliRunner(), [str(corpus / f"train.{side}") for side in ("en", "de")]

    def run(*words: str) -> None:
        result = runner.invoke(cli, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output

    run("augment", "distill", str(bundle), *sides, "-o", str(tmp_path / "distilled.tsv"), "method=greedy", "--device", "cpu")
    (tmp_path / "valid.tsv").write_bytes((tmp_path / "distilled.tsv").read_bytes())
    settings = {
        "run": tmp_path / "run", "data.root": tmp_path, "tokenizer.model_file": bundle / "source.model",
        "tokenizer.byte_fallback": "false",
        "model.d_model": 32, "model.d_ff": 64, "model.num_heads": 2, "model.encoder_layers": 1,
        "training.precision": "float32", "training.batch_tokens": 400, "training.max_steps": 250, "training.peak_lr": 1e-2,
        "training.warmup_steps": 20, "training.validate_every_steps": 1000, "training.checkpoint_every_steps": 50,
        "training.num_validation_translations": 0,
    }  # fmt: skip
    recipe = read_recipe(RECIPE, [f"{key}={value}" for key, value in settings.items()])
    assert (recipe.model.has_ssru, recipe.model.decoder_layers, recipe.training.label_smoothing) == (True, 2, 0.0)
    with on_one_core():
        train(recipe)
    student, quantized, shortlist = (str(path) for path in (tmp_path / "run" / "bundle", tmp_path / "int8", tmp_path / "list"))
    run("model", "quantize", student, "-o", quantized)
    run("model", "shortlist", quantized, *sides, "-o", shortlist)
    pairs = [line.split("\t") for line in read_lines(tmp_path / "distilled.tsv")]
    sources, targets = zip(*pairs, strict=True)
    for path, shortlist_path in ((student, None), (quantized, shortlist)):
        translator = dragoman.load(path, task="translation", device="cpu", shortlist=shortlist_path)
        outputs = [translation.text for translation in translator.translate(sources)]
        assert sum(output == target for output, target in zip(outputs, targets, strict=True)) >= 0.9 * len(targets)
