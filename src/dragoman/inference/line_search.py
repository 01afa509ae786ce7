"""Steps from lines to translations: segment, encode, search, search again, detokenize, merge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.decoding.constraints import SentenceConstraints
from dragoman.inference.configured_model import ConfiguredModel
from dragoman.inference.detokenization import HypothesisDetails
from dragoman.inference.phrase_encoder import PhraseEncoder
from dragoman.inference.retries import make_repetition_retry
from dragoman.inference.segmentation import is_surely_short, split_line
from dragoman.inference.translation_constraints import TranslationConstraints, tokenize_constraints
from dragoman.inference.translation_result import Translation, merge_segments
from dragoman.languages import is_spaced_language
from dragoman.tasks.translation import EncodedLine, LineSearch, TranslatedLine, encode_lines
from dragoman.text.marks import to_characters, to_marks
from dragoman.text.references import clean_line

if TYPE_CHECKING:
    from dragoman.inference.scoring import ConfidenceEstimator
    from dragoman.tasks.mbr import UtilityFn

# Segment j of line i samples from stream i + j · SEGMENT_ID_STRIDE, which no other line uses.
SEGMENT_ID_STRIDE = 1 << 20


@dataclass(frozen=True)
class Segments:
    """Segments of lines, ready for search.

    texts: source of each segment
    sample_ids: number of each segment, which selects its random stream
    constraints: constraints of each segment, or an empty sequence
    """

    texts: Sequence[str]
    encoded_lines: Sequence[EncodedLine]
    sample_ids: Sequence[int]
    constraints: Sequence[SentenceConstraints]

    def select(self, indices: Sequence[int]) -> Segments:
        """Return the segments with these indices."""
        return Segments(
            [self.texts[index] for index in indices],
            [self.encoded_lines[index] for index in indices],
            [self.sample_ids[index] for index in indices],
            [self.constraints[index] for index in indices] if self.constraints else (),
        )


@dataclass(frozen=True)
class SegmentedLines:
    """Lines as segments that the model can read.

    marked: indices of the lines whose marks of placeholders are kept
    start_index: index of the first line in its text, counted from 0
    """

    segments: Sequence[Sequence[str]]
    constraints: Sequence[TranslationConstraints | None] | None
    marked: Collection[int]
    start_index: int = 0

    @property
    def is_unsplit(self) -> bool:
        """Return whether each line is one segment."""
        return all(len(line) == 1 for line in self.segments)


@dataclass(frozen=True)
class LineTranslation:
    """Translation of lines with one set of decoding options. Its methods are the steps, in order."""

    model: ConfiguredModel
    encoder: PhraseEncoder

    def segment(
        self,
        texts: Sequence[str],
        constraints: Sequence[TranslationConstraints | None] | None = None,
        start_index: int = 0,
    ) -> SegmentedLines:
        """Return the segments of each line: the line itself, unless it is longer than the model reads."""
        marked = {
            index
            for index, line_constraints in enumerate(constraints or ())
            if isinstance(line_constraints, TranslationConstraints) and line_constraints.keep_marks
        }
        texts = [self.model.tokenizer.fold(clean_line(text)) for text in texts]
        can_be_surely_short = self.model.tokenizer.languages is None and not marked
        segments = [
            [text]
            if can_be_surely_short and is_surely_short(text, self.model.source_limit)
            else self._split(text, is_marked=index in marked)
            for index, text in enumerate(texts)
        ]
        return SegmentedLines(segments, constraints, marked, start_index)

    def _split(self, text: str, *, is_marked: bool) -> list[str]:
        """Return the segments of a line, each with the line's language token.

        is_marked: marks of placeholders stand for reserved tokens, so no mark is cut in two
        """
        if self.model.decoding.long_input == "error":
            return [text]
        tokenizer, read = self.model.tokenizer, to_marks if is_marked else str
        if is_marked:
            tokenizer, text = self.model.marked_tokenizer or tokenizer, to_characters(text)
        languages = tokenizer.languages
        token = "" if languages is None else languages.find_token(tokenizer.source, text)
        segments = split_line(
            text[len(token) :],
            lambda segment: len(tokenizer.encode_source(read(token + segment))),
            self.model.source_limit - (languages is not None),
        )
        return [read(token + segment) for segment in segments]

    def encode(self, lines: SegmentedLines) -> Segments:
        """Return the ids, the sample ids and the constraints of all segments. Raises DataError for impossible constraints."""
        model = self.model
        marked_tokenizer = model.marked_tokenizer if lines.marked else None
        token_constraints: Sequence[SentenceConstraints] = ()
        if lines.constraints is not None:
            token_constraints = tokenize_constraints(
                lines.constraints,
                lines.segments,
                model.decoding,
                self.encoder,
                is_spaced=is_spaced_language(model.recipe.task.target_language),
                marked_target=None if marked_tokenizer is None else marked_tokenizer.target,
                max_positions=model.session.inference_model.max_positions,
                start_index=lines.start_index,
            )
        sample_ids = [
            lines.start_index + line_index + segment_index * SEGMENT_ID_STRIDE
            for line_index, line in enumerate(lines.segments)
            for segment_index in range(len(line))
        ]
        texts = list(chain.from_iterable(lines.segments))

        def encode(tokenizer: PairTokenizer, segments: Sequence[str]) -> list[EncodedLine]:
            return encode_lines(tokenizer, segments, source_limit=model.source_limit)

        if marked_tokenizer is None:
            return Segments(texts, encode(model.tokenizer, texts), sample_ids, token_constraints)
        encoded = [
            encode(marked_tokenizer if index in lines.marked else model.tokenizer, line)
            for index, line in enumerate(lines.segments)
        ]
        return Segments(texts, list(chain.from_iterable(encoded)), sample_ids, token_constraints)

    def search(
        self,
        segments: Segments,
        on_progress: Callable[[int], None] = lambda _: None,
        *,
        return_alternatives: bool = False,
    ) -> list[TranslatedLine]:
        """Return the hypotheses of each segment. return_alternatives: those of the whole vocabulary"""
        model, session = self.model, self.model.session
        inference_model = session.inference_model
        if return_alternatives:
            inference_model = replace(inference_model, restrict_vocabulary=None)
        search = LineSearch(
            inference_model,
            model.tokenizer,
            model.recipe.task,
            model.decoding,
            model.start_id,
            session.forced_decoders[0] if model.decoding.coverage_penalty else None,
            self._build_utility(segments),
        )
        return search.run(
            segments.encoded_lines,
            sample_ids=segments.sample_ids,
            constraints=segments.constraints,
            return_alternatives=return_alternatives,
            on_progress=on_progress,
            map_fn=session.scheduler.map,
        )

    def _build_utility(self, segments: Segments) -> UtilityFn | None:
        """Return the utility of minimum Bayes risk by COMET; None for other metrics."""
        if self.model.decoding.mbr != "comet":
            return None
        from dragoman.inference.comet import load_comet  # few searches need it

        path = self.model.decoding.mbr_model
        assert path is not None, "DecodingConfig checks that mbr = 'comet' has a model"
        scorer = load_comet(path, device=str(self.model.session.device))
        return lambda index, texts: scorer.pairwise(segments.texts[index], texts)

    def retry_repetitions(self, segments: Segments, results: Sequence[TranslatedLine]) -> list[TranslatedLine]:
        """Search segments with a degenerate repetition once more, with a beam that does not repeat three tokens.

        The status stays `repetition`. The first output stays if the second search does not end by itself, either.
        """
        final_results = list(results)
        retry_indices = [index for index, result in enumerate(results) if result.status == "repetition"]
        retry_config = make_repetition_retry(self.model.recipe.model, self.model.decoding) if retry_indices else None
        if retry_config is not None:
            retry = LineTranslation(replace(self.model, decoding=retry_config), self.encoder)
            for index, result in zip(retry_indices, retry.search(segments.select(retry_indices)), strict=True):
                if result.status in ("ok", "short"):
                    final_results[index] = replace(result, status="repetition")
        return final_results

    def detokenize(
        self,
        lines: SegmentedLines,
        results: Sequence[TranslatedLine],
        *,
        attention: bool = False,
        estimator: ConfidenceEstimator | None = None,
    ) -> list[Translation]:
        """Return the translation of each line, with its status and its unmet constraints, merged from its segments.

        attention: with attention weights and alignment
        estimator: estimator of the confidence, or None for no confidence
        """
        texts = list(chain.from_iterable(lines.segments))
        details = self._collect_details(texts, results, estimator, attention=attention)
        detokenizer = self.model.make_detokenizer(has_marks=bool(lines.marked))
        segment_translations = map(detokenizer.to_translation, texts, results, repeat(self.model.decoding), details)
        language = self.model.recipe.task.target_language
        num_language_tokens = self.model.bundle.tokenizer.num_language_tokens
        translations = [
            merge_segments(list(islice(segment_translations, len(line))), line, language, num_language_tokens)
            for line in lines.segments
        ]
        if lines.constraints is None:
            return translations
        return [self._mark_unmet(*line) for line in zip(translations, lines.constraints, strict=True)]

    def _collect_details(
        self,
        texts: Sequence[str],
        results: Sequence[TranslatedLine],
        estimator: ConfidenceEstimator | None,
        *,
        attention: bool,
    ) -> list[list[HypothesisDetails]]:
        """Return the attention, the confidence and the words for `<unk>` of each hypothesis, if the caller asks for them."""
        model, config = self.model, self.model.decoding
        weights: Iterable[Iterable[NDArray[np.float32] | None]] = repeat(repeat(None))
        confidences: Iterable[Iterable[float | None]] = repeat(repeat(None))
        unknown_words: Iterable[Iterable[Sequence[str]]] = repeat(repeat(()))
        if attention:
            weights = model.aligner.compute_line_weights(results, config.batch_tokens)
        if estimator is not None:
            outputs = [(line.source, output.tokens, output.finished) for line in results for output in line.hypotheses]
            values = iter(estimator.estimate(outputs))
            confidences = [list(islice(values, len(line.hypotheses))) for line in results]
        if config.replace_unknowns:
            from dragoman.inference.unknown_words import NO_DICTIONARY, find_unknown_words, read_dictionary

            dictionary = read_dictionary(config.unknown_dictionary) if config.unknown_dictionary else NO_DICTIONARY
            unknown_words = find_unknown_words(model.aligner, texts, results, dictionary, config.batch_tokens)
        return [
            [HypothesisDetails(*values) for _, *values in zip(line.hypotheses, *line_details, strict=False)]
            for line, *line_details in zip(results, weights, confidences, unknown_words, strict=False)
        ]

    def _mark_unmet(self, translation: Translation, constraints: TranslationConstraints | None) -> Translation:
        """Return a translation and its alternatives with the phrases that their texts should hold or should not."""
        if constraints is None:
            return translation
        text = translation.text if translation.token_log_probs else ""  # a line that was not translated may keep its source
        return replace(
            translation,
            unmet_constraints=constraints.find_unmet(text, self.encoder),
            alternatives=tuple(self._mark_unmet(alternative, constraints) for alternative in translation.alternatives),
        )
