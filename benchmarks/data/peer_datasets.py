"""Hugging Face datasets from a TSV to a folder of Arrow files: load_dataset, map in two processes, save_to_disk.

learn SIZE TOKENIZER FILE...  |  encode TOKENIZER TSV FOLDER CACHE
"""

import csv
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def learn(size: str, tokenizer_path: str, *files: str) -> None:
    """Train a BPE tokenizer with SentencePiece's settings: NFKC, ▁ for spaces, byte fallback."""
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = tokenizers.normalizers.NFKC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=int(size), special_tokens=SPECIAL, show_progress=False)
    tokenizer.train(list(files), trainer)
    tokenizer.save(tokenizer_path)


class Encode:
    """Encoder that is sent to both processes."""

    def __init__(self, tokenizer_path: str) -> None:
        tokenizers: Any = importlib.import_module("tokenizers")
        self.tokenizer = tokenizers.Tokenizer.from_file(tokenizer_path)

    def __call__(self, rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {side: [encoding.ids for encoding in self.tokenizer.encode_batch(rows[side])] for side in ("source", "target")}


def encode(tokenizer_path: str, tsv: str, folder: str, cache: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # or each of the two processes would take both cores
    datasets: Any = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    rows = datasets.load_dataset(
        "csv",
        data_files=tsv,
        sep="\t",
        quoting=csv.QUOTE_NONE,
        column_names=["source", "target"],
        keep_default_na=False,
        cache_dir=cache,
        split="train",
    )
    ids = rows.map(Encode(tokenizer_path), batched=True, num_proc=2)
    ids.save_to_disk(folder, num_proc=2)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"learn": learn, "encode": encode}
    commands[sys.argv[1]](*sys.argv[2:])
