"""Models of the server: translators with the ways from one language to another, a parser, and transcribers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from dragoman.bundle import read_config
from dragoman.errors import BundleError, DataError, RecipeError
from dragoman.frontends.sound_file import import_sound_libraries
from dragoman.inference.bundle_store import locate_bundle
from dragoman.inference.text_options import ModelLimits
from dragoman.languages import get_language
from dragoman.runtime.shared_weights import find_copy
from dragoman.serving.http_errors import HttpError

if TYPE_CHECKING:
    from dragoman.inference.translation_constraints import TranslationConstraints
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator
    from dragoman.parsing.parse_result import Parse, PosTags
    from dragoman.parsing.parser import Parser
    from dragoman.runtime.device_options import DeviceOptions
    from dragoman.transcription.transcriber import Transcriber

logger = logging.getLogger("dragoman.serving")

Pair = tuple[str, str]
"""Source language and target language, as the bundle writes them."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """Loaded bundle.

    name: its folder
    pairs: pairs of languages that it translates
    release: releases the weights that a search has read where they are mapped: 20 MB of a base model, read again in 0.1 ms
    """

    name: str
    translator: Translator
    pairs: tuple[Pair, ...]
    release: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Step:
    """Translation by one model.

    decoding: options that every request of the step has, such as its languages
    limits: what the model reads and writes
    mask_codes: the model keeps placeholders by a mask on the search
    annotate_terms: the model reads the translations of terms
    """

    model: ServedModel
    pair: Pair
    decoding: tuple[tuple[str, str], ...] = ()
    limits: ModelLimits = field(default_factory=ModelLimits)
    mask_codes: bool = False
    annotate_terms: bool = False


@dataclass(frozen=True)
class LineKey:
    """Kind of a line to translate: lines with equal keys share a batch. decoding: options of the request, sorted by name"""

    step: Step
    attention: bool = False
    is_retry: bool = False
    decoding: tuple[tuple[str, Any], ...] = ()
    constraints: TranslationConstraints | None = None


@dataclass(frozen=True)
class ParseKey:
    """Kind of a sentence to parse, as `LineKey`. tags: tags of its words, or None to predict them"""

    parser: Parser
    is_constrained: bool = True
    decoding: tuple[tuple[str, Any], ...] = ()
    tags: PosTags | None = None


class ModelSet:
    """Loaded bundles. A reload makes a new set, and requests in progress go on with the one that they have.

    transcribers: transcribers by the names of their folders
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        pivot: str | None = None,
        parser: Parser | None = None,
        transcribers: Mapping[str, Transcriber] = MappingProxyType({}),
    ) -> None:
        self.models = tuple(models)
        self.parser = parser
        self.transcribers = dict(transcribers)
        self.pivot = pivot
        self.steps: dict[Pair, Step] = {}
        for model in models:
            for pair in model.pairs:
                step = self.steps.setdefault(_normalize(pair), _build_step(model, pair))
                if step.model is not model:
                    logger.warning("%s to %s: %s translates the pair, not %s", *pair, step.model.name, model.name)
        self.codes = {get_language(code): code for model in models for pair in model.pairs for code in pair}
        self.targets = {
            source: sorted(target for target in self.codes if self._find_steps(source, target)) for source in sorted(self.codes)
        }

    @classmethod
    def load(cls, paths: Sequence[Path], *, pivot: str | None = None, **device_options: Unpack[DeviceOptions]) -> ModelSet:
        """Load bundles of translators and transcribers, and at most one of a parser.

        pivot: language that joins two models, such as `en` for German to French by way of English; None for no such joins

        Of two bundles that serve a pair, the first one does, and the log says so.

        Raises BundleError for a damaged bundle, for a second parser, for two transcribers in folders of one name, and for a
        translator that does not name its languages.
        Raises RecipeError for a pivot that is no language of the bundles.
        """
        from dragoman.inference.load import load  # imports torch
        from dragoman.parsing.parser import Parser

        models: list[ServedModel] = []
        parser: Parser | None = None
        transcribers: dict[str, Transcriber] = {}
        for path in paths:
            if read_config(find_copy(path) or locate_bundle(path))[0].task.has_speech_source:
                from dragoman.transcription.transcriber import Transcriber

                import_sound_libraries(f"{path}: a recording")
                if path.name in transcribers:
                    raise BundleError(
                        f"{path}: two transcribers are in folders of one name, by which requests choose; rename one",
                        code="invalid-bundle",
                    )
                transcribers[path.name] = Transcriber.load(path, **device_options)
                continue
            translator = load(path, **device_options)
            if isinstance(translator, Parser):
                if parser is not None:
                    raise BundleError(f"{path}: is a second parser; give one parser to a server", code="wrong-task")
                parser = translator
                continue
            pairs = list_pairs(translator)
            if not pairs:
                raise BundleError(
                    f"{path}: the bundle does not name its languages; set task.source_language and task.target_language "
                    "in the recipe that trains it",
                    code="invalid-bundle",
                )
            models.append(ServedModel(str(path), translator, pairs, translator.session.release_mapped_weights))
        model_set = cls(models, pivot=pivot, parser=parser, transcribers=transcribers)
        model_set.check_pivot()
        return model_set

    def check_pivot(self) -> None:
        """Raise RecipeError for a pivot that is no language of the bundles."""
        if self.pivot is not None and get_language(self.pivot) not in self.codes:
            languages = ", ".join(self.targets)
            raise RecipeError(
                f"--pivot {self.pivot}: is no language of the bundles; their languages are {languages}", code="invalid-option"
            )

    def check_translates(self) -> None:
        """Raise DataError if no bundle translates."""
        if not self.models:
            raise DataError("no bundle of this server translates; start dragoman serve with one", code="unsupported-language")

    def find_transcriber(self, name: str) -> Transcriber:
        """Return the transcriber whose folder has this name. The only one has any name.

        Raises HttpError if there is none.
        """
        if not self.transcribers:
            raise HttpError(404, "no bundle of this server transcribes speech; start dragoman serve with one", "no-transcriber")
        if len(self.transcribers) > 1 and name not in self.transcribers:
            names = ", ".join(self.transcribers)
            raise HttpError(404, f"model: {name[:40]} is not served; the models are {names}", "no-transcriber")
        return self.transcribers.get(name) or next(iter(self.transcribers.values()))

    def check_language(self, code: str) -> None:
        """Raise DataError for a language that no pair of a bundle has."""
        if get_language(code) not in self.codes:
            served = ", ".join(sorted(self.codes))
            raise DataError(f"{code[:40]} is not supported; the languages are {served}", code="unsupported-language")

    def find_route(self, source: str, target: str) -> tuple[Step, ...]:
        """Return the steps from one language to another: one model, two with the pivot between them, or none if they are equal.

        Regions and scripts do not matter: `en-GB` is `en`. Raises DataError for an unknown language and an unserved pair.
        """
        self.check_translates()
        for code in (source, target):
            self.check_language(code)
        languages = get_language(source), get_language(target)
        steps = self._find_steps(*languages)
        if not steps and languages[0] != languages[1]:
            served = ", ".join(self.targets[languages[0]]) or "none"
            raise DataError(
                f"{source[:40]} to {target[:40]} is not supported; the targets of {source[:40]} are: {served}",
                code="unsupported-language",
            )
        return steps

    def _find_steps(self, source: str, target: str) -> tuple[Step, ...]:
        if source == target:
            return ()
        if step := self.steps.get((source, target)):
            return (step,)
        if self.pivot is not None:
            pivot = get_language(self.pivot)
            first, second = self.steps.get((source, pivot)), self.steps.get((pivot, target))
            if first and second:
                return first, second
        return ()


