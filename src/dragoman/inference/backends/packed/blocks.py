"""Blocks of tokens on the packed back end: the k tokens of a block take the places of k hypotheses of a beam.

All of them share the slots of their sentence. The table of ancestors shows each token the accepted slots and the earlier
tokens of its block. Rolling back hides the slots of refused tokens.

    k block size    C stored sentences    others as in `dragoman.inference.backends.packed.model`
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.decoding.topk import TopK
from dragoman.inference.backends.packed.kv_cache import MASKED_BIAS, PackedState
from dragoman.inference.backends.packed.model import PackedTransformer
from dragoman.inference.backends.proposals import build_proposer, embed_at_positions, get_num_positions
from dragoman.model.prediction_heads import PredictionHeads
from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class PackedBlockState:
    """State of a batch.

    packed: cache of the stored sentences
    length_B: number of tokens of each active sentence that are read and certain
    """

    packed: PackedState
    length_B: Tensor

    def accept(self, counts_B: Tensor) -> PackedBlockState:
        """Return the state after the first tokens of each sentence's last block."""
        ancestors_CRW, active_B = self.packed.ancestors_CRW, self.packed.active_B
        assert ancestors_CRW is not None
        block_size, num_slots = ancestors_CRW.shape[1], self.packed.num_used_slots
        counts_C = counts_B
        if active_B is not None:
            counts_C = torch.zeros(len(ancestors_CRW), dtype=torch.long).index_copy_(0, active_B, counts_B)
        is_refused_CK = torch.arange(block_size) >= counts_C[:, None]
        bias_CK = torch.zeros(is_refused_CK.shape, dtype=ancestors_CRW.dtype).masked_fill_(is_refused_CK, MASKED_BIAS)
        ancestors_CRW[:, :, num_slots - block_size : num_slots] = bias_CK[:, None]
        return replace(self, length_B=self.length_B + counts_B)

    def select_sentences(self, sentences_B: Tensor) -> PackedBlockState:
        """Return the state of these sentences alone."""
        return PackedBlockState(self.packed.select_sentences(sentences_B), self.length_B[sentences_B])


class PackedBlockModel:
    """Packed model with prediction heads that reads k tokens of each sentence in one step."""

    def __init__(self, packed: PackedTransformer, model: Transformer, heads: PredictionHeads) -> None:
        """Take a model that `find_unsupported_part` does not refuse. model: the trained model of the packed one"""
        self.packed = packed
        self.proposer = build_proposer(packed.decoder.embedding, model, heads)
        self.max_positions = get_num_positions(model.decoder.embedding)
        self.device = torch.device("cpu")

    def make_topk(self) -> TopK:
        """Return the object that finds the likeliest tokens of a search."""
        return self.packed.make_topk()

    def start(self, source_BS: Tensor) -> PackedBlockState:
        """Encode the sources and return the state before the first token."""
        return PackedBlockState(self.packed.start(source_BS), torch.zeros(len(source_BS), dtype=torch.long))

    def read(self, tokens_BK: Tensor, state: PackedBlockState) -> tuple[Tensor, Tensor, PackedBlockState]:
        """Read a block and return the logits (B · k, V), the decoder's outputs (B · k, D), and the state."""
        block_size, packed = tokens_BK.shape[1], self.packed
        packed_state = packed.prepare_step(state.packed, block_size)
        assert packed_state.ancestors_CRW is not None
        first_slot = packed_state.num_used_slots
        is_later_KK = torch.ones(block_size, block_size, dtype=torch.bool).triu_(1)
        causal_bias_KK = torch.zeros(block_size, block_size).masked_fill_(is_later_KK, MASKED_BIAS)
        packed_state.ancestors_CRW[:, :, first_slot : first_slot + block_size] = causal_bias_KK
        position_BK = state.length_B[:, None] + torch.arange(block_size)
        x_BKD = embed_at_positions(packed.decoder.embedding, tokens_BK, position_BK, self.max_positions)
        rows_N = packed_state.active_rows()
        outputs_ND, next_state = packed.run_decoder(x_BKD.flatten(0, 1), rows_N, packed_state)
        return (
            packed.output(outputs_ND)[: tokens_BK.numel()],
            outputs_ND[: tokens_BK.numel()],
            replace(state, packed=next_state),
        )

    def propose(self, outputs_BD: Tensor, tokens_B: Tensor) -> Tensor:
        """Return the proposals behind these tokens. → (B, heads)"""
        return self.proposer(outputs_BD, tokens_B)
