"""Steps of fixed shapes against the plain model's: through search, row by row, and recorded as a GPU would record them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.config import DecodingConfig, ModelConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.inference.backends.cuda import model as fixed
from dragoman.inference.backends.cuda.buffers import StepBuffers, round_up_size
from dragoman.inference.backends.cuda.graphs import CudaGraphRecorder, WorkFn
from dragoman.inference.backends.cuda.model import StaticState, StaticTransformer, build_cuda_inference_model
from dragoman.inference.parallel.scheduler import WorkerLayout
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import generate
from dragoman.tasks.inference_model import InferenceModel, as_inference_model, ensemble

pytestmark = pytest.mark.usefixtures("one_core")

VOCABULARY, START = 23, 1
SOURCES = [[7, 8, 9, 4, 5, 6, 11, 2] * 3, [5, 2], [11, 6, 4, 10, 2], [21, 20, 19, 18, 17, 16, 2], [2], [12, 13, 2]]

KNOBS: list[dict[str, Any]] = [
    {"norm": "post"},
    {"norm": "pre", "attention_bias": True},
    {"attention_window": 2},
    {"position_encoding": "learned", "max_positions": 44},
    {"position_encoding": "concatenated", "d_k": 5, "d_v": 3},
    {"tie_embeddings": "all", "target_space_embedding": True, "scale_embeddings": False, "final_norm": True},
]


def network(seed: int = 0, **knobs: Any) -> Transformer:
    """A small model whose random weights are large enough to have opinions."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "tie_embeddings": "none"}
    config = ModelConfig.model_validate({**sizes, **knobs})
    torch.manual_seed(seed)
    model = build_model(config, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY).eval()
    with torch.no_grad():
        model.output.mul_(4.0)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
            elif "query" in name or "key" in name:
                parameter.mul_(3.0)
    return model


def search(speaker: InferenceModel, sources: Sequence[Sequence[int]] = SOURCES, **knobs: Any) -> list[list[Hypothesis]]:
    config = DecodingConfig.model_validate({"method": "beam", "max_extra_tokens": 20, "nbest": 2, **knobs})
    return generate(speaker, sources, config, start_id=START)


def assert_same(ours: list[list[Hypothesis]], plain: list[list[Hypothesis]]) -> None:
    """Token for token; scores to the rounding of float32."""
    assert [[one.tokens for one in found] for found in ours] == [[one.tokens for one in found] for found in plain]
    for one, other in zip((one for found in ours for one in found), (one for found in plain for one in found), strict=True):
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=2e-4)


