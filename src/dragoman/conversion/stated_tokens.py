"""Tokens of a Hugging Face folder: the added ones that its files state, and the row of the embedding that each token has.

`tokenizer.json` (its `added_tokens`), `tokenizer_config.json` (its `added_tokens_decoder`) and `added_tokens.json` state the
ids of added tokens. Older folders name special tokens without an id. They have the next free ids, as in `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.added_tokens import AddedToken, SplitRules
from dragoman.data.tokenization.piece_vocabulary import PieceList
from dragoman.errors import DataError

TOKENIZER_JSON, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ADDED_TOKENS_JSON, SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Settings of a tokenizer that name one special token each, in the order in which `transformers` adds them."""
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")
FAIRSEQ_SPECIAL_TOKENS = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>"}
"""Special tokens of BART, FSMT, M2M-100, NLLB and mBART, by the setting of `config.json` with their id."""
FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True)
class TokenTable:
    """Tokens of a folder.

    Attributes:
        pieces: the token of each row; a row that the family leaves without a token has a name of its own
        added: added tokens, with the ids of the source
        num_padding_rows: rows behind them that have learned nothing
        num_made_up_rows: rows at the end of `pieces` without a token, as in the published models of the family
    """

    pieces: tuple[str, ...]
    added: tuple[AddedToken, ...]
    num_padding_rows: int = 0
    num_made_up_rows: int = 0

    def reorder(self, order: VocabularyOrder, rules: SplitRules) -> PieceList:
        """Return the file of a vocabulary in the bundle's order."""
        ids = order.ids
        return PieceList(order.pieces, tuple(replace(token, id=ids[token.id]) for token in self.added), rules)


def read_token_table(
    files: SourceFiles,
    ids: Mapping[str, Any],
    *,
    vocabulary_file: str,
    num_rows: int,
    always_special: Sequence[str] = (),
    published_rows: int = 0,
    is_second: bool = False,
    is_padding: Callable[[int], bool] = lambda num_tokens: False,
) -> TokenTable:
    """Return the tokens of a folder.

    Args:
        files: files of the model
        ids: the id of each piece, without added tokens
        vocabulary_file: file that states them
        num_rows: rows of the embedding
        always_special: special tokens of the family, which need not be stated
        published_rows: rows of a published embedding with these pieces, whose last rows may have no token
        is_second: the vocabulary is the target's own, while the ids that files state are those of the source
        is_padding: returns whether the rows of the embedding behind this number of tokens have learned nothing

    Raises:
        DataError: a file is damaged, a token has no row, or no token has a row.
    """
    added = _read_added_tokens(files, ids, always_special, num_rows, is_second=is_second)
    pieces: dict[int, str] = {}
    for source, tokens in ((vocabulary_file, ids.items()), ("", ((token.text, token.id) for token in added))):
        for text, index in tokens:
            if type(index) is not int or not 0 <= index < num_rows:
                raise DataError(
                    f"{files.folder / (source or _find_origin(files))}: token {text[:40]!r} has the id {index!r:.40}, but the "
                    f"embedding has {num_rows} rows by vocab_size of config.json; copy the tokenizer and "
                    "the weights of one model, whose embedding has a row for each token",
                    code="source-damaged",
                )
            if source and index in pieces:
                raise damaged(files.folder / source, f"two pieces have one id: {text[:40]!r} and {pieces[index][:40]!r}")
            pieces.setdefault(index, text)
    end = num_named = max(pieces, default=-1) + 1
    missing = next((index for index in range(num_rows) if index not in pieces), None)
    if missing is not None:
        sizes = (end, published_rows) if published_rows > end else (end,)
        ends = [size for size in sizes if missing == end and (size == num_rows or (size < num_rows and is_padding(size)))]
        if not ends:
            raise DataError(
                f"{files.folder}: no token reaches row {missing} of the embedding, which config.json describes with {num_rows} "
                f"tokens, but {vocabulary_file} and the files of added tokens have {len(pieces)}; copy all files of the "
                "tokenizer, or save the model after resize_token_embeddings(len(tokenizer)) without pad_to_multiple_of",
                code="source-damaged",
            )
        end = ends[0]
    names = tuple(pieces.get(index, f"<unused-{index}>") for index in range(end))
    return TokenTable(names, tuple(added), num_rows - end, end - num_named)


def build_fairseq_order(settings: ModelSettings, table: TokenTable, location: Path) -> VocabularyOrder:
    """Return the order of a vocabulary with fairseq's special tokens.

    Raises DataError if their ids are others than those of config.json, or if `location` has no unknown token.
    """
    ids = {piece: index for index, piece in reversed(list(enumerate(table.pieces)))}
    check_special_ids(settings, ids)
    if "<unk>" not in ids:
        raise damaged(location, "has no token <unk>")
    return VocabularyOrder.build(
        table.pieces,
        padding=ids["<pad>"],
        unknown=ids["<unk>"],
        begin=ids["<s>"],
        end=ids["</s>"],
        num_padding_rows=table.num_padding_rows,
    )


