"""Hugging Face's way from a TSV to a folder of Arrow files: load_dataset, map with a tokeniser in two processes, save_to_disk.

learn SIZE TOKENISER FILE...  |  encode TOKENISER TSV FOLDER CACHE
"""

import csv
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def learn(size: str, tokeniser: str, *files: str) -> None:
    """A BPE tokeniser as SentencePiece's: NFKC, ▁ for spaces, byte fallback."""
    tokenizers: Any = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True))
    made.normalizer = tokenizers.normalizers.NFKC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=int(size), special_tokens=SPECIAL, show_progress=False)
    made.train(list(files), trainer)
    made.save(tokeniser)


class Encode:
    """Sent to both processes."""

    def __init__(self, tokeniser: str) -> None:
        tokenizers: Any = importlib.import_module("tokenizers")
        self.tokeniser = tokenizers.Tokenizer.from_file(tokeniser)

    def __call__(self, rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {side: [found.ids for found in self.tokeniser.encode_batch(rows[side])] for side in ("source", "target")}


def encode(tokeniser: str, tsv: str, folder: str, cache: str) -> None:
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
    ids = rows.map(Encode(tokeniser), batched=True, num_proc=2)
    ids.save_to_disk(folder, num_proc=2)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"learn": learn, "encode": encode}
    commands[sys.argv[1]](*sys.argv[2:])
