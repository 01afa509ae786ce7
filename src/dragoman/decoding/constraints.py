"""Constraints on the outputs of all sentences and of one sentence, and the logits mask that enforces them at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.exactly_once import ExactlyOnceMask
from dragoman.decoding.phrase import Phrase, PhraseGroup

NEG_INF = float("-inf")

AllowedTokensFn = Callable[[Array, Array], Array]
"""(outputs_NT so far, sentences_N: index in the batch of each row's sentence) → allowed_NV, true for tokens that may come next.

A search calls it before every token, the first included (T = 0). It decides on the end token, too. A row without an allowed
token leaves the search.
"""


@dataclass(frozen=True)
class DecodingConstraints:
    """Constraints on the outputs of all sentences in a batch.

    min_length: minimum output length in tokens, the end token not counted
    no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 allows repeated n-grams
    suppress_tokens: tokens that no output contains
    allowed_tokens_fn: returns the tokens that may come next, such as those of an automaton
    repetition_window: the search stops an output if one group of tokens, at least four times in a row, fills its last
        `repetition_window` tokens; 0 never stops one
    """

    min_length: int = 0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple[int, ...] = ()
    allowed_tokens_fn: AllowedTokensFn | None = None
    repetition_window: int = 0


@dataclass(frozen=True)
class SentenceConstraints:
    """Constraints on the output of one sentence.

    prefix: first tokens of the output; overrides every mask, and is shorter than the length limit
    include: groups of phrases; the text of the output must contain one phrase of each (beam search, as far as it can)
    exclude: phrases that the text of the output must not contain
    allow_repetition: whether the output may contain a degenerate repetition, because its source does
    exactly_once: tokens that the output contains once each, in any order, also if `suppress_tokens` has them
    """

    prefix: tuple[int, ...] = ()
    include: tuple[PhraseGroup, ...] = ()
    exclude: tuple[Phrase, ...] = ()
    allow_repetition: bool = False
    exactly_once: tuple[int, ...] = ()

    @property
    def is_supported(self) -> bool:
        """Return whether a native search supports these constraints: only `allow_repetition` may differ from the default."""
        return replace(self, allow_repetition=False) == NO_SENTENCE_CONSTRAINTS

    @property
    def required_tokens(self) -> int:
        """Return the number of tokens that meet all constraints, the end token included: the least sensible length limit."""
        num_phrase_tokens = sum(max(len(phrase.tokens) for phrase in group) for group in self.include)
        return len(self.prefix) + num_phrase_tokens + len(self.exactly_once) + 1


NO_DECODING_CONSTRAINTS = DecodingConstraints()
NO_SENTENCE_CONSTRAINTS = SentenceConstraints()


def check_prefixes(constraints: Sequence[SentenceConstraints], max_lengths: Sequence[int]) -> None:
    """Assert that there is one constraint for each sentence, and that the limit has room for prefix and `exactly_once`.

    A prefix is shorter than the limit.
    """
    for sentence, max_length in zip(constraints, max_lengths, strict=True):
        assert len(sentence.prefix) < max_length, "a prefix is not shorter than the length limit"
        assert len(sentence.prefix) + len(sentence.exactly_once) <= max_length, "tokens do not fit into the length limit"


def _pad_prefixes(constraints: Sequence[SentenceConstraints], arrays: Arrays) -> Array:
    """Return the prefix of each sentence, padded with -1 on the right. → (B, T) with T ≥ 1"""
    longest = max((len(sentence.prefix) for sentence in constraints), default=0)
    rows = [[*sentence.prefix, *[-1] * (max(longest, 1) - len(sentence.prefix))] for sentence in constraints]
    return arrays.asarray(rows, arrays.xp.int64).reshape(len(constraints), max(longest, 1))


def force_tokens(logits_NV: Array, token_N: Array, logit_N: Array, arrays: Arrays) -> None:
    """Mask all tokens but `token_N`, which gets the logit `logit_N`, in place. A row with a negative token is unchanged."""
    is_forced_N, positions = token_N >= 0, (arrays.arange(len(token_N)), token_N.clip(min=0))
    value_N = arrays.xp.where(is_forced_N, logit_N, logits_NV[positions])
    logits_NV[is_forced_N] = NEG_INF
    logits_NV[positions] = value_N


class LogitsMasker:
    """Mask that applies all constraints to the logits, in place; all rows of a sentence share its constraints."""

    def __init__(
        self,
        decoding_constraints: DecodingConstraints,
        constraints: Sequence[SentenceConstraints],
        *,
        max_lengths: Sequence[int],
        forbidden_ids: Sequence[int],
        end_id: int,
        rows_per_sentence: int,
        num_groups: int = 1,
        arrays: Arrays,
    ) -> None:
        """Prepare the masks.

        constraints: one for each sentence
        max_lengths: maximum output length of each sentence in tokens, the end token included
        rows_per_sentence: rows of logits for each of these sentences
        num_groups: number of adjacent entries of `constraints` that belong to one sentence of the caller
        """
        self.decoding_constraints, self.end_id = decoding_constraints, end_id
        self.rows_per_sentence, self.arrays = rows_per_sentence, arrays
        suppressed_ids = sorted({*forbidden_ids, *decoding_constraints.suppress_tokens})
        self.suppressed_C = arrays.asarray(suppressed_ids, arrays.xp.int64)
        self.suppressed_and_end_C = arrays.asarray(sorted({*suppressed_ids, end_id}), arrays.xp.int64)
        self.sentence_B = arrays.arange(len(constraints)) // num_groups
        self.longest_prefix = max((len(sentence.prefix) for sentence in constraints), default=0)
        self.prefix_BT = _pad_prefixes(constraints, arrays)
        self.excluded_phrases = [sentence.exclude for sentence in constraints]
        self.longest_excluded = max((len(phrase.text) for sentence in constraints for phrase in sentence.exclude), default=0)
        self.exactly_once: ExactlyOnceMask | None = None
        if any(sentence.exactly_once for sentence in constraints):
            tokens = [sentence.exactly_once for sentence in constraints]
            self.exactly_once = ExactlyOnceMask(tokens, max_lengths, rows_per_sentence=rows_per_sentence, arrays=arrays)

    @property
    def needs_outputs(self) -> bool:
        """Return whether any constraint reads the outputs so far."""
        return bool(
            self.decoding_constraints.no_repeat_ngram_size
            or self.decoding_constraints.allowed_tokens_fn
            or self.longest_excluded
            or self.exactly_once is not None
        )

    def find_incomplete(self, outputs_NT: Array) -> Array:
        """Return whether each output lacks a token that it must contain exactly once. → (N,)"""
        if self.exactly_once is None:
            return self.arrays.full((len(outputs_NT),), False, self.arrays.xp.bool)
        return self.exactly_once.find_missing(outputs_NT).any(1)

    def __call__(self, logits_NV: Array, outputs_NT: Array | None, length: int) -> None:
        """Mask the tokens that may not be token number `length` (from 1) after these outputs."""
        is_forced = length <= self.longest_prefix
        if is_forced:
            token_N = self.arrays.repeat(self.prefix_BT[:, length - 1], self.rows_per_sentence)
            logit_N = self.arrays.take(logits_NV, token_N.clip(min=0)[:, None])[:, 0]
        if self.exactly_once is not None:
            once_logit_NC = self.exactly_once.gather_logits(logits_NV)
        banned_C = self.suppressed_and_end_C if length <= self.decoding_constraints.min_length else self.suppressed_C
        if len(banned_C):
            logits_NV[:, banned_C] = NEG_INF
        if outputs_NT is not None:
            if self.decoding_constraints.no_repeat_ngram_size:
                self._mask_repeated_ngrams(logits_NV, outputs_NT, self.decoding_constraints.no_repeat_ngram_size)
            if self.longest_excluded:
                self._mask_excluded_phrases(logits_NV, outputs_NT)
            if self.decoding_constraints.allowed_tokens_fn is not None:
                allowed_NV = self.decoding_constraints.allowed_tokens_fn(
                    outputs_NT, self.arrays.repeat(self.sentence_B, self.rows_per_sentence)
                )
                logits_NV[~allowed_NV] = NEG_INF
            if self.exactly_once is not None:
                self.exactly_once(logits_NV, once_logit_NC, outputs_NT, length=length, end_id=self.end_id)
        if is_forced:
            force_tokens(logits_NV, token_N, logit_N, self.arrays)

    def _mask_repeated_ngrams(self, logits_NV: Array, outputs_NT: Array, ngram_size: int) -> None:
        if outputs_NT.shape[1] < ngram_size:
            return
        ngram_NWn = self.arrays.windows(outputs_NT, ngram_size)
        matches_NW = (ngram_NWn[:, :, :-1] == outputs_NT[:, None, outputs_NT.shape[1] - ngram_size + 1 :]).all(-1)
        # A token may be the last of several n-grams, so that a banned entry must win over the others.
        limit_NW = self.arrays.cast(self.arrays.xp.where(matches_NW, NEG_INF, -NEG_INF), logits_NV.dtype)
        self.arrays.reduce_at(logits_NV, ngram_NWn[:, :, -1], limit_NW, "minimum")

    def _mask_excluded_phrases(self, logits_NV: Array, outputs_NT: Array) -> None:
        """Mask the tokens that complete an excluded phrase. Each token has a byte or more, so a state needs few of them."""
        first = max(outputs_NT.shape[1] - self.longest_excluded + 1, 0)
        for row, output in enumerate(outputs_NT[:, first:].tolist()):
            for phrase in self.excluded_phrases[row // self.rows_per_sentence]:
                if tokens := phrase.list_completing_tokens(phrase.find_state(output)):
                    logits_NV[row, list(tokens)] = NEG_INF

    def select_sentences(self, sentences_B: Array) -> None:
        """Keep the constraints of these sentences alone."""
        self.sentence_B, self.prefix_BT = self.sentence_B[sentences_B], self.prefix_BT[sentences_B]
        self.excluded_phrases = [self.excluded_phrases[sentence] for sentence in sentences_B.tolist()]
        if self.exactly_once is not None:
            self.exactly_once.select_sentences(sentences_B)
