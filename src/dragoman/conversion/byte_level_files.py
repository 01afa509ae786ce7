"""Files of byte-level BPE in Hugging Face folders: `tokenizer.json`, or `vocab.json` and `merges.txt`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.source_files import SourceFiles
from dragoman.conversion.stated_tokens import TOKENIZER_JSON
from dragoman.conversion.tokenizer_json import read_byte_level_merges, read_vocabulary
from dragoman.data.tokenization.byte_level_bpe import BYTE_ALPHABET, ByteLevelBpeScheme

VOCABULARY, MERGES = "vocab.json", "merges.txt"


def read_byte_level_bpe(files: SourceFiles, document: Mapping[str, Any] | None) -> tuple[dict[str, int], ByteLevelBpeScheme]:
    """Return the id of each token without the added ones, and the merges.

    document: content of `tokenizer.json`, or None for a folder without it

    Raises DataError for a missing or damaged file, and BundleError for another way to split texts.
    """
    vocabulary_path = path = files.folder / TOKENIZER_JSON
    if document is None:
        ids = files.read_json_object(VOCABULARY)
        lines = [line for line in files.read_text(MERGES).split("\n") if line.strip() and not line.startswith("#version")]
        document = {"model": {"type": "BPE", "vocab": ids, "merges": lines}, "pre_tokenizer": {"type": "ByteLevel"}}
        vocabulary_path, path = files.folder / VOCABULARY, files.folder / MERGES
    ids = dict(read_vocabulary(document, path))
    if missing := next((character for character in BYTE_ALPHABET if character not in ids), None):
        raise damaged(vocabulary_path, f"has no token {missing!r} for the byte {BYTE_ALPHABET.index(missing)}")
    return ids, ByteLevelBpeScheme(read_byte_level_merges(document, path))
