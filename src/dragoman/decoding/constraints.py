"""What an output must and must not hold: rules for all sentences, wishes for one, and the bans that follow at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

DEAD = float("-inf")
Phrase = tuple[int, ...]

Allow = Callable[[Tensor, Tensor], Tensor]
"""(outputs_NT so far, sentences_N: the number in the batch of each row's sentence) → allowed_NV, true for what may come next.

It is asked before every token, the first included (T = 0), and decides on the end token, too. A row for which it allows nothing
dies.
"""

# In banks of phrases: fits every token, and none; before the first token stands one that is like neither.
ANY, NEVER, BEFORE = -1, -3, -2


@dataclass(frozen=True)
class Rules:
    """What holds for all sentences of a batch.

    min_length: fewest tokens of an output, its end token not counted
    no_repeat_ngram_size: no sequence of so many tokens stands twice in an output; 0 lets all stand
    suppressed: tokens that are never said
    allow: asked at each step what may come next, as an automaton knows
    repetition_window: an output is stopped where one group of tokens, four times or more, fills its last so many; 0 never stops it
    """

    min_length: int = 0
    no_repeat_ngram_size: int = 0
    suppressed: tuple[int, ...] = ()
    allow: Allow | None = None
    repetition_window: int = 0


@dataclass(frozen=True)
class Wish:
    """What is asked of one sentence's output, in tokens.

    prefix: how it begins; goes before every ban, and lies within the limit
    include: phrases that it must hold (beam search); one that cannot be placed is named in Hypothesis.missing
    exclude: phrases that it must not hold
    may_loop: it is not stopped for repeating itself, as its source does so, too
    """

    prefix: Phrase = ()
    include: tuple[Phrase, ...] = ()
    exclude: tuple[Phrase, ...] = ()
    may_loop: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it asks for nothing but that circles may be."""
        return replace(self, may_loop=False) == NO_WISH

    @property
    def shortest(self) -> int:
        """Tokens that it may take to fulfil, the end token included; the limit should be no less."""
        return len(self.prefix) + sum(map(len, self.include)) + 1


NO_RULES = Rules()
NO_WISH = Wish()


def holds(tokens: Sequence[int], phrase: Phrase) -> bool:
    """Whether the phrase stands somewhere in the tokens, whole."""
    return any(tuple(tokens[first : first + len(phrase)]) == phrase for first in range(len(tokens) - len(phrase) + 1))


def tail(outputs_NT: Tensor, length: int) -> Tensor:
    """The last tokens of each output, with BEFORE on the left where it is shorter. → (N, length)"""
    last_NM = outputs_NT[:, max(0, outputs_NT.shape[1] - length) :]
    return torch.nn.functional.pad(last_NM, (length - last_NM.shape[1], 0), value=BEFORE)


def bank(phrases: Sequence[Sequence[Phrase]], *, to_the_right: bool, padding: int, device: torch.device) -> Tensor:
    """The phrases of each sentence as a block (B, P, M), each at the left or the right end of its row; M is 1 or more."""
    most = max(map(len, phrases), default=0)
    longest = max((len(phrase) for own in phrases for phrase in own), default=0)
    rows = []
    for own in phrases:
        full = [[padding] * max(longest, 1) for _ in range(most)]
        for row, phrase in zip(full, own, strict=False):
            first = len(row) - len(phrase) if to_the_right else 0
            row[first : first + len(phrase)] = phrase
        rows.append(full)
    return torch.tensor(rows, dtype=torch.long, device=device).view(len(phrases), most, max(longest, 1))


def force(logits_NV: Tensor, token_N: Tensor, own_N1: Tensor) -> None:
    """Leave these rows nothing but this token, with the logit that was its own; a row with a token below 0 stays as it is."""
    forced_N1, place_N1 = (token_N >= 0)[:, None], token_N.clamp(min=0)[:, None]
    value_N1 = torch.where(forced_N1, own_N1, logits_NV.gather(1, place_N1))
    logits_NV.masked_fill_(forced_N1, DEAD).scatter_(1, place_N1, value_N1)


class Bans:
    """Rules and wishes as a change of logits, in place; every row of a sentence is under the same."""

    def __init__(
        self,
        rules: Rules,
        wishes: Sequence[Wish],
        *,
        forbidden: Sequence[int],
        end_id: int,
        rows: int,
        share: int = 1,
        device: torch.device,
    ) -> None:
        """wishes: one for each sentence. rows: of each. share: so many neighbours are one sentence of the caller's."""
        self.rules = rules
        self.rows = rows
        never = sorted({*forbidden, *rules.suppressed})
        self.never_C = torch.tensor(never, dtype=torch.long, device=device)
        self.early_C = torch.tensor(sorted({*never, end_id}), dtype=torch.long, device=device)
        self.sentence_B = torch.arange(len(wishes), device=device) // share
        self.longest_prefix = max((len(wish.prefix) for wish in wishes), default=0)
        self.prefix_BT = bank([[wish.prefix] for wish in wishes], to_the_right=False, padding=-1, device=device)[:, 0]
        self.excludes = any(wish.exclude for wish in wishes)
        if self.excludes:
            heads = [[phrase[:-1] for phrase in wish.exclude] for wish in wishes]
            self.head_BPM = bank(heads, to_the_right=True, padding=ANY, device=device)
            lasts = [[phrase[-1:] for phrase in wish.exclude] for wish in wishes]
            self.last_BP = bank(lasts, to_the_right=False, padding=NEVER, device=device)[:, :, 0]

    @property
    def read_outputs(self) -> bool:
        """Whether the outputs so far are needed at all."""
        return bool(self.rules.no_repeat_ngram_size or self.rules.allow or self.excludes)

    def __call__(self, logits_NV: Tensor, outputs_NT: Tensor | None, length: int) -> None:
        """Rule out what may not be token number `length` (from 1) after these outputs."""
        forcing = length <= self.longest_prefix
        if forcing:
            token_N = self.prefix_BT[:, length - 1].repeat_interleave(self.rows)
            own_N1 = logits_NV.gather(1, token_N.clamp(min=0)[:, None])
        banned_C = self.early_C if length <= self.rules.min_length else self.never_C
        if len(banned_C):
            logits_NV.index_fill_(1, banned_C, DEAD)
        if outputs_NT is not None:
            if self.rules.no_repeat_ngram_size:
                self._ban_repeats(logits_NV, outputs_NT, self.rules.no_repeat_ngram_size)
            if self.excludes:
                self._ban_phrases(logits_NV, outputs_NT)
            if self.rules.allow is not None:
                allowed_NV = self.rules.allow(outputs_NT, self.sentence_B.repeat_interleave(self.rows))
                logits_NV.masked_fill_(~allowed_NV, DEAD)
        if forcing:
            force(logits_NV, token_N, own_N1)

    def _ban_repeats(self, logits_NV: Tensor, outputs_NT: Tensor, size: int) -> None:
        if outputs_NT.shape[1] < size:
            return
        said_NWn = outputs_NT.unfold(1, size, 1)
        begun_NW = (said_NWn[:, :, :-1] == outputs_NT[:, None, outputs_NT.shape[1] - size + 1 :]).all(-1)
        _ban(logits_NV, said_NWn[:, :, -1], begun_NW)

    def _ban_phrases(self, logits_NV: Tensor, outputs_NT: Tensor) -> None:
        tail_BR1M = tail(outputs_NT, self.head_BPM.shape[2]).view(len(self.head_BPM), self.rows, 1, -1)
        head_B1PM, last_BRP = self.head_BPM[:, None], self.last_BP[:, None].expand(-1, self.rows, -1)
        begun_BRP = ((tail_BR1M == head_B1PM) | (head_B1PM == ANY)).all(-1) & (last_BRP >= 0)
        _ban(logits_NV, last_BRP.clamp(min=0).flatten(0, 1), begun_BRP.flatten(0, 1))

    def keep(self, sentences_B: Tensor) -> None:
        """Only these sentences."""
        self.sentence_B, self.prefix_BT = self.sentence_B[sentences_B], self.prefix_BT[sentences_B]
        if self.excludes:
            self.head_BPM, self.last_BP = self.head_BPM[sentences_B], self.last_BP[sentences_B]


def _ban(logits_NV: Tensor, token_NX: Tensor, banned_NX: Tensor) -> None:
    """A token may be named several times; one ban among them is enough."""
    most_NX = torch.where(banned_NX, DEAD, -DEAD).to(logits_NV.dtype)
    logits_NV.scatter_reduce_(1, token_NX, most_NX, "amin")
