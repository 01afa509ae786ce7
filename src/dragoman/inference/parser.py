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
from dragoman.data.tokenization.tree_labels import Labels
from dragoman.errors import DataError
from dragoman.inference.parse import Parse
from dragoman.inference.session import Opened, Placing
from dragoman.tasks.inference_model import Speaker
from dragoman.tasks.parsing import Parsed, labels_of, parse_ids
from dragoman.trees.linearization import XX
from dragoman.trees.ptb import is_word, split_words
from dragoman.trees.ptb_tokenizer import Hyphens, penn_words
from dragoman.trees.tree import leaves

WINDOW = 2048

Sentence = str | Sequence[str]
"""A text, or its words."""
Tags = Sequence[str]


class Parser:
    """One bundle that parses, or several that vote as an ensemble, on one device."""

    def __init__(self, bundles: Sequence[Bundle], *, forgetful: bool = False, **placing: Unpack[Placing]) -> None:
        """What `load_parser` takes. The weights must stay what they are.

        forgetful: they are those on disk, so that the memory that reading them fills may be given back
        """
        self.opened = opened = Opened(bundles, "parsing", forgetful=forgetful, **placing)
        self.bundle, self.models = opened.bundle, opened.models
        self.device, self.precision, self.replicas = opened.device, opened.precision, opened.replicas

    @cached_property
    def speaker(self) -> Speaker:
        """The models made ready to be searched."""
        return self.opened.speaker

    @property
    def recipe(self) -> Recipe:
        """How the (first) model was trained."""
        return self.bundle.recipe

    @property
    def story(self) -> dict[str, Any]:
        """What the (first) model was trained on, and how that went."""
        return self.bundle.story

    @property
    def labels(self) -> Labels:
        """What the model says: its brackets and tags."""
        return labels_of(self.bundle.tokeniser)

    def check(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        return self.opened.check(decoding)

    @overload
    def parse(
        self,
        sentences: str,
        *,
        tags: Sequence[Tags | None] | None = ...,
        tokenise: Hyphens | None = ...,
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
        tags: Sequence[Tags | None] | None = ...,
        tokenise: Hyphens | None = ...,
        constrained: bool = ...,
        first: int = ...,
        advance: Callable[[int], None] = ...,
        **decoding: Any,
    ) -> list[Parse]: ...

    def parse(
        self,
        sentences: str | Sequence[Sentence],
        *,
        tags: Sequence[Tags | None] | None = None,
        tokenise: Hyphens | None = None,
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
        config = self.check(decoding)
        words = [_words_of(sentence, tokenise, number) for number, sentence in enumerate(sentences, start=first + 1)]
        self._check_tags(words, tags, first)
        parsed = parse_ids(
            self.models,
            self.bundle.tokeniser,
            words,
            self.recipe,
            config,
            speaker=self.speaker,
            constrained=constrained,
            tags=tags,
            places=range(first, first + len(words)),
            advance=advance,
            spread=self.replicas.map,
        )
        return [self._told(one) for one in parsed]

    def stream(
        self,
        sentences: Iterable[Sentence],
        *,
        tags: Iterable[Tags | None] | None = None,
        window: int = WINDOW,
        **rest: Any,
    ) -> Iterator[Parse]:
        """Parse any number of sentences as they come, in order, without holding more than `window` of them.

        rest: what `parse` takes
        Raises DataError where there are not tags for as many sentences as there are, when that comes out.
        """
        if isinstance(sentences, str):
            raise TypeError("stream takes sentences: write stream([text])")
        if window < 1:
            raise ValueError(f"window = {window}: 1 or more sentences are held at once")
        return self._streamed(iter(sentences), None if tags is None else iter(tags), window, rest)

    def _streamed(
        self, sentences: Iterator[Sentence], tags: Iterator[Tags | None] | None, window: int, rest: dict[str, Any]
    ) -> Iterator[Parse]:
        done = rest.pop("first", 0)
        while some := list(islice(sentences, window)):
            given = None if tags is None else list(islice(tags, len(some)))
            if given is not None and len(given) < len(some):
                raise DataError(f"more sentences than tags, which there are for {done + len(given)}")
            yield from self.parse(some, tags=given, first=done, **rest)
            done += len(some)
        if tags is not None and any(True for _ in tags):
            raise DataError(f"tags for more sentences than there are, which is {done}")

    def _check_tags(self, words: Sequence[Sequence[str]], tags: Sequence[Tags | None] | None, first: int) -> None:
        for number, sentence in enumerate(words):
            own = None if tags is None else tags[number]
            where = f"sentence {first + number + 1}"
            if own is None:
                if sentence and self.recipe.task.pos_tags == "given":
                    raise DataError(f"{where}: has no tags, and this parser predicts none (task.pos_tags = 'given'): give them")
                continue
            if isinstance(own, str):
                raise DataError(f"{where}: its tags are one text, {own[:40]!r}: give a list, such as ['DT', 'NN']")
            if len(own) != len(sentence):
                raise DataError(f"{where}: {len(own)} tags for {len(sentence)} words")
            if odd := [tag for tag in own if not is_word(tag)]:
                raise DataError(f"{where}: {odd[0][:40]!r} is no tag: it is empty, or has white space in it")

    def _told(self, parsed: Parsed) -> Parse:
        if not parsed.mended:
            return Parse(parsed.words, status=parsed.status)
        parses = [
            Parse(
                words=parsed.words,
                tree=mended.tree,
                tags=tuple(leaf.tag or XX for leaf in leaves(mended.tree)),
                score=hypothesis.score,
                tokens=tuple(self.labels.pieces(hypothesis.tokens)),
                token_log_probs=hypothesis.token_log_probs,
                status="truncated" if not hypothesis.finished else "mended" if mended.mendings else "ok",
                mended=tuple(map(str, mended.mendings)),
            )
            for hypothesis, mended in zip(parsed.hypotheses, parsed.mended, strict=True)
        ]
        best, *others = parses
        return replace(best, alternatives=tuple(others))


def _words_of(sentence: Sentence, tokenise: Hyphens | None, number: int) -> list[str]:
    """Its words. Raises DataError for one that no tree in brackets could hold."""
    if tokenise not in (None, *get_args(Hyphens)):
        raise DataError(f"tokenise = {tokenise!r}; one of: {', '.join(get_args(Hyphens))}, or None")
    if isinstance(sentence, str):
        return split_words(sentence) if tokenise is None else penn_words(sentence, hyphens=tokenise)
    if not isinstance(sentence, Sequence) or not all(isinstance(word, str) for word in sentence):
        raise DataError(f"sentence {number}: {str(sentence)[:40]!r} is neither a text nor a list of words")
    for word in sentence:
        if not is_word(word):
            raise DataError(f"sentence {number}: {word[:40]!r} is no word: it is empty, or has white space in it")
    return list(sentence)


def load_parser(path: str | Path, *others: str | Path, **placing: Unpack[Placing]) -> Parser:
    """Open a bundle that parses, or several as an ensemble: as `dragoman.load`, whose arguments these are.

    Raises BundleError for one that translates, or is missing, cut or changed, and DeviceError for a place that is not here.
    """
    return Parser([load_bundle(Path(one)) for one in (path, *others)], forgetful=True, **placing)
