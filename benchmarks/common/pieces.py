"""Training of the SentencePiece model that all programs of a benchmark use, without dragoman."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sentencepiece as spm


def train_pieces(model: Path, vocab_size: int, **options: Any) -> spm.SentencePieceProcessor:
    """Train a BPE model with dragoman's special ids, write it, and return it. options: text and options of SentencePiece"""
    partial = model.with_suffix(".partial")
    with partial.open("wb") as written:
        spm.SentencePieceTrainer.train(
            model_writer=written,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=1.0,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            num_threads=2,
            minloglevel=2,
            **options,
        )
    partial.rename(model)
    return spm.SentencePieceProcessor(model_file=str(model))
