"""Tests of static steps on a processor: they equal the model's, in searches, row by row, and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import random_tensors
from dragoman.config import DecodingConfig, ModelConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.inference.parallel.scheduler import WorkerLayout
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.tasks.inference_model import InferenceModel, ensemble
from dragoman.torch_engine import static_model as static_module
from dragoman.torch_engine.buffers import StepBuffers, round_up_size
from dragoman.torch_engine.graphs import CudaGraphRecorder, WorkFn
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.torch_engine.static_model import StaticState, StaticTransformer, build_static_inference_model

pytestmark = pytest.mark.usefixtures("one_core")

VOCABULARY, START = 23, 1
SOURCES = [[7, 8, 9, 4, 5, 6, 11, 2] * 3, [5, 2], [11, 6, 4, 10, 2], [21, 20, 19, 18, 17, 16, 2], [2], [12, 13, 2]]

make_sources = partial(random_tensors.sentences, low=3, high=VOCABULARY)
MODEL_KEYS: list[dict[str, Any]] = [
    {"norm": "post"},
    {"norm": "pre", "attention_bias": True},
    {"attention_window": 2},
    {"position_encoding": "learned", "max_positions": 44, "embedding_norm": True},
    {"position_encoding": "concatenated", "d_k": 5, "d_v": 3},
    {"tie_embeddings": "all", "target_space_embedding": True, "scale_embeddings": False, "final_norm": True},
    {"activation": "silu", "output_bias": True, "position_encoding": "halves"},
    {"activation": "gelu", "position_encoding": "concatenated", "position_offset": 2},
    {"activation": "geglu", "position_encoding": "relative", "feed_forward_bias": False},
    {"norm_type": "rms"},
    {"num_heads": 4, "num_key_value_heads": 2},
    {"position_encoding": "rotary", "attention_window": 2},
]


def make_model(seed: int = 0, **keys: Any) -> Transformer:
    """Return a small random model with large weights, so that its predictions differ clearly."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "tie_embeddings": "none"}
    config = ModelConfig.model_validate({**sizes, **keys})
    torch.manual_seed(seed)
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY).eval()
    with torch.no_grad():
        model.output.mul_(4.0)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "relative" in name:
                parameter.normal_()
            elif "query" in name or "key" in name:
                parameter.mul_(3.0)
    return model


def search(inference_model: InferenceModel, sources: Sequence[Sequence[int]] = SOURCES, **keys: Any) -> list[list[Hypothesis]]:
    config = DecodingConfig.model_validate({"method": "beam", "max_extra_tokens": 20, "nbest": 2, **keys})
    return generate(BatchSearch(inference_model, config, start_id=START), sources)


def assert_same(static: list[list[Hypothesis]], plain: list[list[Hypothesis]]) -> None:
    """Compare tokens exactly, and scores up to the rounding of float32."""
    assert [[hypothesis.tokens for hypothesis in nbest] for nbest in static] == [
        [hypothesis.tokens for hypothesis in nbest] for nbest in plain
    ]
    for hypothesis, expected in zip(chain.from_iterable(static), chain.from_iterable(plain), strict=True):
        assert hypothesis.token_log_probs == pytest.approx(expected.token_log_probs, abs=2e-4)


