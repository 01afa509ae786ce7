"""`tokenizer.json` of Hugging Face as a SentencePiece model: pieces, scores or merges, and the normalization.

`transformers` 5 saves NLLB and mBART without their SentencePiece models. A Unigram model has the scores. The merges of BPE were
made from scores: each piece is merged from all of its pairs, pair after pair. So the first merge of each piece gives its score
again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece as spm

from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import TOKENIZER_JSON, TokenTable, read_token_table
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.added_tokens import SplitRules
from dragoman.data.tokenization.byte_level_bpe import BYTE_ALPHABET, ByteLevelBpeScheme
from dragoman.data.tokenization.sentencepiece_proto import build_model, read_charsmap
from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_IDS
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.errors import BundleError

VOCABULARY, MERGES = "vocab.json", "merges.txt"
"""Files of byte-level BPE in a folder without `tokenizer.json`."""
COLLAPSE_SPACES = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content} for content in (" ", METASPACE)]
"""Normalizers that replace several spaces by one, or by the mark of one."""
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
"""Normalizer that removes spaces at the end, as `transformers` 4 has it."""
MAX_SCORE = 1e30
"""Limit of a score, which SentencePiece stores in 32 bits."""
MODEL_SETTINGS = {
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": (True,),
    "byte_fallback": (False, None),
    "ignore_merges": (False, None),
}
"""Settings of the model with the values that a SentencePiece model has."""


def read_vocabulary(document: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Return the id of each piece. Raise DataError for a damaged file, and BundleError for a model of another type."""
    model = document.get("model")
    if not isinstance(model, dict) or not isinstance(vocabulary := model.get("vocab"), dict | list):
        raise damaged(path, "has no model with a vocabulary")
    if (model.get("type") or "BPE", type(vocabulary)) not in (("BPE", dict), ("Unigram", list)):
        raise _refuse(path, "model.type", model.get("type"), "dragoman reads BPE and Unigram")
    if isinstance(vocabulary, dict):
        return vocabulary
    ids: dict[str, int] = {}
    for index, (text, _) in enumerate(_iter_scores(vocabulary, path)):
        if ids.setdefault(text, index) != index:
            raise damaged(path, f"its pieces {ids[text]} and {index} are both {text[:40]!r}")
    return ids


def build_sentencepiece_model(document: Mapping[str, Any], path: Path) -> bytes:
    """Return the SentencePiece model that splits text like a tokenizer.

    Args:
        document: content of `tokenizer.json`
        path: the file, for error messages

    Raises:
        DataError: the file is damaged.
        BundleError: no SentencePiece model splits text in this way.
    """
    vocabulary = read_vocabulary(document, path)
    model = document["model"]
    _check_splitting(document, path)
    charsmap = _read_charsmap(document, path)
    if model.get("type") == "Unigram":
        return _build_unigram_model(model, path, charsmap)
    _check_settings(model, path)
    merges = list(_iter_merges(model.get("merges"), path))
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    _check_merges(merges, ranks, vocabulary, path)
    unknown = model.get("unk_token")
    pieces = {text: -float(rank) for text, rank in ranks.items()}
    pieces |= {text: -float(len(merges)) for text in vocabulary if len(text) == 1 and text not in pieces}
    return check_charsmap(build_model(pieces, model_type="bpe", unknown=str(unknown), charsmap=charsmap), path)


def _read_byte_level_merges(document: Mapping[str, Any], path: Path) -> list[tuple[str, str]]:
    """Return the merges of byte-level BPE.

    document, path: see `build_sentencepiece_model`, which also lists the exceptions
    """
    model, vocabulary = document["model"], read_vocabulary(document, path)
    splitter, normalizers = document.get("pre_tokenizer"), _list_normalizers(document)
    values = splitter if isinstance(splitter, dict) else {}
    if values.get("type") != "ByteLevel" or values.get("add_prefix_space") or values.get("use_regex") is False:
        raise _refuse(path, "pre_tokenizer", splitter, "dragoman has ByteLevel without a space before the text")
    if normalizers:
        raise _refuse(path, "normalizer", normalizers[0], "dragoman has none for byte-level BPE")
    _check_settings(model, path, but="fuse_unk")
    merges = list(_iter_merges(model.get("merges"), path))
    if lost := next((merge for merge in merges if "".join(merge) not in vocabulary), None):
        raise damaged(path, f"its merge of {lost[0][:40]!r} and {lost[1][:40]!r} is not in the vocabulary")
    return merges


