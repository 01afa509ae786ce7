"""A search over one sentence, written plainly, and all that it considered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.constraints import AllowedTokensFn
from dragoman.decoding.penalty import LengthPenalty
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import get_max_positions
from dragoman.viz.explanation import BeamNode, NodeStatus


@dataclass(frozen=True)
class TracedHypothesis:
    """A hypothesis that was considered; see `dragoman.viz.explanation.Branch`."""

    parent: int | None
    step: int
    rank: int
    token: int
    score: float
    status: NodeStatus


@dataclass(frozen=True)
class SearchTrace:
    """All that a search considered, and the places in it of the best hypothesis, from its first token to its last."""

    hypotheses: tuple[TracedHypothesis, ...]
    path: tuple[int, ...]

    @property
    def ids(self) -> list[int]:
        """The best hypothesis, its end token included if it came to it."""
        return [self.hypotheses[index].token for index in self.path]

    def to_branches(self, vocabulary: Vocabulary) -> tuple[BeamNode, ...]:
        """The same in names."""
        names = vocabulary.ids_to_pieces([hypothesis.token for hypothesis in self.hypotheses])
        return tuple(
            BeamNode(grown.parent, grown.step, grown.rank, name, grown.score, grown.status, is_best=index in self.path)
            for index, (grown, name) in enumerate(zip(self.hypotheses, names, strict=True))
        )


@torch.no_grad()
def trace_search(
    model: Transformer,
    source: Sequence[int],
    config: DecodingConfig,
    *,
    start_id: int,
    suppressed_ids: Sequence[int] = FORBIDDEN_IDS,
    allowed_tokens_fn: AllowedTokensFn | None = None,
) -> SearchTrace:
    """Beam search over one sentence as `dragoman.decoding.beam_search` does it, written plainly, and all of it kept.

    Greedy search is a beam of one. never: tokens that are not said. allow: what may come next, as `Rules` has it
    """
    beam_size = config.beam_size if config.method == "beam" else 1
    device, max_positions = model.output.device, get_max_positions([model])
    limit = min(len(source) + config.max_extra_tokens, max_positions or len(source) + config.max_extra_tokens)
    penalty = LengthPenalty(config.length_penalty, config.alpha)
    num_required = beam_size if config.early_stopping == "exhaustive" else config.nbest
    end_rank_limit = beam_size if beam_size == 1 or config.early_stopping == "beam_full" else 2 * beam_size
    hypotheses: list[TracedHypothesis] = []
    finished: list[int] = []
    alive: list[int | None] = [None]
    sums: list[float] = [0.0]
    state = model.start(torch.tensor([list(source)], device=device))
    tokens = [start_id] * beam_size
    outputs: list[list[int]] = [[]]
    for step in range(limit):
        logits_NV, state = model.step(torch.tensor(tokens, device=device), state)
        log_probs_RV = logits_NV[: len(alive)].float().log_softmax(dim=-1)
        log_probs_RV[:, list(suppressed_ids)] = float("-inf")
        if allowed_tokens_fn is not None:
            outputs_RT = torch.tensor(outputs, dtype=torch.long, device=device)
            log_probs_RV[~allowed_tokens_fn(outputs_RT, outputs_RT.new_zeros(len(outputs)))] = float("-inf")
        total_RV = torch.tensor(sums, device=device)[:, None] + log_probs_RV
        top = total_RV.flatten().topk(min(2 * beam_size, total_RV.numel()))
        normalized_scores = (top.values / penalty(float(step + 1))).tolist()
        survivors: list[tuple[int, int, float]] = []
        for rank, (total, index, normalized_score) in enumerate(
            zip(top.values.tolist(), top.indices.tolist(), normalized_scores, strict=True)
        ):
            row, token = divmod(index, total_RV.shape[1])
            if total == float("-inf"):
                break
            if token == END_ID:
                status: NodeStatus = "finished" if rank < end_rank_limit else "pruned"
            else:
                status = "kept" if len(survivors) < beam_size else "pruned"
            if status == "kept":
                survivors.append((len(hypotheses), row, total))
            elif status == "finished":
                finished.append(len(hypotheses))
            hypotheses.append(
                TracedHypothesis(alive[row], step, rank, token, normalized_score if status == "finished" else total, status)
            )
        finished = sorted(finished, key=lambda place: -hypotheses[place].score)[:beam_size]
        best_alive = survivors[0][2] if survivors else float("-inf")
        if beam_size == 1:
            done = bool(finished)
        else:
            done = len(finished) >= num_required and hypotheses[finished[num_required - 1]].score >= best_alive / penalty(
                float(limit)
            )
            done = done or (config.early_stopping == "beam_full" and len(finished) == beam_size)
        alive, sums = [node_index for node_index, _, _ in survivors], [total for _, _, total in survivors]
        if done or not alive:
            break
        outputs = [[*outputs[row], hypotheses[place].token] for place, row, _ in survivors]
        rows = [row for _, row, _ in survivors]
        rows += [rows[0]] * (beam_size - len(rows))
        state = state.reorder(torch.tensor(rows, device=device))
        tokens = [hypotheses[place].token for place, _, _ in survivors]
        tokens += [tokens[0]] * (beam_size - len(tokens))
    return SearchTrace(tuple(hypotheses), _trace_path(hypotheses, finished[0] if finished else alive[0]))


def _trace_path(hypotheses: Sequence[TracedHypothesis], last: int | None) -> tuple[int, ...]:
    path: list[int] = []
    while last is not None:
        path.append(last)
        last = hypotheses[last].parent
    return tuple(reversed(path))
