"""Searches that a compiled model makes by itself: their memory, and what was found there as hypotheses.

B sentences    R hypotheses of each    X = 2R candidates    M longest output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from dragoman.decoding.beam_history import Ending, outcome
from dragoman.decoding.constraints import DEAD
from dragoman.decoding.greedy import as_hypothesis
from dragoman.decoding.history import Entry, History
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import Request
from dragoman.decoding.repetition import EVERY, TIMES
from dragoman.inference.backends.compiled import jit_cache as entries
from dragoman.inference.backends.compiled.kernels.structs import COLUMNS, Asked, Batch, Line, Model, Space, Tree
from dragoman.inference.backends.compiled.threads import Helper, Stopped, allowed, helpers, together

if TYPE_CHECKING:
    from dragoman.inference.backends.compiled.model import CompiledTransformer

# Each row keeps a list of its best in order, as long as two beams.
WIDEST = 32
# So many steps are taken at once, after which Ctrl-C is heard.
MOST_STEPS = 64
LONGS: dict[str, Any] = {"dtype": torch.long, "device": "cpu"}
WHOLE: dict[str, Any] = {"dtype": torch.int32, "device": "cpu"}
FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}

# Fewer rows than this are not worth a team of their own, which reads all weights.
ROWS_OF_A_TEAM = 8

Found = TypeVar("Found")
Steps = Callable[..., int]
"""`entries.greedy` or `entries.beam`, but for what it writes into."""


class Threads(NamedTuple):
    """helpers: who take part in each step. over: set when others have failed, and this is for nothing"""

    helpers: Sequence[Helper]
    over: Event


class Rows:
    """What members of a team remember of so many rows, each proposing so many tokens, by names as `Batch` has them.

    All that is a number of a token or a row begins as 0: where one member has failed, the others go on with whatever stands
    where it would have written, until they are called back.
    """

    def __init__(self, rows: int, best: int, outputs: int, start_id: int, members: int) -> None:
        parts = -(-outputs // COLUMNS)
        self.shared = {
            "last": torch.full((rows,), start_id, **LONGS),
            "left": torch.zeros(1, **LONGS),
            "top": torch.empty(rows, parts, **FLOATS),
            "sum": torch.empty(rows, parts, dtype=torch.float64, device="cpu"),
            "total": torch.empty(rows, dtype=torch.float64, device="cpu"),
            "filled": torch.zeros(members, rows, **LONGS),
            "values": torch.empty(members, rows, best, **FLOATS),
            "best": torch.zeros(members, rows, best, **LONGS),
        }
        self.own = [
            {
                "tokens": torch.empty(rows, **LONGS),
                "at": torch.empty(rows, **LONGS),
                "logits": torch.empty(rows, COLUMNS, **FLOATS),
            }
            for _ in range(members)
        ]
        self.batches = [
            Batch(rows=rows, proposed=best, **{name: tensor.data_ptr() for name, tensor in (self.shared | own).items()})
            for own in self.own
        ]


@dataclass(frozen=True)
class CompiledSearcher:
    """Native search. words_W: what is said as tokens of the whole vocabulary, where only some are known"""

    model: CompiledTransformer
    words_W: Tensor | None = None
    widest: int = WIDEST

    def greedy(self, source_BS: Tensor, request: Request) -> list[Hypothesis]:
        entries.greedy.linked()
        return self._shared_out(source_BS, request, 1, self._greedy)

    def _greedy(self, source_BS: Tensor, request: Request, by: Threads) -> list[Hypothesis]:
        shape = len(request.limits), max(request.limits, default=0)
        said_BM, tokens_BM, log_probs_BM = (
            torch.empty(shape, **WHOLE),
            torch.empty(shape, **WHOLE),
            torch.empty(shape, **FLOATS),
        )
        length_B, looped_B = torch.empty(shape[0], **LONGS), torch.empty(shape[0], **LONGS)
        written = said_BM, tokens_BM, log_probs_BM, length_B, looped_B
        line = Line(*(tensor.data_ptr() for tensor in written))
        self._walk(source_BS, request, by, 1, 1, partial(_enter, entries.greedy, line, written))
        most = int(length_B.max())
        columns = (tokens_BM[:, :most], log_probs_BM[:, :most], length_B, looped_B)
        return [
            as_hypothesis(tokens[:length], log_probs[:length], bool(looped), end_id=request.end_id, penalty=request.penalty)
            for tokens, log_probs, length, looped in zip(*(tensor.tolist() for tensor in columns), strict=True)
        ]

    def beam(self, source_BS: Tensor, request: Request, *, beam_size: int, stop: str, nbest: int) -> list[list[Hypothesis]]:
        counted = (beam_size if stop == "exhaustive" else min(nbest, beam_size)) - 1

        def search(source_BS: Tensor, request: Request, by: Threads) -> list[list[Hypothesis]]:
            grown = _Grown(request, beam_size)
            tree = grown.tree(counted=counted, stop=stop)
            self._walk(source_BS, request, by, beam_size, 2 * beam_size, partial(_enter, entries.beam, tree, grown))
            return grown.outcome()

        entries.beam.linked()
        return self._shared_out(source_BS, request, beam_size, search)

    def _shared_out(
        self, source_BS: Tensor, request: Request, width: int, search: Callable[[Tensor, Request, Threads], list[Found]]
    ) -> list[Found]:
        """By as many threads as are allowed, if other searches have left them free: sentences, where there are many, are dealt
        out to teams. width: R"""
        sentences = len(request.limits)
        if not sentences:
            return []
        entries.encode.linked()  # before others wait for it, who hear no Ctrl-C
        parts = max(1, min(sentences, sentences * width // ROWS_OF_A_TEAM))
        with helpers(min(allowed(), parts * self.model.most_members) - 1) as granted:
            parts, over = min(parts, len(granted) + 1), Event()
            some = [slice(first, None, parts) for first in range(parts)]
            leading, others = granted[: parts - 1], granted[parts - 1 :]
            works = [partial(search, source_BS[one], request.some(one), Threads(others[one], over)) for one in some]
            found: dict[int, Found] = {}
            for one, theirs in zip(some, together(works, leading, over.set), strict=True):
                found |= zip(range(sentences)[one], theirs, strict=True)
        return [found[number] for number in range(sentences)]

    def _walk(self, source_BS: Tensor, request: Request, by: Threads, width: int, best: int, steps: Steps) -> None:
        """From the first token to the last, as far as there is room each time. width: R. best: tokens that each row proposes"""
        left, longest, model = len(request.limits), max(request.limits), self.model
        assert min(request.limits) >= 1
        rows, now = left * width, 0
        state = model.begun(model.start(source_BS, by.helpers), rows)
        memory = Rows(rows, best, model.output.outputs, request.start_id, len(state.room.spaces))
        limit_B, may_loop_B = torch.tensor(request.limits, **LONGS), torch.tensor(request.may_loop, **LONGS)
        banned_C = torch.tensor([*request.never, request.end_id], **LONGS)
        asked = Asked(
            limits=limit_B.data_ptr(),
            may_loop=may_loop_B.data_ptr(),
            banned=banned_C.data_ptr(),
            never=len(request.never),
            end=request.end_id,
            min_length=request.min_length,
            no_repeat_ngram_size=request.no_repeat_ngram_size,
            span=request.repetition_window,
            times=TIMES,
            every=EVERY,
            longest=longest,
        )
        words = 0 if self.words_W is None else self.words_W.data_ptr()
        while left:
            if by.over.is_set():
                raise Stopped
            if now == state.lineage_NT.shape[1]:
                state = state.with_places()
            until = min(state.lineage_NT.shape[1], longest, now + MOST_STEPS)
            state = model.with_room(state, rows)
            positions_TD, target = model.target.positions(0, until), model.target
            compiled = Model(
                target.table, positions_TD.data_ptr(), target.layers, model.across, model.heads, model.output, words
            )
            given = now, until, left, compiled, state.memory, state.past()
            memory.shared["left"].fill_(left)  # whoever goes on alone, because the first has failed, reads it
            kept = model, self.words_W, state, memory, limit_B, may_loop_B, banned_C, positions_TD
            left = state.room.meeting.hold(partial(_take, steps, given, state.room.spaces, memory.batches, asked, kept))
            now = until


def _take(
    steps: Steps,
    given: tuple[Any, ...],
    spaces: Sequence[Space],
    batches: Sequence[Batch],
    asked: Asked,
    kept: Sequence[object],
    member: int,
) -> int:
    """A member's share of some steps. kept: what stands where addresses are given, for as long as somebody may be at work"""
    return steps(*given, spaces[member], batches[member], asked)


