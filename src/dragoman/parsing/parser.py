"""`Parser`: sentences in, trees out, one for each sentence and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, Unpack, get_args, overload

from dragoman.bundle import Bundle, BundleMetadata
from dragoman.config import DecodingConfig, Recipe
from dragoman.errors import DataError
from dragoman.inference.input_windows import DEFAULT_WINDOW, split_windows
from dragoman.inference.session import InferenceSession, open_session
from dragoman.parsing.parse_result import Parse, PosTags, Sentence
from dragoman.parsing.sentence_parser import ParsedSentence, SentenceParser, get_labels
from dragoman.parsing.tree_labels import TreeLabels
from dragoman.parsing.trees.linearization import XX
from dragoman.parsing.trees.ptb import is_word, split_words
from dragoman.parsing.trees.ptb_tokenizer import TokenizationStyle, tokenize_ptb
from dragoman.parsing.trees.tree import get_leaves
from dragoman.runtime.counts import format_count
from dragoman.runtime.device_options import DeviceOptions
from dragoman.tasks.inference_model import InferenceModel

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer


class Parser:
    """Parser with one bundle, or with an ensemble of several, on one device."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.bundle = session.bundle
        self.device = session.device
        self.precision = session.precision
        self.scheduler = session.scheduler

    @classmethod
    def from_bundles(
        cls, bundles: Sequence[Bundle], *, release_mapped_weights: bool = False, **device_options: Unpack[DeviceOptions]
    ) -> Self:
        """Return a parser of open bundles; see `open_session` for the arguments and errors."""
        return cls(open_session(bundles, "parsing", release_mapped_weights=release_mapped_weights, **device_options))

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

    @property
    def labels(self) -> TreeLabels:
        """Target vocabulary: brackets and tags."""
        return get_labels(self.bundle.tokenizer)

    def resolve_decoding(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """Return the recipe's decoding settings with these changes. Raises RecipeError for a wrong key or value."""
        return self.session.resolve_decoding(decoding)

    @overload
    def parse(  # a str is also a sequence of str
        self,
        sentences: str,
        *,
        tags: Sequence[PosTags | None] | None = ...,
        tokenize: TokenizationStyle | None = ...,
        constrained: bool = ...,
        start_index: int = ...,
        on_progress: Callable[[int], None] = ...,
        **decoding: Any,
    ) -> Parse: ...

    @overload
    def parse(
        self,
        sentences: Sequence[Sentence],
        *,
        tags: Sequence[PosTags | None] | None = ...,
        tokenize: TokenizationStyle | None = ...,
        constrained: bool = ...,
        start_index: int = ...,
        on_progress: Callable[[int], None] = ...,
        **decoding: Any,
    ) -> list[Parse]: ...

    def parse(
        self,
        sentences: str | Sequence[Sentence],
        *,
        tags: Sequence[PosTags | None] | None = None,
        tokenize: TokenizationStyle | None = None,
        constrained: bool = True,
        start_index: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> Parse | list[Parse]:
        """Parse one text, or each of a list of texts and lists of words, in order; a sentence without words has no tree.

        tags: POS tags of each sentence, one a word; predicted for a sentence with None
        tokenize: rule that splits a text into words: "ptb" as the Penn Treebank does, "ontonotes" also at hyphens; None splits
            at white space
        constrained: allow only tokens that a tree over the words can continue with; otherwise repair the output afterwards
        start_index: index of the first sentence in its text, counted from 0; messages and sampling use it
        on_progress: called with the number of sentences that are finished
        decoding: keys of the recipe's [decoding] section to change, such as beam_size=21 or nbest=5

        Raises DataError for a word that cannot be in a tree, and for tags that do not fit the words.
        """
        if isinstance(sentences, str):
            [parse] = self.parse(
                [sentences],
                tags=tags,
                tokenize=tokenize,
                constrained=constrained,
                start_index=start_index,
                on_progress=on_progress,
                **decoding,
            )
            return parse
        config = self.resolve_decoding(decoding)
        words = self.split_words(sentences, tags=tags, tokenize=tokenize, start_index=start_index)
        parsed_sentences = SentenceParser(
            self.inference_model, self.session.forced_decoders, self.bundle.tokenizer, self.recipe, config
        ).parse(
            words,
            constrained=constrained,
            tags=tags,
            sample_ids=range(start_index, start_index + len(words)),
            on_progress=on_progress,
            map_fn=self.scheduler.map,
        )
        return [self._to_parse(parsed_sentence) for parsed_sentence in parsed_sentences]

    def stream(
        self,
        sentences: Iterable[Sentence],
        *,
        tags: Iterable[PosTags | None] | None = None,
        tokenize: TokenizationStyle | None = None,
        constrained: bool = True,
        start_index: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
        window: int = DEFAULT_WINDOW,
        **decoding: Any,
    ) -> Iterator[Parse]:
        """Parse any number of sentences, in order, with at most `window` of them in memory.

        window: number of sentences that are parsed together
        The other arguments are those of `parse`.

        Raises DataError if there are more or fewer tags than sentences, when the shorter of the two ends.
        """
        windows = split_windows(sentences, tags, window, start_index=start_index, item_name="sentence", companion_name="tags")
        return chain.from_iterable(
            self.parse(
                window_sentences,
                tags=window_tags,
                tokenize=tokenize,
                constrained=constrained,
                start_index=index,
                on_progress=on_progress,
                **decoding,
            )
            for index, window_sentences, window_tags in windows
        )

    def split_words(
        self,
        sentences: Sequence[Sentence],
        *,
        tags: Sequence[PosTags | None] | None = None,
        tokenize: TokenizationStyle | None = None,
        start_index: int = 0,
    ) -> list[list[str]]:
        """Return the words of sentences, checked as `parse` checks them; see `parse` for the arguments and errors."""
        if tags is not None and len(tags) != len(sentences):
            raise DataError(
                f"{format_count(len(sentences), 'sentence')} but tags for {len(tags)}; give tags or None for each sentence"
            )
        words = [_split_words(sentence, tokenize, number) for number, sentence in enumerate(sentences, start=start_index + 1)]
        self._check_tags(words, tags, start_index)
        return words

    def _check_tags(self, words: Sequence[Sequence[str]], tags: Sequence[PosTags | None] | None, start_index: int) -> None:
        """Raise DataError for tags that do not fit the words or that are missing."""
        for index, sentence in enumerate(words):
            sentence_tags = None if tags is None else tags[index]
            location = f"sentence {start_index + index + 1}"
            if sentence_tags is None:
                if sentence and self.recipe.task.pos_tags == "given":
                    raise DataError(
                        f"{location}: has no tags, and this parser predicts none (task.pos_tags = 'given'); give its tags"
                    )
                continue
            if isinstance(sentence_tags, str):
                raise DataError(f"{location}: its tags are one text, {sentence_tags[:40]!r}; give a list, such as ['DT', 'NN']")
            if len(sentence_tags) != len(sentence):
                counts = f"{format_count(len(sentence_tags), 'tag')} for {format_count(len(sentence), 'word')}"
                raise DataError(f"{location}: {counts}; give one tag a word")
            if invalid_tags := [tag for tag in sentence_tags if not is_word(tag)]:
                raise DataError(f"{location}: {invalid_tags[0][:40]!r} is not a tag; a tag has no white space and is not empty")

    def _to_parse(self, parsed_sentence: ParsedSentence) -> Parse:
        """Return the best hypothesis as a parse, with the others as its alternatives."""
        if not parsed_sentence.repaired_trees:
            return Parse(parsed_sentence.words, status=parsed_sentence.status)
        parses = [
            Parse(
                words=parsed_sentence.words,
                tree=repaired.tree,
                tags=tuple(leaf.tag or XX for leaf in get_leaves(repaired.tree)),
                score=hypothesis.score,
                tokens=tuple(self.labels.ids_to_pieces(hypothesis.tokens)),
                token_log_probs=hypothesis.token_log_probs,
                status="truncated" if not hypothesis.finished else "repaired" if repaired.repairs else "ok",
                repairs=tuple(map(str, repaired.repairs)),
            )
            for hypothesis, repaired in zip(parsed_sentence.hypotheses, parsed_sentence.repaired_trees, strict=True)
        ]
        best, *alternatives = parses
        return replace(best, alternatives=tuple(alternatives))


def _split_words(sentence: Sentence, tokenize: TokenizationStyle | None, number: int) -> list[str]:
    """Return the words of a sentence. Raises DataError for a word that cannot be in a tree."""
    if tokenize not in (None, *get_args(TokenizationStyle)):
        raise DataError(f"tokenize = {tokenize!r} is not known; give {', '.join(get_args(TokenizationStyle))} or None")
    if isinstance(sentence, str):
        return split_words(sentence) if tokenize is None else tokenize_ptb(sentence, style=tokenize)
    if not isinstance(sentence, Sequence) or not all(isinstance(word, str) for word in sentence):
        raise DataError(f"sentence {number}: {str(sentence)[:40]!r} is neither a text nor a list of words; give one of these")
    for word in sentence:
        if not is_word(word):
            raise DataError(f"sentence {number}: {word[:40]!r} is not a word; a word has no white space and is not empty")
    return list(sentence)
