"""A tiny corpus of two tasks over letters, which a token of the target language chooses: a copy (cc) and a reversal (rr)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from dragoman.config import Recipe, make_recipe

LETTERS = "abcdef"
SPLITS = {"train": 900, "valid": 40, "test": 100}


def write_corpus(folder: Path) -> None:
    """Write train, valid and test without a common line: SPLIT.xx with letters, SPLIT.cc with copies, SPLIT.rr reversed."""
    lines = [
        " ".join(letters)
        for length in (2, 3, 4)
        for letters in (tuple(_spell(number, length)) for number in range(len(LETTERS) ** length))
    ]
    random.Random(7).shuffle(lines)
    for name, size in SPLITS.items():
        split, lines = lines[:size], lines[size:]
        for ending, task in (("xx", str), ("cc", str), ("rr", lambda line: line[::-1])):
            (folder / f"{name}.{ending}").write_text("".join(f"{task(line)}\n" for line in split), encoding="utf-8")


def _spell(number: int, length: int) -> str:
    return "".join(LETTERS[number // len(LETTERS) ** position % len(LETTERS)] for position in range(length))


def make_corpus(split: str, target: str, **keys: Any) -> dict[str, Any]:
    """Return the recipe keys of one pair of languages."""
    files = {"source": f"{split}.xx", "target": f"{split}.{target}"}
    return {**files, "source_language": "xx", "target_language": target, **keys}


def make_multilingual_recipe(
    folder: Path, run: Path, *settings: str, language_token: str | None = ">>{}<<", **data: Any
) -> Recipe:
    """Return a tiny recipe of both tasks. `data` holds keys of its data section."""
    document = {
        "name": "many",
        "run": str(run),
        "preset": "modern",
        "size": "tiny",
        "data": {
            "root": str(folder),
            "corpora": {"copy": make_corpus("train", "cc"), "reverse": make_corpus("train", "rr")},
            "max_length": 40,
            "preprocessing_workers": 1,
            **data,
        },
        "tokenizer": {
            "model_type": "word", "vocab_size": 40, "byte_fallback": False, "reserved_tokens": 6,
            **({"language_token": language_token} if language_token else {}),
        },
        "model": {
            "encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "d_ff": 128, "num_heads": 4, "residual_dropout": 0.0,
            "embedding_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
        },
        "training": {
            "precision": "float32", "batch_tokens": 800, "max_steps": 2, "schedule": "inverse_sqrt", "peak_lr": 5e-3,
            "warmup_steps": 50, "adam_beta2": 0.98, "log_every_steps": 1, "validate_every_steps": 1000,
            "num_validation_translations": 20, "checkpoint_every_steps": 1000, "checkpoint_averaging": "none",
        },
        "decoding": {"max_extra_tokens": 4},
    }  # fmt: skip
    return make_recipe(document, settings)
