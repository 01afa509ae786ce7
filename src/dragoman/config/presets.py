"""Presets and sizes: the named defaults that a recipe starts from.

The key `preset` chooses the settings. `paper` is the paper's text; if the text states no value, its code decides. `t2t-2017` is
the code behind the paper's numbers, tensor2tensor 1.0.3 of 2017-06-20. `modern` is current practice.

The key `size` chooses the dimensions: `base`, `big`, `tiny` for some ten thousand pairs, `small` for some hundred thousand,
or a row of Table 3. `student` is a fast model that learns a teacher's outputs. The values in a recipe file win over both.
"""

from __future__ import annotations

from typing import Any

SectionValues = dict[str, dict[str, Any]]

_PAPER: SectionValues = {
    "model": {
        "norm": "post",
        "attention_bias": False,
        "position_encoding": "interleaved",
        "tie_embeddings": "all",
        "scale_embeddings": True,
        "initialization": "glorot",
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "decoder_start_token": "zero",
        "append_source_eos": True,
    },
    "training": {
        "schedule": "noam",
        "lr_factor": 1.0,
        "warmup_steps": 4000,
        "adam_beta2": 0.98,
        "label_smoothing_mode": "exclude_target",
        "batch_tokens": 25000,
    },
    "decoding": {
        "beam_size": 4,
        "length_penalty": "gnmt",
        "alpha": 0.6,
        "max_extra_tokens": 50,
        "early_stopping": "exhaustive",
    },
}

PRESETS: dict[str, SectionValues] = {
    "paper": _PAPER,
    "t2t-2017": {
        "model": {**_PAPER["model"], "attention_bias": True, "position_encoding": "concatenated"},
        "training": {**_PAPER["training"], "batch_tokens": 4096, "batches_per_update": 8},
        "decoding": _PAPER["decoding"],
    },
    "modern": {
        "model": {
            **_PAPER["model"],
            "norm": "pre",
            "attention_dropout": 0.1,
            "activation_dropout": 0.1,
            "decoder_start_token": "bos",
        },
        "training": {
            **_PAPER["training"],
            "lr_factor": 2.0,
            "warmup_steps": 8000,
            "adam_beta2": 0.997,
            "label_smoothing_mode": "uniform",
            "precision": "auto",
        },
        "decoding": {**_PAPER["decoding"], "early_stopping": "best"},
    },
}


def _build_size(
    layers: int,
    d_model: int,
    d_ff: int,
    num_heads: int,
    *,
    dropout: float = 0.1,
    max_steps: int = 100_000,
    **model_overrides: Any,
) -> SectionValues:
    smoothing = model_overrides.pop("label_smoothing", 0.1)
    model = {
        "encoder_layers": layers,
        "decoder_layers": layers,
        "d_model": d_model,
        "d_ff": d_ff,
        "num_heads": num_heads,
        "residual_dropout": dropout,
        "embedding_dropout": dropout,
    }
    return {"model": {**model, **model_overrides}, "training": {"label_smoothing": smoothing, "max_steps": max_steps}}


SIZES: dict[str, SectionValues] = {
    "tiny": _build_size(4, 128, 256, 4, dropout=0.3, max_steps=8_000),
    "small": _build_size(6, 256, 1024, 4, dropout=0.1, max_steps=30_000, decoder_layers=3),
    "base": _build_size(6, 512, 2048, 8),
    "big": _build_size(6, 1024, 4096, 16, dropout=0.3, max_steps=300_000),
    # The tiny student of Firefox, with an SSRU (Kim et al. 2019). A teacher's outputs need no regularization.
    "student": _build_size(
        6,
        256,
        1536,
        8,
        dropout=0.0,
        label_smoothing=0.0,
        decoder_layers=2,
        decoder_autoregression="ssru",
        norm="post",
        attention_bias=True,
        attention_dropout=0.0,
        activation_dropout=0.0,
        output_bias=True,
    ),
    # Rows of Table 3, with the 100,000 steps of base.
    "A-h1": _build_size(6, 512, 2048, 1),
    "A-h4": _build_size(6, 512, 2048, 4),
    "A-h16": _build_size(6, 512, 2048, 16),
    "A-h32": _build_size(6, 512, 2048, 32),
    "B-dk16": _build_size(6, 512, 2048, 8, d_k=16),
    "B-dk32": _build_size(6, 512, 2048, 8, d_k=32),
    "C-n2": _build_size(2, 512, 2048, 8),
    "C-n4": _build_size(4, 512, 2048, 8),
    "C-n8": _build_size(8, 512, 2048, 8),
    "C-d256": _build_size(6, 256, 2048, 8),
    "C-d1024": _build_size(6, 1024, 2048, 8),
    "C-ff1024": _build_size(6, 512, 1024, 8),
    "C-ff4096": _build_size(6, 512, 4096, 8),
    "D-p0": _build_size(6, 512, 2048, 8, dropout=0.0),
    "D-p0.2": _build_size(6, 512, 2048, 8, dropout=0.2),
    "D-ls0": _build_size(6, 512, 2048, 8, label_smoothing=0.0),
    "D-ls0.2": _build_size(6, 512, 2048, 8, label_smoothing=0.2),
    "E": _build_size(6, 512, 2048, 8, position_encoding="learned"),
}