def check_special_ids(
    settings: ModelSettings, ids: Mapping[str, int], tokens: Mapping[str, str] = FAIRSEQ_SPECIAL_TOKENS
) -> None:
    """Raise DataError if a special token has another id than config.json states. tokens: token of each setting"""
    for name, token in tokens.items():
        if ids.get(token) != settings.integer(name):
            raise damaged(settings.path, f"{name} = {settings[name]}, but {token} has the id {ids.get(token)!r:.40}")


def list_stated_texts(files: SourceFiles) -> set[str]:
    """Return the texts of the added tokens whose ids the files state."""
    return {token.text for _, token in _iter_stated(files)}


def _find_origin(files: SourceFiles) -> str:
    """Return the name of the file that states added tokens, for messages."""
    names = (TOKENIZER_JSON, ADDED_TOKENS_JSON, TOKENIZER_CONFIG)
    return next((name for name in names if name in files), TOKENIZER_CONFIG)


def _read_added_tokens(
    files: SourceFiles, ids: Mapping[str, Any], always_special: Sequence[str], num_rows: int, *, is_second: bool
) -> list[AddedToken]:
    """Return the added tokens by id. Raise DataError if a file is damaged or two files state different ids."""
    special = list(always_special)
    for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP):
        special += [text for text in _iter_special_tokens(files.find_settings(name)) if text not in special]
    tokens: dict[str, AddedToken] = {}
    for name, token in _iter_stated(files):
        if is_second and (token.text in ids or token.id >= num_rows):
            continue
        known = tokens.setdefault(token.text, replace(token, special=token.special or token.text in special))
        for other in (known.id, ids.get(token.text, token.id)):
            if other != token.id:
                raise damaged(
                    files.folder / name, f"token {token.text[:40]!r} has the id {token.id}, but {other!r:.40} in another file"
                )
    next_id = len({*ids, *tokens})
    for text in special:
        if text in tokens:
            continue
        index = ids.get(text, next_id)
        if text not in ids:
            next_id += 1
        if type(index) is int and (text in ids or index < num_rows):
            tokens[text] = AddedToken(text, index, special=True)
    return sorted(tokens.values(), key=lambda token: token.id)


def _iter_special_tokens(settings: ModelSettings) -> Iterator[str]:
    """Yield the special tokens that a file names: texts, or objects with a text."""
    lists = [value for name in TOKEN_LISTS if isinstance(value := settings.get(name), list)]
    for value in [*(settings.get(name) for name in NAMED_TOKENS), *(token for tokens in lists for token in tokens)]:
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            yield text


def _iter_stated(files: SourceFiles) -> Iterator[tuple[str, AddedToken]]:
    """Yield the added tokens with an id, and the name of the file that states each. Raise DataError for a damaged entry."""
    added = files.find_json_object(TOKENIZER_JSON).get("added_tokens") or []
    if not isinstance(added, list):
        raise damaged(files.folder / TOKENIZER_JSON, "its added_tokens is not a list")
    for entry in added:
        yield TOKENIZER_JSON, _parse_entry(files, TOKENIZER_JSON, entry)
    entries = files.find_settings(TOKENIZER_CONFIG).get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise damaged(files.folder / TOKENIZER_CONFIG, "its added_tokens_decoder is not an object")
    for index, entry in entries.items():
        if isinstance(entry, dict) and index.isascii() and index.isdigit() and len(index) < 10:
            entry = {**entry, "id": int(index)}
        yield TOKENIZER_CONFIG, _parse_entry(files, TOKENIZER_CONFIG, entry)
    for text, index in files.find_json_object(ADDED_TOKENS_JSON).items():
        yield ADDED_TOKENS_JSON, _parse_entry(files, ADDED_TOKENS_JSON, {"content": text, "id": index, "normalized": True})


def _parse_entry(files: SourceFiles, name: str, entry: Any) -> AddedToken:
    values = entry if isinstance(entry, dict) else {}
    text, index = values.get("content"), values.get("id")
    flags = {flag: values.get(flag, False) for flag in FLAGS}
    is_valid = isinstance(text, str) and text and type(index) is int and all(type(value) is bool for value in flags.values())
    if not is_valid:
        raise damaged(files.folder / name, f"its added token {entry!r:.80} is not a text with an id and flags")
    return AddedToken(str(text), int(str(index)), **flags)
