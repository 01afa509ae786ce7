"""Greedy search over blocks of tokens: each step verifies the proposals of the last step and makes new ones.

The source is Stern et al. 2018, sections 3 and 4. A step reads a block of k tokens for each sentence: one that is certain, and
k − 1 proposals. The model's next token after each of them shows how many proposals are those of greedy search. The output keeps
these, and the model's own token behind them. So the output is that of greedy search, and a step adds 1 to k tokens to it.

Typical acceptance (Cai et al. 2024, section 2.3.1) is a lossy mode for requests with a threshold ε. It keeps a proposal whose
probability exceeds min(ε, √ε · exp(−H)), where H is the entropy of the model's next token.

    k block size    others as in `dragoman.decoding`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from dragoman.decoding.constraints import NEG_INF
from dragoman.decoding.greedy import NO_TOKEN, to_hypothesis
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.decoding.repetition import CHECK_INTERVAL, is_repeating
from dragoman.decoding.topk import TopK

MIN_LOG_PROB = -1e4
"""Log-probability of a token that the request excludes, whose share of the entropy is zero."""


class BlockState(Protocol):
    """State of a decoder that reads blocks of tokens."""

    def accept(self, counts_B: Tensor) -> Self:
        """Return the state after the first tokens of each sentence's last block; the others are rolled back."""
        ...

    def select_sentences(self, sentences_B: Tensor) -> Self:
        """Return the state of these sentences alone."""
        ...