def ids(*lengths: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids_BT[row, :length] = torch.randint(3, VOCABULARY, (length,), generator=generator)
    return ids_BT


def fixed_of(state: StaticState) -> StepBuffers:
    assert state.bucket is not None
    return state.bucket.buffers


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What a CUDA graph makes of work, on a processor: kernels with addresses and numbers, noted down and run once more."""

    def __init__(self, work: WorkFn) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = work
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.times = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number is asked for, which a GPU would be waited for"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def __call__(self) -> None:
        self.times += 1
        if self.times <= 2:
            with self if self.times == 2 else nullcontext():
                self.work()
            return
        for func, args, kwargs, result in self.calls:
            schema = func._schema
            if any(one.alias_info for one in schema.returns) and not schema.is_mutable:
                continue  # a view stays one
            again = func(*args, **kwargs)
            if not schema.is_mutable:
                for one, other in zip(_tensors(result), _tensors(again), strict=True):
                    one.copy_(other)


def _tensors(result: Any) -> list[Tensor]:
    return [one for one in (result if isinstance(result, tuple | list) else [result]) if isinstance(one, Tensor)]


# Search


@pytest.mark.parametrize("method", ["greedy", "beam"])
@pytest.mark.parametrize("knobs", KNOBS)
def test_search_finds_what_it_finds_with_the_plain_model(knobs: dict[str, Any], method: str) -> None:
    lengths = set()
    for seed in (0, 1):
        model = network(seed, **knobs)
        plain = search(as_inference_model([model]), method=method, nbest=1)
        assert_same(search(build_cuda_inference_model(model), method=method, nbest=1), plain)
        lengths |= {len(found[0].tokens) for found in plain}
    assert len(lengths) > 4
    assert max(lengths) >= fixed.MIN_CAPACITY


@pytest.mark.parametrize("beam", [1, 4])
def test_batch_mates_change_nothing(beam: int) -> None:
    speaker = build_cuda_inference_model(network())
    together = search(speaker, beam_size=beam, nbest=1)
    alone = [search(speaker, [source], beam_size=beam, nbest=1)[0] for source in SOURCES]
    backwards = search(speaker, SOURCES[::-1] * 2, beam_size=beam, nbest=1)
    assert_same(alone, together)
    assert_same(backwards, together[::-1] * 2)


def test_searches_side_by_side_do_not_meet() -> None:
    speaker = build_cuda_inference_model(network())
    expected = search(speaker, nbest=1)
    for found in WorkerLayout(inter_threads=3, intra_threads=1).map(lambda _: search(speaker, nbest=1), range(6)):
        assert_same(found, expected)


def test_several_models_vote() -> None:
    models = [network(0), network(1)]
    assert_same(search(ensemble([build_cuda_inference_model(model) for model in models])), search(as_inference_model(models)))


def test_sampling_draws_what_it_draws_with_the_plain_model() -> None:
    model = network()
    ours, plain = (
        search(speaker, method="sample", nbest=3)
        for speaker in (build_cuda_inference_model(model), as_inference_model([model]))
    )
    assert_same(ours, plain)


# Row by row


@pytest.mark.parametrize("knobs", [{**knobs, "max_positions": 24} if "max_positions" in knobs else knobs for knobs in KNOBS])
def test_rows_can_be_reordered_and_sentences_dropped(knobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against each history read at once beside its own source, through three sizes of room and three of batch."""
    monkeypatch.setattr(fixed, "MIN_CAPACITY", 4)
    model, beam, source = network(**knobs).double(), 3, ids(6, 3, 17, 1, 2)
    ours, generator = StaticTransformer(model), torch.Generator().manual_seed(3)
    sentence_N = torch.arange(5).repeat_interleave(beam)
    history_NT = torch.empty(5 * beam, 0, dtype=torch.long)
    state, shapes = ours.start(source), []
    for place in range(20):
        if place in {2, 4, 5, 6, 9, 15, 17}:
            for _ in range(2):
                rows_N = torch.randint(0, beam, (len(history_NT),), generator=generator)
                rows_N += torch.arange(len(history_NT)) // beam * beam
                history_NT, state = history_NT[rows_N], state.reorder(rows_N)
        if place in {3, 7, 12}:
            kept = torch.tensor({3: [4, 0, 2, 3], 7: [2, 0, 1], 12: [1]}[place])
            rows_N = (kept[:, None] * beam + torch.arange(beam)).flatten()
            history_NT, sentence_N, state = history_NT[rows_N], sentence_N[rows_N], state.select_sentences(kept)
        tokens_N = torch.randint(3, VOCABULARY, (len(history_NT),), generator=generator)
        history_NT = torch.cat([history_NT, tokens_N[:, None]], dim=1)
        logits, state = ours.step(tokens_N, state)
        torch.testing.assert_close(logits, model(source[sentence_N], history_NT)[:, -1], rtol=0, atol=1e-10)
        shapes.append(fixed_of(state).shape[::3])
    assert list(dict.fromkeys(shapes)) == [(8, 4), (4, 4), (4, 8), (4, 16), (1, 16), (1, min(32, ours.max_positions or 32))]


def test_a_state_can_be_reordered_and_cut_before_the_first_step() -> None:
    model, source = network(), ids(5, 2, 3)
    ours = StaticTransformer(model)
    state = ours.start(source).reorder(torch.tensor([0, 1, 2])).select_sentences(torch.tensor([2, 0]))
    logits, _ = ours.step(torch.tensor([START, START]), state)
    torch.testing.assert_close(logits, model(source[[2, 0]], torch.tensor([[START], [START]]))[:, 0], rtol=0, atol=1e-5)


def test_what_is_idle_or_was_there_before_never_spreads() -> None:
    """Not even where it is no number."""
    model, source = network(), ids(4, 6, 2, 5)
    ours, tokens_N = StaticTransformer(model), torch.full((4,), START)
    state = ours.start(source)
    expected = [ours.step(tokens_N, state)[0].clone() for _ in range(3)]
    buffers = fixed_of(state)
    del state
    for pair in (*buffers.self_kv, *buffers.cross_kv):
        pair.key.fill_(torch.nan)
        pair.value.fill_(torch.nan)
    again = ours.start(source)
    assert torch.equal(ours.step(tokens_N, again)[0], expected[0])
    assert fixed_of(again) is buffers
    again = again.select_sentences(torch.tensor([3, 0, 1]))
    for pair in (*buffers.self_kv, *buffers.cross_kv):
        pair.key[2] = pair.value[2] = torch.nan
    for one in expected[1:]:
        assert torch.equal(ours.step(tokens_N[:3], again)[0], one[[3, 0, 1]])
    del again
    assert torch.equal(ours.step(tokens_N, ours.start(source))[0], expected[0])


def test_positions_that_were_never_learned_are_refused() -> None:
    ours = StaticTransformer(network(position_encoding="learned", max_positions=5))
    state, token = ours.start(ids(3)), torch.tensor([START])
    for _ in range(5):
        _, state = ours.step(token, state)
    with pytest.raises(IndexError, match="position 6: the model has 5 learned positions"):
        ours.step(token, state)


def test_logits_of_bfloat16_keep_the_digits_of_their_sums() -> None:
    model, source, token = network().bfloat16(), ids(6, 3), torch.tensor([START, START])
    ours = StaticTransformer(model)
    logits, _ = ours.step(token, ours.start(source))
    plain, _ = model.step(token, model.start(source))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, plain.float(), rtol=0.02, atol=0.1)


