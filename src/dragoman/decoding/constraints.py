"""What an output must and must not hold: rules for all sentences, wishes for one, and the bans that follow at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NEG_INF = float("-inf")
Phrase = tuple[int, ...]

AllowedTokensFn = Callable[[Tensor, Tensor], Tensor]
"""(outputs_NT so far, sentences_N: the number in the batch of each row's sentence) → allowed_NV, true for what may come next.

It is asked before every token, the first included (T = 0), and decides on the end token, too. A row for which it allows nothing
dies.
"""

# In banks of phrases: fits every token, and none; before the first token stands one that is like neither.
WILDCARD, NO_MATCH, BOS_PAD = -1, -3, -2


@dataclass(frozen=True)
class DecodingConstraints:
    """What holds for all sentences of a batch.

    min_length: fewest tokens of an output, its end token not counted
    no_repeat_ngram_size: no sequence of so many tokens stands twice in an output; 0 lets all stand
    suppressed: tokens that are never said
    allow: asked at each step what may come next, as an automaton knows
    repetition_window: an output is stopped where one group of tokens, four times or more, fills its last so many; 0 never stops it
    """

    min_length: int = 0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple[int, ...] = ()
    allowed_tokens_fn: AllowedTokensFn | None = None
    repetition_window: int = 0


@dataclass(frozen=True)
class SentenceConstraints:
    """What is asked of one sentence's output, in tokens.

    prefix: how it begins; goes before every ban, and lies within the limit
    include: phrases that it must hold (beam search); one that cannot be placed is named in Hypothesis.missing
    exclude: phrases that it must not hold
    may_loop: it is not stopped for repeating itself, as its source does so, too
    """

    prefix: Phrase = ()
    include: tuple[Phrase, ...] = ()
    exclude: tuple[Phrase, ...] = ()
    allow_repetition: bool = False

    @property
    def is_supported(self) -> bool:
        """Whether it asks for nothing but that circles may be."""
        return replace(self, may_loop=False) == NO_SENTENCE_CONSTRAINTS

    @property
    def required_tokens(self) -> int:
        """Tokens that it may take to fulfil, the end token included; the limit should be no less."""
        return len(self.prefix) + sum(map(len, self.include)) + 1


NO_DECODING_CONSTRAINTS = DecodingConstraints()
NO_SENTENCE_CONSTRAINTS = SentenceConstraints()


def contains_phrase(tokens: Sequence[int], phrase: Phrase) -> bool:
    """Whether the phrase stands somewhere in the tokens, whole."""
    return any(tuple(tokens[start : start + len(phrase)]) == phrase for start in range(len(tokens) - len(phrase) + 1))


def last_tokens(outputs_NT: Tensor, length: int) -> Tensor:
    """The last tokens of each output, with BEFORE on the left where it is shorter. → (N, length)"""
    last_NM = outputs_NT[:, max(0, outputs_NT.shape[1] - length) :]
    return torch.nn.functional.pad(last_NM, (length - last_NM.shape[1], 0), value=BOS_PAD)


def pad_phrases(phrases: Sequence[Sequence[Phrase]], *, align_right: bool, pad_value: int, device: torch.device) -> Tensor:
    """The phrases of each sentence as a block (B, P, M), each at the left or the right end of its row; M is 1 or more."""
    max_phrases = max(map(len, phrases), default=0)
    max_length = max((len(phrase) for own in phrases for phrase in own), default=0)
    rows = []
    for own in phrases:
        sentence_rows = [[pad_value] * max(max_length, 1) for _ in range(max_phrases)]
        for row, phrase in zip(sentence_rows, own, strict=False):
            start = len(row) - len(phrase) if align_right else 0
            row[start : start + len(phrase)] = phrase
        rows.append(sentence_rows)
    return torch.tensor(rows, dtype=torch.long, device=device).view(len(phrases), max_phrases, max(max_length, 1))


def force_tokens(logits_NV: Tensor, token_N: Tensor, logit_N1: Tensor) -> None:
    """Leave these rows nothing but this token, with the logit that was its own; a row with a token below 0 stays as it is."""
    is_forced_N1, token_N1 = (token_N >= 0)[:, None], token_N.clamp(min=0)[:, None]
    value_N1 = torch.where(is_forced_N1, logit_N1, logits_NV.gather(1, token_N1))
    logits_NV.masked_fill_(is_forced_N1, NEG_INF).scatter_(1, token_N1, value_N1)


class LogitsMasker:
    """Rules and wishes as a change of logits, in place; every row of a sentence is under the same."""

    def __init__(
        self,
        decoding_constraints: DecodingConstraints,
        constraints: Sequence[SentenceConstraints],
        *,
        forbidden_ids: Sequence[int],
        end_id: int,
        rows_per_sentence: int,
        num_groups: int = 1,
        device: torch.device,
    ) -> None:
        """wishes: one for each sentence. rows: of each. share: so many neighbours are one sentence of the caller's."""
        self.decoding_constraints = decoding_constraints
        self.rows_per_sentence = rows_per_sentence
        suppressed_ids = sorted({*forbidden_ids, *decoding_constraints.suppress_tokens})
        self.suppressed_C = torch.tensor(suppressed_ids, dtype=torch.long, device=device)
        self.suppressed_and_end_C = torch.tensor(sorted({*suppressed_ids, end_id}), dtype=torch.long, device=device)
        self.sentence_B = torch.arange(len(constraints), device=device) // num_groups
        self.longest_prefix = max((len(wish.prefix) for wish in constraints), default=0)
        self.prefix_BT = pad_phrases([[wish.prefix] for wish in constraints], align_right=False, pad_value=-1, device=device)[
            :, 0
        ]
        self.has_excluded_phrases = any(wish.exclude for wish in constraints)
        if self.has_excluded_phrases:
            heads = [[phrase[:-1] for phrase in wish.exclude] for wish in constraints]
            self.head_BPM = pad_phrases(heads, align_right=True, pad_value=WILDCARD, device=device)
            phrase_ends = [[phrase[-1:] for phrase in wish.exclude] for wish in constraints]
            self.last_BP = pad_phrases(phrase_ends, align_right=False, pad_value=NO_MATCH, device=device)[:, :, 0]

    @property
    def needs_outputs(self) -> bool:
        """Whether the outputs so far are needed at all."""
        return bool(
            self.decoding_constraints.no_repeat_ngram_size
            or self.decoding_constraints.allowed_tokens_fn
            or self.has_excluded_phrases
        )

    def __call__(self, logits_NV: Tensor, outputs_NT: Tensor | None, length: int) -> None:
        """Rule out what may not be token number `length` (from 1) after these outputs."""
        is_forced = length <= self.longest_prefix
        if is_forced:
            token_N = self.prefix_BT[:, length - 1].repeat_interleave(self.rows_per_sentence)
            logit_N1 = logits_NV.gather(1, token_N.clamp(min=0)[:, None])
        banned_C = self.suppressed_and_end_C if length <= self.decoding_constraints.min_length else self.suppressed_C
        if len(banned_C):
            logits_NV.index_fill_(1, banned_C, NEG_INF)
        if outputs_NT is not None:
            if self.decoding_constraints.no_repeat_ngram_size:
                self._mask_repeated_ngrams(logits_NV, outputs_NT, self.decoding_constraints.no_repeat_ngram_size)
            if self.has_excluded_phrases:
                self._mask_excluded_phrases(logits_NV, outputs_NT)
            if self.decoding_constraints.allowed_tokens_fn is not None:
                allowed_NV = self.decoding_constraints.allowed_tokens_fn(
                    outputs_NT, self.sentence_B.repeat_interleave(self.rows_per_sentence)
                )
                logits_NV.masked_fill_(~allowed_NV, NEG_INF)
        if is_forced:
            force_tokens(logits_NV, token_N, logit_N1)

    def _mask_repeated_ngrams(self, logits_NV: Tensor, outputs_NT: Tensor, ngram_size: int) -> None:
        if outputs_NT.shape[1] < ngram_size:
            return
        ngram_NWn = outputs_NT.unfold(1, ngram_size, 1)
        matches_NW = (ngram_NWn[:, :, :-1] == outputs_NT[:, None, outputs_NT.shape[1] - ngram_size + 1 :]).all(-1)
        _mask_tokens(logits_NV, ngram_NWn[:, :, -1], matches_NW)

    def _mask_excluded_phrases(self, logits_NV: Tensor, outputs_NT: Tensor) -> None:
        tail_BR1M = last_tokens(outputs_NT, self.head_BPM.shape[2]).view(len(self.head_BPM), self.rows_per_sentence, 1, -1)
        head_B1PM, last_BRP = self.head_BPM[:, None], self.last_BP[:, None].expand(-1, self.rows_per_sentence, -1)
        matches_BRP = ((tail_BR1M == head_B1PM) | (head_B1PM == WILDCARD)).all(-1) & (last_BRP >= 0)
        _mask_tokens(logits_NV, last_BRP.clamp(min=0).flatten(0, 1), matches_BRP.flatten(0, 1))

    def select_sentences(self, sentences_B: Tensor) -> None:
        """Only these sentences."""
        self.sentence_B, self.prefix_BT = self.sentence_B[sentences_B], self.prefix_BT[sentences_B]
        if self.has_excluded_phrases:
            self.head_BPM, self.last_BP = self.head_BPM[sentences_B], self.last_BP[sentences_B]


def _mask_tokens(logits_NV: Tensor, token_NX: Tensor, banned_NX: Tensor) -> None:
    """A token may be named several times; one ban among them is enough."""
    max_logit_NX = torch.where(banned_NX, NEG_INF, -NEG_INF).to(logits_NV.dtype)
    logits_NV.scatter_reduce_(1, token_NX, max_logit_NX, "amin")
