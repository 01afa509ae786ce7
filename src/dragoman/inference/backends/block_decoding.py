"""Greedy search with prediction heads or a draft decoder on one back end, and the choice of the block size by measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS
from dragoman.decoding.block_search import BlockModel, block_greedy_search
from dragoman.decoding.constraints import DecodingConstraints
from dragoman.decoding.greedy import decode_tokens
from dragoman.decoding.hypothesis import NO_LENGTH_PENALTY, Hypothesis
from dragoman.decoding.interface import SearchSettings
from dragoman.decoding.native_search import SearchRequest
from dragoman.model.transformer import Transformer
from dragoman.runtime.autotuner import choose_cached
from dragoman.tasks.inference_model import InferenceModel

AcceptanceRates = Mapping[int, float]
"""Tokens that a step adds to an output on average, by block size."""
BATCH_SIZES = (1, 4, 16, 64)
"""Numbers of sentences that are measured. A batch takes the choice of the nearest one."""
# Tokens of the measured sources and outputs, most rounds of the measurement, and the time after which no further one begins.
PROBE_LENGTH, PROBE_ROUNDS, PROBE_SECONDS = 16, 9, 0.3
# Blocks must be this much faster, because a tie by rounding may change an output.
MIN_SPEEDUP = 1.05


class SearchFn(Protocol):
    """Greedy search over blocks."""

    def __call__(self, source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]: ...


@dataclass
class BlockDecoding:
    """Search with the prediction heads or the draft decoder of one model.

    search: search over blocks
    search_plainly: greedy search token by token
    acceptance: acceptance of each block size, from the training of the heads or of the draft
    cache_key: name of the model and the back end in the cache of measurements
    source_vocab_size: number of source tokens
    """

    search: SearchFn
    search_plainly: Callable[[Tensor, SearchRequest], list[Hypothesis]]
    acceptance: AcceptanceRates
    cache_key: str
    source_vocab_size: int
    _choices: dict[tuple[int, bool], int] = field(default_factory=dict, init=False)

    @classmethod
    def from_block_model(
        cls,
        block_model: BlockModel,
        model: Transformer,
        inference_model: InferenceModel,
        acceptance: AcceptanceRates,
        backend: str,
    ) -> Self:
        """Return the search in Python. model: the trained model. backend: name of the back end and its precision"""

        def search(source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
            return block_greedy_search(block_model, source_BS, request, block_size=block_size)

        def search_plainly(source_BS: Tensor, request: SearchRequest) -> list[Hypothesis]:
            constraints = DecodingConstraints(min_length=request.min_length, suppress_tokens=tuple(request.suppress_tokens))
            return decode_tokens(
                inference_model.step,
                inference_model.start(source_BS.to(inference_model.device)),
                max_lengths=request.max_lengths,
                settings=SearchSettings(start_id=request.start_id, end_id=request.end_id, decoding_constraints=constraints),
                device=inference_model.device,
                topk_impl=inference_model.make_topk(),
            )

        cache_key, source_vocab_size = describe_model(model, backend), len(model.encoder.embedding.weight)
        return cls(search, search_plainly, acceptance, cache_key, source_vocab_size)

    def greedy(self, source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
        """Return the greedy output of each source; sources are padded on the right."""
        return self.search(source_BS, request, block_size=block_size)

    def choose_block_size(self, num_sentences: int, *, may_be_one: bool) -> int:
        """Return the block size that adds most tokens in a second. The first call measures it, or reads it from the cache.

        may_be_one: whether 1, greedy search token by token, is allowed
        """
        if not self.acceptance:
            return 1
        batch_size = min(BATCH_SIZES, key=lambda size: abs(max(size, num_sentences) / min(size, num_sentences)))
        key = batch_size, may_be_one
        if key not in self._choices:
            sizes = [1, *self.acceptance] if may_be_one else list(self.acceptance)
            rates = ", ".join(f"{size}: {rate:.2f}" for size, rate in self.acceptance.items())
            cache_key = f"block size of {sizes[0]} or more, {batch_size} sentences, {rates}, {self.cache_key}"
            choice = choose_cached(cache_key, list(map(str, sizes)), lambda: str(self._measure(batch_size, sizes)))
            self._choices[key] = int(choice)
        return self._choices[key]

    def _measure(self, batch_size: int, block_sizes: list[int]) -> int:
        """Return the fastest of these block sizes."""
        generator = torch.Generator().manual_seed(0)
        first_id = min(max(SPECIAL_IDS) + 1, self.source_vocab_size - 1)
        source_BS = torch.randint(first_id, self.source_vocab_size, (batch_size, PROBE_LENGTH), generator=generator)
        request = SearchRequest(
            max_lengths=[PROBE_LENGTH] * batch_size,
            allow_repetition=[True] * batch_size,
            start_id=BEGIN_ID,
            prompt=(),
            end_id=END_ID,
            suppress_tokens=sorted((PADDING_ID, BEGIN_ID)),
            min_length=PROBE_LENGTH,  # so that no output ends early
            no_repeat_ngram_size=0,
            repetition_window=0,
            length_penalty=NO_LENGTH_PENALTY,
        )
        max_rate, deadline = max(self.acceptance.values()), time.perf_counter() + PROBE_SECONDS
        seconds: dict[int, float] = {}
        for _ in range(PROBE_ROUNDS):
            for block_size in sorted(seconds or block_sizes):
                elapsed = self._time_step(source_BS, request, block_size)
                time_per_token = elapsed / self.acceptance.get(block_size, 1.0)
                seconds[block_size] = min(seconds.get(block_size, math.inf), time_per_token)
                if elapsed / max_rate > min(seconds.values()):
                    break  # a step with a larger block takes still longer
            if time.perf_counter() > deadline:
                break
        fastest = min(seconds, key=seconds.__getitem__)
        return fastest if 1 not in seconds or seconds[fastest] * MIN_SPEEDUP <= seconds[1] else 1

    def _time_step(self, source_BS: Tensor, request: SearchRequest, block_size: int) -> float:
        """Return the seconds of a step, without the encoder and the first step."""
        num_steps = PROBE_LENGTH
        start = time.perf_counter()
        if block_size == 1:
            self.search_plainly(source_BS, request)
        else:
            outputs = self.search(source_BS, request, block_size=block_size)
            num_steps = max(len(output.step_lengths or ()) for output in outputs)
        middle = time.perf_counter()
        self.search_plainly(source_BS, replace(request, max_lengths=[1] * len(source_BS), min_length=0))
        seconds = middle - start - (time.perf_counter() - middle)
        return max(seconds, 0.0) / max(num_steps - 1, 1)


def describe_model(model: Transformer, backend: str) -> str:
    """Return the sizes of a model on a back end, on which the speed of a step depends."""
    parameters = sum(parameter.numel() for parameter in model.decoder.parameters())
    layers = len(model.decoder.layers)
    return f"{backend}, d_model {model.output.shape[1]}, {layers} layers, {parameters} parameters, {len(model.output)} tokens"
