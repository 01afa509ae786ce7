"""Word-pieces: a SentencePiece model that splits each word into the fewest pieces.

Wu et al. 2016 (section 4.1) ask for the pieces with which the text has the fewest pieces. Their program is not public.
tensor2tensor, the code behind the paper's numbers, chooses them in rounds (`SubwordTextEncoder.build_to_target_size`). A piece
is a frequent part of a word that begins where a piece of the round before begins.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from dragoman.config import Normalization, TokenizerConfig
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS
from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer, encode_utf8
from dragoman.data.tokenization.sentencepiece_proto import build_model, renumber_special_pieces
from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_IDS, SPECIAL_PIECES, UNKNOWN_ID
from dragoman.errors import DataError, RecipeError

MAX_WORDS = 100_000
"""Most different words that are divided, the most frequent ones. It bounds the memory for their parts."""
_NUM_ROUNDS = 4
# No piece joins letters and punctuation, and ▁ stands before a word. 64 characters bound the number of parts.
_RUN = re.compile(rf"{METASPACE}?\w{{1,64}}|{METASPACE}?[^\w{METASPACE}]{{1,64}}")


def train_word_pieces(
    texts: Iterable[str], config: TokenizerConfig, *, normalization: Normalization, vocab_size: int, key: str
) -> SentencePieceTokenizer:
    """Train a model whose pieces have equal scores, so that the best segmentation is one of the fewest pieces.

    normalization: Unicode normalization of the model
    vocab_size: number of pieces with the special pieces and those of bytes
    key: recipe key of the vocabulary size, for error messages

    Raises RecipeError: the vocabulary size does not fit the text.
    Raises DataError: there is no text.
    """
    words: Counter[str] = Counter()
    for text in texts:
        line = encode_utf8(normalize(text, normalization), lowercase=config.lowercase).decode()
        for word in line.replace(METASPACE, " ").split():
            words.update(_RUN.findall(METASPACE + word))
    if not words:
        raise DataError("training corpus: is empty, no line holds text; check data.train", code="empty-data")
    byte_pieces = BYTE_TOKENS if config.byte_fallback else ()
    num_fixed = len(SPECIAL_IDS) + len(byte_pieces)
    pieces = choose_pieces(words, vocab_size - num_fixed)
    if (size := num_fixed + len(pieces)) != vocab_size:
        problem = f"is too small for the characters of the text; set it to {size} or more"
        if size < vocab_size:
            problem = f"is more than the text has pieces; set it to {size} or less"
        raise RecipeError(f"{key} = {vocab_size}: {problem}", code="tokenizer-mismatch")
    scores = dict.fromkeys(byte_pieces, 0.0) | dict.fromkeys(pieces, -1.0)
    model = build_model(scores, model_type="unigram", unknown=SPECIAL_PIECES[UNKNOWN_ID], has_bytes=config.byte_fallback)
    tokenizer = SentencePieceTokenizer(renumber_special_pieces(model), lowercase=config.lowercase)
    return tokenizer if normalization == "identity" else tokenizer.with_normalization(normalization)


def choose_pieces(words: Counter[str], size: int) -> list[str]:
    """Return all characters of words and their most frequent parts, `size` in all.

    The result is longer if there are more characters, and shorter if there are fewer parts.
    """
    characters = dict.fromkeys(sorted({character for word in words for character in word}), 0)
    divided_words = dict(words.most_common(MAX_WORDS))
    low, high = 1, max(sum(len(word) * count for word, count in divided_words.items()) // max(size, 1), 1)
    parts = _count_parts(divided_words, characters, low)
    while low < high:  # the highest threshold that leaves enough parts
        threshold = (low + high + 1) // 2
        frequent_parts = _count_parts(divided_words, characters, threshold)
        if len(frequent_parts) >= size:
            parts, low = frequent_parts, threshold
        else:
            high = threshold - 1
    others = sorted(parts.keys() - characters.keys(), key=lambda part: (-parts[part], part))
    return [*characters, *others[: max(size - len(characters), 0)]]


def _count_parts(words: Mapping[str, int], characters: Mapping[str, int], threshold: int) -> dict[str, int]:
    """Return the characters, and the parts of words that occur `threshold` times outside longer ones, with these counts."""
    parts = dict(characters)
    for _ in range(_NUM_ROUNDS):
        counts: defaultdict[str, int] = defaultdict(int)
        longest = max(map(len, parts))
        for word, count in words.items():
            start = 0
            while start < len(word):
                for end in range(start + 1, len(word) + 1):
                    counts[word[start:end]] += count
                end = min(start + longest, len(word))
                while word[start:end] not in parts:
                    end -= 1
                start = end
        parts = dict(characters)
        for part in sorted((part for part, count in counts.items() if count >= threshold), key=len, reverse=True):
            if (count := counts[part]) >= threshold:
                parts[part] = count
                for end in range(1, len(part)):
                    counts[part[:end]] -= count
    return parts
