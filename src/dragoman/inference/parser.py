"""The public face of a trained parser: sentences in, trees out, one for each and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Unpack, get_args, overload

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import DecodingConfig, Recipe
from dragoman.data.tokenization.tree_labels import TreeLabels
from dragoman.errors import DataError
from dragoman.inference.parse import Parse
from dragoman.inference.session import DeviceOptions, InferenceSession
from dragoman.tasks.inference_model import InferenceModel
from dragoman.tasks.parsing import ParsedSentence, get_labels, parse_sentences
from dragoman.trees.linearization import XX
from dragoman.trees.ptb import is_word, split_words
from dragoman.trees.ptb_tokenizer import HyphenMode, tokenize_ptb
from dragoman.trees.tree import get_leaves

DEFAULT_WINDOW = 2048

Sentence = str | Sequence[str]
"""A text, or its words."""
PosTags = Sequence[str]


class Parser:
    """One bundle that parses, or several that vote as an ensemble, on one device."""

    def __init__(
        self, bundles: Sequence[Bundle], *, release_mapped_weights: bool = False, **device_options: Unpack[DeviceOptions]
    ) -> None:
        """What `load_parser` takes. The weights must stay what they are.

        forgetful: they are those on disk, so that the memory that reading them fills may be given back
        """
        self.session = session = InferenceSession(
            bundles, "parsing", release_mapped_weights=release_mapped_weights, **device_options
        )
        self.bundle, self.models = session.bundle, session.models
        self.device, self.precision, self.scheduler = session.device, session.precision, session.scheduler

    @cached_property
    def inference_model(self) -> InferenceModel:
        """The models made ready to be searched."""
        return self.session.inference_model

    @property
    def recipe(self) -> Recipe:
        """How the (first) model was trained."""
        return self.bundle.recipe

    @property
    def metadata(self) -> dict[str, Any]:
        """What the (first) model was trained on, and how that went."""
        return self.bundle.metadata

    @property
    def labels(self) -> TreeLabels:
        """What the model says: its brackets and tags."""
        return get_labels(self.bundle.tokenizer)

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        return self.session.resolve_decoding(decoding)

    @overload
    def parse(
        self,
        sentences: str,
        *,
        tags: Sequence[PosTags | None] | None = ...,
        tokenise: HyphenMode | None = ...,
        constrained: bool = ...,
        first: int = ...,
        advance: Callable[[int], None] = ...,
        **decoding: Any,
    ) -> Parse: ...

    @overload
    def parse(
        self,
        sentences: Sequence[Sentence],
        *,
        tags: Sequence[PosTags | None] | None = ...,
        tokenise: HyphenMode | None = ...,
        constrained: bool = ...,
        first: int = ...,
        advance: Callable[[int], None] = ...,
        **decoding: Any,
    ) -> list[Parse]: ...

    def parse(
        self,
        sentences: str | Sequence[Sentence],
        *,
        tags: Sequence[PosTags | None] | None = None,
        tokenise: HyphenMode | None = None,
        constrained: bool = True,
        first: int = 0,
        advance: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> Parse | list[Parse]:
        """Parse one text, or each of a list of texts and lists of words, in order; a sentence without words has no tree.

        tags: those of each sentence, one a word; predicted where there are none
        tokenise: how a text becomes words: "kept" and "split" as the Penn treebank's first and later releases take hyphens; at
            white space when not given
        constrained: only what a tree over the words can go on with is said; otherwise anything, which is mended
        first: the number of the first sentence, counted from 0, where they are a part of a text
        decoding: knobs of the recipe's [decoding] section to change, such as beam_size=21 or nbest=5
        advance: told how many sentences were finished, as they are

        Raises DataError for a word that cannot stand in a tree, and tags that are not as many as the words.
        """
        if isinstance(sentences, str):
            return self.parse([sentences], tags=tags, tokenise=tokenise, constrained=constrained, first=first, **decoding)[0]
        if tags is not None and len(tags) != len(sentences):
            raise DataError(f"{len(sentences)} sentences but tags for {len(tags)}: each sentence has its own")
        config = self.resolve_decoding(decoding)
        words = [_split_words(sentence, tokenise, number) for number, sentence in enumerate(sentences, start=first + 1)]
        self._check_tags(words, tags, first)
        parsed = parse_sentences(
            self.models,
            self.bundle.tokenizer,
            words,
            self.recipe,
            config,
            inference_model=self.inference_model,
            constrained=constrained,
            tags=tags,
            sample_ids=range(first, first + len(words)),
            on_progress=advance,
            map_fn=self.scheduler.map,
        )
        return [self._to_parse(result) for result in parsed]

    def stream(
        self,
        sentences: Iterable[Sentence],
        *,
        tags: Iterable[PosTags | None] | None = None,
        window: int = DEFAULT_WINDOW,
        **options: Any,
    ) -> Iterator[Parse]:
        """Parse any number of sentences as they come, in order, without holding more than `window` of them.

        rest: what `parse` takes
        Raises DataError where there are not tags for as many sentences as there are, when that comes out.
        """
        if isinstance(sentences, str):
            raise TypeError("stream takes sentences: write stream([text])")
        if window < 1:
            raise ValueError(f"window = {window}: 1 or more sentences are held at once")
        return self._stream(iter(sentences), None if tags is None else iter(tags), window, options)

    def _stream(
        self, sentences: Iterator[Sentence], tags: Iterator[PosTags | None] | None, window: int, options: dict[str, Any]
    ) -> Iterator[Parse]:
        start_index = options.pop("first", 0)
        while window_sentences := list(islice(sentences, window)):
            window_tags = None if tags is None else list(islice(tags, len(window_sentences)))
            if window_tags is not None and len(window_tags) < len(window_sentences):
                raise DataError(f"more sentences than tags, which there are for {start_index + len(window_tags)}")
            yield from self.parse(window_sentences, tags=window_tags, first=start_index, **options)
            start_index += len(window_sentences)
        if tags is not None and any(True for _ in tags):
            raise DataError(f"tags for more sentences than there are, which is {start_index}")

    def _check_tags(self, words: Sequence[Sequence[str]], tags: Sequence[PosTags | None] | None, start_index: int) -> None:
        for index, sentence in enumerate(words):
            sentence_tags = None if tags is None else tags[index]
            location = f"sentence {start_index + index + 1}"
            if sentence_tags is None:
                if sentence and self.recipe.task.pos_tags == "given":
                    raise DataError(
                        f"{location}: has no tags, and this parser predicts none (task.pos_tags = 'given'): give them"
                    )
                continue
            if isinstance(sentence_tags, str):
                raise DataError(f"{location}: its tags are one text, {sentence_tags[:40]!r}: give a list, such as ['DT', 'NN']")
            if len(sentence_tags) != len(sentence):
                raise DataError(f"{location}: {len(sentence_tags)} tags for {len(sentence)} words")
            if invalid_tags := [tag for tag in sentence_tags if not is_word(tag)]:
                raise DataError(f"{location}: {invalid_tags[0][:40]!r} is no tag: it is empty, or has white space in it")

    def _to_parse(self, result: ParsedSentence) -> Parse:
        if not result.repaired_trees:
            return Parse(result.words, status=result.status)
        parses = [
            Parse(
                words=result.words,
                tree=repaired.tree,
                tags=tuple(leaf.tag or XX for leaf in get_leaves(repaired.tree)),
                score=hypothesis.score,
                tokens=tuple(self.labels.ids_to_pieces(hypothesis.tokens)),
                token_log_probs=hypothesis.token_log_probs,
                status="truncated" if not hypothesis.finished else "mended" if repaired.repairs else "ok",
                repairs=tuple(map(str, repaired.repairs)),
            )
            for hypothesis, repaired in zip(result.hypotheses, result.repaired_trees, strict=True)
        ]
        best, *alternatives = parses
        return replace(best, alternatives=tuple(alternatives))


def _split_words(sentence: Sentence, tokenize: HyphenMode | None, number: int) -> list[str]:
    """Its words. Raises DataError for one that no tree in brackets could hold."""
    if tokenize not in (None, *get_args(HyphenMode)):
        raise DataError(f"tokenise = {tokenize!r}; one of: {', '.join(get_args(HyphenMode))}, or None")
    if isinstance(sentence, str):
        return split_words(sentence) if tokenize is None else tokenize_ptb(sentence, hyphens=tokenize)
    if not isinstance(sentence, Sequence) or not all(isinstance(word, str) for word in sentence):
        raise DataError(f"sentence {number}: {str(sentence)[:40]!r} is neither a text nor a list of words")
    for word in sentence:
        if not is_word(word):
            raise DataError(f"sentence {number}: {word[:40]!r} is no word: it is empty, or has white space in it")
    return list(sentence)


def load_parser(path: str | Path, *ensemble_paths: str | Path, **device_options: Unpack[DeviceOptions]) -> Parser:
    """Open a bundle that parses, or several as an ensemble: as `dragoman.load`, whose arguments these are.

    Raises BundleError for one that translates, or is missing, cut or changed, and DeviceError for a place that is not here.
    """
    return Parser(
        [load_bundle(Path(bundle_path)) for bundle_path in (path, *ensemble_paths)],
        release_mapped_weights=True,
        **device_options,
    )
