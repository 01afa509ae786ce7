"""Short speed check, in under a minute: `make bench`.

Both sides of each ratio run in this process, alternating, and the median of the rounds counts.

    training   target tokens per second of our training step over torch.nn.Transformer with the same sizes, data, loss and
               optimizer (tiny: 4+4 layers, d_model 128, 10,000 pieces; float32; both with dropout 0.3 on residuals)
    cache      greedy decoding with the key-value cache over decoding that reads the whole prefix at each step
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from dragoman.config import DecodingConfig, make_recipe
from dragoman.data.collate import Batch, collate
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.positions import interleaved_sinusoids
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.losses.label_smoothing import batch_loss

VOCABULARY, ROUNDS, STEPS = 10_000, 5, 3
SETTINGS = make_recipe({"preset": "t2t-2017", "size": "tiny", "model": {"decoder_start_token": "bos"}})


def make_batches(count: int) -> list[Batch]:
    """Return batches of about 4,096 padded target tokens, with lengths like those of image captions."""
    rng = np.random.default_rng(1)
    batches = []
    for length in rng.integers(9, 24, count):
        rows = [rng.integers(4, VOCABULARY, length, dtype=np.int32) for _ in range(4096 // int(length))]
        batches.append(collate(rows, [row[:-1] for row in rows], start_id=2))
    return batches


class TorchPeer(nn.Module):
    """torch.nn.Transformer with embeddings and a tied output matrix."""

    def __init__(self) -> None:
        super().__init__()
        model = SETTINGS.model
        self.embedding = nn.Embedding(VOCABULARY, model.d_model, padding_idx=0)
        self.transformer = nn.Transformer(
            model.d_model, model.num_heads, model.encoder_layers, model.decoder_layers, model.d_ff, 0.3, batch_first=True
        )
        self.positions = torch.from_numpy(interleaved_sinusoids(128, model.d_model))

    def forward(self, batch: Batch) -> Tensor:
        length = batch.inputs_BT.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length).isinf()
        padding = batch.source_BS == 0
        output = self.transformer(
            self.embedding(batch.source_BS) + self.positions[: batch.source_BS.shape[1]],
            self.embedding(batch.inputs_BT) + self.positions[:length],
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        logits = nn.functional.linear(output, self.embedding.weight).flatten(0, 1)
        return nn.functional.cross_entropy(
            logits, batch.targets_BT.flatten(), ignore_index=0, label_smoothing=0.1, reduction="sum"
        )


def our_loss(model: Transformer) -> Callable[[Batch], Tensor]:
    return lambda batch: batch_loss(model, batch, epsilon=0.1, smoothing_mode="uniform")[0]


def training_rate(model: nn.Module, loss_of: Callable[[Batch], Tensor], batches: list[Batch]) -> Callable[[], float]:
    """Return a function that trains some steps and returns target tokens per second."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def measure() -> float:
        started = time.perf_counter()
        for batch in batches[:STEPS]:
            (loss_of(batch) / batch.num_target_tokens).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return sum(batch.num_target_tokens for batch in batches[:STEPS]) / (time.perf_counter() - started)

    return measure


def cached_rate(model: Transformer, sources: list[list[int]]) -> float:
    started = time.perf_counter()
    hypotheses_by_sentence = generate(
        BatchSearch(as_inference_model([model]), DecodingConfig(method="greedy", max_extra_tokens=30), start_id=2), sources
    )
    return sum(len(hypotheses[0].token_log_probs) for hypotheses in hypotheses_by_sentence) / (time.perf_counter() - started)


@torch.no_grad()
def full_rate(model: Transformer, sources: list[list[int]]) -> float:
    """Return the rate of greedy decoding without a cache, which reads the whole prefix for each token."""
    started = time.perf_counter()
    source_BS = torch.tensor(sources)
    tokens_BT = torch.full((len(sources), 1), 2)
    for _ in range(len(sources[0]) + 30):
        tokens_BT = torch.cat([tokens_BT, model(source_BS, tokens_BT)[:, -1].argmax(-1)[:, None]], dim=1)
    return tokens_BT[:, 1:].numel() / (time.perf_counter() - started)


def alternate(measures: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median rate of each, measured in turn after one warm-up."""
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(ROUNDS + 1):
        for name, measure in measures.items():
            rate = measure()
            if turn:
                rates[name].append(rate)
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    torch.manual_seed(1)
    ours = build_model(SETTINGS.model, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY)
    peer = TorchPeer()
    batches = make_batches(STEPS)
    training = alternate(
        {"dragoman": training_rate(ours, our_loss(ours), batches), "torch": training_rate(peer, peer, batches)}
    )
    ours.eval()
    sources = torch.randint(4, VOCABULARY, (32, 20)).tolist()
    decoding = alternate({"cached": lambda: cached_rate(ours, sources), "full": lambda: full_rate(ours, sources)})
    table = Table("what", "ours", "the other")
    table.add_row("training, target tokens/s", *(f"{training[name]:,.0f}" for name in ("dragoman", "torch")))
    table.add_row("greedy decoding, tokens/s", *(f"{decoding[name]:,.0f}" for name in ("cached", "full")))
    Console().print(table)
    print(f"training={training['dragoman'] / training['torch']:.2f} cache={decoding['cached'] / decoding['full']:.2f}")


if __name__ == "__main__":
    main()
