"""Extension of a vocabulary by tokens that text holds and that are never split, such as `<ui>`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.sentencepiece_proto import USER_DEFINED, append_user_defined_pieces, read_pieces
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.errors import RecipeError


def add_extra_tokens(tokenizer: PairTokenizer, tokens: Sequence[str]) -> PairTokenizer:
    """Return the tokenizers of both sides with those of the tokens that they lack, after all other pieces.

    All other text keeps its ids.

    Raises RecipeError: a token is an ordinary piece already, or the tokenizer is not a SentencePiece model.
    """
    if not tokens:
        return tokenizer
    source = _extend(tokenizer.source, tokens)
    target = source if tokenizer.is_joint else _extend(tokenizer.target, tokens)
    return tokenizer.replace(source=source, target=target)


def _extend(vocabulary: Vocabulary, tokens: Sequence[str]) -> SentencePieceTokenizer | PieceVocabulary:
    if not isinstance(vocabulary, SentencePieceTokenizer | PieceVocabulary):
        raise RecipeError(
            "tokenizer.extra_tokens: the tokenizer is not a SentencePiece model, so it cannot hold them; drop extra_tokens",
            code="tokenizer-mismatch",
        )
    types = {piece.text: piece.piece_type for piece in read_pieces(vocabulary.serialized_model)}
    if ordinary := [token for token in tokens if types.get(token, USER_DEFINED) != USER_DEFINED]:
        raise RecipeError(
            f"tokenizer.extra_tokens: {ordinary[0]!r} is a piece of the vocabulary already; give another token, such as "
            f"'<{ordinary[0]}>'",
            code="tokenizer-mismatch",
        )
    if isinstance(vocabulary, PieceVocabulary):
        tokens = [token for token in tokens if token not in {added.text for added in vocabulary.piece_list.added}]
    model = append_user_defined_pieces(vocabulary.serialized_model, [token for token in tokens if token not in types])
    if isinstance(vocabulary, PieceVocabulary):
        pieces = (*vocabulary.pieces, *(token for token in tokens if token not in vocabulary.pieces))
        return PieceVocabulary(model, replace(vocabulary.piece_list, pieces=pieces))
    return SentencePieceTokenizer(model, lowercase=vocabulary.lowercase)