def test_inference_mode_may_come_and_go() -> None:
    ours, source, token = StaticTransformer(network()), ids(3), torch.tensor([START])
    with torch.inference_mode():
        inside = ours.step(token, ours.start(source))[0].clone()
    assert torch.equal(ours.step(token, ours.start(source))[0], inside)


# Buffers


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (33, 64), (65, 96), (97, 128), (129, 192), (1024, 1024)])
def test_sizes_are_few(count: int, size: int) -> None:
    assert round_up_size(count) == size
    assert round_up_size(size) == size
    assert round_up_size(count, 16) == max(size, 16)


def test_buffers_are_used_again_but_never_by_two() -> None:
    model = network()
    made: list[WorkFn] = []

    def count(work: WorkFn) -> WorkFn:
        made.append(work)
        return work

    ours = StaticTransformer(model, record_fn=count)
    first, second, token = ours.start(ids(3)), ours.start(ids(4, seed=2)), torch.tensor([START])
    for _ in range(3):
        for state, source in ((first, ids(3)), (second, ids(4, seed=2))):
            logits, _ = ours.step(token, state)
            history = torch.full((1, state.length), START)
            torch.testing.assert_close(logits, model(source, history)[:, -1], rtol=0, atol=1e-5)
    assert len(made) == 2
    del first, second, state
    for _ in range(3):
        ours.step(token, ours.start(ids(5)))
    assert len(made) == len(ours.buckets) == 2
    small = ours.start(ids(3, 3))
    ours.step(torch.tensor([START, START]), small)
    small = small.select_sentences(torch.tensor([1]))
    ours.step(torch.tensor([START, START]), ours.start(ids(3, 3)))
    assert len(made) == 3
    assert fixed_of(small).shape.num_sentences == 1


