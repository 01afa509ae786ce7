"""Page beside an ONNX export that translates in a browser by onnxruntime-web.

    index.html          the page
    translate.js        greedy search over the graphs
    sentencepiece.js    text to pieces and back, from the SentencePiece models of the export

The page loads nothing from other addresses. onnxruntime-web is installed into the folder by npm.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dragoman.bundle import Bundle
from dragoman.data.tokenization.pair_tokenizer import SOURCE_MODEL_FILE, TARGET_MODEL_FILE
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.sentencepiece_proto import USER_DEFINED, read_model_type, read_pieces
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.export.result import unsupported

PAGE_FILES = ("index.html", "translate.js", "sentencepiece.js")
MODEL_TYPES = ("unigram", "bpe")


def check_page(bundle: Bundle) -> None:
    """Raise BundleError for a model whose text the page cannot split or write."""
    for side in (bundle.tokenizer.source, bundle.tokenizer.target):
        _check_vocabulary(side, bundle.recipe.tokenizer.model_type)
    if bundle.recipe.task.tokenized:
        raise unsupported("task.tokenized = True", "the page cannot split text as Moses does; export without --page")


def _check_vocabulary(vocabulary: Vocabulary, model_type: str) -> None:
    problem = "the page has SentencePiece models of the types unigram and bpe; export without --page"
    if not isinstance(vocabulary, SentencePieceTokenizer | PieceVocabulary):
        raise unsupported(f"tokenizer.model_type = {model_type!r}", problem)
    if (actual := read_model_type(vocabulary.serialized_model)) not in MODEL_TYPES:
        raise unsupported(f"a SentencePiece model of the type {actual!r}", problem)
    if isinstance(vocabulary, PieceVocabulary) and (
        vocabulary.piece_list.added or vocabulary.piece_list.rules.startswith("tok")
    ):
        raise unsupported("a tokenizer with added tokens, or of `tokenizers`", problem)
    custom = next((piece for piece in read_pieces(vocabulary.serialized_model) if piece.piece_type == USER_DEFINED), None)
    if custom is not None:
        raise unsupported(f"a SentencePiece model with the user-defined piece {custom.text!r}", problem)


def describe_page(bundle: Bundle) -> dict[str, str]:
    """Return the entry `page` of `dragoman.json`."""
    target = SOURCE_MODEL_FILE if bundle.tokenizer.is_joint else TARGET_MODEL_FILE
    return {"source_model": SOURCE_MODEL_FILE, "target_model": target}


def write_page(folder: Path) -> None:
    """Write the files of the page. Raise OSError."""
    for name in PAGE_FILES:
        (folder / name).write_bytes((files("dragoman.export") / "page" / name).read_bytes())
