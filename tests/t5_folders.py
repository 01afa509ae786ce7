"""Small folders of T5's family, saved by `transformers`, with random weights and tokenizers that real ones resemble."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch

from odd_texts import PLAIN

LANGUAGES = ("de", "fr")
VARIANTS: dict[str, dict[str, Any]] = {
    "t5": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    "t5-v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": {"model_type": "mt5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "d_kv": 12},
    "byt5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_layers": 3, "num_decoder_layers": 1},
    "madlad": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
}
"""Settings of each variant beside those of `write_folder`."""


def train_pieces(variant: str) -> bytes:
    """Return a unigram model with the special pieces of a variant; MADLAD's holds the language tokens."""
    special: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    if variant == "madlad":
        special = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
        special["user_defined_symbols"] = [f"<2{language}>" for language in LANGUAGES]
    lines = [*PLAIN, string.ascii_letters] * 3
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=90,
        model_type="unigram",
        hard_vocab_limit=False,
        byte_fallback=False,
        minloglevel=2,
        num_threads=1,
        **special,
    )
    return model.getvalue()


def write_folder(
    folder: Path,
    variant: str = "t5",
    change: Callable[[Any], object] = lambda tokenizer: None,
    *,
    with_json: bool = False,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    change_model: Callable[[Any], object] = lambda model: None,
    **changes: Any,
) -> tuple[Any, Any]:
    """Write a folder, and return the model and the tokenizer of transformers.

    change: changes the tokenizer before the embedding gets its size
    with_json: save the tokenizer as transformers 5 does, with `tokenizer.json` in the place of `spiece.model`. ByT5 has
        neither. MADLAD keeps both, because transformers 5 gives its `tokenizer.json` a false unknown piece.
    """
    import transformers as library

    transformers: Any = library
    folder.mkdir(parents=True)
    settings = {**VARIANTS[variant], **changes}
    model_type = settings.pop("model_type", "t5")
    tokenizer = _write_tokenizer(folder, variant)
    num_rows = len(tokenizer) if variant == "madlad" else -(-len(tokenizer) // 128) * 128
    change(tokenizer)
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    if variant == "madlad":
        special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    size = max(num_rows, len(tokenizer))
    is_tied = settings["tie_word_embeddings"]
    config_class = transformers.MT5Config if model_type == "mt5" else transformers.T5Config
    model_class = transformers.MT5ForConditionalGeneration if model_type == "mt5" else transformers.T5ForConditionalGeneration
    config = config_class(
        **{
            "vocab_size": size, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
            "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, **special, **settings,
        }
    )  # fmt: skip
    torch.manual_seed(3)
    model = model_class(config).eval()
    _draw_weights(model, is_tied=is_tied, end_id=special["eos_token_id"])
    model = model.to(dtype)
    change_model(model)
    model.save_pretrained(folder, max_shard_size=shard_size)
    if with_json:
        tokenizer.save_pretrained(folder)
        if variant not in ("byt5", "madlad"):
            (folder / "spiece.model").unlink()
    config_path = folder / "config.json"
    document = json.loads(config_path.read_text(encoding="utf-8")) | {"tie_word_embeddings": is_tied}
    config_path.write_text(json.dumps(document), encoding="utf-8")
    return model, tokenizer


def _write_tokenizer(folder: Path, variant: str) -> Any:
    import transformers as library

    transformers: Any = library
    if variant == "byt5":
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}), encoding="utf-8")
        return transformers.ByT5Tokenizer()
    (folder / "spiece.model").write_bytes(train_pieces(variant))
    names: dict[str, Any] = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0 if variant == "madlad" else 100}
    if variant == "madlad":
        names |= {"unk_token": "<unk>", "pad_token": "<s>", "eos_token": "</s>", "additional_special_tokens": []}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    return transformers.T5Tokenizer.from_pretrained(folder)


@torch.no_grad()
def _draw_weights(model: Any, *, is_tied: bool, end_id: int) -> None:
    """Draw weights that tell tokens apart, with an end token that outputs reach."""
    for name, parameter in model.named_parameters():
        if "relative" in name:
            parameter.normal_()
        elif "layer_norm" in name:
            parameter.uniform_(0.5, 1.5)
        elif parameter.dim() == 2:
            parameter.normal_(std=0.2)
    if not is_tied:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.2)
    model.lm_head.weight[end_id] *= 12.0 if is_tied else 3.0
