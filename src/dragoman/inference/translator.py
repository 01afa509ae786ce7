"""`Translator`: text in, translations out, one for each line and in order.

`Translator.translate` shows the way of a sentence: resolve options, segment, encode, search, detokenize, merge.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast, get_args

from torch import Tensor

from dragoman.bundle import Bundle, BundleMetadata
from dragoman.config import DecodingConfig, Recipe, update_section
from dragoman.config.decoding_options import DecodingOptions
from dragoman.config.section_validation import suggest_or_list_names
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.decoding.constraints import SentenceConstraints
from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.formats.glossary_file import resolve_glossary
from dragoman.inference.alignment import AttentionAligner
from dragoman.inference.detokenization import Detokenizer, HypothesisDetails
from dragoman.inference.input_windows import DEFAULT_WINDOW, split_windows
from dragoman.inference.inputs import check_lines, encode_pairs, find_unfit_pairs
from dragoman.inference.phrase_encoder import PhraseEncoder
from dragoman.inference.segmentation import is_surely_short, split_line
from dragoman.inference.session import DeviceOptions, InferenceSession, open_session
from dragoman.inference.translation_constraints import TranslationConstraints, tokenize_constraints
from dragoman.inference.translation_result import Translation, merge_segments
from dragoman.inference.unknown_words import NO_DICTIONARY, find_unknown_words, read_dictionary
from dragoman.inference.whole_texts import RETRY_DECODING as TEXT_RETRY_DECODING
from dragoman.inference.whole_texts import (
    LineRequest,
    OutputLimits,
    PlaceholderMethod,
    TextOptions,
    TextTranslation,
    translate_texts,
)
from dragoman.languages import is_spaced_language
from dragoman.model.ctc import check_predicts_by_steps, is_ctc
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.confidence import ConfidenceCalibration, compute_signals
from dragoman.tasks.generation import score_pairs
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id, get_max_positions
from dragoman.tasks.mbr import UtilityFn
from dragoman.tasks.translation import EncodedLine, LineSearch, TranslatedLine, encode_lines, get_source_limit, has_text
from dragoman.text.glossary import Glossary
from dragoman.text.inline_codes import Markup
from dragoman.text.marks import to_characters, to_marks
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.data.tokenization.vocabulary import TextTokenizer
    from dragoman.inference.comet import CometScorer
    from dragoman.viz.explanation import Explanation

_log = logging.getLogger(__name__)

RETRY_BEAM_SIZE = 4
# Second search of a line whose output repeated itself.
RETRY_DECODING = {
    "method": "beam",
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 3,
    "early_stopping": "best",
    "mbr": "none",
    "mbr_candidates": None,
    "mbr_model": None,
}
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


class Translator:
    """Translator with one bundle, or with an ensemble of several, on one device."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.bundle = session.bundle
        self.models = session.models
        self.device = session.device
        self.precision = session.precision
        self.scheduler = session.scheduler
        self.adapters: dict[str, Translator] = {}
        self._comet_scorers: dict[str, CometScorer] = {}

    @classmethod
    def from_bundles(
        cls,
        bundles: Sequence[Bundle],
        *,
        shortlist: str | Path | None = None,
        release_mapped_weights: bool = False,
        bundle_paths: Sequence[Path] = (),
        **device_options: Unpack[DeviceOptions],
    ) -> Self:
        """Return a translator of open bundles; see `open_session` for the arguments and errors."""
        return cls(
            open_session(
                bundles,
                "translation",
                shortlist=shortlist,
                release_mapped_weights=release_mapped_weights,
                bundle_paths=bundle_paths,
                **device_options,
            )
        )

    @property
    def inference_model(self) -> InferenceModel:
        """Models prepared for search; the first access prepares them."""
        return self.session.inference_model

    @property
    def recipe(self) -> Recipe:
        """Recipe of the first model."""
        return self.bundle.recipe

    @property
    def metadata(self) -> BundleMetadata:
        """Origin of the first model: its data, training and software."""
        return self.bundle.metadata

    @cached_property
    def alignment_head(self) -> AlignmentHead:
        """Attention head that alignments come from: the bundle's, or the mean of the last layer."""
        return self.metadata.alignment or AlignmentHead()

    @cached_property
    def aligner(self) -> AttentionAligner:
        """Word aligner that reads the first model's attention."""
        start_id = get_decoder_start_id(self.recipe.model)
        return AttentionAligner(self.models[0], self.bundle.tokenizer, start_id, self.alignment_head)

    @cached_property
    def phrase_encoder(self) -> PhraseEncoder:
        """Encoder of the phrases of constraints."""
        return PhraseEncoder(cast("TextTokenizer", self.bundle.tokenizer.target))

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """Converter from hypotheses to translations."""
        return Detokenizer(self.bundle.tokenizer, self.recipe, self.aligner)

    @property
    def reads_terms(self) -> bool:
        """Return whether the first model was trained to read annotated terms, see `dragoman.text.term_annotation`."""
        return self.recipe.data.noise.terminology > 0 and self.bundle.tokenizer.marked is not None

    @property
    def text_retry_decoding(self) -> Mapping[str, Any]:
        """Return the decoding options for the second search of a segment of a text; none for a model without another search."""
        return {} if is_ctc(self.models[0]) else TEXT_RETRY_DECODING

    def with_adapter(self, name: str | None) -> Translator:
        """Return the translator with one of the adapters that `dragoman.load` opened, or this one for None.

        Raises RecipeError for an unknown name.
        """
        if name is not None and name not in self.adapters:
            raise RecipeError(
                f"adapter = {name!r}: is not one of the adapters that were loaded{suggest_or_list_names(name, self.adapters)}"
                if self.adapters
                else f"adapter = {name!r}: no adapter was loaded; give it to load(), as in adapters={{{name!r}: PATH}}",
                code="invalid-option",
            )
        return self if name is None else self.adapters[name]

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """Return the recipe's decoding settings with these changes. Raises RecipeError for a wrong key or value."""
        return self.session.resolve_decoding(decoding)

    def select_tokenizer(self, config: DecodingConfig) -> PairTokenizer:
        """Return the tokenizers with the languages of a search. Raises RecipeError for a pair that the model does not serve."""
        return self.bundle.tokenizer.select_languages(
            config.source_language, config.target_language, zero_shot=config.zero_shot
        )

    def uses_mask(self, placeholders: PlaceholderMethod = "auto") -> bool:
        """Return whether whole texts keep placeholders by a mask on the search; see `translate_texts`.

        Raises RecipeError for an unknown method, and for a mask if the vocabulary has no reserved tokens for marks.
        """
        if placeholders not in get_args(PlaceholderMethod):
            raise RecipeError(
                f"placeholders = {placeholders!r}: is not a method; choose one of {', '.join(get_args(PlaceholderMethod))}",
                code="invalid-option",
            )
        has_marks = self.bundle.tokenizer.marked is not None
        if placeholders == "mask" and not has_marks:
            raise RecipeError(
                "placeholders = 'mask': needs reserved tokens, which the vocabulary of this bundle does not have; choose auto",
                code="invalid-option",
            )
        return placeholders == "mask" or (placeholders == "auto" and has_marks and self.recipe.data.noise.placeholders > 0)

    def _select_marked_tokenizer(self, config: DecodingConfig) -> PairTokenizer | None:
        """Return the same tokenizers with marks of placeholders; None if the vocabulary has no reserved tokens for them."""
        marked = self.bundle.tokenizer.marked
        return None if marked is None else marked.with_languages(self.select_tokenizer(config).languages)

    def _select_recipe(self, config: DecodingConfig) -> Recipe:
        """Return the recipe with the languages of a model of many languages."""
        languages = self.select_tokenizer(config).languages
        if languages is None:
            return self.recipe
        return self.recipe.with_languages((languages.source_language, languages.target_language))

    def _select_detokenizer(self, config: DecodingConfig, *, has_marks: bool = False) -> Detokenizer:
        detokenizer = replace(self.detokenizer, recipe=self._select_recipe(config))
        marked = self.bundle.tokenizer.marked if has_marks else None
        if marked is None:
            return detokenizer
        return replace(detokenizer, tokenizer=marked, aligner=replace(self.aligner, tokenizer=marked))

    def _select_aligner(self, config: DecodingConfig) -> AttentionAligner:
        return replace(self.aligner, tokenizer=self.select_tokenizer(config))

    def translate(
        self,
        texts: Sequence[str],
        *,
        adapter: str | None = None,
        constraints: Sequence[TranslationConstraints | None] | None = None,
        attention: bool = False,
        confidence: bool = False,
        start_index: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
        **decoding: Unpack[DecodingOptions],
    ) -> list[Translation]:
        """Translate lines of text; return one result for each, in order. Lines without text are returned unchanged.

        adapter: name of an adapter that `dragoman.load` opened; None translates with the bundle itself
        constraints: lexical constraints on each translation, or None for a line without constraints
        attention: also return attention weights, coverage and alignment
        confidence: also return the confidence; this costs a pass of the first model over each output
        start_index: index of the first line in its text, counted from 0; messages and sampling use it
        on_progress: called with the number of lines that are finished
        decoding: keys of the recipe's [decoding] section to change, such as beam_size=5 or method="greedy"

        Raises RecipeError for wrong decoding options, DataError for constraints that no search can meet, and BundleError for
        the confidence of a bundle without a calibration.
        """
        if adapter is not None:
            options: dict[str, Any] = {"constraints": constraints, "attention": attention, "on_progress": on_progress}
            options["confidence"] = confidence
            return self.with_adapter(adapter).translate(texts, start_index=start_index, **options, **decoding)
        check_lines("translate", texts, start_index=start_index)
        config = self.resolve_decoding(decoding)
        has_constraints = any(line_constraints is not None for line_constraints in constraints or ())
        for is_requested, feature in ((has_constraints, "constraints"), (attention, "attention"), (confidence, "confidence")):
            if is_requested:
                check_predicts_by_steps(self.models[0], feature)
        if confidence:
            self._get_calibration()
        if config.unknown_dictionary is not None:
            read_dictionary(config.unknown_dictionary)
        marked_lines = _list_marked_lines(constraints)
        segment_texts = self._segment_lines(texts, config, marked_lines)
        segments = self._encode(segment_texts, config, constraints, start_index)
        is_unsplit = all(len(line) == 1 for line in segment_texts)
        results = self._search(segments, config, on_progress if is_unsplit else lambda _: None)
        results = self._retry_repetitions(segments, results, config)
        translations = self._detokenize(
            segment_texts, results, config, attention=attention, confidence=confidence, has_marks=bool(marked_lines)
        )
        if constraints is not None:
            translations = [
                _mark_unmet(translation, line_constraints, self.phrase_encoder)
                for translation, line_constraints in zip(translations, constraints, strict=True)
            ]
        if not is_unsplit:
            on_progress(len(texts))
        for text, translation in zip(texts, translations, strict=True):
            translation.set_explain_fn(partial(self._explain, text, decoding))
        return translations

    def _segment_lines(self, texts: Sequence[str], config: DecodingConfig, marked_lines: Collection[int]) -> list[list[str]]:
        """Return the segments of each line. marked_lines: lines whose marks of placeholders stand for reserved tokens"""
        source_limit = get_source_limit(self.inference_model.max_positions, config)
        can_be_surely_short = self.select_tokenizer(config).languages is None and not marked_lines
        return [
            [text]
            if can_be_surely_short and is_surely_short(text, source_limit)
            else self._segment(text, config, is_marked=index in marked_lines)
            for index, text in enumerate(texts)
        ]

    def _segment(self, text: str, config: DecodingConfig, *, is_marked: bool = False) -> list[str]:
        """Return the line itself, or its segments if it is longer than the model reads, each with the line's language token.

        is_marked: marks of placeholders stand for reserved tokens
        """
        if config.long_input == "error":
            return [text]
        tokenizer, source_limit = self.select_tokenizer(config), get_source_limit(self.inference_model.max_positions, config)
        if is_marked:
            tokenizer, text = self._select_marked_tokenizer(config) or tokenizer, to_characters(text)  # no mark is cut in two
        read = to_marks if is_marked else str
        languages = tokenizer.languages
        token = "" if languages is None else languages.find_token(tokenizer.source, text)
        segments = split_line(
            text[len(token) :],
            lambda segment: len(tokenizer.encode_source(read(token + segment))),
            source_limit - (languages is not None),
        )
        return [read(token + segment) for segment in segments]

    def _encode(
        self,
        segment_texts: Sequence[Sequence[str]],
        config: DecodingConfig,
        constraints: Sequence[TranslationConstraints | None] | None,
        start_index: int,
    ) -> Segments:
        """Return the ids, the sample ids and the constraints of all segments of all lines."""
        tokenizer, max_positions = self.select_tokenizer(config), self.inference_model.max_positions
        marked_lines = _list_marked_lines(constraints)
        marked_tokenizer = self._select_marked_tokenizer(config) if marked_lines else None
        token_constraints: Sequence[SentenceConstraints] = ()
        if constraints is not None:
            token_constraints = tokenize_constraints(
                constraints,
                segment_texts,
                config,
                self.phrase_encoder,
                is_spaced=is_spaced_language(self._select_recipe(config).task.target_language),
                marked_target=None if marked_tokenizer is None else marked_tokenizer.target,
                max_positions=max_positions,
                start_index=start_index,
            )
        texts = [segment for line in segment_texts for segment in line]
        sample_ids = [
            start_index + line_index + segment_index * SEGMENT_ID_STRIDE
            for line_index, line in enumerate(segment_texts)
            for segment_index in range(len(line))
        ]
        source_limit = get_source_limit(max_positions, config)
        if marked_tokenizer is None:
            encoded_lines = encode_lines(tokenizer, texts, source_limit=source_limit)
        else:
            encoded_lines = []
            for index, line in enumerate(segment_texts):
                line_tokenizer = marked_tokenizer if index in marked_lines else tokenizer
                encoded_lines += encode_lines(line_tokenizer, line, source_limit=source_limit)
        return Segments(texts, encoded_lines, sample_ids, token_constraints)

    def _search(
        self,
        segments: Segments,
        config: DecodingConfig,
        on_progress: Callable[[int], None] = lambda _: None,
        *,
        return_alternatives: bool = False,
    ) -> list[TranslatedLine]:
        """Return the hypotheses of each segment."""
        inference_model = self.inference_model
        if return_alternatives:  # alternatives come from the whole vocabulary
            inference_model = replace(inference_model, restrict_vocabulary=None)
        tokenizer, recipe = self.select_tokenizer(config), self._select_recipe(config)
        compute_utility = self._build_utility(segments, config)
        return LineSearch(inference_model, tokenizer, recipe, config, self.models[0], compute_utility).run(
            segments.encoded_lines,
            sample_ids=segments.sample_ids,
            constraints=segments.constraints,
            return_alternatives=return_alternatives,
            on_progress=on_progress,
            map_fn=self.scheduler.map,
        )

    def _build_utility(self, segments: Segments, config: DecodingConfig) -> UtilityFn | None:
        """Return the utility of minimum Bayes risk by COMET; None for other metrics."""
        if config.mbr != "comet":
            return None
        scorer = self._load_comet(config.mbr_model)
        return lambda index, texts: scorer.pairwise(segments.texts[index], texts)

    def _load_comet(self, path: str | None) -> CometScorer:
        from dragoman.inference.comet import load_comet  # few searches need it

        assert path is not None, "DecodingConfig checks that mbr = 'comet' has a model"
        if path not in self._comet_scorers:
            self._comet_scorers[path] = load_comet(path, device=str(self.device))
        return self._comet_scorers[path]

    def _retry_repetitions(
        self, segments: Segments, results: Sequence[TranslatedLine], config: DecodingConfig
    ) -> list[TranslatedLine]:
        """Search segments with a degenerate repetition once more, with a beam that does not repeat three tokens.

        The status stays `repetition`. The first output stays if the second search does not end by itself, either.
        """
        final_results = list(results)
        retry_indices = [index for index, result in enumerate(results) if result.status == "repetition"]
        if retry_indices and not is_ctc(self.models[0]):  # a CTC decoder has no other search
            beam_size = max(RETRY_BEAM_SIZE, config.nbest, config.beam_size if config.method == "beam" else 1)
            retry_config = update_section(config, {**RETRY_DECODING, "beam_size": beam_size}, where="decoding")
            retried = self._search(segments.select(retry_indices), retry_config)
            for index, result in zip(retry_indices, retried, strict=True):
                if result.status in ("ok", "short"):
                    final_results[index] = replace(result, status="repetition")
        return final_results

    def _detokenize(
        self,
        segment_texts: Sequence[Sequence[str]],
        results: Sequence[TranslatedLine],
        config: DecodingConfig,
        *,
        attention: bool,
        confidence: bool,
        has_marks: bool,
    ) -> list[Translation]:
        """Return the translation of each line, with its status, merged from its segments.

        has_marks: reserved tokens of placeholders are written as marks
        """
        texts = [segment for line in segment_texts for segment in line]
        details = self._collect_details(texts, results, config, attention=attention, confidence=confidence)
        detokenizer = self._select_detokenizer(config, has_marks=has_marks)
        segment_translations = map(detokenizer.to_translation, texts, results, repeat(config), details)
        language = detokenizer.recipe.task.target_language
        num_language_tokens = self.bundle.tokenizer.num_language_tokens
        return [
            merge_segments(list(islice(segment_translations, len(line))), line, language, num_language_tokens)
            for line in segment_texts
        ]

    def _collect_details(
        self,
        texts: Sequence[str],
        results: Sequence[TranslatedLine],
        config: DecodingConfig,
        *,
        attention: bool,
        confidence: bool,
    ) -> list[list[HypothesisDetails]]:
        """Return the attention, the confidence and the words for `<unk>` of each hypothesis, if the caller asks for them."""
        aligner = self._select_aligner(config)
        weights: Iterable[Iterable[Tensor | None]] = repeat(repeat(None))
        confidences: Iterable[Iterable[float | None]] = repeat(repeat(None))
        unknown_words: Iterable[Iterable[Sequence[str]]] = repeat(repeat(()))
        if attention:
            weights = aligner.compute_line_weights(results, config.batch_tokens)
        if confidence:
            confidences = self._compute_confidences(results, config)
        if config.replace_unknowns:
            dictionary = read_dictionary(config.unknown_dictionary) if config.unknown_dictionary else NO_DICTIONARY
            unknown_words = find_unknown_words(aligner, texts, results, dictionary, config.batch_tokens)
        return [
            [HypothesisDetails(*values) for _, *values in zip(line.hypotheses, *line_details, strict=False)]
            for line, *line_details in zip(results, weights, confidences, unknown_words, strict=False)
        ]

    def _get_calibration(self) -> ConfidenceCalibration:
        if (calibration := self.metadata.confidence) is None:
            raise BundleError(
                f"{self.recipe.name}: the bundle has no calibration of the confidence; run dragoman calibrate",
                code="calibration-missing",
            )
        return calibration

    def _compute_confidences(self, results: Sequence[TranslatedLine], config: DecodingConfig) -> list[list[float | None]]:
        """Return the confidence of each hypothesis of each segment; None for an output without tokens."""
        outputs = [
            (line.source, hypothesis.tokens, hypothesis.finished)
            for line in results
            for hypothesis in line.hypotheses
            if hypothesis.tokens
        ]
        confidences = iter(self._score_confidence(outputs, config))
        return [[next(confidences) if hypothesis.tokens else None for hypothesis in line.hypotheses] for line in results]

    def _score_confidence(
        self, outputs: Sequence[tuple[Sequence[int], Sequence[int], bool]], config: DecodingConfig
    ) -> list[float]:
        calibration = self._get_calibration()
        signals = compute_signals(
            self.models[0],
            self.select_tokenizer(config),
            outputs,
            config,
            start_id=get_decoder_start_id(self.recipe.model),
            head=self.alignment_head,
        )
        return list(map(calibration.compute_confidence, signals))

    def _explain(self, text: str, decoding: DecodingOptions, target: str | None) -> Explanation:
        from dragoman.inference.explain.explain_translation import explain  # translation does not need it

        return explain(self, text, target=target, **decoding)

    def stream(
        self,
        texts: Iterable[str],
        *,
        adapter: str | None = None,
        constraints: Iterable[TranslationConstraints | None] | None = None,
        attention: bool = False,
        confidence: bool = False,
        start_index: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
        window: int = DEFAULT_WINDOW,
        **decoding: Unpack[DecodingOptions],
    ) -> Iterator[Translation]:
        """Translate any number of lines, in order, with at most `window` of them in memory.

        window: number of lines that are translated together; a small window answers sooner, a large one is faster
        adapter, constraints, attention, confidence, start_index, on_progress, decoding: see `translate`

        Raises DataError if there are more or fewer constraints than lines, when the shorter of the two ends.
        """
        windows = split_windows(
            texts, constraints, window, start_index=start_index, item_name="line", companion_name="constraints"
        )
        return chain.from_iterable(
            self.translate(
                lines,
                adapter=adapter,
                constraints=line_constraints,
                attention=attention,
                confidence=confidence,
                start_index=index,
                on_progress=on_progress,
                **decoding,
            )
            for index, lines, line_constraints in windows
        )

    def translate_text(
        self,
        text: str,
        *,
        adapter: str | None = None,
        markup: Markup = "none",
        split_sentences: bool = True,
        placeholders: PlaceholderMethod = "auto",
        glossary: Glossary | str | Path | None = None,
        strict_terms: bool = False,
        **decoding: Unpack[DecodingOptions],
    ) -> TextTranslation:
        """Translate a whole text; see `translate_texts`."""
        options: dict[str, Any] = {"adapter": adapter, "markup": markup, "split_sentences": split_sentences}
        options["placeholders"] = placeholders
        (result,) = self.translate_texts([text], glossary=glossary, strict_terms=strict_terms, **options, **decoding)
        return result

    def translate_texts(
        self,
        texts: Sequence[str],
        *,
        adapter: str | None = None,
        markup: Markup = "none",
        split_sentences: bool = True,
        placeholders: PlaceholderMethod = "auto",
        glossary: Glossary | str | Path | None = None,
        strict_terms: bool = False,
        **decoding: Unpack[DecodingOptions],
    ) -> list[TextTranslation]:
        """Translate whole texts sentence by sentence. Line breaks, spaces, tags and placeholders stay.

        A sentence whose translation fails a check, such as a missing number, is translated once more with a beam.

        adapter: name of an adapter that `dragoman.load` opened
        markup: "none" for plain text; "html" and "xml" keep tags, and character references are characters
        split_sentences: translate each sentence by itself; if false, each line, or each block of HTML
        placeholders: "mask" keeps placeholders and tags without content by a mask on the search. "projection" places those that
            the model changes by attention. "auto" is the mask if the model was trained with marks of placeholders.
        glossary: terms to use, or the CSV, TSV or TBX file that has them. A sentence that lacks a term is translated once more
            with its terms required. Each segment of a result has the use of its terms.
        strict_terms: take that translation also if the model finds it much less likely
        decoding: keys of the recipe's [decoding] section to change

        Raises RecipeError for wrong decoding options, and DataError for a glossary that cannot be read.
        """
        config = self.resolve_decoding(decoding)
        task = self.recipe.task
        languages = config.source_language or task.source_language, config.target_language or task.target_language
        options = TextOptions(
            markup,
            *languages,
            split_sentences=split_sentences,
            limits=OutputLimits.read(self.metadata, *languages),
            mask_codes=self.with_adapter(adapter).uses_mask(placeholders),
            glossary=resolve_glossary(glossary, *languages),
            strict_terms=strict_terms,
            annotate_terms=self.reads_terms,
        )

        def translate(request: LineRequest) -> list[Translation]:
            changes: dict[str, Any] = {**decoding, **(self.text_retry_decoding if request.is_retry else {})}
            changes["constraints"] = request.build_constraints()
            return self.translate(request.lines, adapter=adapter, attention=request.attention, **changes)

        return translate_texts(texts, options, translate)

    def list_alternatives(
        self, text: str, prefix: str = "", *, count: int = 5, **decoding: Unpack[DecodingOptions]
    ) -> list[Translation]:
        """Return translations that start with a prefix, one for each of the likeliest next tokens, likeliest first.

        Each continues with its own beam of `beam_size` hypotheses; the default 1 is greedy search.

        count: number of translations
        """
        fixed_keys = {"method", "num_beam_groups", "nbest", "mbr", "mbr_candidates"} & decoding.keys()
        if fixed_keys:
            raise RecipeError(f"list_alternatives sets {', '.join(sorted(fixed_keys))} itself; leave it out and give count")
        beam_size = decoding.get("beam_size", 1)
        if not isinstance(beam_size, int) or not isinstance(count, int) or min(beam_size, count) < 1:
            raise RecipeError(f"count = {count!r}, beam_size = {beam_size!r}: both are whole numbers; give 1 or more")
        search_options = {
            "method": "beam",
            "beam_size": beam_size * count,
            "num_beam_groups": count,
            "nbest": count,
            "coverage_penalty": 0.0,
            "mbr": "none",
            "mbr_candidates": None,
            "mbr_model": None,
        }
        config = self.resolve_decoding({**decoding, **search_options})
        segments = self._encode([[text]], config, [TranslationConstraints(prefix)], 0)
        if segments.encoded_lines[0].skip_status == "too_long":
            source_limit = get_source_limit(self.inference_model.max_positions, config)
            raise DataError(f"the text has more than the {source_limit} tokens that the model reads at once; shorten it")
        (result,) = self._search(segments, config, return_alternatives=True)
        best = self._select_detokenizer(config).to_translation(text, result, config)
        return [replace(best, alternatives=()), *best.alternatives] if result.hypotheses else []

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        confidence: bool = False,
        **decoding: Unpack[DecodingOptions],
    ) -> list[Translation]:
        """Return each target with the score that the first model gives it as a translation of its source.

        confidence: also return the confidence; None for a target without tokens

        Raises DataError if the numbers of lines differ, a source has no text, or a pair is too long, and BundleError for the
        confidence of a bundle without a calibration.
        """
        config = self.resolve_decoding(decoding)
        source_ids, target_ids = self._encode_pairs("score", sources, targets, config)
        hypotheses = score_pairs(
            self.models[0],
            source_ids,
            target_ids,
            config,
            start_id=get_decoder_start_id(self.recipe.model),
            prompt=self.select_tokenizer(config).decoder_prompt,
        )
        translations = list(map(self.detokenizer.to_hypothesis_translation, source_ids, hypotheses))
        if not confidence:
            return translations
        pairs = [(source, target, True) for source, target in zip(source_ids, target_ids, strict=True) if target]
        confidences = iter(self._score_confidence(pairs, config))
        return [
            replace(translation, confidence=next(confidences)) if target else translation
            for translation, target in zip(translations, target_ids, strict=True)
        ]

    def find_unscorable(
        self, sources: Sequence[str], targets: Sequence[str], **decoding: Unpack[DecodingOptions]
    ) -> dict[int, str]:
        """Return the reason of each pair that `score` refuses, by its index: blank sources, and pairs that are too long."""
        config = self.resolve_decoding(decoding)
        max_tokens = get_source_limit(get_max_positions(self.models[:1]), config)
        return find_unfit_pairs("score", self.select_tokenizer(config), sources, targets, max_tokens=max_tokens)

    def align(self, sources: Sequence[str], targets: Sequence[str], **decoding: Unpack[DecodingOptions]) -> list[list[Link]]:
        """Return, for each word of each target, a link to the source word with the most attention of the first model.

        A pair with an empty side has no links. Raises DataError if the numbers of lines differ, or a pair is too long.
        """
        config = self.resolve_decoding(decoding)
        source_ids, target_ids = self._encode_pairs("align", sources, targets, config, allow_empty=True)
        text_indices = [
            index
            for index, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True))
            if has_text(text, source) and target
        ]
        weights = self._select_aligner(config).compute_pair_weights(
            [(source_ids[index], target_ids[index], True) for index in text_indices], config.batch_tokens
        )
        links_by_pair: list[list[Link]] = [[] for _ in sources]
        for index, weights_2TS in zip(text_indices, weights, strict=True):
            links_by_pair[index] = self.aligner.extract_links(source_ids[index], target_ids[index], weights_2TS[1])
        return links_by_pair

    def _encode_pairs(
        self, verb: str, sources: Sequence[str], targets: Sequence[str], config: DecodingConfig, *, allow_empty: bool = False
    ) -> tuple[list[list[int]], list[list[int]]]:
        max_tokens = get_source_limit(get_max_positions(self.models[:1]), config)
        return encode_pairs(
            verb, self.select_tokenizer(config), sources, targets, max_tokens=max_tokens, allow_empty=allow_empty
        )


def _list_marked_lines(constraints: Sequence[TranslationConstraints | None] | None) -> set[int]:
    """Return the indices of the lines whose marks of placeholders are kept."""
    return {
        index
        for index, line_constraints in enumerate(constraints or ())
        if isinstance(line_constraints, TranslationConstraints) and line_constraints.keep_marks
    }


def _mark_unmet(translation: Translation, constraints: TranslationConstraints | None, encoder: PhraseEncoder) -> Translation:
    """Return a translation and its alternatives with the phrases that their texts should hold or should not."""
    if constraints is None:
        return translation
    text = translation.text if translation.token_log_probs else ""  # a line that was not translated may keep its source
    return replace(
        translation,
        unmet_constraints=constraints.find_unmet(text, encoder),
        alternatives=tuple(_mark_unmet(alternative, constraints, encoder) for alternative in translation.alternatives),
    )
