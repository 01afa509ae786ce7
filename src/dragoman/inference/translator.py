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
from dragoman.config import DecodingConfig, Recipe, section_with
from dragoman.decoding.constraints import Wish
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import DataError, RecipeError
from dragoman.inference.alignment import Gaze
from dragoman.inference.constraints import Wording, wishes_of
from dragoman.inference.inputs import check_lines, read_pairs
from dragoman.inference.segmentation import split_passage
from dragoman.inference.session import Opened, Placing
from dragoman.inference.translation import Translation, joined
from dragoman.tasks.attention_alignment import chosen_head
from dragoman.tasks.generation import score_pairs
from dragoman.tasks.inference_model import Speaker, most_positions, start_id
from dragoman.tasks.translation import Translated, holds_text, is_copy, longest_source, status_of, translate_lines
from dragoman.word_aligner import Link

if TYPE_CHECKING:
    from dragoman.viz.explanation import Explanation

WINDOW = 2048
BEAM = 4
# How a line is searched once more that went round in circles.
SECOND_SEARCH = {
    "method": "beam",
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 3,
    "early_stopping": "best",
    "mbr": "none",
    "mbr_candidates": None,
}
# The parts of one line draw from streams so far apart that no other line's place comes between.
PART_PLACES = 1 << 20
# Tokens that no sign of a line stands for: the space before it, and its end.
SPARE = 2