class BlockModel(Protocol):
    """Model with prediction heads or a draft decoder, which reads k tokens of each sentence in one step."""

    @property
    def device(self) -> torch.device: ...

    def make_topk(self) -> TopK: ...

    def start(self, source_BS: Tensor) -> Any:
        """Return the state before the first token."""
        ...

    def read(self, tokens_BK: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Read a block and return the logits after each token (B · k, V), the decoder's outputs (B · k, D), and the state."""
        ...

    def propose(self, outputs_BD: Tensor, tokens_B: Tensor, state: Any, num_proposals: int) -> tuple[Tensor, Any]:
        """Return proposals for the tokens behind `tokens_B` (B, num_proposals), and the state.

        outputs_BD: outputs of the decoder at the last accepted tokens
        tokens_B: tokens that the model predicts there
        """
        ...


class BlockSearch(Protocol):
    """Greedy search over blocks for one model, and the block size that is fastest on this machine."""

    def choose_block_size(self, num_sentences: int, *, may_be_one: bool) -> int:
        """Return the fastest k for a batch of this many sentences. may_be_one: whether k may be 1, search without heads"""
        ...

    def greedy(self, source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
        """Return the greedy output of each source; sources are padded on the right."""
        ...


@dataclass
class _Output:
    """Output of one sentence. step_lengths: tokens that each step has added to it"""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    step_lengths: list[int] = field(default_factory=list)
    has_repetition: bool = False
    is_done: bool = False


@torch.no_grad()
def block_greedy_search(model: BlockModel, source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
    """Return the greedy output of each source, as `decode_tokens` does, except for ties by rounding and typical acceptance.

    source_BS: source ids, padded on the right
    block_size: k, at most the number of proposals plus 1
    """
    assert min(request.max_lengths, default=1) >= 1
    outputs = [_Output() for _ in request.max_lengths]
    if not outputs:
        return []
    searcher = _BlockSearch(model, request, outputs)
    state: Any = model.start(source_BS.to(model.device))
    active = list(range(len(outputs)))
    first_ids = [request.start_id, *request.prompt]
    while active:
        # The start token and the prompt are certain; the tokens behind them are proposals, or fill the block.
        if first_ids:
            chunk, first_ids = first_ids[:block_size], first_ids[block_size:]
            num_certain = len(chunk)
            row = [*chunk, *[request.end_id] * (block_size - num_certain)]
            tokens_BK = torch.tensor([row] * len(active), device=model.device)
        else:
            num_certain = 1
        logits_XV, outputs_XD, state = model.read(tokens_BK, state)
        if first_ids:
            state = state.accept(torch.full((len(active),), num_certain, device=model.device))
            continue
        num_accepted = searcher.verify(active, tokens_BK.tolist(), logits_XV, num_certain)
        state = state.accept(torch.tensor(num_accepted, device=model.device))
        kept = [row for row, sentence in enumerate(active) if not outputs[sentence].is_done]
        if len(kept) < len(active):
            active, num_accepted = [active[row] for row in kept], [num_accepted[row] for row in kept]
            state = state.select_sentences(torch.tensor(kept, dtype=torch.long, device=model.device)) if kept else state
        if active:
            last_rows = [row * block_size + count - 1 for row, count in zip(kept, num_accepted, strict=True)]
            next_B = torch.tensor([outputs[sentence].tokens[-1] for sentence in active], device=model.device)
            last_outputs_BD = outputs_XD[torch.tensor(last_rows, device=model.device)]
            proposals_BI, state = model.propose(last_outputs_BD, next_B, state, block_size - 1)
            tokens_BK = torch.cat([next_B[:, None], proposals_BI], dim=1)
            searcher.has_proposals = True
    return [
        replace(
            to_hypothesis(
                output.tokens,
                output.log_probs,
                output.has_repetition,
                end_id=request.end_id,
                length_penalty=request.length_penalty,
            ),
            step_lengths=tuple(output.step_lengths),
        )
        for output in outputs
    ]


class _BlockSearch:
    """Verification of proposals under the rules of a request."""

    def __init__(self, model: BlockModel, request: SearchRequest, outputs: Sequence[_Output]) -> None:
        self.request, self.outputs, self.device = request, outputs, model.device
        self.topk_impl = model.make_topk()
        self.has_proposals = False  # the first block is filled with end tokens
        self.suppressed_C = torch.tensor(list(request.suppress_tokens), dtype=torch.long, device=model.device)

    def verify(self, active: Sequence[int], blocks: list[list[int]], logits_XV: Tensor, num_certain: int) -> list[int]:
        """Extend the outputs of the sentences in the batch, and return the number of accepted tokens of each block.

        blocks: the tokens that were read
        logits_XV: the logits after each of them, sentence by sentence
        num_certain: tokens at the start of each block that are no proposals
        """
        block_size = len(blocks[0])
        logits_XV = logits_XV.float()
        log_sum_X = self.topk_impl.logsumexp(logits_XV)
        self._mask(active, blocks, logits_XV, num_certain)
        token_X = self.topk_impl.topk(logits_XV[:, None], None, 1)[:, 0]
        log_prob_X = (logits_XV.gather(1, token_X[:, None])[:, 0] - log_sum_X).float()
        tokens, log_probs = token_X.tolist(), log_prob_X.tolist()
        if self.request.typical_threshold and self.has_proposals:
            self._accept_typical(blocks, logits_XV, log_sum_X, tokens, log_probs)
        num_accepted = []
        for row, sentence in enumerate(active):
            output, last = self.outputs[sentence], num_certain - 1
            length = len(output.tokens)
            while True:
                index = row * block_size + last
                self._append(sentence, tokens[index] if log_probs[index] > NEG_INF else NO_TOKEN, log_probs[index])
                if output.is_done or last + 1 == block_size or blocks[row][last + 1] != output.tokens[-1]:
                    break
                last += 1
            output.step_lengths.append(len(output.tokens) - length)
            num_accepted.append(last + 1)
        return num_accepted

    def _accept_typical(
        self, blocks: list[list[int]], logits_XV: Tensor, log_sum_X: Tensor, tokens: list[int], log_probs: list[float]
    ) -> None:
        """Replace the best token after each row by the proposal that follows in the block, if it is likely enough."""
        block_size, threshold = len(blocks[0]), self.request.typical_threshold
        rows = [row for row in range(len(tokens)) if (row + 1) % block_size]
        proposals = [blocks[row // block_size][row % block_size + 1] for row in rows]
        index_X = torch.tensor(rows, device=self.device)
        log_probs_XV = logits_XV[index_X].log_softmax(-1)
        entropy_X = -(log_probs_XV.exp() * log_probs_XV.clamp(min=MIN_LOG_PROB)).sum(-1)
        limit_X = (0.5 * math.log(threshold) - entropy_X).clamp(max=math.log(threshold))
        proposal_X = torch.tensor(proposals, device=self.device)
        is_kept = (log_probs_XV.gather(1, proposal_X[:, None])[:, 0] > limit_X).tolist()
        own_log_probs = (logits_XV[index_X, proposal_X] - log_sum_X[index_X]).tolist()
        for row, proposal, kept, log_prob in zip(rows, proposals, is_kept, own_log_probs, strict=True):
            if kept:
                tokens[row], log_probs[row] = proposal, log_prob

    def _append(self, sentence: int, token: int, log_prob: float) -> None:
        """Append a token to an output, and end the output if it is the last one."""
        output, request = self.outputs[sentence], self.request
        output.tokens.append(token)
        output.log_probs.append(log_prob)
        length = len(output.tokens)
        if request.repetition_window and length % CHECK_INTERVAL == 0 and not request.allow_repetition[sentence]:
            output.has_repetition = bool(is_repeating(torch.tensor([output.tokens]), request.repetition_window)[0])
        is_end = token in (request.end_id, NO_TOKEN)
        output.is_done = is_end or output.has_repetition or length == request.max_lengths[sentence]

    def _mask(self, active: Sequence[int], blocks: list[list[int]], logits_XV: Tensor, num_certain: int) -> None:
        """Mask the tokens that the request excludes after each token of the blocks, if all proposals before it hold."""
        request, block_size = self.request, len(blocks[0])
        if len(self.suppressed_C):
            logits_XV.index_fill_(1, self.suppressed_C, NEG_INF)
        if not request.min_length and not request.no_repeat_ngram_size:
            return
        masked_rows: list[int] = []
        masked_ids: list[int] = []
        for row, sentence in enumerate(active):
            for last in range(num_certain - 1, block_size):
                context = [*self.outputs[sentence].tokens, *blocks[row][num_certain : last + 1]]
                excluded_ids = _list_repeating_tokens(context, request.no_repeat_ngram_size)
                if len(context) < request.min_length:
                    excluded_ids.append(request.end_id)
                masked_rows += [row * block_size + last] * len(excluded_ids)
                masked_ids += excluded_ids
        if masked_ids:
            index = torch.tensor([masked_rows, masked_ids], device=self.device)
            logits_XV[index[0], index[1]] = NEG_INF


def _list_repeating_tokens(context: Sequence[int], ngram_size: int) -> list[int]:
    """Return the tokens that would repeat an n-gram of the context."""
    if not ngram_size or len(context) < ngram_size:
        return []
    tail = context[len(context) - ngram_size + 1 :]
    starts = range(len(context) - ngram_size + 1)
    return [context[start + ngram_size - 1] for start in starts if context[start : start + ngram_size - 1] == tail]