def _enter(entry: Steps, written: Line | Tree, kept: object, *given: Any) -> int:
    """kept: as in `_take`, what is written into"""
    return entry(*given, written)


class _Grown:
    """What a beam writes into, by names as `Tree` has them, and what that says."""

    def __init__(self, request: Request, rows: int) -> None:
        self.request, self.rows = request, rows
        sentences, longest, columns = len(request.limits), max(request.limits), 2 * rows
        lengths_M = torch.arange(longest + 1, dtype=torch.float64, device="cpu").clamp(min=1)
        circles = longest // EVERY if request.repetition_window else 0
        self.tensors = {
            "length": torch.empty(sentences, **LONGS),
            "score": torch.full((sentences, rows), DEAD, **FLOATS),
            "finished": torch.full((sentences, rows), DEAD, **FLOATS),
            "codes": torch.zeros(sentences, rows, **LONGS),
            "cap": request.penalty(torch.tensor(request.limits, **FLOATS)).contiguous(),
            "penalties": (request.penalty(lengths_M) * torch.ones_like(lengths_M)).to(**FLOATS),
            "parents": torch.empty(longest, sentences, columns, **WHOLE),
            "tokens": torch.empty(longest, sentences, columns, **WHOLE),
            "log_probs": torch.empty(longest, sentences, columns, **FLOATS),
            "living": torch.empty(longest, sentences, rows, **WHOLE),
            "said": torch.empty(sentences * rows, longest, **WHOLE),
            "looped": torch.zeros(circles, sentences, rows, **LONGS),
            "looped_score": torch.empty(circles, sentences, rows, **FLOATS),
            "taken": torch.empty(columns, **LONGS),
            "values": torch.empty(columns, **FLOATS),
            "again": torch.empty(rows, longest, **WHOLE),
        }
        self.tensors["score"][:, 0] = 0.0

    def tree(self, *, counted: int, stop: str) -> Tree:
        addresses = {name: tensor.data_ptr() for name, tensor in self.tensors.items()}
        return Tree(
            rows=self.rows,
            counted=counted,
            all_finished=stop == "beam_full",
            sentences=len(self.request.limits),
            **addresses,
        )

    def outcome(self) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, best first."""
        said, penalty = int(self.tensors["length"].max()), self.request.penalty
        steps = {name: list(self.tensors[name][:said].unbind()) for name in ("parents", "tokens", "log_probs", "living")}
        history = History(**steps, rows=[np.arange(len(self.request.limits))] * said)
        looped: list[list[tuple[float, Entry]]] = [[] for _ in self.request.limits]
        for circle, sentence, place in self.tensors["looped"].nonzero().tolist():
            length = (circle + 1) * EVERY
            entry = Entry(sentence, length, int(self.tensors["living"][length - 1, sentence, place]))
            looped[sentence].append(
                (float(self.tensors["looped_score"][circle, sentence, place]) / penalty(float(length)), entry)
            )
        length_B = self.tensors["length"].tolist()
        living_BR = [self.tensors["living"][length - 1, number].tolist() for number, length in enumerate(length_B)]
        columns = (self.tensors[name].tolist() for name in ("finished", "codes", "score"))
        endings = [Ending(*one) for one in zip(length_B, *columns, living_BR, looped, strict=True)]
        return outcome(endings, history, end_id=self.request.end_id, penalty=penalty)
