"""Conversion of hypotheses to translations: text, tokens, status, attention and alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig, TaskConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.inference.translation_result import Translation
from dragoman.languages import is_same_language
from dragoman.tasks.attention_alignment import extract_pair_links
from dragoman.tasks.translation import TranslatedLine, get_status, is_copy


@dataclass(frozen=True)
class HypothesisDetails:
    """Results of a hypothesis that the search does not give.

    weights_2TS: attention (2, T + 1, S) as `AttentionAligner` returns it
    unknown_words: replacement of each `<unk>`, in order; empty to leave them
    """

    weights_2TS: NDArray[np.float32] | None = None
    confidence: float | None = None
    unknown_words: Sequence[str] = ()


NO_DETAILS = HypothesisDetails()


@dataclass(frozen=True)
class Detokenizer:
    """Converter from hypotheses to translations."""

    tokenizer: PairTokenizer
    task: TaskConfig

    def to_translation(
        self,
        text: str,
        line: TranslatedLine,
        config: DecodingConfig,
        details: Sequence[HypothesisDetails] = (),
    ) -> Translation:
        """Return the best hypothesis of a line as a translation, with the other hypotheses as its alternatives.

        text: source text
        details: further results of each hypothesis, or empty
        """
        if not line.hypotheses:
            pieces = tuple(self.tokenizer.get_source_pieces(line.source))
            return Translation(text if line.status == "empty" else "", status=line.status, source_tokens=pieces)
        translations = [
            self._mark_copy(
                text, self.to_hypothesis_translation(line.source, hypothesis, hypothesis_details, config.min_length_ratio)
            )
            for hypothesis, hypothesis_details in zip(line.hypotheses, details or repeat(NO_DETAILS), strict=False)
        ]
        if line.status == "repetition":  # also if a second search has ended by itself
            translations[0] = replace(translations[0], status="repetition")
        best, *alternatives = translations
        return replace(best, alternatives=tuple(alternatives)) if alternatives else best

    def to_hypothesis_translation(
        self,
        source: Sequence[int],
        hypothesis: Hypothesis,
        details: HypothesisDetails = NO_DETAILS,
        min_length_ratio: float = 0.0,
    ) -> Translation:
        """Return one hypothesis as a translation; with attention and alignment if there are weights."""
        target = self.tokenizer.target
        text = target.decode(hypothesis.tokens)
        if details.unknown_words:
            from dragoman.inference.unknown_words import replace_unknown_words  # few outputs have any

            text = replace_unknown_words(text, details.unknown_words)
        translation = Translation(
            text=text,
            score=hypothesis.score,
            tokens=tuple(target.ids_to_pieces(hypothesis.tokens)),
            token_log_probs=hypothesis.token_log_probs,
            status=get_status(hypothesis, text, source=source, min_length_ratio=min_length_ratio),
            source_tokens=tuple(self.tokenizer.get_source_pieces(source)),
            mbr_score=hypothesis.mbr_score,
            confidence=details.confidence,
        )
        if details.weights_2TS is None:
            return translation
        mean_TS, head_TS = details.weights_2TS
        return replace(
            translation,
            attention=mean_TS,
            alignment=tuple(extract_pair_links(head_TS, source, hypothesis.tokens, self.tokenizer)),
        )

    def _mark_copy(self, text: str, translation: Translation) -> Translation:
        """Set the status `copied` if source and target language differ and the translation copies the source."""
        task = self.task
        if (
            translation.status != "ok"
            or is_same_language(task.source_language, task.target_language)
            or not is_copy(text, translation.text)
        ):
            return translation
        return replace(translation, status="copied")