def test_memory_is_bounded() -> None:
    """After each start no more is held than allowed, but for the one bucket that is in use."""
    ours = StaticTransformer(network(), max_bytes=300_000)
    largest = 0
    for count in (1, 2, 4, 8, 16, 32, 64, 3, 1, 64):
        state = ours.start(ids(*range(1, count + 1)))
        ours.step(torch.full((count,), START), state)
        used = fixed_of(state).num_bytes
        largest = max(largest, used)
        assert sum(bucket.buffers.num_bytes for bucket in ours.buckets) <= max(300_000, used)
    assert largest > 300_000


def test_the_longest_unused_buffers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "MAX_BUCKETS", 2)
    ours = StaticTransformer(network())
    for count in (1, 2, 1, 4):
        ours.step(torch.full((count,), START), ours.start(ids(*[3] * count)))
    assert [bucket.buffers.shape.num_sentences for bucket in ours.buckets] == [1, 4]


# Graphs


@pytest.mark.parametrize("knobs", KNOBS)
def test_a_recorded_step_can_be_repeated(knobs: dict[str, Any]) -> None:
    """Were anything in it a number of the processor's, or a new tensor each time, its repetition would say something else."""
    recorded: list[Recording] = []

    def record(work: WorkFn) -> WorkFn:
        recorded.append(Recording(work))
        return recorded[-1]

    for seed in (0, 1):
        model = network(seed, **knobs)
        assert_same(search(build_cuda_inference_model(model, record_fn=record)), search(as_inference_model([model])))
    assert sum(one.times > 10 for one in recorded) >= 2
    assert all(one.calls for one in recorded if one.times > 2)


def test_a_number_of_the_processors_would_be_noticed() -> None:
    total, addend = torch.zeros(1), [1.0]
    recording = Recording(lambda: (total.add_(addend[0]), None)[1])
    for addend[0] in (1.0, 2.0, 4.0):
        recording()
    assert total.item() == 1.0 + 2.0 + 2.0


def test_nothing_in_the_buffers_ever_moves() -> None:
    ours = StaticTransformer(network())
    state, token = ours.start(ids(4, 3)), torch.full((4,), START)
    _, state = ours.step(token, state)
    buffers = fixed_of(state)

    def addresses() -> list[int]:
        single = [one for one in vars(buffers).values() if isinstance(one, Tensor)]
        return [one.data_ptr() for one in (*single, *(one for pair in (*buffers.self_kv, *buffers.cross_kv) for one in pair))]

    before = addresses()
    for place in range(8):
        logits, state = ours.step(token, state.reorder(torch.tensor([1, 0, 2, 2]))) if place < 5 else ours.step(token, state)
        assert addresses() == before
        assert logits.data_ptr() == buffers.logits_NV.data_ptr()


def test_a_graph_is_recorded_at_the_second_call_and_repeated_from_then_on() -> None:
    """With a GPU that only counts: which stream works, what is recorded, and what repeated."""
    told: list[str] = []
    graph = mock.Mock(replay=lambda: told.append("replay"))

    def listening(given: object, **how: object) -> mock.MagicMock:
        assert given is graph
        assert how["capture_error_mode"] == "thread_local"
        assert how["pool"] == "pool"
        return mock.MagicMock(__enter__=lambda _: told.append("listen"), __exit__=lambda *_: told.append("end"))

    cuda: dict[str, Any] = {
        "Stream": mock.MagicMock(),
        "graph_pool_handle": lambda: "pool",
        "current_stream": mock.MagicMock(),
        "stream": mock.MagicMock(),
        "device": mock.MagicMock(),
        "CUDAGraph": lambda: graph,
        "graph": listening,
    }
    with mock.patch.multiple(torch.cuda, **cuda):
        work = CudaGraphRecorder(torch.device("cuda"))(lambda: told.append("work"))
        for _ in range(4):
            work()
            told.append("-")
    assert " ".join(told) == "work - listen work end replay - replay - replay -"