def get_buffers(state: StaticState) -> StepBuffers:
    assert state.bucket is not None
    return state.bucket.buffers


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Imitation of a CUDA graph on a processor: records calls with their tensors and numbers, and replays them."""

    def __init__(self, work: WorkFn) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = work
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.num_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the work reads a number, for which the CPU would wait"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def __call__(self) -> None:
        self.num_calls += 1
        if self.num_calls <= 2:
            with self if self.num_calls == 2 else nullcontext():
                self.work()
            return
        for func, args, kwargs, result in self.calls:
            schema = func._schema
            if any(output.alias_info for output in schema.returns) and not schema.is_mutable:
                continue  # a view stays one
            replayed = func(*args, **kwargs)
            if not schema.is_mutable:
                for tensor, new_tensor in zip(_tensors(result), _tensors(replayed), strict=True):
                    tensor.copy_(new_tensor)


def _tensors(result: Any) -> list[Tensor]:
    return [value for value in (result if isinstance(result, tuple | list) else [result]) if isinstance(value, Tensor)]


# Searches


@pytest.mark.parametrize("beam", [1, 4])
def test_batch_does_not_change_sentences(beam: int) -> None:
    inference_model = build_static_inference_model(make_model())
    batched = search(inference_model, beam_size=beam, nbest=1)
    alone = [search(inference_model, [source], beam_size=beam, nbest=1)[0] for source in SOURCES]
    backwards = search(inference_model, SOURCES[::-1] * 2, beam_size=beam, nbest=1)
    assert_same(alone, batched)
    assert_same(backwards, batched[::-1] * 2)


def test_parallel_searches_are_independent() -> None:
    inference_model = build_static_inference_model(make_model())
    expected = search(inference_model, nbest=1)
    for nbest_lists in WorkerLayout(inter_threads=3, intra_threads=1).map(lambda _: search(inference_model, nbest=1), range(6)):
        assert_same(nbest_lists, expected)


def test_ensembles_equal_those_of_the_models() -> None:
    models = [make_model(0), make_model(1)]
    assert_same(search(ensemble([build_static_inference_model(model) for model in models])), search(as_inference_model(models)))


# Row by row


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{**keys, "max_positions": 24} if "max_positions" in keys else keys for keys in MODEL_KEYS])
def test_rows_can_be_reordered_and_sentences_dropped(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a forward pass over each history, through three capacities and three batch sizes."""
    monkeypatch.setattr(static_module, "MIN_CAPACITY", 4)
    model, beam, source = make_model(**keys).double(), 3, make_sources(6, 3, 17, 1, 2)
    static_model, generator = StaticTransformer(model), torch.Generator().manual_seed(3)
    sentence_N = torch.arange(5).repeat_interleave(beam)
    history_NT = torch.empty(5 * beam, 0, dtype=torch.long)
    state, shapes = static_model.start(source), []
    for position in range(20):
        if position in {2, 4, 5, 6, 9, 15, 17}:
            for _ in range(2):
                rows_N = torch.randint(0, beam, (len(history_NT),), generator=generator)
                rows_N += torch.arange(len(history_NT)) // beam * beam
                history_NT, state = history_NT[rows_N], state.reorder(rows_N)
        if position in {3, 7, 12}:
            kept = torch.tensor({3: [4, 0, 2, 3], 7: [2, 0, 1], 12: [1]}[position])
            rows_N = (kept[:, None] * beam + torch.arange(beam)).flatten()
            history_NT, sentence_N, state = history_NT[rows_N], sentence_N[rows_N], state.select_sentences(kept)
        tokens_N = torch.randint(3, VOCABULARY, (len(history_NT),), generator=generator)
        history_NT = torch.cat([history_NT, tokens_N[:, None]], dim=1)
        logits, state = static_model.step(tokens_N, state)
        torch.testing.assert_close(logits, model(source[sentence_N], history_NT)[:, -1], rtol=0, atol=1e-10)
        shapes.append(get_buffers(state).shape[::3])
    assert list(dict.fromkeys(shapes)) == [
        (8, 4),
        (4, 4),
        (4, 8),
        (4, 16),
        (1, 16),
        (1, min(32, static_model.max_positions or 32)),
    ]


def test_idle_and_old_values_never_spread() -> None:
    """Fill idle sentences and free buffers with values that are not numbers."""
    model, source = make_model(), make_sources(4, 6, 2, 5)
    static_model, tokens_N = StaticTransformer(model), torch.full((4,), START)
    state = static_model.start(source)
    expected = [static_model.step(tokens_N, state)[0].clone() for _ in range(3)]
    buffers = get_buffers(state)
    del state
    for pair in (*buffers.self_kv, *buffers.cross_kv):
        pair.key.fill_(torch.nan)
        pair.value.fill_(torch.nan)
    second_state = static_model.start(source)
    assert torch.equal(static_model.step(tokens_N, second_state)[0], expected[0])
    assert get_buffers(second_state) is buffers
    second_state = second_state.select_sentences(torch.tensor([3, 0, 1]))
    for pair in (*buffers.self_kv, *buffers.cross_kv):
        pair.key[2] = pair.value[2] = torch.nan
    for logits_NV in expected[1:]:
        assert torch.equal(static_model.step(tokens_N[:3], second_state)[0], logits_NV[[3, 0, 1]])
    del second_state
    assert torch.equal(static_model.step(tokens_N, static_model.start(source))[0], expected[0])


def test_positions_beyond_learned_ones_raise() -> None:
    static_model = StaticTransformer(make_model(position_encoding="learned", max_positions=5))
    state, token = static_model.start(make_sources(3)), torch.tensor([START])
    for _ in range(5):
        _, state = static_model.step(token, state)
    with pytest.raises(IndexError, match="position 6: the model has 5 learned positions"):
        static_model.step(token, state)


def test_bfloat16_logits_keep_float32_precision() -> None:
    model, source, token = make_model().bfloat16(), make_sources(6, 3), torch.tensor([START, START])
    static_model = StaticTransformer(model)
    logits, _ = static_model.step(token, static_model.start(source))
    plain, _ = model.step(token, model.start(source))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, plain.float(), rtol=0.02, atol=0.1)


