"""`Translator`: text in, translations out, one for each line and in order.

`Translator.translate` shows the way of a sentence: resolve options, segment, encode, search, detokenize, merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack, cast

from dragoman.bundle import Bundle, BundleMetadata
from dragoman.config import DecodingConfig, Recipe
from dragoman.config.section_validation import suggest_or_list_names
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.errors import DataError, RecipeError, refuse_steps
from dragoman.inference.configured_model import ConfiguredModel
from dragoman.inference.input_windows import DEFAULT_WINDOW, split_windows
from dragoman.inference.inputs import list_lines
from dragoman.inference.line_search import LineTranslation, SegmentedLines
from dragoman.inference.phrase_encoder import PhraseEncoder
from dragoman.inference.session import InferenceSession, SessionOptions, open_session
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.translation_result import Translation
from dragoman.tasks.inference_model import InferenceModel
from dragoman.text.references import clean_line
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.data.tokenization.vocabulary import TextTokenizer
    from dragoman.inference.scoring import ConfidenceEstimator, PairScorer
    from dragoman.inference.text_translator import TextTranslator
    from dragoman.inference.whole_texts import TextTranslation
    from dragoman.model.transformer import Transformer
    from dragoman.viz.explanation import Explanation


class Translator:
    """Translator with one bundle, or with an ensemble of several, on one device."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.bundle = session.bundle
        self.device = session.device
        self.precision = session.precision
        self.scheduler = session.scheduler
        self.adapters: dict[str, Translator] = {}

    @classmethod
    def from_bundles(cls, bundles: Sequence[Bundle], **options: Unpack[SessionOptions]) -> Self:
        """Return a translator of open bundles; see `open_session` for the arguments and errors."""
        return cls(open_session(bundles, "translation", **options))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a translator is not copied or pickled; call dragoman.load in each process")

    def __repr__(self) -> str:
        return f"<Translator {self.recipe.label}, {self.precision} on {self.device}>"

    @property
    def models(self) -> list[Transformer]:
        """Models of PyTorch, one of each bundle."""
        return self.session.models

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
    def texts(self) -> TextTranslator:
        """Translator of whole texts."""
        from dragoman.inference.text_translator import TextTranslator  # lines do not need it

        return TextTranslator(self.session, self.translate)

    @cached_property
    def _phrase_encoder(self) -> PhraseEncoder:
        return PhraseEncoder(cast("TextTokenizer", self.bundle.tokenizer.target))

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
        return ConfiguredModel(self.session, config).tokenizer

    def _get_scorer(self, decoding: Mapping[str, Any]) -> PairScorer:
        from dragoman.inference.scoring import PairScorer  # translation does not need it

        return PairScorer(self._configure(decoding))

    def _configure(self, decoding: Mapping[str, Any]) -> ConfiguredModel:
        return ConfiguredModel(self.session, self.resolve_decoding(decoding))

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
        **decoding: Any,
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
            return self.with_adapter(adapter).translate(
                texts,
                constraints=constraints,
                attention=attention,
                confidence=confidence,
                start_index=start_index,
                on_progress=on_progress,
                **decoding,
            )
        texts = list_lines("translate", texts, start_index=start_index)
        constraints = None if constraints is None else list(constraints)
        model = self._configure(decoding)
        has_constraints = any(line_constraints is not None for line_constraints in constraints or ())
        for is_requested, feature in ((has_constraints, "constraints"), (attention, "attention"), (confidence, "confidence")):
            if is_requested and not self.recipe.model.is_autoregressive:
                refuse_steps(feature)
        estimator = _make_estimator(model) if confidence else None
        if model.decoding.unknown_dictionary is not None:
            from dragoman.inference.unknown_words import read_dictionary

            read_dictionary(model.decoding.unknown_dictionary)  # refuses a wrong one before the search
        steps = LineTranslation(model, self._phrase_encoder)
        lines = steps.segment(texts, constraints, start_index)
        segments = steps.encode(lines)
        results = steps.search(segments, on_progress if lines.is_unsplit else lambda _: None)
        results = steps.retry_repetitions(segments, results)
        translations = steps.detokenize(lines, results, attention=attention, estimator=estimator)
        if not lines.is_unsplit:
            on_progress(len(texts))
        for text, translation in zip(texts, translations, strict=True):
            translation.set_explain_fn(partial(self._explain, model.tokenizer.fold(clean_line(text)), decoding))
        return translations

    def _explain(self, text: str, decoding: Mapping[str, Any], target: str | None) -> Explanation:
        from dragoman.inference.explain.explain_translation import explain  # translation does not need it

        return explain(self, text, target=target, **decoding)

    def stream(
        self,
        texts: Iterable[str],
        *,
        constraints: Iterable[TranslationConstraints | None] | None = None,
        start_index: int = 0,
        window: int = DEFAULT_WINDOW,
        **options: Any,
    ) -> Iterator[Translation]:
        """Translate any number of lines, in order, with at most `window` of them in memory.

        window: number of lines that are translated together; a small window answers sooner, a large one is faster
        constraints, start_index, options: see `translate`

        Raises DataError if there are more or fewer constraints than lines, when the shorter of the two ends.
        """
        windows = split_windows(
            texts, constraints, window, start_index=start_index, item_name="line", companion_name="constraints"
        )
        return chain.from_iterable(
            self.translate(lines, constraints=line_constraints, start_index=index, **options)
            for index, lines, line_constraints in windows
        )

    def translate_text(self, text: str, **options: Any) -> TextTranslation:
        """Translate a whole text; see `translate_texts`."""
        (result,) = self.translate_texts([text], **options)
        return result

    def translate_texts(self, texts: Sequence[str], *, adapter: str | None = None, **options: Any) -> list[TextTranslation]:
        """Translate whole texts; see `TextTranslator.translate` for the options and errors.

        adapter: name of an adapter that `dragoman.load` opened
        """
        return self.with_adapter(adapter).texts.translate(texts, **options)

    def list_alternatives(self, text: str, prefix: str = "", *, count: int = 5, **decoding: Any) -> list[Translation]:
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
        model = self._configure({**decoding, **search_options})
        steps = LineTranslation(model, self._phrase_encoder)
        source = model.tokenizer.fold(clean_line(text))
        segments = steps.encode(SegmentedLines([[source]], [TranslationConstraints(prefix)], ()))
        if segments.encoded_lines[0].skip_status == "too_long":
            raise DataError(f"the text has more than the {model.source_limit} tokens that the model reads at once; shorten it")
        (result,) = steps.search(segments, return_alternatives=True)
        best = model.make_detokenizer().to_translation(text, result, model.decoding)
        return [replace(best, alternatives=()), *best.alternatives] if result.hypotheses else []

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        confidence: bool = False,
        **decoding: Any,
    ) -> list[Translation]:
        """Return each target with the score that the first model gives it as a translation of its source.

        confidence: also return the confidence; None for a target without tokens

        Raises DataError if the numbers of lines differ, a source has no text, or a pair is too long, and BundleError for the
        confidence of a bundle without a calibration.
        """
        return self._get_scorer(decoding).score(sources, targets, confidence=confidence)

    def find_unscorable(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> dict[int, str]:
        """Return the reason of each pair that `score` refuses, by its index: blank sources, and pairs that are too long."""
        return self._get_scorer(decoding).find_unscorable(sources, targets)

    def align(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> list[list[Link]]:
        """Return, for each word of each target, a link to the source word with the most attention of the first model.

        A pair with an empty side has no links. Raises DataError if the numbers of lines differ, or a pair is too long.
        """
        return self._get_scorer(decoding).align(sources, targets)


def _make_estimator(model: ConfiguredModel) -> ConfidenceEstimator:
    from dragoman.inference.scoring import ConfidenceEstimator  # most translations need none

    return ConfidenceEstimator(model)
