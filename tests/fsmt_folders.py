"""Folders of FSMT with random weights, written by `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_checkpoints import list_merges, list_subwords
from generation_parity import shrink_and_favor_end
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]


def list_fsmt_tokens(letters: str) -> list[str]:
    """Return the tokens of a vocabulary: `</w>` marks the end of a word, and other subwords have no mark."""
    subwords = [token.removesuffix("@@") if token.endswith("@@") else f"{token}</w>" for token in list_subwords(letters)]
    return [*SPECIAL_TOKENS, *subwords]


def write_folder(folder: Path, *, is_shared: bool, lowercase: bool = False, **changes: Any) -> Any:
    """Write a folder, and return the model."""
    transformers: Any = pytest.importorskip("transformers", reason="FSMT needs transformers: dragoman[test]")
    letters = SOURCE_LETTERS + TARGET_LETTERS
    source, target = (
        (list_fsmt_tokens(letters),) * 2 if is_shared else (list_fsmt_tokens(SOURCE_LETTERS), list_fsmt_tokens(TARGET_LETTERS))
    )
    config = transformers.FSMTConfig(
        **{
            "langs": ["en", "de"],
            "src_vocab_size": len(source),
            "tgt_vocab_size": len(target),
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 128,
            "init_std": 0.5,
            "num_beams": 5,
            "tie_word_embeddings": is_shared,
            **changes,
        }
    )
    torch.manual_seed(4)
    model = transformers.FSMTForConditionalGeneration(config).eval()
    encoder, decoder = model.model.encoder, model.model.decoder
    output = decoder.output_projection.weight
    matrices = {id(matrix): matrix for matrix in (encoder.embed_tokens.weight, decoder.embed_tokens.weight, output)}
    shrink_and_favor_end(list(matrices.values()), output, decoder.layers[-1].final_layer_norm.bias, 2)
    model.save_pretrained(folder)
    for name, tokens in (("vocab-src.json", source), ("vocab-tgt.json", target)):
        ids = {token: index for index, token in enumerate(tokens)}
        (folder / name).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    merges = "".join(f"{left} {right}\n" for left, right in list_merges(letters))
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    names = {"langs": ["en", "de"], "do_lower_case": lowercase}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return model
