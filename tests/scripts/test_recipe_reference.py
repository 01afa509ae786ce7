"""Reference of recipe keys: every key with its sentence, type, default and limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.config.presets import PRESETS, SIZES

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from recipe_reference import RecipeKey, iter_recipe_keys, render_reference

SCRIPT = Path(__file__).parents[2] / "scripts" / "recipe_reference.py"
KEYS = {entry.key: entry for entry in iter_recipe_keys()}


def test_every_key_has_one_plain_sentence(subtests: pytest.Subtests) -> None:
    for key in KEYS:
        with subtests.test(key=key):
            sentence = KEYS[key].sentence
            assert sentence.endswith(".")
            assert sentence[0].isupper() or sentence[0] in "`αβε"
            assert ". " not in sentence
            assert len(sentence.split()) <= 30


def test_keys_cover_every_section() -> None:
    sections = {entry.section for entry in KEYS.values()}
    assert sections == {
        "", "card", "task", "data", "data.train", "data.corpora.NAME", "data.valid", "data.valid_corpora.NAME", "data.test",
        "data.test_corpora.NAME", "data.curriculum[N]", "data.cleaning", "data.noise", "tokenizer", "model", "training",
        "training.lora", "training.sequence_loss", "decoding",
    }  # fmt: skip


def test_key_states_type_default_and_limits(subtests: pytest.Subtests) -> None:
    for key, type_name, default, limits in [
        ("model.encoder_layers", "integer", "6", "1 ≤ value ≤ 1,000"),
        ("model.d_k", "integer", "", "1 ≤ value ≤ 2^20"),
        ("model.norm_epsilon", "number", "1e-6", "0 < value"),
        ("model.final_norm", "true or false", "", ""),
        ("model.norm", '`"post"` or `"pre"`', '"post"', ""),
        ("training.seed", "integer", "1", "0 ≤ value < 2^31"),
        ("training.label_smoothing", "number", "0.1", "0 ≤ value < 1"),
        ("tokenizer.vocab_size", "integer", "32000", "5 ≤ value < 2^24"),
        ("data.max_length", "integer", "256", "2 ≤ value < 2^31"),
        ("data.train.source", "file name or list of file names", "", ""),
        ("data.corpora.NAME.columns", "list: text", "", "2 items"),
        ("data.curriculum[N].weights", "table by corpus name: number", "", ""),
        ("data.cleaning.mojibake", "true or false", "false", ""),
        ("decoding.suppress_tokens", "list: text", "[]", ""),
    ]:
        with subtests.test(key=key, type_name=type_name, default=default, limits=limits):
            section, _, name = key.rpartition(".")
            assert KEYS[key] == RecipeKey(section, name, type_name, default, limits, KEYS[key].sentence)


def test_module_prints_tables_of_keys_and_presets() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True)
    assert result.stdout == render_reference()
    lines = result.stdout.splitlines()
    for entry in KEYS.values():
        assert any(line.startswith(f"| `{entry.name}` | ") and entry.sentence.replace("|", "\\|") in line for line in lines)
    names = ["train", "corpora.NAME", "valid", "valid_corpora.NAME", "test", "test_corpora.NAME"]
    assert "## " + ", ".join(f"`data.{name}`" for name in names) in lines
    assert f"| key | {' | '.join(f'`{preset}`' for preset in PRESETS)} |" in lines
    assert all(any(line.startswith(f"| `{size}` | ") for line in lines) for size in SIZES)
    column_counts = {line.count("|") - line.count("\\|") for line in lines if line.startswith("| `d_model`")}
    assert column_counts == {6}