class Translator:
    """One bundle, or several that vote as an ensemble, on one device."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        *,
        shortlist: str | Path | None = None,
        forgetful: bool = False,
        folders: Sequence[Path] = (),
        **placing: Unpack[Placing],
    ) -> None:
        """What `load` takes. The weights must stay what they are.

        forgetful: they are those on disk, so that the memory that reading them fills may be given back
        folders: where the bundles stand, so that other processes may open them; none for threads alone
        """
        self.opened = opened = Opened(
            bundles, "translation", shortlist=shortlist, forgetful=forgetful, folders=folders, **placing
        )
        self.bundle, self.models = opened.bundle, opened.models
        self.device, self.precision, self.replicas = opened.device, opened.precision, opened.replicas
        self.head = chosen_head(self.story)
        self.gaze = Gaze(self.models[0], self.bundle.tokeniser, start_id(self.recipe.model), self.head)

    @cached_property
    def speaker(self) -> Speaker:
        """The models made ready to be searched; who only scores or aligns does without."""
        return self.opened.speaker

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
        return self.opened.check(decoding)

    def translate(
        self,
        texts: Sequence[str],
        *,
        wordings: Sequence[Wording | None] | None = None,
        attention: bool = False,
        first: int = 0,
        advance: Callable[[int], None] = lambda _: None,
        **decoding: Any,
    ) -> list[Translation]:
        """Translate lines of text; one result for each, in order. Lines without text come back as they are.

        wordings: what is asked of the wording of each translation
        attention: give the weights over the source, the coverage and the alignment, too
        first: the number of the first line, counted from 0, where the lines are a part of a text; sampling draws by it
        decoding: knobs of the recipe's [decoding] section to change, such as beam_size=5 or method="greedy"
        advance: told how many lines were finished, as they are
        """
        check_lines("translate", texts, first=first)
        config = self.check(decoding)
        passages = [self._parts(text, config) for text in texts]
        wishes = self._wishes(wordings, passages, config, first) if wordings is not None else ()
        lines = list(chain.from_iterable(passages))
        whole = len(lines) == len(texts)
        places = [first + number + part * PART_PLACES for number, parts in enumerate(passages) for part in range(len(parts))]
        told = advance if whole else lambda _: None
        translated = self._without_circles(lines, config, self._translated(lines, config, places, wishes, told), places, wishes)
        looks = self.gaze.of_lines(translated, config.batch_tokens) if attention else repeat(())
        results = map(self._result, lines, translated, looks)
        language = self.recipe.task.target_language
        whole_lines = [joined(list(islice(results, len(parts))), parts, language) for parts in passages]
        if wordings is not None:
            whole_lines = [_lacking(one, wording) for one, wording in zip(whole_lines, wordings, strict=True)]
        if not whole:
            advance(len(texts))
        for text, one in zip(texts, whole_lines, strict=True):
            one.explained_by(partial(self._explained, text, decoding))
        return whole_lines

    def _explained(self, text: str, decoding: Mapping[str, Any], target: str | None) -> Explanation:
        from dragoman.inference.explain.translation import explain  # only here, since who translates need not wait for it

        return explain(self, text, target=target, **decoding)

    def stream(
        self,
        texts: Iterable[str],
        *,
        wordings: Iterable[Wording | None] | None = None,
        window: int = WINDOW,
        **rest: Any,
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
        return self._streamed(texts, wordings, window, rest)

    def _streamed(
        self, texts: Iterable[str], wordings: Iterable[Wording | None] | None, window: int, rest: dict[str, Any]
    ) -> Iterator[Translation]:
        remaining, first = iter(texts), rest.pop("first", 0)
        asked = None if wordings is None else iter(wordings)
        done = 0
        while lines := list(islice(remaining, window)):
            some = None if asked is None else list(islice(asked, len(lines)))
            done += len(lines)
            if some is not None and len(some) < len(lines):
                raise DataError(f"more lines than wordings, of which there are {done - len(lines) + len(some)}")
            yield from self.translate(lines, first=first, wordings=some, **rest)
            first += len(lines)
        if asked is not None and any(True for _ in asked):
            raise DataError(f"more wordings than lines, of which there are {done}")

    def alternatives(self, text: str, prefix: str = "", *, count: int = 5, **decoding: Any) -> list[Translation]:
        """How a translation may go on after its first words: one for each of the likeliest tokens there, that first.

        Each goes on by a beam of its own, of decoding.beam_size hypotheses: 1 when not given, which is greedy search.
        """
        if settled := sorted({"method", "num_beam_groups", "nbest", "mbr", "mbr_candidates"} & decoding.keys()):
            raise RecipeError(f"{settled[0]} = {decoding[settled[0]]!r}: alternatives have their own; count says how many")
        width = decoding.get("beam_size", 1)
        if not isinstance(width, int) or not isinstance(count, int) or min(width, count) < 1:
            raise RecipeError(f"count = {count!r}, beam_size = {width!r}: whole numbers from 1 are allowed")
        own = {
            "method": "beam",
            "beam_size": width * count,
            "num_beam_groups": count,
            "nbest": count,
            "mbr": "none",
            "mbr_candidates": None,
        }
        config = self.check({**decoding, **own})
        wishes = self._wishes([Wording(prefix)], [[text]], config, 0)
        longest = longest_source(self.speaker.positions, config)
        if len(self.bundle.tokeniser.encode_source(text)) > longest:
            raise DataError(f"the text has more than the {longest} tokens that the model reads at once")
        (translated,) = self._translated([text], config, [0], wishes, lambda _: None, branching=True)  # of all words
        best = self._result(text, translated, ())
        return [replace(best, alternatives=()), *best.alternatives] if translated.hypotheses else []

    def _translated(
        self,
        lines: Sequence[str],
        config: DecodingConfig,
        places: Sequence[int],
        wishes: Sequence[Wish],
        advance: Callable[[int], None],
        *,
        branching: bool = False,
    ) -> list[Translated]:
        return translate_lines(
            replace(self.speaker, narrowed=None) if branching else self.speaker,
            self.bundle.tokeniser,
            lines,
            self.recipe,
            config,
            places=places,
            wishes=wishes,
            branching=branching,
            advance=advance,
            spread=self.replicas.map,
        )

    def _without_circles(
        self,
        lines: Sequence[str],
        config: DecodingConfig,
        translated: Sequence[Translated],
        places: Sequence[int],
        wishes: Sequence[Wish],
    ) -> list[Translated]:
        """The same, but what went round in circles is searched once more, by a beam that may not repeat itself.

        It keeps its status, and what it said at first where the second search comes to no end, either.
        """
        found = list(translated)
        looped = [index for index, one in enumerate(found) if one.status == "looped"]
        if looped:
            beam = max(BEAM, config.nbest, config.beam_size if config.method == "beam" else 1)
            other = section_with(config, {**SECOND_SEARCH, "beam_size": beam}, where="decoding")
            asked = [wishes[index] for index in looped] if wishes else ()
            again = self._translated(
                [lines[index] for index in looped], other, [places[index] for index in looped], asked, lambda _: None
            )
            for index, one in zip(looped, again, strict=True):
                if one.status == "ok":
                    found[index] = replace(one, status="looped")
        return found

    def _wishes(
        self, wordings: Sequence[Wording | None], passages: Sequence[Sequence[str]], config: DecodingConfig, first: int
    ) -> list[Wish]:
        target, positions = self.bundle.tokeniser.target, self.speaker.positions
        return wishes_of(wordings, passages, config, target, positions=positions, first=first)

    def _parts(self, text: str, config: DecodingConfig) -> list[str]:
        """The line itself, or the parts of one that is longer than the model reads."""
        longest = longest_source(self.speaker.positions, config)
        if config.long_input == "error" or (text.isascii() and len(text) + SPARE <= longest):  # a sign is one token at most
            return [text]
        try:
            return split_passage(text, lambda part: len(self.bundle.tokeniser.encode_source(part)) <= longest)
        except ValueError:
            return [text]

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
            index
            for index, (text, source, target) in enumerate(zip(sources, source_ids, target_ids, strict=True))
            if holds_text(text, source) and target
        ]
        weights = self.gaze.of_pairs([(source_ids[index], target_ids[index], True) for index in both], config.batch_tokens)
        found: list[list[Link]] = [[] for _ in sources]
        for index, weights_2TS in zip(both, weights, strict=True):
            found[index] = self.gaze.links(source_ids[index], target_ids[index], weights_2TS[1])
        return found

    def _read_pairs(
        self, verb: str, sources: Sequence[str], targets: Sequence[str], config: DecodingConfig, *, blank: bool = False
    ) -> tuple[list[list[int]], list[list[int]]]:
        longest = longest_source(most_positions(self.models[:1]), config)
        return read_pairs(verb, self.bundle.tokeniser, sources, targets, longest=longest, blank=blank)

    def _result(self, text: str, translated: Translated, looks: Sequence[Tensor]) -> Translation:
        if not translated.hypotheses:
            given = text if translated.status == "empty" else ""
            pieces = tuple(self.bundle.tokeniser.source.pieces(translated.source))
            return Translation(given, status=translated.status, source_tokens=pieces)
        many = zip_longest(translated.hypotheses, looks)
        results = [self._told(translated.source, hypothesis, weights) for hypothesis, weights in many]
        task = self.recipe.task
        if task.source_language != task.target_language:
            copied = [one.status == "ok" and is_copy(text, one.text) for one in results]
            results = [replace(one, status="copied") if copy else one for one, copy in zip(results, copied, strict=True)]
        if translated.status == "looped":  # even where a second search has brought it to an end
            results[0] = replace(results[0], status="looped")
        best, *others = results
        return replace(best, alternatives=tuple(others))

    def _told(self, source: Sequence[int], hypothesis: Hypothesis, weights_2TS: Tensor | None = None) -> Translation:
        """One hypothesis as text; with where it looked, if that is known."""
        text = self.bundle.tokeniser.target.decode(hypothesis.tokens)
        told = Translation(
            text=text,
            score=hypothesis.score,
            tokens=tuple(self.bundle.tokeniser.target.pieces(hypothesis.tokens)),
            token_log_probs=hypothesis.token_log_probs,
            status=status_of(hypothesis, text),
            source_tokens=tuple(self.bundle.tokeniser.source.pieces(source)),
            missing=tuple(self.bundle.tokeniser.target.decode(phrase) for phrase in hypothesis.missing),
            utility=hypothesis.utility,
        )
        if weights_2TS is None:
            return told
        shown_TS, linking_TS = weights_2TS
        rows = tuple(map(tuple, shown_TS.tolist()))
        return replace(told, attention=rows, alignment=tuple(self.gaze.links(source, hypothesis.tokens, linking_TS)))


def _lacking(translation: Translation, wording: Wording | None) -> Translation:
    """Of a line that was not translated at all, everything is missing that it was to include."""
    if wording is None or translation.token_log_probs:
        return translation
    return replace(translation, missing=wording.include)


def load(path: str | Path, *others: str | Path, shortlist: str | Path | None = None, **placing: Unpack[Placing]) -> Translator:
    """Open a bundle that translates, or several as an ensemble: as `dragoman.load`, whose arguments these are.

    Raises BundleError for one that parses, or is missing, cut or changed, and DeviceError for a place that is not here.
    """
    folders = [Path(one) for one in (path, *others)]
    bundles = [load_bundle(folder) for folder in folders]
    return Translator(bundles, shortlist=shortlist, forgetful=True, folders=folders, **placing)