def _read_byte_level_bpe(files: SourceFiles, document: Mapping[str, Any] | None) -> tuple[dict[str, int], ByteLevelBpeScheme]:
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
    return ids, ByteLevelBpeScheme(_read_byte_level_merges(document, path))


def read_byte_level_tokens(
    files: SourceFiles, settings: ModelSettings, always_special: Sequence[str], **options: Any
) -> tuple[TokenTable, ByteLevelBpeScheme]:
    """Return the tokens of a folder with byte-level BPE, and the merges. options: see `read_token_table`"""
    document = files.read_json_object(TOKENIZER_JSON) if TOKENIZER_JSON in files else None
    ids, scheme = _read_byte_level_bpe(files, document)
    vocab_size = settings.integer("vocab_size")
    settings.check_vocab_size(vocab_size, len(ids))
    table = read_token_table(
        files,
        ids,
        vocabulary_file=VOCABULARY if document is None else TOKENIZER_JSON,
        num_rows=vocab_size,
        always_special=always_special,
        **options,
    )
    return table, scheme


def build_byte_level_tokenizer(
    scheme: ByteLevelBpeScheme, table: TokenTable, order: VocabularyOrder, folder: Path
) -> TokenListTokenizer:
    """Return the tokenizer of a folder with byte-level BPE."""
    added = table.reorder(order, "tokenizers").added
    return TokenListTokenizer(scheme, order.pieces[len(SPECIAL_IDS) :], added=added, name=str(folder))


def _check_settings(model: Mapping[str, Any], path: Path, *, but: str = "") -> None:
    """Raise BundleError for a setting of BPE that dragoman does not have. but: setting that does not matter"""
    for name, values in MODEL_SETTINGS.items():
        if name != but and model.get(name, values[0]) not in values:
            raise _refuse(path, f"model.{name}", model[name], f"dragoman has {values[0]!r}")


def _build_unigram_model(model: Mapping[str, Any], path: Path, charsmap: bytes) -> bytes:
    unknown, scores = model.get("unk_id"), dict(_iter_scores(model["vocab"], path))
    if type(unknown) is not int or not 0 <= unknown < len(scores):
        raise _refuse(path, "model.unk_id", unknown, "dragoman has an unknown piece")
    special = list(scores)[: unknown + 1]  # no text is split into them
    pieces = {text: score for text, score in scores.items() if METASPACE not in text[1:] and text not in special}
    has_bytes = model.get("byte_fallback") is True
    built = build_model(pieces, model_type="unigram", unknown=special[-1], charsmap=charsmap, has_bytes=has_bytes)
    return check_charsmap(built, path)


def _iter_scores(vocabulary: Sequence[Any], path: Path) -> Iterator[tuple[str, float]]:
    """Yield the pieces of a Unigram model and their scores. Raise DataError for an entry that is no such pair."""
    for index, entry in enumerate(vocabulary):
        is_pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not is_pair or type(entry[1]) not in (int, float) or not abs(entry[1]) < MAX_SCORE:
            raise damaged(path, f"its piece {index} is {entry!r:.60}, which is not a text and its score")
        yield entry[0], float(entry[1])


