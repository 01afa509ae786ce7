"""Training of prediction heads on the greedy outputs of a bundle (Stern et al. 2018, section 6).

The bundle does not change. Its decoder reads an output, and each head learns the tokens that follow at its distance. So the
heads learn what greedy search writes, and not the references.

    FOLDER/checkpoint/    weights, moments of Adam, and the step; a killed training continues from it to the same weights

Dimensions are those of `dragoman.model.prediction_heads`; N counts the tokens of a batch.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from dragoman.bundle import HeadTraining
from dragoman.data.collate import collate
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import RecipeError, RunError
from dragoman.io.safetensors import save_tensors
from dragoman.io.storage import atomic_dir, verify_checksums
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.transformer import Transformer

CHECKPOINT_DIR, TENSORS_FILE, STATE_FILE = "checkpoint", "training.safetensors", "training.json"
ADAM_BETAS = (0.9, 0.98)
MAX_TRAINING_SHARE = 10
"""Target tokens of the training of a bundle for each token that its heads are trained on, at least."""
HELD_OUT_FRACTION, MAX_HELD_OUT = 0.05, 500


@dataclass(frozen=True)
class Output:
    """Source and greedy output of one line. output: ids with the end token, if the output has one"""

    source: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Settings of a training.

    num_heads, d_inner: number of heads, and inner width of each
    target_tokens: tokens of the outputs to train on, in all steps together
    batch_tokens: tokens of a batch
    peak_lr: learning rate after the warm-up, which falls to zero by a cosine
    warmup_fraction: share of the steps in which the rate rises
    coverage: share of the tokens of the outputs that heads may propose, the most frequent ones first
    seed: seed of the initial weights and of the order of the batches
    checkpoint_seconds: time between two checkpoints
    """

    num_heads: int = 4
    d_inner: int = 0
    target_tokens: int = 1_000_000
    batch_tokens: int = 1024
    peak_lr: float = 2e-3
    warmup_fraction: float = 0.05
    coverage: float = 0.97
    seed: int = 1
    checkpoint_seconds: float = 60.0


