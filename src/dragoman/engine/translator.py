"""The public face of a trained model: text in, translations out, one for each line and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat, zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.bundle import Bundle, load_bundle
from dragoman.config import DecodingConfig, Recipe, section_with
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.engine.passage import join_passage, split_passage
from dragoman.engine.placement import checked_count, place
from dragoman.engine.replicas import Replicas
from dragoman.errors import BundleError, DataError
from dragoman.evaluation.aligner import Link
from dragoman.tasks.alignment import chosen_head, links, words_of
from dragoman.tasks.generation import cross_attentions, most_positions, score_pairs, speaker_of, start_id
from dragoman.tasks.translation import Status, Translated, holds_text, is_copy, longest_source, status_of, translate_lines

WINDOW = 2048
Rows = tuple[tuple[float, ...], ...]
# What a line in parts is called by that had parts of several kinds.
WORST_FIRST: tuple[Status, ...] = ("refused", "looped", "truncated", "copied", "ok", "empty")
# The parts of one line draw from streams so far apart that no other line's place comes between.
PART_PLACES = 1 << 20
# Tokens that no sign of a line stands for: the space before it, and its end.
SPARE = 2


@dataclass(frozen=True)
class Translation:
    """One translation of one line.

    score: log-probability over the length penalty, higher is better; 0 where there was nothing to translate; the sum over the
        parts of a line in parts
    tokens: the pieces of the text
    token_log_probs: natural logarithms, one for each token and one for the end token if the output came to it
    status: "ok"; "truncated" where it reached the longest allowed length; "looped" where it went round in circles; "copied"
        where it is the source once more; "empty" where no text was given or came out; "refused" for one that was too long
    parts: into how many parts a line was cut that is longer than the model reads
    attention: on request, rows of weights over `source_tokens`, one row for each token, and one for the end if it came to it:
        the mean of the heads of the (first) model's last layer
    alignment: on request, for each word of the text the word of the source that it looked at most, where there is one
    alternatives: the other hypotheses, best first; none of a line in parts
    """

    text: str
    score: float = 0.0
    tokens: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    status: Status = "ok"
    source_tokens: tuple[str, ...] = ()
    parts: int = 1
    attention: Rows | None = None
    alignment: tuple[Link, ...] | None = None
    alternatives: tuple[Translation, ...] = field(default=(), repr=False)

    @property
    def coverage(self) -> float | None:
        """How much of the source was looked at: for each of its tokens the attention that it got, at most 1, on average.

        Equation 14 of Wu et al. (2016) without its logarithm; none without `attention`.
        """
        if self.attention is None or not self.source_tokens:
            return None
        seen: list[float] = [min(sum(column), 1.0) for column in zip(*self.attention, strict=True)]
        return sum(seen) / len(self.source_tokens)


class Translator:
    """One bundle, or several that vote as an ensemble, on one device."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        *,
        device: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        replicas: int | None = None,
    ) -> None:
        self.bundle = bundles[0]
        for other in bundles[1:]:
            if _reading(self.bundle) != _reading(other):
                raise BundleError(
                    f"{other.recipe.name} and {self.bundle.recipe.name} cannot vote as an ensemble: their subword models, "
                    "subword.lowercase, model.source_eos or model.decoder_start differ"
                )
        placement = place(device, precision)
        self.device, self.models = placement.device, [bundle.model.to(placement.device).eval() for bundle in bundles]
        self.precision = placement.precision or "float32"
        self.speaker = speaker_of(self.models)
        self.head = chosen_head(self.story)
        self.replicas = Replicas(
            checked_count("replicas", replicas),
            checked_count("threads", threads),
            f"replicas, {self.precision}, d_model {self.recipe.model.d_model}",
        )

    @property
    def recipe(self) -> Recipe:
        """How the (first) model was trained."""
        return self.bundle.recipe

    @property
    def story(self) -> dict[str, Any]:
        """What the (first) model was trained on, and how that went."""
        return self.bundle.story

    def check(self, decoding: Mapping[str, Any]) -> DecodingConfig:
        """The decoding settings with these changes. Raises RecipeError for an unknown knob or an impossible value."""
        return section_with(self.recipe.decoding, decoding, where="decoding")

    def translate(
        self,
        texts: Sequence[str],
        *,
        attention: bool = False,
        first: int = 0,
        advance: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> list[Translation]:
        """Translate lines of text; one result for each, in order. Lines without text come back as they are.

        attention: give the weights over the source, the coverage and the alignment, too
        first: the number of the first line, counted from 0, where the lines are a part of a text; sampling draws by it
        decoding: knobs of the recipe's [decoding] section to change, such as beam_size=5 or method="greedy"
        advance: told how many lines were finished, as they are
        """
        if isinstance(texts, str):
            raise TypeError("translate takes a list of lines: write translate([text])")
        config = self.check(decoding)
        passages = [self._parts(text, config) for text in texts]
        lines = list(chain.from_iterable(passages))
        whole = len(lines) == len(texts)
        translated = translate_lines(
            self.speaker,
            self.bundle.tokeniser,
            lines,
            self.recipe,
            config,
            places=[first + number + part * PART_PLACES for number, parts in enumerate(passages) for part in range(len(parts))],
            advance=advance if whole else lambda _: None,
            spread=self.replicas.map,
        )
        looks = self._looks(translated, config) if attention else repeat(())
        results = map(self._result, lines, translated, looks)
        joined = [self._joined(list(islice(results, len(parts)))) for parts in passages]
        if not whole:
            advance(len(texts))
        return joined

    def stream(self, texts: Iterable[str], *, window: int = WINDOW, **rest: Any) -> Iterator[Translation]:
        """Translate any number of lines as they come, in order, without holding more than `window` of them.

        rest: what `translate` takes
        window: batched by length; a small one answers sooner, a large one is faster
        """
        remaining, first = iter(texts), rest.pop("first", 0)
        while lines := list(islice(remaining, window)):
            yield from self.translate(lines, first=first, **rest)
            first += len(lines)

    def _parts(self, text: str, config: DecodingConfig) -> list[str]:
        """The line itself, or the parts of one that is longer than the model reads."""
        longest = longest_source(self.speaker.positions, config)
        if config.long_input == "refuse" or (text.isascii() and len(text) + SPARE <= longest):  # a sign is one token at most
            return [text]
        try:
            return split_passage(text, lambda part: len(self.bundle.tokeniser.encode_source(part)) <= longest)
        except ValueError:
            return [text]

    def _joined(self, parts: list[Translation]) -> Translation:
        """The translation of a line from those of its parts."""
        if len(parts) == 1:
            return parts[0]
        attention, alignment = None, None
        if all(part.attention is not None for part in parts):
            attention = tuple(_beside([part.attention or () for part in parts], [len(part.source_tokens) for part in parts]))
            alignment = tuple(_one_after_another(parts))
        return Translation(
            text=join_passage([part.text for part in parts], self.recipe.task.target_language),
            score=sum(part.score for part in parts),
            tokens=tuple(chain.from_iterable(part.tokens for part in parts)),
            token_log_probs=tuple(chain.from_iterable(part.token_log_probs for part in parts)),
            status=min((part.status for part in parts), key=WORST_FIRST.index),
            source_tokens=tuple(chain.from_iterable(part.source_tokens for part in parts)),
            parts=len(parts),
            attention=attention,
            alignment=alignment,
        )

    def score(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> list[Translation]:
        """Forced scoring: how likely the (first) model holds each given translation to be.

        Raises DataError where the numbers of lines differ or a source holds no text.
        """
        config = self.check(decoding)
        source_ids, target_ids = self._read_pairs("score", sources, targets, config)
        scored = score_pairs(self.models[0], source_ids, target_ids, config, start_id=start_id(self.recipe.model))
        return [self._told(source, one) for source, one in zip(source_ids, scored, strict=True)]

    def align(self, sources: Sequence[str], targets: Sequence[str], **decoding: Any) -> list[list[Link]]:
        """For each word of each given translation the word of the source that the (first) model looked at most.

        A pair of which one side holds no text has no links. Raises DataError where the numbers of lines differ, or one is
        longer than the model reads.
        """
        config = self.check(decoding)
        source_ids, target_ids = self._read_pairs("align", sources, targets, config, blank=True)
        both = [
            index for index, (text, other) in enumerate(zip(sources, targets, strict=True)) if text.strip() and other.strip()
        ]
        weights = self._weights([(source_ids[index], target_ids[index], True) for index in both], config)
        found: list[list[Link]] = [[] for _ in sources]
        for index, weights_LHTS in zip(both, weights, strict=True):
            found[index] = self._links(source_ids[index], target_ids[index], weights_LHTS)
        return found

    def _read_pairs(
        self, verb: str, sources: Sequence[str], targets: Sequence[str], config: DecodingConfig, *, blank: bool = False
    ) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of both sides, of which none is too long, and no source is without text unless it may be `blank`."""
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError(f"{verb} takes lists of lines: write {verb}([source], [target])")
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} sources but {len(targets)} translations: line n of one belongs to line n of the other"
            )
        source_ids = [self.bundle.tokeniser.encode_source(text) for text in sources]
        target_ids = [self.bundle.tokeniser.encode_target(text) for text in targets]
        longest = longest_source(most_positions(self.models[:1]), config)
        for number, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True), start=1):
            if not blank and not holds_text(text, source):
                raise DataError(f"line {number}: the source holds no text, so no translation of it can be {verb}d")
            if max(len(source), len(target) + 1) > longest:
                raise DataError(f"line {number}: more than the {longest} tokens that the model can {verb}")
        return source_ids, target_ids

    def _result(self, text: str, translated: Translated, looks: Sequence[Tensor]) -> Translation:
        if not translated.hypotheses:
            given = "" if translated.status == "refused" else text
            pieces = tuple(self.bundle.tokeniser.source.pieces(translated.source))
            return Translation(given, status=translated.status, source_tokens=pieces)
        many = zip_longest(translated.hypotheses, looks)
        results = [self._told(translated.source, hypothesis, weights) for hypothesis, weights in many]
        task = self.recipe.task
        if task.source_language != task.target_language:
            copied = [one.status == "ok" and is_copy(text, one.text) for one in results]
            results = [replace(one, status="copied") if copy else one for one, copy in zip(results, copied, strict=True)]
        best, *others = results
        return replace(best, alternatives=tuple(others))

    def _told(self, source: Sequence[int], hypothesis: Hypothesis, weights_LHTS: Tensor | None = None) -> Translation:
        """One hypothesis as text; with where it looked, if that is known."""
        told = Translation(
            text=self.bundle.tokeniser.target.decode(hypothesis.tokens),
            score=hypothesis.score,
            tokens=tuple(self.bundle.tokeniser.target.pieces(hypothesis.tokens)),
            token_log_probs=hypothesis.token_log_probs,
            status=status_of(hypothesis),
            source_tokens=tuple(self.bundle.tokeniser.source.pieces(source)),
        )
        if weights_LHTS is None:
            return told
        rows = tuple(map(tuple, weights_LHTS[-1].mean(dim=0).tolist()))
        return replace(told, attention=rows, alignment=tuple(self._links(source, hypothesis.tokens, weights_LHTS)))

    def _links(self, source: Sequence[int], target: Sequence[int], weights_LHTS: Tensor) -> list[Link]:
        """Between words, by the head that the bundle names."""
        tokeniser = self.bundle.tokeniser
        read = tokeniser.source.pieces(source[:-1] if tokeniser.source_eos else source)
        return links(self.head.of(weights_LHTS).numpy(), read, tokeniser.target.pieces(target))

    def _looks(self, translated: Sequence[Translated], config: DecodingConfig) -> list[list[Tensor]]:
        """For each hypothesis of each line where the (first) model looked when it said it. (layers, heads, T + 1, S)"""
        pairs = [(line.source, one.tokens, one.finished) for line in translated for one in line.hypotheses]
        weights = iter(self._weights(pairs, config))
        return [list(islice(weights, len(line.hypotheses))) for line in translated]

    def _weights(self, pairs: Sequence[tuple[Sequence[int], Sequence[int], bool]], config: DecodingConfig) -> list[Tensor]:
        return cross_attentions(
            self.models[0],
            [source for source, _, _ in pairs],
            [target for _, target, _ in pairs],
            start_id=start_id(self.recipe.model),
            finished=[finished for _, _, finished in pairs],
            batch_tokens=config.batch_tokens,
        )


def _reading(bundle: Bundle) -> tuple[object, ...]:
    """All that decides which ids a model reads and writes for a text."""
    tokeniser, model = bundle.tokeniser, bundle.recipe.model
    sides = tokeniser.source, tokeniser.target
    return (*((side.model, side.lowercase) for side in sides), tokeniser.source_eos, start_id(model))


def _beside(many: Sequence[Sequence[Sequence[float]]], widths: Sequence[int]) -> Iterator[tuple[float, ...]]:
    """Rows over the parts of a source as rows over the whole of it."""
    for index, rows in enumerate(many):
        before, after = sum(widths[:index]), sum(widths[index + 1 :])
        for row in rows:
            yield (0.0,) * before + tuple(row) + (0.0,) * after


def _one_after_another(parts: Sequence[Translation]) -> Iterator[Link]:
    """The links of parts of a line, as links of the whole."""
    read = said = 0
    for part in parts:
        for source, target in part.alignment or ():
            yield read + source, said + target
        read, said = read + len(set(words_of(part.source_tokens))), said + len(set(words_of(part.tokens)))


def load(
    path: str | Path,
    *others: str | Path,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    replicas: int | None = None,
) -> Translator:
    """Open a bundle, or several as an ensemble.

    device: "cpu", "cuda", "cuda:1", or "auto", which takes a GPU where there is one
    precision: "float32", "bfloat16", "int8" (a processor's), or "auto": the fastest here, measured at first use and remembered
    replicas: batches that are computed side by side on a processor, each by `threads` threads; measured when not given

    Raises BundleError naming the file that is missing, cut or changed, and DeviceError for a place that is not here.
    """
    bundles = [load_bundle(Path(one)) for one in (path, *others)]
    translator = Translator(bundles, device=device, precision=precision, threads=threads, replicas=replicas)
    for bundle in bundles:
        bundle.forget()
    return translator
