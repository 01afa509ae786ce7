"""Small M2M-100 folder in the layout of Hugging Face, written without its library."""

from __future__ import annotations

import json
from pathlib import Path

import sentencepiece as spm
import torch
from safetensors.torch import save_file

from dragoman.conversion.language_codes import M2M100_LANGUAGES
from marian_folders import D_FF, D_MODEL, NUM_HEADS, NUM_LAYERS, SOURCE_LETTERS, TARGET_LETTERS, make_tensors, train_model


def write_folder(folder: Path, *, activation: str = "relu") -> Path:
    """Write a folder with random weights, and return it. Its texts have all letters of `marian_folders`."""
    folder.mkdir(parents=True)
    serialized_model = train_model(SOURCE_LETTERS + TARGET_LETTERS)
    processor = spm.SentencePieceProcessor(model_proto=serialized_model)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(processor.id_to_piece(index) for index in range(3, len(processor)))]
    vocab_size = len(pieces) + len(M2M100_LANGUAGES)
    sizes = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("layers", NUM_LAYERS), ("ffn_dim", D_FF), ("attention_heads", NUM_HEADS))
    }
    config = {
        "model_type": "m2m_100",
        "vocab_size": vocab_size,
        "d_model": D_MODEL,
        "activation_function": activation,
        "scale_embedding": True,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "num_beams": 4,
        **sizes,
    }
    names = {"tokenizer_class": "M2M100Tokenizer", "language_codes": "m2m100", "src_lang": "en", "tgt_lang": "de"}
    tensors = make_tensors(vocab_size)
    del tensors["final_logits_bias"]
    for stack in ("encoder", "decoder"):
        tensors |= {
            f"model.{stack}.layer_norm.weight": torch.ones(D_MODEL),
            f"model.{stack}.layer_norm.bias": torch.zeros(D_MODEL),
        }
    (folder / "sentencepiece.bpe.model").write_bytes(serialized_model)
    for name, document in (
        ("config.json", config),
        ("tokenizer_config.json", names),
        ("vocab.json", {piece: index for index, piece in enumerate(pieces)}),
    ):
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder
