"""Ids in, hypotheses out: models, search and batches put together, for validation and engine alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dragoman.config import DecodingConfig
from dragoman.data.collate import collate, pad
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.decoding.beam_search import beam_search
from dragoman.decoding.constraints import NO_RULES, Allow, Rules, Wish
from dragoman.decoding.diverse_beam import Groups
from dragoman.decoding.greedy import Choose, likeliest, one_by_one, sampler
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import plain_request
from dragoman.decoding.penalty import LengthPenalty
from dragoman.decoding.scoring import score_targets
from dragoman.model.attention import Attention, watch_attention
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import Speaker

FORBIDDEN = (PADDING_ID, BEGIN_ID)
# Sampled sentence i draws from stream seed · STREAMS + i, so that its place, not its batch, decides what it becomes.
STREAMS = 1 << 32

Advance = Callable[[int], None]
Constrain = Callable[[Sequence[int], Sequence[int]], Allow]
"""(the numbers of one batch's sources, the most tokens of each output) → `Rules.allow` for that batch."""
Given = TypeVar("Given")
Found = TypeVar("Found")


class Spread(Protocol):
    """Does many pieces of work, one after the other as `map` does, or side by side; their results in order."""

    def __call__(self, work: Callable[[Given], Found], pieces: Iterable[Given], /) -> Iterable[Found]: ...


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of the sentences, longest first, under a budget of padded tokens."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batch: list[int] = []
    for index in order:
        if batch and lengths[batch[0]] * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@torch.no_grad()
def generate(
    speaker: Speaker,
    sources: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    start_id: int,
    places: Sequence[int] | None = None,
    wishes: Sequence[Wish] = (),
    rules: Rules = NO_RULES,
    constrain: Constrain | None = None,
    branching: bool = False,
    advance: Advance = lambda _: None,
    spread: Spread = map,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first, in the order given.

    sources: ids as the encoder reads them, none empty and none longer than the speaker has positions for
    places: the number of each in its text, which chooses the stream that sampling draws from; 0, 1, … when not given
    wishes: what is asked of the output of each, or nothing at all
    constrain: gives what may come next in each batch, as an automaton knows; not with a speaker that is narrowed
    branching: the groups of the beam each go their own way from one of the likeliest tokens after the prefix
    advance: told how many sentences were finished
    """
    results: list[list[Hypothesis]] = [[] for _ in sources]
    rows = {"beam": config.beam_size, "greedy": 1, "sample": config.nbest}[config.method]
    search = Search(speaker, config, start_id, rules, constrain, branching)
    work = Work(search, sources, range(len(sources)) if places is None else places, wishes)
    batches = list(_batches([len(source) for source in sources], max(1, config.batch_tokens // rows)))
    for batch, found in zip(batches, spread(work, batches), strict=True):
        for index, hypotheses in zip(batch, found, strict=True):
            results[index] = hypotheses[: config.nbest]
        advance(len(batch))
    return results


@dataclass(frozen=True)
class Search:
    """The search that a config describes, batch by batch."""

    speaker: Speaker
    config: DecodingConfig
    start_id: int
    rules: Rules
    constrain: Constrain | None
    branching: bool

    @torch.no_grad()  # once more, since the work may be done in another thread
    def run(
        self, batch: Sequence[int], sources: Sequence[Sequence[int]], places: Sequence[int], wishes: Sequence[Wish]
    ) -> list[list[Hypothesis]]:
        source_BS = pad(sources)
        limits = [len(source) + self.config.max_extra_tokens for source in sources]
        if wishes:
            limits = [max(limit, wish.shortest) for limit, wish in zip(limits, wishes, strict=True)]
        if self.speaker.positions is not None:
            limits = [min(limit, self.speaker.positions) for limit in limits]
        if self.speaker.narrowed is None:
            return self._found(self.speaker, source_BS, limits, places, wishes, self._constrained(batch, limits))
        needed = [token for wish in wishes for token in chain(wish.prefix, *wish.include)]
        speaker, words = self.speaker.narrowed(source_BS, needed)
        narrow = Narrow(words.tolist())
        rules = replace(self.rules, suppressed=narrow.known(self.rules.suppressed))
        found = self._found(speaker, source_BS, limits, places, [narrow.wish(wish) for wish in wishes], rules)
        return [[narrow.whole(one) for one in hypotheses] for hypotheses in found]

    @property
    def is_plain(self) -> bool:
        """Whether a model that searches by itself does so here, if wishes allow."""
        config, searcher = self.config, self.speaker.searcher
        if searcher is None or self.constrain is not None or self.branching or config.method == "sample":
            return False
        return config.method == "greedy" or (config.num_beam_groups == 1 and config.beam_size <= searcher.widest)

    @property
    def _draws(self) -> int:
        """Rows that a sentence is drawn in, each of which the search takes for a sentence."""
        return self.config.nbest if self.config.method == "sample" else 1

    def _constrained(self, batch: Sequence[int], limits: Sequence[int]) -> Rules:
        if self.constrain is None:
            return self.rules
        draws = self._draws
        many = [number for number in batch for _ in range(draws)], [limit for limit in limits for _ in range(draws)]
        return replace(self.rules, allow=self.constrain(*many))

    def _found(
        self,
        speaker: Speaker,
        source_BS: Tensor,
        limits: Sequence[int],
        places: Sequence[int],
        wishes: Sequence[Wish],
        rules: Rules,
    ) -> list[list[Hypothesis]]:
        config, penalty = self.config, LengthPenalty(self.config.length_penalty, self.config.alpha)
        # The best of all is found as soon as none can beat it; who wants no other need not wait for them.
        stop = "best" if config.early_stopping == "exhaustive" and config.nbest == 1 else config.early_stopping
        ids: dict[str, Any] = {"start_id": self.start_id, "end_id": END_ID, "forbidden": FORBIDDEN, "penalty": penalty}
        if speaker.searcher is not None and self.is_plain:
            request = plain_request(rules, wishes, limits=limits, **ids)
            if request is not None and config.method == "beam":
                return speaker.searcher.beam(source_BS, request, beam_size=config.beam_size, stop=stop, nbest=config.nbest)
            if request is not None:
                return [[one] for one in speaker.searcher.greedy(source_BS, request)]
        if config.method == "beam":
            return beam_search(
                speaker.step,
                speaker.start(source_BS.to(speaker.device)),
                limits=limits,
                beam_size=config.beam_size,
                **ids,
                stop=stop,
                nbest=config.nbest,
                device=speaker.device,
                wishes=wishes,
                rules=rules,
                groups=Groups(
                    config.num_beam_groups,
                    0.0 if self.branching or config.num_beam_groups == 1 else config.diversity_penalty,
                    self.branching,
                ),
                ranking=speaker.ranking(),
            )
        draws = self._draws
        choose: Choose = likeliest
        if config.method == "sample":
            seeds = [config.seed * STREAMS + place * draws + draw for place in places for draw in range(draws)]
            choose = sampler(seeds, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        found = one_by_one(
            speaker.step,
            speaker.start(source_BS.repeat_interleave(draws, dim=0).to(speaker.device)),
            limits=[limit for limit in limits for _ in range(draws)],
            **ids,
            choose=choose,
            device=speaker.device,
            wishes=[wish for wish in wishes for _ in range(draws)],
            rules=rules,
            ranking=speaker.ranking(),
        )
        groups = [found[first : first + draws] for first in range(0, len(found), draws)]
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


@dataclass(frozen=True)
class Work:
    """Sources and how they are searched; does a batch of them, given their numbers.

    places: the number of each in its text
    wishes: one for each, or none at all
    """

    search: Search
    sources: Sequence[Sequence[int]]
    places: Sequence[int]
    wishes: Sequence[Wish]

    def __call__(self, batch: Sequence[int]) -> list[list[Hypothesis]]:
        return self.search.run(batch, *self.of(batch))

    @property
    def is_plain(self) -> bool:
        """Whether the model searches for all of it by itself, without Python."""
        return self.search.is_plain and all(wish.is_plain for wish in self.wishes)

    def of(self, batch: Sequence[int]) -> tuple[list[Sequence[int]], list[int], list[Wish]]:
        """What belongs to these: sources, places, wishes."""
        wishes = [self.wishes[index] for index in batch] if self.wishes else []
        return [self.sources[index] for index in batch], [self.places[index] for index in batch], wishes


class Narrow:
    """The words of a batch: their numbers in it, and their ids in the whole vocabulary."""

    def __init__(self, words: Sequence[int]) -> None:
        self.words = words
        self.number = {word: number for number, word in enumerate(words)}

    def known(self, tokens: Iterable[int]) -> tuple[int, ...]:
        """The numbers of those that are among the words."""
        return tuple(self.number[token] for token in tokens if token in self.number)

    def wish(self, wish: Wish) -> Wish:
        """The same wish. A phrase with a token that cannot be said is excluded already."""
        return replace(
            wish,
            prefix=self.known(wish.prefix),
            include=tuple(map(self.known, wish.include)),
            exclude=tuple(self.known(phrase) for phrase in wish.exclude if all(token in self.number for token in phrase)),
        )

    def whole(self, hypothesis: Hypothesis) -> Hypothesis:
        """The same hypothesis in ids of the vocabulary."""
        missing = tuple(tuple(self.words[token] for token in phrase) for phrase in hypothesis.missing)
        return replace(hypothesis, tokens=tuple(self.words[token] for token in hypothesis.tokens), missing=missing)


@torch.no_grad()
def score_pairs(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    config: DecodingConfig,
    *,
    start_id: int,
    advance: Advance = lambda _: None,
) -> list[Hypothesis]:
    """Forced scoring: each given target as a hypothesis of its source."""
    results: dict[int, Hypothesis] = {}
    penalty = LengthPenalty(config.length_penalty, config.alpha)
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    for indices in _batches(lengths, config.batch_tokens):
        wanted = [targets[index] for index in indices]
        batch = collate([sources[index] for index in indices], wanted, start_id=start_id).to(model.output.device)
        scored = score_targets(model(batch.source_BS, batch.inputs_BT), wanted, end_id=END_ID, penalty=penalty)
        results.update(zip(indices, scored, strict=True))
        advance(len(indices))
    return [results[index] for index in range(len(sources))]


@torch.no_grad()
def cross_attentions(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    start_id: int,
    finished: Sequence[bool],
    batch_tokens: int = 4096,
    read: Callable[[Tensor], Tensor] = lambda weights_LHTS: weights_LHTS,
) -> list[Tensor]:
    """Where the decoder looked in each source when it said each target token, and the end if it came to it.

    → for each pair (layers, heads, T + 1, S), or T without the end; or what `read` makes of that, which is all that is kept
    """
    attentions = [module for name, module in model.decoder.named_modules() if name.endswith("cross_attention")]
    said = [target if whole else target[:-1] for target, whole in zip(targets, finished, strict=True)]
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, said, strict=True)]
    found: dict[int, Tensor] = {}
    for indices in _batches(lengths, batch_tokens):
        batch = collate([sources[index] for index in indices], [said[index] for index in indices], start_id=start_id)
        batch = batch.to(model.output.device)
        with watch_attention([module for module in attentions if isinstance(module, Attention)]) as weights:
            model(batch.source_BS, batch.inputs_BT)
        weights_BLHTS = torch.stack(weights, dim=1).float().cpu()
        for row, index in enumerate(indices):
            found[index] = read(weights_BLHTS[row, :, :, : len(said[index]) + 1, : len(sources[index])]).clone()
    return [found[index] for index in range(len(sources))]


def cross_attention(
    model: Transformer, source: Sequence[int], target: Sequence[int], *, start_id: int, finished: bool = True
) -> Tensor:
    """That of one pair."""
    return cross_attentions(model, [source], [target], start_id=start_id, finished=[finished])[0]
