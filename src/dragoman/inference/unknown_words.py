"""Replacement of unknown words in an output, as PosUnk does (Luong et al. 2015).

Each `<unk>` becomes the translation of the source word that it attends to most, if a dictionary has it, or else that source
word itself. A copy is right for many names and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.byte_pieces import UNKNOWN_TEXT
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.data.tokenization.word_boundaries import get_word_numbers
from dragoman.errors import DataError
from dragoman.formats.text import read_lines
from dragoman.inference.alignment import AttentionAligner
from dragoman.tasks.attention_alignment import extract_links
from dragoman.tasks.translation import TranslatedLine

NO_DICTIONARY: Mapping[str, str] = {}


@lru_cache(maxsize=4)
def read_dictionary(path: str) -> Mapping[str, str]:
    """Return the translation of each source word. Raises DataError for a line that is not `source word TAB translation`."""
    dictionary: dict[str, str] = {}
    for line_number, line in enumerate(read_lines(Path(path)), start=1):
        word, tab, translation = line.partition("\t")
        if not (tab and word.strip() and translation.strip()) or "\t" in translation or len(word.split()) > 1:
            raise DataError(
                f"{path}, line {line_number}: is not `source word TAB translation`: {line[:60]!r}; correct the line",
                code="invalid-format",
            )
        dictionary.setdefault(word.strip(), translation.strip())
    return dictionary


def find_unknown_words(
    aligner: AttentionAligner,
    texts: Sequence[str],
    lines: Sequence[TranslatedLine],
    dictionary: Mapping[str, str],
    batch_tokens: int,
) -> list[list[Sequence[str]]]:
    """Return the replacement of each `<unk>` of each hypothesis of each line, in order; none if there is no `<unk>`.

    texts: the source of each line; spaces separate its words. A line has no replacements if its pieces have other words.
    """
    outputs = [
        (text, line.source, hypothesis)
        for text, line in zip(texts, lines, strict=True)
        for hypothesis in line.hypotheses
        if UNKNOWN_ID in hypothesis.tokens
    ]
    weights = aligner.compute_pair_weights(
        [(source, hypothesis.tokens, hypothesis.finished) for _, source, hypothesis in outputs], batch_tokens
    )
    replacements = iter(
        [
            [
                dictionary.get(word, word)
                for word in _find_source_words(aligner.tokenizer, text, source, hypothesis.tokens, weights_2TS[1])
            ]
            for (text, source, hypothesis), weights_2TS in zip(outputs, weights, strict=True)
        ]
    )
    return [[next(replacements) if UNKNOWN_ID in hypothesis.tokens else () for hypothesis in line.hypotheses] for line in lines]


def _find_source_words(
    tokenizer: PairTokenizer, text: str, source: Sequence[int], target: Sequence[int], head_TS: NDArray[np.float32]
) -> list[str]:
    """Return the source word that each `<unk>` of the target attends to most; none if pieces and text have other words."""
    start, end = tokenizer.num_language_tokens, len(source) - tokenizer.append_source_eos
    source_pieces, target_pieces = tokenizer.source.ids_to_pieces(source[start:end]), tokenizer.target.ids_to_pieces(target)
    words = tokenizer.strip_language_token(text).split()
    if not source_pieces or get_word_numbers(source_pieces)[-1] + 1 != len(words):
        return []
    # Without the columns of the tokens around the text, each target word has a link.
    links = extract_links(head_TS[:, start:end], source_pieces, target_pieces)
    source_word = {target_number: source_number for source_number, target_number in links}
    target_numbers = get_word_numbers(target_pieces)
    return [words[source_word[number]] for token, number in zip(target, target_numbers, strict=True) if token == UNKNOWN_ID]


def replace_unknown_words(text: str, words: Sequence[str]) -> str:
    """Return the text with the n-th `⁇` replaced by the n-th word; unchanged if the text has another number of `⁇`."""
    if not words or text.count(UNKNOWN_TEXT) != len(words):
        return text
    return "".join(chain.from_iterable(zip(text.split(UNKNOWN_TEXT), [*words, ""], strict=True)))
