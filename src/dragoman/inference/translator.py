"""The public face of a trained model: text in, translations out, one for each line and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice, repeat, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import DecodingConfig, Recipe, update_section
from dragoman.decoding.constraints import SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import DataError, RecipeError
from dragoman.inference.alignment import AttentionAligner
from dragoman.inference.constraints import TranslationConstraints, tokenize_constraints
from dragoman.inference.inputs import check_lines, encode_pairs
from dragoman.inference.segmentation import split_long_input
from dragoman.inference.session import DeviceOptions, InferenceSession
from dragoman.inference.translation import Translation, merge_segments
from dragoman.tasks.attention_alignment import read_alignment_head
from dragoman.tasks.generation import score_pairs
from dragoman.tasks.inference_model import InferenceModel, get_decoder_start_id, get_max_positions
from dragoman.tasks.translation import TranslatedLine, get_source_limit, get_status, has_text, is_copy, translate_lines
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.viz.explanation import Explanation

DEFAULT_WINDOW = 2048
RETRY_BEAM_SIZE = 4
# How a line is searched once more that went round in circles.
RETRY_DECODING = {
    "method": "beam",
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 3,
    "early_stopping": "best",
    "mbr": "none",
    "mbr_candidates": None,
}
# The parts of one line draw from streams so far apart that no other line's place comes between.
SEGMENT_ID_STRIDE = 1 << 20
# Tokens that no sign of a line stands for: the space before it, and its end.
NUM_EXTRA_TOKENS = 2


class Translator:
    """One bundle, or several that vote as an ensemble, on one device."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        *,
        shortlist: str | Path | None = None,
        release_mapped_weights: bool = False,
        bundle_paths: Sequence[Path] = (),
        **device_options: Unpack[DeviceOptions],
    ) -> None:
        """What `load` takes. The weights must stay what they are.

        forgetful: they are those on disk, so that the memory that reading them fills may be given back
        folders: where the bundles stand, so that other processes may open them; none for threads alone
        """
        self.session = session = InferenceSession(
            bundles,
            "translation",
            shortlist=shortlist,
            release_mapped_weights=release_mapped_weights,
            bundle_paths=bundle_paths,
            **device_options,
        )
        self.bundle, self.models = session.bundle, session.models
        self.device, self.precision, self.scheduler = session.device, session.precision, session.scheduler
        self.alignment_head = read_alignment_head(self.metadata)
        self.aligner = AttentionAligner(
            self.models[0], self.bundle.tokenizer, get_decoder_start_id(self.recipe.model), self.alignment_head
        )

    @cached_property
    def inference_model(self) -> InferenceModel:
        """The models made ready to be searched; who only scores or aligns does without."""
        return self.session.inference_model

    @property
    def recipe(self) -> Recipe:
        """How the (first) model was trained."""
        return self.bundle.recipe

    @property
    def metadata(self) -> dict[str, Any]:
        """What the (first) model was trained on, and how that went."""
        return self.bundle.metadata

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        return self.session.resolve_decoding(decoding)

    def translate(
        self,
        texts: Sequence[str],
        *,
        constraints: Sequence[TranslationConstraints | None] | None = None,
        attention: bool = False,
        start_index: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> list[Translation]:
        """Translate lines of text; one result for each, in order. Lines without text come back as they are.

        wordings: what is asked of the wording of each translation
        attention: give the weights over the source, the coverage and the alignment, too
        first: the number of the first line, counted from 0, where the lines are a part of a text; sampling draws by it
        decoding: knobs of the recipe's [decoding] section to change, such as beam_size=5 or method="greedy"
        advance: told how many lines were finished, as they are
        """
        check_lines("translate", texts, start_index=start_index)
        config = self.resolve_decoding(decoding)
        segments_by_line = [self._split_line(text, config) for text in texts]
        token_constraints = (
            self._tokenize_constraints(constraints, segments_by_line, config, start_index) if constraints is not None else ()
        )
        segments = list(chain.from_iterable(segments_by_line))
        is_unsplit = len(segments) == len(texts)
        sample_ids = [
            start_index + line_index + segment_index * SEGMENT_ID_STRIDE
            for line_index, line_segments in enumerate(segments_by_line)
            for segment_index in range(len(line_segments))
        ]
        on_segment = on_progress if is_unsplit else lambda _: None
        translated_segments = self._retry_repetitions(
            segments,
            config,
            self._search_segments(segments, config, sample_ids, token_constraints, on_segment),
            sample_ids,
            token_constraints,
        )
        attention_weights = (
            self.aligner.compute_line_weights(translated_segments, config.batch_tokens) if attention else repeat(())
        )
        segment_translations = map(self._build_translation, segments, translated_segments, attention_weights)
        language = self.recipe.task.target_language
        translations = [
            merge_segments(list(islice(segment_translations, len(parts))), parts, language) for parts in segments_by_line
        ]
        if constraints is not None:
            translations = [
                _mark_unmet(translation, line_constraints)
                for translation, line_constraints in zip(translations, constraints, strict=True)
            ]
        if not is_unsplit:
            on_progress(len(texts))
        for text, one in zip(texts, translations, strict=True):
            one.set_explain_fn(partial(self._explain, text, decoding))
        return translations

    def _explain(self, text: str, decoding: Mapping[str, Any], target: str | None) -> Explanation:
        from dragoman.inference.explain.translation import explain  # only here, since who translates need not wait for it

        return explain(self, text, target=target, **decoding)

    def stream(
        self,
        texts: Iterable[str],
        *,
        constraints: Iterable[TranslationConstraints | None] | None = None,
        window: int = DEFAULT_WINDOW,
        **options: Any,
    ) -> Iterator[Translation]:
        """Translate any number of lines as they come, in order, without holding more than `window` of them.

        rest: what `translate` takes
        window: batched by length; a small one answers sooner, a large one is faster

        Raises DataError where there are not as many wordings as lines, when that comes out.
        """
        if isinstance(texts, str):
            raise TypeError("stream takes lines: write stream([text])")
        if window < 1:
            raise ValueError(f"window = {window}: 1 or more lines are held at once")
        return self._stream(texts, constraints, window, options)

    def _stream(
        self,
        texts: Iterable[str],
        constraints: Iterable[TranslationConstraints | None] | None,
        window: int,
        options: dict[str, Any],
    ) -> Iterator[Translation]:
        text_iterator, start_index = iter(texts), options.pop("first", 0)
        constraint_iterator = None if constraints is None else iter(constraints)
        num_lines = 0
        while lines := list(islice(text_iterator, window)):
            window_constraints = None if constraint_iterator is None else list(islice(constraint_iterator, len(lines)))
            num_lines += len(lines)
            if window_constraints is not None and len(window_constraints) < len(lines):
                raise DataError(
                    f"more lines than wordings, of which there are {num_lines - len(lines) + len(window_constraints)}"
                )
            yield from self.translate(lines, start_index=start_index, constraints=window_constraints, **options)
            start_index += len(lines)
        if constraint_iterator is not None and any(True for _ in constraint_iterator):
            raise DataError(f"more wordings than lines, of which there are {num_lines}")

    def list_alternatives(self, text: str, prefix: str = "", *, count: int = 5, **decoding: Any) -> list[Translation]:
        """How a translation may go on after its first words: one for each of the likeliest tokens there, that first.

        Each goes on by a beam of its own, of decoding.beam_size hypotheses: 1 when not given, which is greedy search.
        """
        if fixed_options := sorted({"method", "num_beam_groups", "nbest", "mbr", "mbr_candidates"} & decoding.keys()):
            raise RecipeError(
                f"{fixed_options[0]} = {decoding[fixed_options[0]]!r}: alternatives have their own; count says how many"
            )
        beam_size = decoding.get("beam_size", 1)
        if not isinstance(beam_size, int) or not isinstance(count, int) or min(beam_size, count) < 1:
            raise RecipeError(f"count = {count!r}, beam_size = {beam_size!r}: whole numbers from 1 are allowed")
        search_options = {
            "method": "beam",
            "beam_size": beam_size * count,
            "num_beam_groups": count,
            "nbest": count,
            "mbr": "none",
            "mbr_candidates": None,
        }
        config = self.resolve_decoding({**decoding, **search_options})
        token_constraints = self._tokenize_constraints([TranslationConstraints(prefix)], [[text]], config, 0)
        source_limit = get_source_limit(self.inference_model.max_positions, config)
        if len(self.bundle.tokenizer.encode_source(text)) > source_limit:
            raise DataError(f"the text has more than the {source_limit} tokens that the model reads at once")
        (result,) = self._search_segments(
            [text], config, [0], token_constraints, lambda _: None, return_alternatives=True
        )  # of all words
        best = self._build_translation(text, result, ())
        return [replace(best, alternatives=()), *best.alternatives] if result.hypotheses else []

    def _search_segments(
        self,
        segments: Sequence[str],
        config: DecodingConfig,
        sample_ids: Sequence[int],
        token_constraints: Sequence[SentenceConstraints],
        on_progress: Callable[[int], None],
        *,
        return_alternatives: bool = False,
    ) -> list[TranslatedLine]:
        return translate_lines(
            replace(self.inference_model, narrowed=None) if return_alternatives else self.inference_model,
            self.bundle.tokenizer,
            segments,
            self.recipe,
            config,
            sample_ids=sample_ids,
            constraints=token_constraints,
            return_alternatives=return_alternatives,
            on_progress=on_progress,
            map_fn=self.scheduler.map,
        )

    def _retry_repetitions(
        self,
        segments: Sequence[str],
        config: DecodingConfig,
        translated_segments: Sequence[TranslatedLine],
        sample_ids: Sequence[int],
        token_constraints: Sequence[SentenceConstraints],
    ) -> list[TranslatedLine]:
        """The same, but what went round in circles is searched once more, by a beam that may not repeat itself.

        It keeps its status, and what it said at first where the second search comes to no end, either.
        """
        results = list(translated_segments)
        retry_indices = [index for index, result in enumerate(results) if result.status == "looped"]
        if retry_indices:
            beam_size = max(RETRY_BEAM_SIZE, config.nbest, config.beam_size if config.method == "beam" else 1)
            retry_config = update_section(config, {**RETRY_DECODING, "beam_size": beam_size}, where="decoding")
            retry_constraints = [token_constraints[index] for index in retry_indices] if token_constraints else ()
            retried = self._search_segments(
                [segments[index] for index in retry_indices],
                retry_config,
                [sample_ids[index] for index in retry_indices],
                retry_constraints,
                lambda _: None,
            )
            for index, one in zip(retry_indices, retried, strict=True):
                if one.status == "ok":
                    results[index] = replace(one, status="looped")
        return results

    def _tokenize_constraints(
        self,
        constraints: Sequence[TranslationConstraints | None],
        segments_by_line: Sequence[Sequence[str]],
        config: DecodingConfig,
        start_index: int,
    ) -> list[SentenceConstraints]:
        target, max_positions = self.bundle.tokenizer.target, self.inference_model.max_positions
        return tokenize_constraints(
            constraints, segments_by_line, config, target, max_positions=max_positions, start_index=start_index
        )

    def _split_line(self, line: str, config: DecodingConfig) -> list[str]:
        """The line itself, or the parts of one that is longer than the model reads."""
        source_limit = get_source_limit(self.inference_model.max_positions, config)
        if config.long_input == "error" or (
            line.isascii() and len(line) + NUM_EXTRA_TOKENS <= source_limit
        ):  # a sign is one token at most
            return [line]
        try:
            return split_long_input(line, lambda segment: len(self.bundle.tokenizer.encode_source(segment)) <= source_limit)
        except ValueError:
            return [line]

    def score(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> list[Translation]:
        """Forced scoring: how likely the (first) model holds each given translation to be.

        Raises DataError where the numbers of lines differ or a source holds no text.
        """
        config = self.resolve_decoding(decoding)
        source_ids, target_ids = self._encode_pairs("score", sources, targets, config)
        hypotheses = score_pairs(
            self.models[0], source_ids, target_ids, config, start_id=get_decoder_start_id(self.recipe.model)
        )
        return [self._to_translation(source, hypothesis) for source, hypothesis in zip(source_ids, hypotheses, strict=True)]

    def align(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> list[list[Link]]:
        """For each word of each given translation the word of the source that the (first) model looked at most.

        A pair of which one side holds no text has no links. Raises DataError where the numbers of lines differ, or one is
        longer than the model reads.
        """
        config = self.resolve_decoding(decoding)
        source_ids, target_ids = self._encode_pairs("align", sources, targets, config, allow_empty=True)
        text_indices = [
            index
            for index, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True))
            if has_text(text, source) and target
        ]
        weights = self.aligner.compute_pair_weights(
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
        return encode_pairs(verb, self.bundle.tokenizer, sources, targets, max_tokens=max_tokens, allow_empty=allow_empty)

    def _build_translation(self, text: str, result: TranslatedLine, attention_weights: Sequence[Tensor]) -> Translation:
        if not result.hypotheses:
            output_text = text if result.status == "empty" else ""
            pieces = tuple(self.bundle.tokenizer.source.ids_to_pieces(result.source))
            return Translation(output_text, status=result.status, source_tokens=pieces)
        weighted_hypotheses = zip_longest(result.hypotheses, attention_weights)
        translations = [self._to_translation(result.source, hypothesis, weights) for hypothesis, weights in weighted_hypotheses]
        task = self.recipe.task
        if task.source_language != task.target_language:
            is_copied = [translation.status == "ok" and is_copy(text, translation.text) for translation in translations]
            translations = [
                replace(one, status="copied") if copy else one for one, copy in zip(translations, is_copied, strict=True)
            ]
        if result.status == "looped":  # even where a second search has brought it to an end
            translations[0] = replace(translations[0], status="looped")
        best, *alternatives = translations
        return replace(best, alternatives=tuple(alternatives))

    def _to_translation(self, source: Sequence[int], hypothesis: Hypothesis, weights_2TS: Tensor | None = None) -> Translation:
        """One hypothesis as text; with where it looked, if that is known."""
        text = self.bundle.tokenizer.target.decode(hypothesis.tokens)
        translation = Translation(
            text=text,
            score=hypothesis.score,
            tokens=tuple(self.bundle.tokenizer.target.ids_to_pieces(hypothesis.tokens)),
            token_log_probs=hypothesis.token_log_probs,
            status=get_status(hypothesis, text),
            source_tokens=tuple(self.bundle.tokenizer.source.ids_to_pieces(source)),
            unmet_constraints=tuple(self.bundle.tokenizer.target.decode(phrase) for phrase in hypothesis.unmet_constraints),
            mbr_score=hypothesis.mbr_score,
        )
        if weights_2TS is None:
            return translation
        mean_TS, head_TS = weights_2TS
        attention_rows = tuple(map(tuple, mean_TS.tolist()))
        return replace(
            translation,
            attention=attention_rows,
            alignment=tuple(self.aligner.extract_links(source, hypothesis.tokens, head_TS)),
        )


def _mark_unmet(translation: Translation, constraints: TranslationConstraints | None) -> Translation:
    """Of a line that was not translated at all, everything is missing that it was to include."""
    if constraints is None or translation.token_log_probs:
        return translation
    return replace(translation, missing=constraints.include)


def load_translator(
    path: str | Path, *ensemble_paths: str | Path, shortlist: str | Path | None = None, **device_options: Unpack[DeviceOptions]
) -> Translator:
    """Open a bundle that translates, or several as an ensemble: as `dragoman.load`, whose arguments these are.

    Raises BundleError for one that parses, or is missing, cut or changed, and DeviceError for a place that is not here.
    """
    bundle_paths = [Path(bundle_path) for bundle_path in (path, *ensemble_paths)]
    bundles = [load_bundle(bundle_path) for bundle_path in bundle_paths]
    return Translator(bundles, shortlist=shortlist, release_mapped_weights=True, bundle_paths=bundle_paths, **device_options)
