"""Small MarianMT folders in the layout of Hugging Face, written without its library."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import sentencepiece as spm
import torch
from safetensors.torch import save_file
from torch import Tensor

D_MODEL, D_FF, NUM_HEADS, NUM_LAYERS = 16, 24, 2, 2
SOURCE_LETTERS, TARGET_LETTERS = "abcdefghijklm", "nopqrstuvwxyzäöü"


def make_lines(letters: str, count: int, seed: int) -> list[str]:
    """Return lines of random words over an alphabet."""
    random = Random(seed)
    words = ["".join(random.choices(letters, k=random.randint(2, 7))) for _ in range(150)]
    return [" ".join(random.choices(words, k=random.randint(1, 9))) for _ in range(count)]


@lru_cache
def train_model(letters: str) -> bytes:
    """Return a unigram SentencePiece model of words over an alphabet, with the usual special pieces of the OPUS-MT models."""
    path = []

    class Writer:
        def write(self, data: bytes) -> None:
            path.append(data)

    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(make_lines(letters, 1200, 1)),
        model_writer=Writer(),
        vocab_size=120,
        model_type="unigram",
        minloglevel=2,
        num_threads=1,
    )
    return b"".join(path)


def list_pieces(extra: tuple[str, ...] = ()) -> list[str]:
    """Return one vocabulary over both models in the order of an OPUS-MT model: end, unknown, the pieces, padding."""
    pieces = {"</s>": None, "<unk>": None, **dict.fromkeys(extra)}
    for letters in (SOURCE_LETTERS, TARGET_LETTERS):
        processor = spm.SentencePieceProcessor(model_proto=train_model(letters))
        pieces |= dict.fromkeys(processor.id_to_piece(index) for index in range(processor.get_piece_size()))
    del pieces["<s>"]
    return [*pieces, "<pad>"]


def make_config(vocab_size: int, /, **changes: Any) -> dict[str, Any]:
    """Return the content of config.json with changes; None removes a key."""
    config = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": vocab_size,
        "d_model": D_MODEL,
        "encoder_layers": NUM_LAYERS,
        "decoder_layers": NUM_LAYERS,
        "encoder_ffn_dim": D_FF,
        "decoder_ffn_dim": D_FF,
        "encoder_attention_heads": NUM_HEADS,
        "decoder_attention_heads": NUM_HEADS,
        "activation_function": "swish",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "pad_token_id": vocab_size - 1,
        "decoder_start_token_id": vocab_size - 1,
        "eos_token_id": 0,
        "bos_token_id": 0,
        "forced_eos_token_id": 0,
        "bad_words_ids": [[vocab_size - 1]],
        "max_position_embeddings": 64,
        "max_length": 64,
        "num_beams": 4,
    }
    return {name: value for name, value in (config | changes).items() if value is not None}


def make_tensors(
    vocab_size: int, *, d_model: int = D_MODEL, d_ff: int = D_FF, num_layers: int = NUM_LAYERS, seed: int = 0
) -> dict[str, Tensor]:
    """Return random tensors under the names of MarianMT."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    tensors = {"model.shared.weight": noise(vocab_size, d_model), "final_logits_bias": noise(1, vocab_size)}
    for stack in ("encoder", "decoder"):
        for layer in range(num_layers):
            prefix = f"model.{stack}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn") if stack == "decoder" else ("self_attn",):
                for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    tensors[f"{prefix}.{attention}.{projection}.weight"] = noise(d_model, d_model)
                    tensors[f"{prefix}.{attention}.{projection}.bias"] = noise(d_model)
                tensors[f"{prefix}.{attention}_layer_norm.weight"] = 1 + noise(d_model)
                tensors[f"{prefix}.{attention}_layer_norm.bias"] = noise(d_model)
            for name, shape in (("fc1", (d_ff, d_model)), ("fc2", (d_model, d_ff))):
                tensors[f"{prefix}.{name}.weight"] = noise(*shape)
                tensors[f"{prefix}.{name}.bias"] = noise(shape[0])
            tensors[f"{prefix}.final_layer_norm.weight"] = 1 + noise(d_model)
            tensors[f"{prefix}.final_layer_norm.bias"] = noise(d_model)
    return tensors


def write_folder(
    folder: Path,
    *,
    pieces: list[str] | None = None,
    config: dict[str, Any] | None = None,
    change_tensors: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
    as_checkpoint: bool = False,
    d_model: int = D_MODEL,
    d_ff: int = D_FF,
    num_layers: int = NUM_LAYERS,
) -> Path:
    """Write a folder with random weights, and return it.

    Args:
        folder: the new folder
        pieces: vocabulary; that of `list_pieces` by default
        config: changes to config.json
        change_tensors: changes the tensors in place before they are written
        as_checkpoint: write pytorch_model.bin instead of model.safetensors
        d_model, d_ff: widths of the model, and of the feed-forward networks inside
        num_layers: layers of each stack
    """
    pieces = pieces or list_pieces()
    folder.mkdir(parents=True)
    (folder / "source.spm").write_bytes(train_model(SOURCE_LETTERS))
    (folder / "target.spm").write_bytes(train_model(TARGET_LETTERS))
    ids = {piece: index for index, piece in enumerate(pieces)}
    sizes = {"d_model": d_model, "encoder_ffn_dim": d_ff, "decoder_ffn_dim": d_ff}
    sizes |= {"encoder_layers": num_layers, "decoder_layers": num_layers}
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(make_config(len(pieces), **sizes | (config or {}))), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}), encoding="utf-8")
    tensors = make_tensors(len(pieces), d_model=d_model, d_ff=d_ff, num_layers=num_layers)
    change_tensors(tensors)
    if as_checkpoint:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder
