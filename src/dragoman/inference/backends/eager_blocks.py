"""Blocks of tokens on the training model: the decoder's step for k tokens of each sentence, with a cache that rolls back.

Each sentence has slots for its keys and values, and its own length. A token is written at its position. So rolling back a
sentence only shortens its length, and the next block overwrites the slots.

    k block size    W slots    others as in `dragoman.model`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.decoding.topk import TopK, TorchTopK
from dragoman.inference.backends.proposals import HeadProposer, embed_at_positions, get_num_positions
from dragoman.inference.backends.shared import InferenceEmbedding
from dragoman.model.attention import KeyValue
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.layers import DecoderLayer
from dragoman.model.masks import padding_mask
from dragoman.model.normalization import normalize
from dragoman.model.proposal_output import ProposalOutput
from dragoman.model.transformer import Transformer

# Slots that are added when a sentence has no slot left.
ADDED_SLOTS = 32


@dataclass(frozen=True)
class EagerBlockState:
    """State of a batch.

    cross_kv: keys and values of the source for each layer, and for that of a draft behind them (B, H, S, ·)
    memory_mask: true for source tokens (B, 1, 1, S)
    self_kv: slots for the keys and values of each of these layers (B, H, W, ·)
    length_B: number of tokens of each sentence that are read and certain
    """

    cross_kv: tuple[KeyValue, ...]
    memory_mask: Tensor
    self_kv: tuple[KeyValue, ...]
    length_B: Tensor

    def accept(self, counts_B: Tensor) -> EagerBlockState:
        """Return the state after the first tokens of each sentence's last block."""
        return replace(self, length_B=self.length_B + counts_B)

    def select_sentences(self, sentences_B: Tensor) -> EagerBlockState:
        """Return the state of these sentences alone."""
        return EagerBlockState(
            tuple(kv.select(sentences_B) for kv in self.cross_kv),
            self.memory_mask.index_select(0, sentences_B),
            tuple(kv.select(sentences_B) for kv in self.self_kv),
            self.length_B[sentences_B],
        )

    def reserve(self, num_slots: int) -> EagerBlockState:
        """Return the state with at least this many slots."""
        missing = num_slots - self.self_kv[0].key.shape[2]
        if missing <= 0:
            return self
        padding = (0, 0, 0, max(missing, ADDED_SLOTS))
        return replace(self, self_kv=tuple(KeyValue(F.pad(kv.key, padding), F.pad(kv.value, padding)) for kv in self.self_kv))


class _SlotWriter:
    """Slots of one layer. A decoder layer appends its new keys and values, which are written at their positions."""

    def __init__(self, slots: KeyValue, position_BK: Tensor, num_slots: int) -> None:
        self.slots, self.position_BK, self.num_slots = slots, position_BK, num_slots

    def append(self, new: KeyValue) -> KeyValue:
        """Write the keys and values of a block (B, H, k, ·), and return those of all slots that are in use."""
        row_B1 = torch.arange(len(self.position_BK), device=self.position_BK.device)[:, None]
        self.slots.key[row_B1, :, self.position_BK] = new.key.transpose(1, 2)
        self.slots.value[row_B1, :, self.position_BK] = new.value.transpose(1, 2)
        return KeyValue(self.slots.key[:, :, : self.num_slots], self.slots.value[:, :, : self.num_slots])


