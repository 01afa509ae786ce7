"""Objectives of prediction heads and of a draft decoder: the tokens to learn from a greedy output, and the proposals along it.

B outputs    T tokens of each    I proposals for one step    X places with a token to learn    others as in `dragoman.model`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.collate import collate
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.transformer import DecoderState, Transformer


@dataclass(frozen=True)
class Output:
    """Source and greedy output of one line. output: ids with the end token, if the output has one"""

    source: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class OutputBatch:
    """Outputs of some lines, as the decoder reads them.

    source_BS: padded sources
    inputs_BT: inputs of the decoder: the start token, the prompt and the output without its last token
    prompt_length: number of tokens of the prompt
    memory_BSD: output of the encoder
    y_BT: tokens of the outputs; -1 behind the end
    """

    source_BS: Tensor
    inputs_BT: Tensor
    prompt_length: int
    memory_BSD: Tensor
    y_BT: Tensor


@dataclass(frozen=True)
class DecoderInputs:
    """Frozen model, with the tokens that its decoder reads before an output."""

    model: Transformer
    start_id: int
    prompt: tuple[int, ...] = ()

    @torch.no_grad()
    def collate(self, outputs: Sequence[Output]) -> OutputBatch:
        """Return a batch of outputs on the device of the model."""
        targets = [(*self.prompt, *output.output) for output in outputs]
        batch = collate([output.source for output in outputs], [target[:-1] for target in targets], start_id=self.start_id)
        batch = batch.to(self.model.output.device)
        y_BT = torch.full((len(outputs), batch.inputs_BT.shape[1] - len(self.prompt)), -1)
        for row, output in enumerate(outputs):
            y_BT[row, : len(output.output)] = torch.tensor(output.output)
        memory_BSD = self.model.encoder(batch.source_BS)
        return OutputBatch(batch.source_BS, batch.inputs_BT, len(self.prompt), memory_BSD, y_BT.to(memory_BSD.device))


class Objective(Protocol):
    """Objective of a proposer.

    proposer: module to train
    max_grad_norm: gradients are scaled down to this norm, or None
    """

    @property
    def proposer(self) -> Proposer: ...

    @property
    def max_grad_norm(self) -> float | None: ...

    def compute_targets(self, batch: OutputBatch) -> tuple[Tensor, Tensor]:
        """Return the inputs of the output embedding (X, D), and the tokens to learn there (X,)."""
        ...

    def compute_proposal_inputs(self, batch: OutputBatch) -> Tensor:
        """Return the inputs of the output embedding for the proposals behind each token. → (B, T, I, D)

        Each proposal counts only if those before it hold. So those before it are the tokens of the output.
        """
        ...


@dataclass(frozen=True)
class HeadObjective:
    """Each head learns the tokens at its distance, from the output of the decoder and the token behind it."""

    proposer: PredictionHeads
    model: Transformer
    max_grad_norm: float | None = None

    def compute_targets(self, batch: OutputBatch) -> tuple[Tensor, Tensor]:
        """Return the inputs of the output embedding (X, D), and the tokens to learn there (X,)."""
        is_token_N = (batch.y_BT >= 0).flatten()
        targets_NI = torch.stack(
            [shift_tokens(batch.y_BT, distance).flatten() for distance in range(1, self.proposer.num_proposals + 1)], dim=1
        )[is_token_N]
        h_ND, y_ND = (x_BTD.flatten(0, 1)[is_token_N] for x_BTD in self._read(batch))
        is_target_NI = targets_NI >= 0
        return self.proposer(h_ND, y_ND)[is_target_NI], targets_NI[is_target_NI]

    def compute_proposal_inputs(self, batch: OutputBatch) -> Tensor:
        """Return the inputs of the output embedding for the proposals behind each token. → (B, T, I, D)"""
        h_BTD, y_BTD = self._read(batch)
        inputs_XID: Tensor = self.proposer(h_BTD.flatten(0, 1), y_BTD.flatten(0, 1))
        return inputs_XID.view(*batch.y_BT.shape, *inputs_XID.shape[1:])

    @torch.no_grad()
    def _read(self, batch: OutputBatch) -> tuple[Tensor, Tensor]:
        """Return the outputs of the decoder (B, T, D), and the scaled embeddings of the tokens behind them (B, T, D)."""
        decoder = self.model.decoder
        h_BTD, _ = decoder(batch.inputs_BT, decoder.start(batch.memory_BSD, batch.source_BS))
        tokens_BT, embedding = batch.y_BT.clamp(min=0), decoder.embedding
        scale_BT = (tokens_BT != embedding.padding_id).to(embedding.weight.dtype) * embedding.scale
        return h_BTD[:, batch.prompt_length :], embedding.weight.detach()[tokens_BT] * scale_BT[:, :, None]


@dataclass(frozen=True)
class DraftObjective:
    """A draft learns each next token but the first, which the model itself predicts."""

    proposer: DraftDecoder
    model: Transformer
    max_grad_norm: float | None = 1.0

    def compute_targets(self, batch: OutputBatch) -> tuple[Tensor, Tensor]:
        """Return the inputs of the output embedding (X, D), and the tokens to learn there (X,)."""
        is_target_BT = batch.y_BT[:, 1:] >= 0
        return self._read(batch)[:, 1:][is_target_BT], batch.y_BT[:, 1:][is_target_BT]

    def compute_proposal_inputs(self, batch: OutputBatch) -> Tensor:
        """Return the inputs of the output embedding for the proposals behind each token. → (B, T, I, D)"""
        g_BTD, length = self._read(batch), batch.y_BT.shape[1]
        shifted = [
            F.pad(g_BTD[:, distance:], (0, 0, 0, min(distance, length)))[:, :length]
            for distance in range(1, self.proposer.num_proposals + 1)
        ]
        return torch.stack(shifted, dim=2)

    def _read(self, batch: OutputBatch) -> Tensor:
        """Return the outputs of the draft (B, T, D), each from the tokens before it."""
        decoder = self.proposer.to_decoder(self.model.decoder.embedding)
        state: DecoderState = decoder.start(batch.memory_BSD, batch.source_BS)
        g_BTD: Tensor = decoder(batch.inputs_BT, state)[0]
        return g_BTD[:, batch.prompt_length :]


def shift_tokens(tokens_BT: Tensor, distance: int) -> Tensor:
    """Return the token at this distance behind each token, and -1 where the output has none. → (B, T)"""
    return F.pad(tokens_BT[:, distance:], (0, min(distance, tokens_BT.shape[1])), value=-1)
