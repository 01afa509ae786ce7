"""Measurements of claims that take seconds or a minute. Each returns the effect in words, and whether the claim holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import make_recipe
from dragoman.model.attention import Attention, explicit_attention
from dragoman.model.factory import assemble_model, build_model
from dragoman.model.layers import FeedForward
from dragoman.paper.claims import ClaimResult
from dragoman.paper.demonstrations.averaging import measure_averaging
from dragoman.paper.demonstrations.extrapolation import measure_copying
from dragoman.paper.demonstrations.layer_costs import (
    RECURRENT_WIDTH,
    compare_additive,
    compare_recurrent,
    compare_separable,
)
from dragoman.paper.demonstrations.long_range import DISTANCES, measure_recall
from dragoman.paper.flop_counter import count_operations, count_sequential_matmuls, find_path_length
from dragoman.paper.relative_positions import measure_offsets
from dragoman.paper.scaling import measure_scaling
from dragoman.paper.table1_layers import build_layer
from dragoman.paper.table3_rows import PAPER_ROWS
from dragoman.training.lr_schedule import compute_learning_rate

ROWS_OF_2017 = 40_960
"""Rows of the shared embedding in tensor2tensor's `wmt_ende_bpe32k`, with which the printed numbers of parameters come out."""


def measure_masking() -> ClaimResult:
    """Return the gradients of each output of a decoder by its inputs."""
    torch.manual_seed(1)
    model = build_model(
        make_recipe({"preset": "paper", "size": "tiny"}).model, source_vocab_size=20, target_vocab_size=20
    ).eval()
    embedded: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        """Keep the gradient of the embeddings of the target."""
        output.retain_grad()
        embedded.append(output)

    handle = model.decoder.embedding.register_forward_hook(keep)
    tokens_BT = torch.randint(4, 20, (1, 12))
    later, earlier = 0.0, float("inf")
    source_BS = torch.randint(4, 20, (1, 9))
    for position in range(12):
        embedded.clear()
        logits_BTV = model(source_BS, tokens_BT)
        logits_BTV[0, position].square().sum().backward()
        gradient_BTD = embedded[-1].grad
        assert gradient_BTD is not None
        sizes_T = gradient_BTD[0].abs().amax(dim=-1)
        later = max(later, float(sizes_T[position + 1 :].amax()) if position < 11 else 0.0)
        earlier = min(earlier, float(sizes_T[: position + 1].amin()))
    handle.remove()
    return ClaimResult(
        f"largest gradient by a later input: {later:g}; smallest by an earlier one: {earlier:.1e}", later == 0.0 < earlier
    )


def measure_additive() -> ClaimResult:
    """Return time and memory of additive attention over those of dot products, for 256 queries and keys."""
    [row] = compare_additive((256,))
    effect = f"additive attention takes {row.time_ratio:.0f} times the time and {row.memory_ratio:.0f} times the memory"
    return ClaimResult(effect, row.time_ratio > 1.0 and row.memory_ratio > 1.0)


def measure_variance() -> ClaimResult:
    """Return the variance of q·k over d_k, and the gradient of the softmax, for growing d_k."""
    rows = measure_scaling()
    deviation = max(abs(row.variance - row.d_k) / row.standard_error for row in rows)
    smallest = min(row.scaled_gradient for row in rows)
    effect = (
        f"variance / d_k is 1 within {deviation:.1f} standard errors; the gradient of the softmax falls from "
        f"{rows[0].gradient:.2f} to {rows[-1].gradient:.2f}, and is {smallest:.2f} or more with the division"
    )
    return ClaimResult(effect, deviation < 4.0 and rows[-1].gradient < rows[-1].scaled_gradient)