class EagerBlockModel:
    """Training model with prediction heads or a draft decoder, which reads k tokens of each sentence in one step."""

    def __init__(self, model: Transformer, proposer: Proposer) -> None:
        """Take a model that `find_unsupported_part` does not refuse."""
        self.model = model
        embedding = model.decoder.embedding
        self.embedding = InferenceEmbedding.from_embedding(embedding)
        self.embedding = replace(self.embedding, scale_V=self.embedding.scale_V.to(model.output.device))
        self.max_positions = get_num_positions(embedding)
        self.make_topk: Callable[[], TopK] = TorchTopK
        self.layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
        self.heads: HeadProposer | None = None
        self.draft: DraftDecoder | None = None
        if isinstance(proposer, DraftDecoder):
            self.draft = proposer.to(model.output.device)
            self.draft_output = ProposalOutput.from_model(model, proposer.token_ids_W)
        else:
            self.heads = HeadProposer(proposer, model, self.embedding)

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return self.model.output.device

    def start(self, source_BS: Tensor) -> EagerBlockState:
        """Encode the sources and return the state before the first token."""
        memory_BSD = self.model.encoder(source_BS)
        layers = self.layers if self.draft is None else [*self.layers, self.draft.layer]
        cross_kv = tuple(layer.cross_attention.project_kv(memory_BSD) for layer in layers)
        empty_kv = tuple(KeyValue(kv.key[:, :, :0], kv.value[:, :, :0]) for kv in cross_kv)
        length_B = torch.zeros(len(source_BS), dtype=torch.long, device=source_BS.device)
        memory_mask = padding_mask(source_BS != self.embedding.padding_id)
        return EagerBlockState(cross_kv, memory_mask, empty_kv, length_B)

    def read(self, tokens_BK: Tensor, state: EagerBlockState) -> tuple[Tensor, Tensor, EagerBlockState]:
        """Read a block and return the logits (B · k, V), the decoder's outputs (B · k, D), and the state.

        A draft reads the block too, so that its cache has the tokens that are accepted.
        """
        position_BK = state.length_B[:, None] + torch.arange(tokens_BK.shape[1], device=tokens_BK.device)
        state = state.reserve(int(position_BK.max()) + 1)
        x_BKD = self._run_layers(self.layers, tokens_BK, position_BK, state, 0)
        if self.draft is not None:
            self._run_layers([self.draft.layer], tokens_BK, position_BK, state, len(self.layers))
        outputs_XD = normalize(self.model.decoder.norm, x_BKD, None).flatten(0, 1)
        return self.model.compute_logits(outputs_XD), outputs_XD, state

    def _run_layers(
        self, layers: Sequence[DecoderLayer], tokens_BK: Tensor, position_BK: Tensor, state: EagerBlockState, first: int
    ) -> Tensor:
        """Return the output of layers for tokens at these positions. → (B, k, D)

        first: number of the first of these layers in the state, which has slots for the positions
        """
        num_slots = int(position_BK.max()) + 1
        mask = (torch.arange(num_slots, device=tokens_BK.device) <= position_BK[:, :, None])[:, None]
        x_BKD = embed_at_positions(self.embedding, tokens_BK, position_BK, self.max_positions)
        for number, layer in enumerate(layers, first):
            writer = cast(KeyValue, _SlotWriter(state.self_kv[number], position_BK, num_slots))
            x_BKD, _ = layer(x_BKD, writer, state.cross_kv[number], mask, state.memory_mask)
        return x_BKD

    def propose(
        self, outputs_BD: Tensor, tokens_B: Tensor, state: EagerBlockState, num_proposals: int
    ) -> tuple[Tensor, EagerBlockState]:
        """Return the proposals behind these tokens (B, num_proposals), and the state."""
        if self.draft is None:
            assert self.heads is not None
            return self.heads(outputs_BD, tokens_B)[:, :num_proposals], state
        state = state.reserve(int(state.length_B.max()) + num_proposals)
        proposals_BI = tokens_B[:, None]
        for step in range(num_proposals):
            position_B1 = state.length_B[:, None] + step
            x_B1D = self._run_layers([self.draft.layer], proposals_BI[:, -1:], position_B1, state, len(self.layers))
            next_B1 = self.draft_output.choose(normalize(self.draft.norm, x_B1D, None))
            proposals_BI = torch.cat([proposals_BI, next_B1], dim=1)
        return proposals_BI[:, 1:], state
