"""Folders of Hugging Face as fine-tuners save them, made with `transformers`: small random models with changed tokenizers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch

from odd_texts import PLAIN

LANGUAGES = (">>deu<<", ">>fra<<")
SMALL: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64, "init_std": 0.5,
}  # fmt: skip


def train_pieces(path: Path, *, model_type: str = "unigram", extra: str = "") -> None:
    """Write a SentencePiece model of the plain texts."""
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([*PLAIN, *([extra] if extra else [])] * 3),
        model_prefix=str(path.with_suffix("")),
        vocab_size=60,
        model_type=model_type,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    path.with_suffix(".vocab").unlink()
    path.with_suffix(".model").rename(path)


def list_pieces(path: Path) -> list[str]:
    """Return the ordinary pieces of a SentencePiece model."""
    processor = spm.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(index) for index in range(3, len(processor))]


def write_marian(
    folder: Path,
    change: Callable[[Any], object] = lambda tokenizer: None,
    *,
    languages: Sequence[str] = (),
    separate: bool = False,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    change_model: Callable[[Any], object] = lambda model: None,
    start: str = "<pad>",
) -> tuple[Any, Any]:
    """Write a MarianMT folder, and return the model and the tokenizer of transformers.

    change: changes the tokenizer before the embedding gets its size
    start: token with which the decoder starts
    """
    import transformers

    folder.mkdir(parents=True)
    train_pieces(folder / "source.spm")
    train_pieces(folder / "target.spm", extra="zwei Äpfel" if separate else "")
    vocabulary = ["</s>", "<unk>", *languages, *list_pieces(folder / "source.spm"), "<pad>"]
    target = ["</s>", "<unk>", *list_pieces(folder / "target.spm")]
    target = [*target[: len(vocabulary) - 1], *(f"▁x{index}" for index in range(len(vocabulary) - 1 - len(target))), "<pad>"]
    files = {"vocab.json": vocabulary} | ({"target_vocab.json": target} if separate else {})
    for name, pieces in files.items():
        ids = {piece: index for index, piece in enumerate(pieces)}
        (folder / name).write_text(json.dumps(ids), encoding="utf-8")
    config = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    change(tokenizer)
    size = len(tokenizer)
    torch.manual_seed(1)
    model = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=size, decoder_vocab_size=len(target) if separate else size,
            share_encoder_decoder_embeddings=not separate,
            pad_token_id=vocabulary.index("<pad>"), eos_token_id=0, bos_token_id=0, forced_eos_token_id=None,
            decoder_start_token_id=vocabulary.index(start), activation_function="swish", **SMALL,
        )
    )  # fmt: skip
    return _save(folder, model, tokenizer, dtype, shard_size, change_model)


def _save(folder: Path, model: Any, tokenizer: Any, dtype: Any, shard_size: str, change_model: Any) -> tuple[Any, Any]:
    model = model.to(dtype).eval()
    change_model(model)
    model.save_pretrained(folder, max_shard_size=shard_size)
    tokenizer.save_pretrained(folder)
    return model, type(tokenizer).from_pretrained(folder)


def write_nllb(
    folder: Path,
    change: Callable[[Any], object] = lambda tokenizer: None,
    *,
    num_languages: int | None = 12,
    keep_sentencepiece: bool = False,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    change_model: Callable[[Any], object] = lambda model: None,
) -> tuple[Any, Any]:
    """Write an NLLB folder as transformers 5 saves it, with `tokenizer.json`, and return the model and the tokenizer.

    num_languages: number of languages; None for all of NLLB-200
    """
    import transformers
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    first = folder.with_name(f"{folder.name}-first")
    folder.mkdir(parents=True)
    first.mkdir()
    train_pieces(first / "sentencepiece.bpe.model", model_type="bpe")
    (first / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "NllbTokenizer"}), encoding="utf-8")
    languages = list(FAIRSEQ_LANGUAGE_CODES)
    if num_languages is not None:
        languages = ["eng_Latn", "deu_Latn", *languages[: num_languages - 2]]
    tokenizer = transformers.NllbTokenizer.from_pretrained(
        first, src_lang="eng_Latn", tgt_lang="deu_Latn", extra_special_tokens=languages
    )
    change(tokenizer)
    model = make_m2m100_model(len(tokenizer))
    if keep_sentencepiece:
        (folder / "sentencepiece.bpe.model").write_bytes((first / "sentencepiece.bpe.model").read_bytes())
    return _save(folder, model, tokenizer, dtype, shard_size, change_model)


def write_m2m100(
    folder: Path,
    change: Callable[[Any], object] = lambda tokenizer: None,
    *,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    change_model: Callable[[Any], object] = lambda model: None,
) -> tuple[Any, Any]:
    """Write an M2M-100 folder, and return the model and the tokenizer of transformers."""
    import transformers
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    folder.mkdir(parents=True)
    train_pieces(folder / "sentencepiece.bpe.model")
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *list_pieces(folder / "sentencepiece.bpe.model")]
    ids = {piece: index for index, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    tokenizer = transformers.M2M100Tokenizer(
        vocab_file=str(folder / "vocab.json"), spm_file=str(folder / "sentencepiece.bpe.model"), src_lang="en", tgt_lang="de"
    )
    change(tokenizer)
    languages = FAIRSEQ_LANGUAGE_CODES["m2m100"]
    model = make_m2m100_model(max(len(tokenizer), len(pieces) + len(languages) + tokenizer.num_madeup_words))
    return _save(folder, model, tokenizer, dtype, shard_size, change_model)


def write_mbart50(
    folder: Path,
    change: Callable[[Any], object] = lambda tokenizer: None,
    *,
    keep_sentencepiece: bool = False,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    change_model: Callable[[Any], object] = lambda model: None,
) -> tuple[Any, Any]:
    """Write an mBART-50 folder as transformers 5 saves it, with `tokenizer.json`, and return the model and the tokenizer."""
    import transformers

    first = folder.with_name(f"{folder.name}-first")
    folder.mkdir(parents=True)
    first.mkdir()
    train_pieces(first / "sentencepiece.bpe.model")
    (first / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MBart50Tokenizer"}), encoding="utf-8")
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(first, src_lang="en_XX", tgt_lang="de_DE")
    change(tokenizer)
    torch.manual_seed(1)
    config = transformers.MBartConfig(vocab_size=len(tokenizer), decoder_start_token_id=2, scale_embedding=True, **SMALL)
    model = transformers.MBartForConditionalGeneration(config)
    if keep_sentencepiece:
        (folder / "sentencepiece.bpe.model").write_bytes((first / "sentencepiece.bpe.model").read_bytes())
    return _save(folder, model, tokenizer, dtype, shard_size, change_model)


def write_bart(
    folder: Path,
    change: Callable[[Any], object] = lambda tokenizer: None,
    *,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    change_model: Callable[[Any], object] = lambda model: None,
    **sizes: Any,
) -> tuple[Any, Any]:
    """Write a BART folder as transformers 5 saves it, with `tokenizer.json`, and return the model and the tokenizer."""
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True)
    first = folder.with_name(f"{folder.name}-first")
    first.mkdir()
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(
        [*PLAIN, "It's 2026, we'll see"] * 3, vocab_size=340, show_progress=False, special_tokens=special
    )
    trained.save_model(str(first))
    tokenizer = transformers.BartTokenizer(vocab=str(first / "vocab.json"), merges=str(first / "merges.txt"))
    change(tokenizer)
    torch.manual_seed(1)
    config = transformers.BartConfig(vocab_size=len(tokenizer), **SMALL | sizes)
    return _save(folder, transformers.BartForConditionalGeneration(config), tokenizer, dtype, shard_size, change_model)


WHISPER_LANGUAGES = ("en", "de", "yue")


def write_whisper(
    folder: Path,
    *,
    is_multilingual: bool = True,
    num_timestamps: int = 51,
    change_model: Callable[[Any], object] = lambda model: None,
    **sizes: Any,
) -> Any:
    """Write a Whisper folder with windows of one second, and return the model of transformers.

    num_timestamps: timestamps from 0.00 on, of 0.02 seconds each
    """
    from tokenizers import AddedToken, ByteLevelBPETokenizer

    transformers: Any = importlib.import_module("transformers")

    folder.mkdir(parents=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([*PLAIN, "It's 2026, we'll see"] * 3, vocab_size=340, show_progress=False)
    languages = [f"<|{language}|>" for language in WHISPER_LANGUAGES]
    names = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
    timestamps = [f"<|{step / 50:.2f}|>" for step in range(num_timestamps)]
    added = ["<|endoftext|>", "<|startoftranscript|>", *languages, *names]
    trained.add_special_tokens([AddedToken(token, special=True) for token in added])
    trained.add_tokens([AddedToken(token, special=False) for token in timestamps])
    trained.save(str(folder / "tokenizer.json"))
    ids = {token: trained.token_to_id(token) for token in [*added, *timestamps]}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    torch.manual_seed(1)
    config = transformers.WhisperConfig(
        **{
            "vocab_size": trained.get_vocab_size(), "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
            "num_mel_bins": 80, "max_source_positions": 50, "max_target_positions": 64, "init_std": 0.3,
            "bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start,
        } | sizes
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm | torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
    change_model(model)
    settings = {
        "is_multilingual": is_multilingual, "no_timestamps_token_id": ids["<|notimestamps|>"],
        "decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end, "bos_token_id": end,
        "suppress_tokens": [5, 9, *(ids[name] for name in names[:5]), start],
        "begin_suppress_tokens": [trained.token_to_id("Ġ"), end],
        "max_initial_timestamp_index": 20, "max_length": 64, "return_timestamps": False,
        "prev_sot_token_id": ids["<|startofprev|>"],
    }  # fmt: skip
    if is_multilingual:
        settings["lang_to_id"] = {language: ids[language] for language in languages}
        settings["task_to_id"] = {"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]}
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=1).save_pretrained(folder)
    return model


def make_m2m100_model(vocab_size: int) -> Any:
    """Return a small model of M2M-100 with random weights."""
    import transformers

    torch.manual_seed(1)
    return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(vocab_size=vocab_size, **SMALL))