def list_pairs(translator: Translator) -> tuple[Pair, ...]:
    """Return the pairs of languages that a bundle serves.

    They are the pairs that it was trained on. A converted model of many languages serves its source language, or each of its
    languages, with each of its target languages. Any other bundle serves the pair of its recipe.
    """
    task, metadata = translator.recipe.task, translator.metadata
    if metadata.language_pairs:
        return tuple((source, target) for source, target in metadata.language_pairs)
    if translator.bundle.tokenizer.languages is not None and metadata.origin and metadata.origin.target_languages:
        sources = [task.source_language] if task.source_language else metadata.origin.source_languages or []
        return tuple((source, target) for source in sources for target in metadata.origin.target_languages if source != target)
    if task.source_language and task.target_language:
        return ((task.source_language, task.target_language),)
    return ()


def _normalize(pair: Pair) -> Pair:
    return get_language(pair[0]), get_language(pair[1])


def _build_step(model: ServedModel, pair: Pair) -> Step:
    is_multilingual = model.translator.bundle.tokenizer.languages is not None
    decoding = (("source_language", pair[0]), ("target_language", pair[1])) if is_multilingual else ()
    translator = model.translator
    limits = ModelLimits.read(translator.bundle, *pair)
    return Step(model, pair, decoding, limits, translator.texts.uses_mask(), translator.texts.reads_terms)


def search_lines(key: LineKey | ParseKey, lines: Sequence[str]) -> Sequence[Translation | Parse]:
    """Translate or parse lines of one kind, in order."""
    if isinstance(key, ParseKey):
        tags = None if key.tags is None else [key.tags] * len(lines)
        return key.parser.parse(lines, tags=tags, constrained=key.is_constrained, **dict(key.decoding))
    translator = key.step.model.translator
    decoding: dict[str, Any] = {**dict(key.step.decoding), **dict(key.decoding)}
    if key.is_retry:
        decoding |= translator.texts.retry_decoding
    if key.constraints is not None:
        decoding["constraints"] = [key.constraints] * len(lines)
        if key.constraints.include or key.constraints.include_any or key.constraints.terms:
            decoding["method"] = "beam"
    translations = translator.translate(lines, attention=key.attention, **decoding)
    key.step.model.release()
    return translations


def iter_language_names(codes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the codes with their English names; a code that CLDR does not name is its own name."""
    try:
        from babel import Locale
    except ImportError:
        yield from ((code, code) for code in codes)
        return
    names = Locale("en").languages
    yield from ((code, str(names.get(code, code))) for code in codes)
