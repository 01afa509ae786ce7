"""A search over one sentence, written plainly, and all that it considered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.decoding.constraints import Allow
from dragoman.decoding.penalty import LengthPenalty
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN
from dragoman.tasks.inference_model import most_positions
from dragoman.viz.explanation import Branch, Fate


@dataclass(frozen=True)
class Grown:
    """A hypothesis that was considered; see `dragoman.viz.explanation.Branch`."""

    parent: int | None
    step: int
    rank: int
    token: int
    score: float
    fate: Fate


@dataclass(frozen=True)
class Record:
    """All that a search considered, and the places in it of the best hypothesis, from its first token to its last."""

    grown: tuple[Grown, ...]
    path: tuple[int, ...]

    @property
    def ids(self) -> list[int]:
        """The best hypothesis, its end token included if it came to it."""
        return [self.grown[place].token for place in self.path]

    def branches(self, subword: Vocabulary) -> tuple[Branch, ...]:
        """The same in names."""
        names = subword.pieces([grown.token for grown in self.grown])
        return tuple(
            Branch(grown.parent, grown.step, grown.rank, name, grown.score, grown.fate, won=index in self.path)
            for index, (grown, name) in enumerate(zip(self.grown, names, strict=True))
        )


@torch.no_grad()
def recorded_search(
    model: Transformer,
    source: Sequence[int],
    config: DecodingConfig,
    *,
    start: int,
    never: Sequence[int] = FORBIDDEN,
    allow: Allow | None = None,
) -> Record:
    """Beam search over one sentence as `dragoman.decoding.beam_search` does it, written plainly, and all of it kept.

    Greedy search is a beam of one. never: tokens that are not said. allow: what may come next, as `Rules` has it
    """
    width = config.beam_size if config.method == "beam" else 1
    device, positions = model.output.device, most_positions([model])
    limit = min(len(source) + config.max_extra_tokens, positions or len(source) + config.max_extra_tokens)
    penalty = LengthPenalty(config.length_penalty, config.alpha)
    counted = width if config.early_stopping == "exhaustive" else config.nbest
    last_end = width if width == 1 or config.early_stopping == "beam_full" else 2 * width
    grown: list[Grown] = []
    finished: list[int] = []
    alive: list[int | None] = [None]
    sums: list[float] = [0.0]
    state = model.start(torch.tensor([list(source)], device=device))
    tokens = [start] * width
    outputs: list[list[int]] = [[]]
    for step in range(limit):
        logits_NV, state = model.step(torch.tensor(tokens, device=device), state)
        log_probs_RV = logits_NV[: len(alive)].float().log_softmax(dim=-1)
        log_probs_RV[:, list(never)] = float("-inf")
        if allow is not None:
            said_RT = torch.tensor(outputs, dtype=torch.long, device=device)
            log_probs_RV[~allow(said_RT, said_RT.new_zeros(len(outputs)))] = float("-inf")
        total_RV = torch.tensor(sums, device=device)[:, None] + log_probs_RV
        found = total_RV.flatten().topk(min(2 * width, total_RV.numel()))
        shares = (found.values / penalty(float(step + 1))).tolist()
        living: list[tuple[int, int, float]] = []
        for rank, (total, index, share) in enumerate(zip(found.values.tolist(), found.indices.tolist(), shares, strict=True)):
            row, token = divmod(index, total_RV.shape[1])
            if total == float("-inf"):
                break
            if token == END_ID:
                fate: Fate = "finished" if rank < last_end else "pruned"
            else:
                fate = "kept" if len(living) < width else "pruned"
            if fate == "kept":
                living.append((len(grown), row, total))
            elif fate == "finished":
                finished.append(len(grown))
            grown.append(Grown(alive[row], step, rank, token, share if fate == "finished" else total, fate))
        finished = sorted(finished, key=lambda place: -grown[place].score)[:width]
        best_alive = living[0][2] if living else float("-inf")
        if width == 1:
            done = bool(finished)
        else:
            done = len(finished) >= counted and grown[finished[counted - 1]].score >= best_alive / penalty(float(limit))
            done = done or (config.early_stopping == "beam_full" and len(finished) == width)
        alive, sums = [place for place, _, _ in living], [total for _, _, total in living]
        if done or not alive:
            break
        outputs = [[*outputs[row], grown[place].token] for place, row, _ in living]
        rows = [row for _, row, _ in living]
        rows += [rows[0]] * (width - len(rows))
        state = state.reorder(torch.tensor(rows, device=device))
        tokens = [grown[place].token for place, _, _ in living]
        tokens += [tokens[0]] * (width - len(tokens))
    return Record(tuple(grown), _path(grown, finished[0] if finished else alive[0]))


def _path(grown: Sequence[Grown], last: int | None) -> tuple[int, ...]:
    path: list[int] = []
    while last is not None:
        path.append(last)
        last = grown[last].parent
    return tuple(reversed(path))
