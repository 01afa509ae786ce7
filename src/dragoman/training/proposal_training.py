"""Training of prediction heads (Stern et al. 2018, section 6) or of a draft decoder on the greedy outputs of a bundle.

The bundle does not change. The proposer learns what greedy search writes, and not the references (`proposal_objectives`).

    FOLDER/checkpoint/    weights, moments of Adam, and the step; a killed training continues from it to the same weights

Dimensions are those of `proposal_objectives`.
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
from typing import Literal

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from dragoman.bundle import ProposalTraining
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import RecipeError, RunError
from dragoman.io.safetensors import save_tensors
from dragoman.io.storage import atomic_dir, verify_checksums
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.proposal_output import ProposalOutput
from dragoman.model.transformer import Transformer
from dragoman.training.proposal_objectives import DecoderInputs, DraftObjective, HeadObjective, Objective, Output

CHECKPOINT_DIR, TENSORS_FILE, STATE_FILE = "checkpoint", "training.safetensors", "training.json"
ADAM_BETAS = (0.9, 0.98)
MAX_TRAINING_SHARE = 10
"""Target tokens of the training of a bundle for each token that its proposer is trained on, at least."""
HELD_OUT_FRACTION, MAX_HELD_OUT = 0.05, 500

Method = Literal["heads", "draft"]


@dataclass(frozen=True, kw_only=True)
class ProposalOptions:
    """Settings of a training.

    method: prediction heads or a draft decoder
    num_proposals: tokens that are proposed for one step, at most: the number of heads
    d_inner: inner width of each head; 0 for that of the model
    target_tokens: tokens of the outputs to train on, in all steps together
    batch_tokens: tokens of a batch
    peak_lr: learning rate after the warm-up, which falls to zero by a cosine
    warmup_fraction: share of the steps in which the rate rises
    coverage: share of the tokens of the outputs that may be proposed, the most frequent ones first
    seed: seed of the initial weights and of the order of the batches
    checkpoint_seconds: time between two checkpoints
    """

    method: Method = "heads"
    num_proposals: int = 4
    d_inner: int = 0
    target_tokens: int = 1_000_000
    batch_tokens: int = 512
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
        return requested or ProposalOptions.target_tokens
    limit = max(1, trained_tokens // MAX_TRAINING_SHARE)
    if requested is not None and requested > limit:
        raise RecipeError(
            f"tokens = {requested:,}: proposers train on at most a tenth of the bundle's training; give {limit:,} or less",
            code="invalid-option",
        )
    return requested or limit


def build_objective(model: Transformer, options: ProposalOptions, token_ids_W: Tensor) -> Objective:
    """Return the objective of an untrained proposer. token_ids_W: tokens that it may propose"""
    if options.method == "draft":
        draft = DraftDecoder.from_model(model, token_ids_W=token_ids_W, num_proposals=options.num_proposals)
        return DraftObjective(draft, model)
    d_model = model.output.shape[1]
    heads = PredictionHeads(
        num_heads=options.num_proposals, d_model=d_model, d_inner=options.d_inner or d_model, token_ids_W=token_ids_W
    )
    return HeadObjective(heads, model)


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


@dataclass
class ProposalTrainer:
    """Training of the proposer of one model, which continues from its last checkpoint.

    outputs: outputs to train on; a few of them are held out for the acceptance
    folder: folder of the checkpoint, which belongs to these outputs and options
    on_step: called with the loss of each step
    """

    inputs: DecoderInputs
    outputs: Sequence[Output]
    options: ProposalOptions
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
        local_ids_V = torch.full((len(model.output),), -1)
        local_ids_V[token_ids_W] = torch.arange(len(token_ids_W))
        self.local_ids_V = local_ids_V.to(model.output.device)
        generator_state = torch.get_rng_state()
        torch.manual_seed(options.seed)
        self.objective = build_objective(model, options, token_ids_W)
        torch.set_rng_state(generator_state)
        self.proposer = self.objective.proposer.to(model.output.device)
        self.optimizer = torch.optim.Adam(self.proposer.parameters(), lr=options.peak_lr, betas=ADAM_BETAS)
        self.output = ProposalOutput.from_model(model, token_ids_W)

    def train(self) -> Proposer:
        """Return the trained proposer. Raises RunError for a damaged checkpoint, and for a loss that is not finite."""
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
                    f"step {self.step + 1}: the loss of the proposer is {loss}; train the bundle again", code="run-diverged"
                )
            self.step += 1
            self.num_target_tokens += sum(len(output.output) for output in batch)
            self.on_step(loss)
            self.seconds = elapsed_before + time.monotonic() - start
            if time.monotonic() - last_save >= self.options.checkpoint_seconds or self.step == self.num_steps:
                self._save_checkpoint()
                last_save = time.monotonic()
        return self.proposer.eval()

    def _take_step(self, batch: Sequence[Output]) -> float:
        """Update the proposer by one batch, and return its loss: the mean cross-entropy of the tokens that it may propose."""
        warmup_steps = max(1, round(self.options.warmup_fraction * self.num_steps))
        progress = (self.step + 0.5) / self.num_steps
        rate = min(1.0, (self.step + 1) / warmup_steps) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.peak_lr * rate
        inputs_XD, targets_X = self.objective.compute_targets(self.inputs.collate(batch))
        local_X = self.local_ids_V[targets_X]
        is_proposed_X = local_X >= 0
        self.optimizer.zero_grad()
        if not bool(is_proposed_X.any()):
            return 0.0
        loss = F.cross_entropy(self.output.compute_logits(inputs_XD[is_proposed_X]), local_X[is_proposed_X])
        loss.backward()  # type: ignore[no-untyped-call]
        if self.objective.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.proposer.parameters(), self.objective.max_grad_norm)
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
            inputs_BTID = self.objective.compute_proposal_inputs(self.inputs.collate(batch))
            proposals = self.output.choose(inputs_BTID).tolist()
            for output, sentence_proposals in zip(batch, proposals, strict=True):
                for block_size in range(2, self.options.num_proposals + 2):
                    lengths[block_size] += len(output.output)
                    steps[block_size] += count_steps(output.output, sentence_proposals, block_size)
        return {block_size: lengths[block_size] / steps[block_size] for block_size in steps}

    def describe(self) -> ProposalTraining:
        """Return the facts of the finished training for the metadata of the bundle."""
        acceptance = {block_size: round(rate, 4) for block_size, rate in self.measure_acceptance().items()}
        return ProposalTraining(
            lines=len(self.outputs),
            target_tokens=self.num_target_tokens,
            steps=self.step,
            seconds=round(self.seconds, 1),
            tokens_per_step=acceptance,
        )

    def _save_checkpoint(self) -> None:
        tensors = {f"weight {name}": parameter.detach() for name, parameter in self.proposer.named_parameters()}
        for name, parameter in self.proposer.named_parameters():
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
            for name, parameter in self.proposer.named_parameters():
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

    proposals: for each token, the proposals for the tokens behind it
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
