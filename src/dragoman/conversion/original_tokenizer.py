"""Check of a converted tokenizer: it gives the ids of the original one for odd texts, where the original can be run.

MarianMT and M2M-100 are split by `transformers`, and a `tokenizer.json` by `tokenizers`. Without these packages nothing is
checked. Both read the files of the folder as data and execute none of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import METASPACE
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.errors import BundleError

NUM_TEXTS = 200
ODD_PARTS = (
    "", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u200b", METASPACE, "🙂", "e\u0301", "é", "\ufb01", "①",
    "\uff21", "<", "<s>", "</s>", "<unk>", ">>", "<<", ">>x<<", ".", "…", "3.14", "a", "A", "x" * 30, "日本", "हिन्दी",
    "العربية", "ß", "&amp;", "“", "e\u0323\u0302", "\u0301", "\u1100\u1161", "क\u093c", "½\u0301", "กำ", "²", "\r\n", "\x01",
)  # fmt: skip
EncodeRows = Callable[[str], list[int]]
"""Function from a text to the rows of its tokens, without special tokens around them."""


def open_transformers_tokenizer(folder: Path, class_name: str) -> EncodeRows | None:
    """Return the tokenizer of transformers for a folder; None if it cannot be run."""
    if find_spec("transformers") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            transformers: Any = import_module("transformers")
            verbosity = transformers.logging.get_verbosity()
            transformers.logging.set_verbosity_error()
            try:
                tokenizer = getattr(transformers, class_name).from_pretrained(folder, local_files_only=True)
            finally:
                transformers.logging.set_verbosity(verbosity)
        except Exception:  # an older or newer version may not know the folder; the conversion does not depend on it
            return None
    return lambda text: list(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)))


def open_tokenizer_json(path: Path) -> EncodeRows | None:
    """Return the tokenizer of a `tokenizer.json`; None if it cannot be run."""
    if find_spec("tokenizers") is None:
        return None
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception:  # the library has no error class of its own
        return None
    tokenizer.no_truncation()  # a file keeps the lengths of its training
    tokenizer.no_padding()
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def check_token_ids(
    vocabulary: PieceVocabulary | TokenListTokenizer, order: VocabularyOrder, encode: EncodeRows | None, folder: Path
) -> None:
    """Raise BundleError if an odd text has other ids than in the original tokenizer, or if that one has no fixed ids.

    encode: the original tokenizer; None leaves the ids unchecked
    """
    if isinstance(vocabulary, PieceVocabulary):
        _check_added_tokens(vocabulary, folder)
    if encode is None:
        return
    ids = order.ids
    for text in make_odd_texts(vocabulary):
        expected, actual = [ids.get(row) for row in encode(text)], vocabulary.encode(text)
        if actual != expected:
            raise BundleError(
                f"{folder}: the text {text[:60]!r} has the tokens {vocabulary.ids_to_pieces(actual)[:12]} in dragoman, but "
                f"{[order.pieces[index] for index in expected if index is not None][:12]} in the original one; report this",
                code="conversion-unsupported",
            )


def _check_added_tokens(vocabulary: PieceVocabulary, folder: Path) -> None:
    """Raise BundleError for an added token that is empty when it is normalized, or equal to another one.

    The library `tokenizers` fails on some texts with the first, and finds either of two equal ones at random.
    """
    tokens: dict[tuple[str, bool], str] = {}
    for token in vocabulary.piece_list.added:
        text = vocabulary.added_texts.get(token.id, token.text)
        other = tokens.setdefault((text, token.normalized), token.text)
        if not text or other != token.text:
            problem = f"equal to {other[:40]!a}" if text else "no text"
            raise BundleError(
                f"{folder}: the added token {token.text[:40]!a} is {problem} when it is normalized, so the original tokenizer "
                "does not find it in each text; add it with normalized=False, or remove it",
                code="conversion-unsupported",
            )


def make_odd_texts(vocabulary: PieceVocabulary | TokenListTokenizer) -> list[str]:
    """Return texts of the vocabulary's own pieces, odd characters and added tokens, with and without spaces between them."""
    random = Random(1)
    added = [token.text for token in vocabulary.added]
    ordinary = [
        piece for piece in vocabulary.ids_to_pieces(range(len(vocabulary))) if not piece.startswith("__")
    ]  # versions differ on language tokens in text
    pieces = [piece.replace(METASPACE, " ") for piece in random.sample(ordinary, min(300, len(ordinary)))]
    texts = [*ODD_PARTS, *(f"a {token} b{token}" for token in random.sample(added, min(40, len(added))))]
    while len(texts) < NUM_TEXTS:
        parts = [
            random.choice(random.choice((pieces, pieces, ODD_PARTS, added or pieces))) for _ in range(random.randint(1, 9))
        ]
        texts.append(random.choice(("", "", " ")).join(parts))
    return texts