def choose_target_tokens(requested: int | None, trained_tokens: int | None) -> int:
    """Return the tokens to train on: the requested number, at most a tenth of the bundle's own training.

    requested: None for the default, that tenth
    trained_tokens: target tokens of the bundle's training; None if it is unknown, as for a converted model

    Raises RecipeError for a number above the tenth.
    """
    if trained_tokens is None:
        return requested or HeadOptions.target_tokens
    limit = max(1, trained_tokens // MAX_TRAINING_SHARE)
    if requested is not None and requested > limit:
        raise RecipeError(
            f"tokens = {requested:,}: heads train on at most a tenth of the bundle's own training; give {limit:,} or less",
            code="invalid-option",
        )
    return requested or limit


@dataclass(frozen=True)
class DecoderInputs:
    """Frozen model, with the tokens that its decoder reads before an output."""

    model: Transformer
    start_id: int
    prompt: tuple[int, ...] = ()

    @torch.no_grad()
    def read(self, outputs: Sequence[Output]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the decoder's outputs (B, T, D), the tokens y that follow them (B, T), and whether they are tokens (B, T)."""
        targets = [(*self.prompt, *output.output) for output in outputs]
        batch = collate([output.source for output in outputs], [target[:-1] for target in targets], start_id=self.start_id)
        batch = batch.to(self.model.output.device)
        h_BTD, _ = self.model.decoder(batch.inputs_BT, self.model.start(batch.source_BS))
        length = len(self.prompt)
        y_BT = torch.full(batch.inputs_BT.shape, -1)
        for row, target in enumerate(targets):
            y_BT[row, : len(target)] = torch.tensor(target)
        y_BT = y_BT[:, length:].to(h_BTD.device)
        return h_BTD[:, length:], y_BT.clamp(min=0), y_BT >= 0

    def embed(self, tokens_N: Tensor) -> Tensor:
        """Return the scaled embeddings of tokens. → (N, D)"""
        embedding = self.model.decoder.embedding
        scale_N = (tokens_N != embedding.padding_id).to(embedding.weight.dtype) * embedding.scale
        return embedding.weight.detach()[tokens_N] * scale_N[:, None]


def choose_proposed_tokens(outputs: Sequence[Output], coverage: float) -> Tensor:
    """Return the most frequent tokens that make up this share of all tokens of the outputs, in ascending order. → (W,)"""
    counts = Counter(token for output in outputs for token in output.output)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    remaining, token_ids = coverage * counts.total(), set[int]()
    for token, count in ranked:
        if remaining <= 0:
            break
        token_ids.add(token)
        remaining -= count
    return torch.tensor(sorted(token_ids | {END_ID}), dtype=torch.long)


def shift_tokens(tokens_BT: Tensor, is_token_BT: Tensor, distance: int) -> Tensor:
    """Return the token at this distance behind each token, and -1 where the output has none. → (B, T)"""
    shifted_BT = torch.full_like(tokens_BT, -1)
    length = tokens_BT.shape[1] - distance
    if length > 0:
        shifted_BT[:, :length] = tokens_BT[:, distance:].masked_fill(~is_token_BT[:, distance:], -1)
    return shifted_BT


@dataclass
class HeadTrainer:
    """Training of the heads of one model, which continues from its last checkpoint.

    outputs: outputs to train on; a few of them are held out for the acceptance
    folder: folder of the checkpoint, which belongs to these outputs and options
    on_step: called with the loss of each step
    """

    inputs: DecoderInputs
    outputs: Sequence[Output]
    options: HeadOptions
    folder: Path
    on_step: Callable[[float], None] = lambda _: None
    step: int = field(default=0, init=False)
    num_target_tokens: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        options, model = self.options, self.inputs.model
        num_held_out = min(MAX_HELD_OUT, math.ceil(HELD_OUT_FRACTION * len(self.outputs)))
        order = random.Random(f"{options.seed} held out").sample(range(len(self.outputs)), len(self.outputs))
        self.held_out = [self.outputs[index] for index in sorted(order[:num_held_out])]
        self.training = [self.outputs[index] for index in sorted(order[num_held_out:])] or self.held_out
        self.batches = make_batches(self.training, options.batch_tokens)
        tokens_per_epoch = sum(len(output.output) for output in self.training)
        self.num_steps = max(1, round(options.target_tokens / tokens_per_epoch * len(self.batches)))
        token_ids_W = choose_proposed_tokens(self.training, options.coverage)
        self.local_ids_V = torch.full((len(model.output),), -1)
        self.local_ids_V[token_ids_W] = torch.arange(len(token_ids_W))
        generator_state = torch.get_rng_state()
        torch.manual_seed(options.seed)
        d_model = model.output.shape[1]
        self.heads = PredictionHeads(
            num_heads=options.num_heads, d_model=d_model, d_inner=options.d_inner or d_model, token_ids_W=token_ids_W
        )
        torch.set_rng_state(generator_state)
        self.heads.to(model.output.device)
        self.optimizer = torch.optim.Adam(self.heads.parameters(), lr=options.peak_lr, betas=ADAM_BETAS)
        self.output_WD = model.output.detach()[token_ids_W.to(model.output.device)]
        self.bias_W = None if model.output_bias is None else model.output_bias.detach()[token_ids_W.to(model.output.device)]
        self.local_ids_V = self.local_ids_V.to(model.output.device)

    def train(self) -> PredictionHeads:
        """Return the trained heads. Raises RunError for a damaged checkpoint, and for a loss that is not finite."""
        self._load_checkpoint()
        start = last_save = time.monotonic()
        elapsed_before = self.seconds
        while self.step < self.num_steps:
            epoch, index = divmod(self.step, len(self.batches))
            order = random.Random(f"{self.options.seed} {epoch}").sample(range(len(self.batches)), len(self.batches))
            batch = [self.training[row] for row in self.batches[order[index]]]
            loss = self._take_step(batch)
            if not math.isfinite(loss):
                raise RunError(
                    f"step {self.step + 1}: the loss of the heads is {loss}; train the bundle again", code="run-diverged"
                )
            self.step += 1
            self.num_target_tokens += sum(len(output.output) for output in batch)
            self.on_step(loss)
            self.seconds = elapsed_before + time.monotonic() - start
            if time.monotonic() - last_save >= self.options.checkpoint_seconds or self.step == self.num_steps:
                self._save_checkpoint()
                last_save = time.monotonic()
        return self.heads.eval()

    def _take_step(self, batch: Sequence[Output]) -> float:
        """Update the heads by one batch, and return its loss: the mean cross-entropy of the tokens of all heads."""
        warmup_steps = max(1, round(self.options.warmup_fraction * self.num_steps))
        progress = (self.step + 0.5) / self.num_steps
        rate = min(1.0, (self.step + 1) / warmup_steps) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.peak_lr * rate
        h_BTD, y_BT, is_token_BT = self.inputs.read(batch)
        is_token_N = is_token_BT.flatten()
        targets_NI = torch.stack(
            [shift_tokens(y_BT, is_token_BT, distance).flatten() for distance in range(1, self.heads.num_heads + 1)], dim=1
        )[is_token_N]
        inputs_NID = self.heads(h_BTD.flatten(0, 1)[is_token_N], self.inputs.embed(y_BT.flatten()[is_token_N]))
        local_NI = torch.where(targets_NI >= 0, self.local_ids_V[targets_NI.clamp(min=0)], -1)
        is_target_NI = local_NI >= 0
        self.optimizer.zero_grad()
        if not bool(is_target_NI.any()):
            return 0.0
        logits_XW = F.linear(inputs_NID[is_target_NI], self.output_WD, self.bias_W)
        loss = F.cross_entropy(logits_XW, local_NI[is_target_NI])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def measure_acceptance(self) -> dict[int, float]:
        """Return the tokens that a step adds to a held-out output on average, for each block size.

        Greedy search writes these outputs, so the proposals along them are those of a search.
        """
        lengths = Counter[int]()
        steps: Counter[int] = Counter()
        for rows in make_batches(self.held_out, self.options.batch_tokens):
            batch = [self.held_out[row] for row in rows]
            h_BTD, y_BT, _ = self.inputs.read(batch)
            inputs_XID = self.heads(h_BTD.flatten(0, 1), self.inputs.embed(y_BT.flatten()))
            local_XI = F.linear(inputs_XID, self.output_WD, self.bias_W).argmax(-1)
            proposals = self.heads.token_ids_W[local_XI].view(*y_BT.shape, -1).tolist()
            for output, sentence_proposals in zip(batch, proposals, strict=True):
                for block_size in range(2, self.heads.num_heads + 2):
                    lengths[block_size] += len(output.output)
                    steps[block_size] += count_steps(output.output, sentence_proposals, block_size)
        return {block_size: lengths[block_size] / steps[block_size] for block_size in steps}

    def describe(self) -> HeadTraining:
        """Return the facts of the finished training for the metadata of the bundle."""
        acceptance = {block_size: round(rate, 4) for block_size, rate in self.measure_acceptance().items()}
        return HeadTraining(
            lines=len(self.outputs),
            target_tokens=self.num_target_tokens,
            steps=self.step,
            seconds=round(self.seconds, 1),
            tokens_per_step=acceptance,
        )

    def _save_checkpoint(self) -> None:
        tensors = {f"weight {name}": parameter.detach() for name, parameter in self.heads.named_parameters()}
        for name, parameter in self.heads.named_parameters():
            for moment in ("exp_avg", "exp_avg_sq", "step"):
                if parameter in self.optimizer.state:
                    tensors[f"{moment} {name}"] = self.optimizer.state[parameter][moment]
        state = {"step": self.step, "target_tokens": self.num_target_tokens, "seconds": self.seconds}
        digests: dict[str, str] = {}
        with atomic_dir(self.folder / CHECKPOINT_DIR, overwrite=True, digests=digests) as folder:
            (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
            digests[TENSORS_FILE] = save_tensors(folder / TENSORS_FILE, tensors)

    def _load_checkpoint(self) -> None:
        path = self.folder / CHECKPOINT_DIR
        if not path.exists():
            return
        verify_checksums(path, RunError)
        state, tensors = json.loads((path / STATE_FILE).read_bytes()), load_file(path / TENSORS_FILE)
        with torch.no_grad():
            for name, parameter in self.heads.named_parameters():
                parameter.copy_(tensors[f"weight {name}"])
                if f"step {name}" in tensors:
                    self.optimizer.state[parameter] = {
                        "step": tensors[f"step {name}"],
                        "exp_avg": tensors[f"exp_avg {name}"].to(parameter.device),
                        "exp_avg_sq": tensors[f"exp_avg_sq {name}"].to(parameter.device),
                    }
        self.step, self.num_target_tokens, self.seconds = state["step"], state["target_tokens"], state["seconds"]


def count_steps(output: Sequence[int], proposals: Sequence[Sequence[int]], block_size: int) -> int:
    """Return the steps of a search over blocks that writes this output.

    proposals: for each token, those of each head for the tokens behind it
    """
    position, num_steps = 0, 1  # the first step reads the start token and writes the first token
    while position < len(output) - 1:
        num_accepted = 0
        while (
            num_accepted < block_size - 1
            and position + num_accepted + 1 < len(output)
            and proposals[position][num_accepted] == output[position + num_accepted + 1]
        ):
            num_accepted += 1
        position, num_steps = position + num_accepted + 1, num_steps + 1
    return num_steps


def make_batches(outputs: Sequence[Output], batch_tokens: int) -> list[list[int]]:
    """Return the indices of batches of similar lengths, each within a budget of padded tokens."""
    order = sorted(range(len(outputs)), key=lambda index: (len(outputs[index].output), len(outputs[index].source), index))
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        length = max(len(outputs[index].source), len(outputs[index].output))
        if not batches or max(longest, length) * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = 0
        batches[-1].append(index)
        longest = max(longest, length)
    return batches