def _iter_merges(merges: Any, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of merges: lists of two texts, or texts with a space between, as older files have them."""
    if not isinstance(merges, list):
        raise damaged(path, "has no list of merges")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise damaged(path, f"its merge {merge!r:.60} is not a pair of pieces")
        if METASPACE not in (pair[0] + pair[1])[1:]:  # no text has such a piece, because each ▁ begins a word
            yield pair[0], pair[1]


def _check_merges(
    merges: Sequence[tuple[str, str]], ranks: Mapping[str, int], vocabulary: Mapping[str, int], path: Path
) -> None:
    """Raise BundleError if the order of the merges is not that of the scores of pieces.

    A SentencePiece model merges each pair whose text is a piece, and pairs of one text have one rank.
    """
    pairs, previous = set(merges), None
    seen: set[str] = set()
    for left, right in merges:
        text = left + right
        if text not in vocabulary:
            raise damaged(path, f"its merge of {left[:40]!r} and {right[:40]!r} is not in the vocabulary")
        if text != previous and text in seen:
            raise _refuse(path, "model.merges", [left, right], "the merges of one piece do not follow each other")
        seen.add(text)
        previous = text
    can_exist = {*ranks, *(text for text in vocabulary if len(text) == 1)}
    for text in ranks:
        for index in range(1, len(text)):
            pair = text[:index], text[index:]
            if pair[0] in can_exist and pair[1] in can_exist and pair not in pairs:
                raise _refuse(path, "model.merges", list(pair), "this pair is missing, which a SentencePiece model would merge")


def has_whitespace_split(document: Mapping[str, Any]) -> bool:
    """Return whether words are divided at all kinds of spaces before anything else."""
    return {"type": "WhitespaceSplit"} in _list_steps(document.get("pre_tokenizer"), "pretokenizers")


def _check_splitting(document: Mapping[str, Any], path: Path) -> None:
    """Raise BundleError unless words begin with ▁, the first one of each part of a text included."""
    splitter = document.get("pre_tokenizer")
    steps = [step for step in _list_steps(splitter, "pretokenizers") if step != {"type": "WhitespaceSplit"}]
    step = steps[0] if len(steps) == 1 and isinstance(steps[0], dict) else {}
    scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
    if (step.get("type"), step.get("replacement"), scheme, step.get("split", True)) != ("Metaspace", METASPACE, "always", True):
        raise _refuse(path, "pre_tokenizer", splitter, "dragoman has Metaspace with ▁ before each part of a text")


def get_split_rules(document: Mapping[str, Any]) -> SplitRules:
    """Return what the normalization does with spaces: it removes those at the end, makes several one, or keeps all."""
    steps = _list_normalizers(document)
    if STRIP in steps:
        return "tokenizers-strip"
    return "tokenizers" if any(step in steps for step in COLLAPSE_SPACES) else "tokenizers-spaces"


def _list_normalizers(document: Mapping[str, Any]) -> list[Any]:
    return [step for step in _list_steps(document.get("normalizer"), "normalizers") if step is not None]


def _list_steps(step: Any, name: str) -> list[Any]:
    """Return the steps of a sequence, or the one step."""
    steps = step.get(name) if isinstance(step, dict) and step.get("type") == "Sequence" else [step]
    return steps if isinstance(steps, list) else [steps]


def _read_charsmap(document: Mapping[str, Any], path: Path) -> bytes:
    """Return the table of the normalization, which is empty without one. Raise BundleError for another normalization."""
    charsmap = b""
    for step in _list_normalizers(document):
        values = step if isinstance(step, dict) else {}
        if values.get("type") == "Precompiled" and not charsmap:
            try:
                charsmap = base64.b64decode(values["precompiled_charsmap"], validate=True)
            except (KeyError, TypeError, ValueError):
                raise damaged(path, "its precompiled_charsmap is not base64") from None
            if not charsmap:
                raise damaged(path, "its precompiled_charsmap is empty")
        elif values != STRIP and values not in COLLAPSE_SPACES:
            raise _refuse(path, "normalizer", step, "dragoman has Precompiled, one space for several, and Strip at the end")
    return charsmap


def check_charsmap(model: bytes, path: Path) -> bytes:
    """Return a SentencePiece model. Raise DataError if its table of the normalization is damaged.

    The table is the size of a trie, the trie of 32-bit numbers, and texts in UTF-8, which SentencePiece does not check.
    """
    charsmap = read_charsmap(model)
    size = int.from_bytes(charsmap[:4], "little")
    try:
        spm.SentencePieceNormalizer(model_proto=model)
        charsmap[4 + size :].decode()
        is_whole = size % 4 == 0 and size <= max(0, len(charsmap) - 4)
    except (RuntimeError, UnicodeDecodeError):
        is_whole = False
    if not is_whole:
        raise damaged(path, "its precompiled_charsmap is not a table of SentencePiece")
    return model


def _refuse(path: Path, name: str, value: object, problem: str) -> BundleError:
    return BundleError(
        f"{path}: {name} = {value!r:.80}: {problem}; copy the SentencePiece model of the tokenizer into the folder",
        code="conversion-unsupported",
    )
