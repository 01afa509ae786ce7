"""Settings that follow from the corpora: which keys, which values, and what a recipe still decides itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import Recipe, read_recipe
from dragoman.config.presets import SIZES
from dragoman.data import data_defaults
from dragoman.data.data_defaults import (
    CorpusSize,
    choose_defaults,
    choose_size,
    count_operations,
    measure_corpora,
    read_training_recipe,
)
from dragoman.training.monitoring.diagnostics import MIN_LOG_LINES

SENTENCE = "Das ist ein Satz mit acht Wörtern darin"  # 40 bytes


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """Write a corpus of 600 pairs with a recipe that names no size and no settings."""
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text(f"{SENTENCE}\n" * 600)
    path = tmp_path / "own.toml"
    path.write_text(
        f'preset = "modern"\nrun = "{tmp_path}/run"\ntask = {{ source_language = "en", target_language = "de" }}\n'
        f'data = {{ root = "{tmp_path}", train = {{ source = "a.en", target = "a.de" }} }}\n'
    )
    return path


def measure(recipe: Recipe) -> CorpusSize:
    return measure_corpora(Path(recipe.data.root), recipe.training_directions.values())


def test_corpora_are_counted(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = read_recipe(recipe_file)
    assert measure(recipe) == CorpusSize(600, int(600 * 40 / data_defaults.BYTES_PER_TOKEN))
    monkeypatch.setattr(data_defaults, "MAX_PAIRS_READ", 300)  # the buffer holds the whole file, so its bytes are all read
    assert measure(recipe).pairs == pytest.approx(600, rel=0.5)
    reversed_too = read_recipe(recipe_file, ["data.train.both_directions=true", "tokenizer.language_token=<{}>"])
    monkeypatch.setattr(data_defaults, "MAX_PAIRS_READ", 1000)
    assert measure(reversed_too).pairs == 1200


def test_left_out_settings_follow_from_the_corpora(recipe_file: Path) -> None:
    recipe, choice, _ = read_training_recipe(recipe_file)
    # 120 epochs of 5,333 tokens in batches of 2,048, rounded to two digits, and 24,000 bytes a side over 40 bytes a piece.
    assert (recipe.size, recipe.training.batch_tokens, recipe.training.max_steps) == ("tiny", 2048, 310)
    assert (recipe.tokenizer.vocab_size, recipe.training.warmup_steps) == (1200, 31)
    assert recipe.training.checkpoint_averaging == "none"
    assert choice is not None
    assert choice.startswith("600 pairs, about 9,179 target tokens: size tiny, 1,200 pieces, batches of 2,048 tokens")
    assert "310 steps (64 epochs)" in choice  # 0.93 · 310 · 2,048 / 9,179
    assert "1 steps (0.2 epochs)" in str(read_training_recipe(recipe_file, ["training.max_steps=1"])[1])
    assert read_training_recipe(recipe_file)[0] == recipe  # so the same command resumes


@pytest.mark.parametrize("preset", ["paper", "t2t-2017"])
def test_presets_of_the_paper_stay(recipe_file: Path, preset: str) -> None:
    overrides = [f"preset={preset}"]
    assert read_training_recipe(recipe_file, overrides) == (read_recipe(recipe_file, overrides), None, {})


@pytest.mark.parametrize("override", ["data.root=s3://bucket/corpus", "data.train={file='-', format='tsv'}"])
def test_corpora_elsewhere_are_not_counted(recipe_file: Path, override: str) -> None:
    """The program copies a corpus of a store first, and reads a pipe only once."""
    assert read_training_recipe(recipe_file, [override]) == (read_recipe(recipe_file, [override]), None, {})


def test_settings_of_the_recipe_win(recipe_file: Path) -> None:
    stated = ["size=base", "training.max_steps=7", "training.batch_tokens=999", "tokenizer.vocab_size=555"]
    recipe, *_ = read_training_recipe(recipe_file, stated)
    assert (recipe.size, recipe.model.d_model) == ("base", 512)
    assert (recipe.training.max_steps, recipe.training.batch_tokens, recipe.tokenizer.vocab_size) == (7, 999, 555)
    assert recipe.training.peak_lr == pytest.approx(0.35 / 512, rel=0.02)
    noam, *_ = read_training_recipe(recipe_file, ["training.schedule=noam"])
    assert noam.training.warmup_steps == read_recipe(recipe_file).training.warmup_steps  # a shorter one would raise the peak


def test_sizes_and_epochs_follow_from_the_pairs(subtests: pytest.Subtests) -> None:
    """The epochs are 4,000 / √pairs, at least 2, or more for 14 million tokens, at most 120."""
    for pairs, size, epochs in [
        (500, "tiny", 120),
        (5_000, "tiny", 120),
        (43_522, "small", 19.2),
        (160_000, "small", 10),
        (1_000_000, "base", 4),
        (20_000_000, "big", 2),
    ]:
        with subtests.test(pairs=pairs, size=size, epochs=epochs):
            corpus_size = CorpusSize(pairs, 20 * pairs)
            assert choose_size(corpus_size) == size
            chosen = choose_defaults(corpus_size, size, max_length=256)["training"]
            steps, batch_tokens = chosen["max_steps"], chosen["batch_tokens"]
            assert steps == 200 or steps * batch_tokens / (20 * pairs) == pytest.approx(epochs, rel=0.06)
            assert chosen["peak_lr"] * SIZES[size]["model"]["d_model"] == pytest.approx(0.35, rel=0.03)
            assert chosen["warmup_steps"] == max(int(0.1 * steps), 20)
            assert steps // chosen["log_every_steps"] >= MIN_LOG_LINES  # so that dragoman diagnose can judge the run


@pytest.mark.parametrize(
    ("minutes", "clock", "size"), [(30, "processor", "tiny"), (120, "processor", "small"), (30, "wall", "small")]
)
def test_the_size_follows_from_the_minutes(
    recipe_file: Path, minutes: float, clock: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """43,522 pairs of 17 tokens are read 19 times. `small` has 9.9 million weights in its layers and 8,000 vectors of outputs.

    So a part of 0.4 needs 6 · 9.9e6 · 0.4 · 19 · 740,000 = 3.4e14 operations, or 70 minutes of one core with 8e10 a second.
    """
    monkeypatch.setattr(data_defaults, "_count_gpus", lambda: 0)
    monkeypatch.setattr(data_defaults, "get_num_threads", lambda: 4)
    training = read_recipe(recipe_file, [f"training.max_minutes={minutes}", f"training.clock={clock}"]).training
    assert choose_size(CorpusSize(43_522, 740_000), max_operations=count_operations(training)) == size


def test_a_run_keeps_its_size(recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text('{"size": "small"}')
    assert read_training_recipe(recipe_file)[0].size == "small"
    (tmp_path / "run" / "recipe.json").write_text('{"size": ["small"]}')
    assert read_training_recipe(recipe_file)[0].size == "tiny"


def test_long_sentences_fit_into_the_batch() -> None:
    assert choose_defaults(CorpusSize(500, 9_000), "tiny", max_length=4_000)["training"]["batch_tokens"] == 16_000