def test_inference_mode_may_change() -> None:
    static_model, source, token = StaticTransformer(make_model()), make_sources(3), torch.tensor([START])
    with torch.inference_mode():
        expected_NV = static_model.step(token, static_model.start(source))[0].clone()
    assert torch.equal(static_model.step(token, static_model.start(source))[0], expected_NV)


# Buffers


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (33, 64), (65, 96), (97, 128), (129, 192), (1024, 1024)])
def test_sizes_round_up(count: int, size: int) -> None:
    assert round_up_size(count) == size
    assert round_up_size(size) == size
    assert round_up_size(count, 16) == max(size, 16)


def test_free_buffers_are_reused() -> None:
    model = make_model()
    recorded_work: list[WorkFn] = []

    def record(work: WorkFn) -> WorkFn:
        recorded_work.append(work)
        return work

    static_model = StaticTransformer(model, record_fn=record)
    first, second, token = (
        static_model.start(make_sources(3)),
        static_model.start(make_sources(4, seed=2)),
        torch.tensor([START]),
    )
    for _ in range(3):
        for state, source in ((first, make_sources(3)), (second, make_sources(4, seed=2))):
            logits, _ = static_model.step(token, state)
            history = torch.full((1, state.length), START)
            torch.testing.assert_close(logits, model(source, history)[:, -1], rtol=0, atol=1e-5)
    assert len(recorded_work) == 2
    del first, second, state
    for _ in range(3):
        static_model.step(token, static_model.start(make_sources(5)))
    assert len(recorded_work) == len(static_model.buckets) == 2
    small = static_model.start(make_sources(3, 3))
    static_model.step(torch.tensor([START, START]), small)
    small = small.select_sentences(torch.tensor([1]))
    static_model.step(torch.tensor([START, START]), static_model.start(make_sources(3, 3)))
    assert len(recorded_work) == 3
    assert get_buffers(small).shape.num_sentences == 1


def test_buffers_stay_within_max_bytes() -> None:
    """The limit may be exceeded by the bucket in use alone."""
    static_model = StaticTransformer(make_model(), max_bytes=300_000)
    largest = 0
    for count in (1, 2, 4, 8, 16, 32, 64, 3, 1, 64):
        state = static_model.start(make_sources(*range(1, count + 1)))
        static_model.step(torch.full((count,), START), state)
        used = get_buffers(state).num_bytes
        largest = max(largest, used)
        assert sum(bucket.buffers.num_bytes for bucket in static_model.buckets) <= max(300_000, used)
    assert largest > 300_000


def test_least_recently_used_buffers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_module, "MAX_BUCKETS", 2)
    static_model = StaticTransformer(make_model())
    for count in (1, 2, 1, 4):
        static_model.step(torch.full((count,), START), static_model.start(make_sources(*[3] * count)))
    assert [bucket.buffers.shape.num_sentences for bucket in static_model.buckets] == [1, 4]


# Graphs


@pytest.mark.slow
@pytest.mark.parametrize("keys", MODEL_KEYS)
def test_recorded_steps_can_be_replayed(keys: dict[str, Any]) -> None:
    """A number from the CPU or a new tensor in the step would change the results of a replay."""
    recorded: list[Recording] = []

    def record(work: WorkFn) -> WorkFn:
        recorded.append(Recording(work))
        return recorded[-1]

    for seed in (0, 1):
        model = make_model(seed, **keys)
        assert_same(search(build_static_inference_model(model, record_fn=record)), search(as_inference_model([model])))
    assert sum(recording.num_calls > 10 for recording in recorded) >= 2
    assert all(recording.calls for recording in recorded if recording.num_calls > 2)


def test_second_call_records_a_graph() -> None:
    """Imitate the GPU, and log the calls."""
    events: list[str] = []
    graph = mock.Mock(replay=lambda: events.append("replay"))

    def capture(captured: object, **options: object) -> mock.MagicMock:
        assert captured is graph
        assert options["capture_error_mode"] == "thread_local"
        assert options["pool"] == "pool"
        return mock.MagicMock(__enter__=lambda _: events.append("capture"), __exit__=lambda *_: events.append("end"))

    cuda: dict[str, Any] = {
        "Stream": mock.MagicMock(),
        "graph_pool_handle": lambda: "pool",
        "current_stream": mock.MagicMock(),
        "stream": mock.MagicMock(),
        "device": mock.MagicMock(),
        "CUDAGraph": lambda: graph,
        "graph": capture,
    }
    with mock.patch.multiple(torch.cuda, **cuda):
        work = CudaGraphRecorder(torch.device("cuda"))(lambda: events.append("work"))
        for _ in range(4):
            work()
            events.append("-")
    assert " ".join(events) == "work - capture work end replay - replay - replay -"
