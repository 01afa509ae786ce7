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
from dragoman.inference.backends.packed.model import PackedStack, PackedTransformer
from dragoman.inference.backends.packed.pack import pack_decoder
from dragoman.inference.backends.proposals import HeadProposer, embed_at_positions, get_num_positions
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.proposal_output import ProposalOutput
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
    """Packed model with prediction heads or a draft decoder, which reads k tokens of each sentence in one step."""

    def __init__(self, packed: PackedTransformer, model: Transformer, proposer: Proposer) -> None:
        """Take a model that `find_unsupported_part` does not refuse. model: the trained model of the packed one"""
        self.packed = self.starting_model = packed
        self.max_positions = get_num_positions(model.decoder.embedding)
        self.device = torch.device("cpu")
        self.heads: HeadProposer | None = None
        self.draft: PackedStack | None = None
        if isinstance(proposer, DraftDecoder):
            self.draft = pack_decoder(proposer.to_decoder(model.decoder.embedding), packed.precision)
            self.draft_output = ProposalOutput.from_model(model, proposer.token_ids_W)
            # The layer of the draft is the last one of the state.
            layers = (*packed.decoder.layers, *self.draft.layers)
            self.starting_model = replace(packed, decoder=replace(packed.decoder, layers=layers))
        else:
            self.heads = HeadProposer(proposer, model, packed.decoder.embedding)

    def make_topk(self) -> TopK:
        """Return the object that finds the likeliest tokens of a search."""
        return self.packed.make_topk()

    def start(self, source_BS: Tensor) -> PackedBlockState:
        """Encode the sources and return the state before the first token."""
        return PackedBlockState(self.starting_model.start(source_BS), torch.zeros(len(source_BS), dtype=torch.long))

    def read(self, tokens_BK: Tensor, state: PackedBlockState) -> tuple[Tensor, Tensor, PackedBlockState]:
        """Read a block and return the logits (B · k, V), the decoder's outputs (B · k, D), and the state.

        A draft reads the block too, so that its cache has the tokens that are accepted.
        """
        packed_state, slots = self._prepare_block(state.packed, tokens_BK.shape[1])
        x_ND = self._embed(tokens_BK, state.length_B)
        rows_N = packed_state.active_rows()
        if self.draft is not None:
            assert packed_state.ancestors_CRW is not None
            self.packed.run_layers(
                self.draft, self._num_layers, x_ND.clone(), rows_N, packed_state, slots, packed_state.ancestors_CRW
            )
        outputs_ND, next_state = self.packed.run_decoder(x_ND, rows_N, packed_state)
        return (
            self.packed.output(outputs_ND)[: tokens_BK.numel()],
            outputs_ND[: tokens_BK.numel()],
            replace(state, packed=next_state),
        )

    def _prepare_block(self, packed_state: PackedState, block_size: int) -> tuple[PackedState, slice]:
        """Return the state with free slots for a block, in which each token attends to the earlier ones, and these slots."""
        packed_state = self.packed.prepare_step(packed_state, block_size)
        assert packed_state.ancestors_CRW is not None
        slots = slice(packed_state.num_used_slots, packed_state.num_used_slots + block_size)
        is_later_KK = torch.ones(block_size, block_size, dtype=torch.bool).triu_(1)
        causal_bias_KK = torch.zeros(block_size, block_size).masked_fill_(is_later_KK, MASKED_BIAS)
        packed_state.ancestors_CRW[:, :, slots] = causal_bias_KK
        return packed_state, slots

    @property
    def _num_layers(self) -> int:
        return len(self.packed.decoder.layers)

    def _embed(self, tokens_BK: Tensor, start_B: Tensor) -> Tensor:
        """Return the decoder's inputs for tokens from a position of each sentence on. → (B · k, D)"""
        position_BK = start_B[:, None] + torch.arange(tokens_BK.shape[1])
        return embed_at_positions(self.packed.decoder.embedding, tokens_BK, position_BK, self.max_positions).flatten(0, 1)

    def propose(
        self, outputs_BD: Tensor, tokens_B: Tensor, state: PackedBlockState, num_proposals: int
    ) -> tuple[Tensor, PackedBlockState]:
        """Return the proposals behind these tokens (B, num_proposals), and the state.

        A draft writes into the slots of the next block, whose reading overwrites them.
        """
        if self.draft is None:
            assert self.heads is not None
            return self.heads(outputs_BD, tokens_B)[:, :num_proposals], state
        packed_state, slots = self._prepare_block(state.packed, num_proposals + 1)
        assert packed_state.ancestors_CRW is not None
        proposals_BI = tokens_B[:, None]
        for step in range(num_proposals):
            x_BD = self._embed(proposals_BI[:, -1:], state.length_B + step)
            slot = slice(slots.start + step, slots.start + step + 1)
            bias_C1W = packed_state.ancestors_CRW[:, step : step + 1]
            outputs_ND = self.packed.run_layers(
                self.draft, self._num_layers, x_BD, packed_state.active_B, packed_state, slot, bias_C1W
            )
            next_B = self.draft_output.choose(outputs_ND[: len(tokens_B)])
            proposals_BI = torch.cat([proposals_BI, next_B[:, None]], dim=1)
        return proposals_BI[:, 1:], replace(state, packed=packed_state)