def measure_heads() -> ClaimResult:
    """Return the operations of multi-head attention for several numbers of heads."""
    counts = {}
    for heads in (1, 4, 8, 16):
        module = Attention(d_model=256, num_heads=heads, d_k=256 // heads, d_v=256 // heads, bias=False, dropout=0.0)
        module.attention_impl = explicit_attention
        x_BTD = torch.randn(1, 128, 256, requires_grad=True)
        counts[heads] = count_operations(partial(_attend_to_itself, module), x_BTD).operations
    spread = max(counts.values()) / min(counts.values())
    return ClaimResult(f"most operations of 1, 4, 8 and 16 heads over fewest: {spread:.3f}", spread < 1.05)


def _attend_to_itself(module: Attention, x_BTD: Tensor) -> Tensor:
    output_BTD: Tensor = module(x_BTD, module.project_kv(x_BTD), None)
    return output_BTD


def measure_convolutions() -> ClaimResult:
    """Return the difference between a feed-forward network and two convolutions of its weights."""
    torch.manual_seed(1)
    network = FeedForward(d_model=64, d_ff=256, dropout=0.0)
    x_BTD = torch.randn(2, 10, 64)
    inner_BFT = F.conv1d(x_BTD.mT, network.inner.weight[:, :, None], network.inner.bias).relu()
    output_BTD = F.conv1d(inner_BFT, network.outer.weight[:, :, None], network.outer.bias).mT
    difference = (network(x_BTD) - output_BTD).abs().max().item()
    return ClaimResult(f"largest difference to two convolutions of the same weights: {difference:.0e}", difference < 1e-5)


def measure_positions() -> ClaimResult:
    """Return the errors of PE(pos+k) as a linear function of PE(pos)."""
    rows = measure_offsets(layout="interleaved", d_model=128, num_positions=512)
    error, control = max(row.rotation_error for row in rows), min(row.random_error for row in rows)
    effect = f"error of the rotation at most {error:.0e}; the best function of random vectors errs by {control:.1f} or more"
    return ClaimResult(effect, error < 1e-3 < control)


def measure_sequential() -> ClaimResult:
    """Return the sequential products of self-attention and of a recurrence over n positions."""
    attention, recurrence = (
        [count_sequential_matmuls(build_layer(kind, 4, 2), n, 4) for n in (9, 27, 81)]
        for kind in ("self-attention", "recurrent (LSTM)")
    )
    effect = f"sequential products: {', '.join(map(str, attention))} beside {', '.join(map(str, recurrence))}"
    return ClaimResult(effect, len(set(attention)) == 1 and recurrence == [9, 27, 81])


def measure_paths() -> ClaimResult:
    """Return the layers of convolutions after which each output depends on all inputs."""
    lengths = (9, 27, 81, 243)
    plain, dilated = ([find_path_length(kind, n, 4, 3) for n in lengths] for kind in ("convolution", "dilated convolution"))
    effect = f"layers: {', '.join(map(str, plain))} and {', '.join(map(str, dilated))}"
    return ClaimResult(effect, plain == [-(-(n - 1) // 2) for n in lengths] and dilated == [2, 3, 4, 5])


def measure_recurrent() -> ClaimResult:
    """Return the time of self-attention over that of PyTorch's fused LSTM, d = 256."""
    rows = compare_recurrent()
    effect = "time over that of the LSTM: " + ", ".join(f"{row.time_ratio:.2f} (n {row.n})" for row in rows)
    return ClaimResult(effect, all(row.time_ratio < 1.0 for row in rows if row.n < RECURRENT_WIDTH))


def measure_separable() -> ClaimResult:
    """Return the operations of a separable convolution with k = n over those of self-attention and a feed-forward layer."""
    rows = compare_separable((32, 64, 128, 256))
    ratios = [row.operation_ratio for row in rows]
    effect = "operations over those of both: " + ", ".join(f"{row.operation_ratio:.2f} (n {row.n})" for row in rows)
    return ClaimResult(effect, max(ratios) / min(ratios) < 4.0)


def measure_extrapolation() -> ClaimResult:
    """Return how well sinusoids and learned positions copy symbols at positions beyond those of training."""
    accuracies = {
        (result.encoding, result.length): result.new_accuracy for result in measure_copying() if result.new_accuracy is not None
    }
    lengths = [length for encoding, length in accuracies if encoding == "learned"]
    texts = [
        f"{accuracies['interleaved', length]} and {accuracies['learned', length]} at n {length}"
        for length in (lengths[0], lengths[-1])
    ]
    nearest = accuracies["interleaved", lengths[0]]
    effect = f"accuracy at new positions with sinusoids and with learned positions: {', '.join(texts)}"
    return ClaimResult(effect, nearest.mean - nearest.half_width > 0.5)


def measure_long_range() -> ClaimResult:
    """Return the accuracy of each kind of layer at the longest distance."""
    results = measure_recall()
    longest = {result.kind: result.accuracy for result in results if result.distance == max(DISTANCES)}
    effect = f"accuracy at n {max(DISTANCES)}: " + ", ".join(f"{kind} {accuracy}" for kind, accuracy in longest.items())
    attention, *others = (longest[kind] for kind in ("self-attention", "recurrent (LSTM)", "convolution"))
    return ClaimResult(effect, all(attention.mean - attention.half_width > other.mean + other.half_width for other in others))


def measure_checkpoint_mean() -> ClaimResult:
    """Return the losses of the last checkpoint and of the mean of the last five, while the loss falls and later."""
    results = measure_averaging()
    texts = [f"{result.mean} and {result.last} after {result.step} steps, gain {result.gain}" for result in results]
    effect = f"nats per symbol of the mean and of the last checkpoint: {'; '.join(texts)}"
    return ClaimResult(effect, results[-1].gain.mean > results[-1].gain.half_width)


def measure_schedule() -> ClaimResult:
    """Return rates of equation 3."""
    training = make_recipe({"preset": "paper", "size": "base"}).training
    rates = [compute_learning_rate(training, d_model=512, step=step) for step in (1000, 4000, 16_000)]
    parts = [rate / rates[0] for rate in rates]
    effect = (
        f"rates at 1,000, 4,000 and 16,000 steps as {' : '.join(f'{part:g}' for part in parts)}; the largest is {rates[1]:.3g}"
    )
    return ClaimResult(effect, all(abs(part - expected) < 1e-9 for part, expected in zip(parts, (1, 4, 2), strict=True)))


def measure_parameters() -> ClaimResult:
    """Return the rows of Table 3 whose printed number of parameters comes out."""
    wrong, count = [], 0
    for row in PAPER_ROWS:
        if row.million_parameters is None or row.name == "big":
            continue
        count += 1
        with torch.device("meta"):
            config = make_recipe({"preset": "t2t-2017", "size": row.name}).model
            model = assemble_model(config, source_vocab_size=ROWS_OF_2017, target_vocab_size=ROWS_OF_2017)
        if round(model.num_parameters() / 1e6) != row.million_parameters:
            wrong.append(row.name)
    return ClaimResult(
        f"{count - len(wrong)} of {count} printed numbers come out" + "".join(f", not {name}" for name in wrong), not wrong
    )


MEASURES: Mapping[str, Callable[[], ClaimResult]] = {
    "masking": measure_masking,
    "additive": measure_additive,
    "scaling": measure_variance,
    "heads": measure_heads,
    "convolutions": measure_convolutions,
    "positions": measure_positions,
    "sequential": measure_sequential,
    "paths": measure_paths,
    "recurrent": measure_recurrent,
    "separable": measure_separable,
    "extrapolation": measure_extrapolation,
    "long_range": measure_long_range,
    "checkpoint_mean": measure_checkpoint_mean,
    "schedule": measure_schedule,
    "parameters": measure_parameters,
}
