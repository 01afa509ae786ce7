"""Decoder that predicts all tokens at once, trained by connectionist temporal classification (CTC).

The encoder's output is upsampled: a linear layer makes k vectors of each source token (Libovický and Helcl 2018, section 3).
Decoder layers without a causal mask read these positions and the source. The model predicts a token or a blank at each
position. An output is what remains after repeated predictions are merged and blanks are removed. The blank is the padding id,
which no output contains otherwise, so the output matrix and the embeddings can be shared as in the Transformer.

F counts the positions of the decoder: k for each source token, those of padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.data.collate import Batch
from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import refuse_steps
from dragoman.experiments.ctc.search import CtcSearch, FramePredictions
from dragoman.experiments.token_masks import set_token_mask
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import Linear
from dragoman.model.local_attention import Mask, build_mask
from dragoman.model.masks import padding_mask
from dragoman.model.positional_encoding import SinusoidalPositionalEmbedding
from dragoman.model.transformer import Decoder, DecoderState, Embedding, Transformer

CHUNK_LOGITS = 2**22
"""Logits in memory at once: 16 MB in float32."""


class CtcDecoder(Decoder):
    """Stack of decoder layers over the upsampled memory, each position of which attends to all others and to the source.

    embedding: gives the positions and the dropout; its weight is the output matrix, because no target tokens are read
    upsampling: positions for each source token, k
    has_local_source: whether a position attends to the source of its window only, and not to all of it
    """

    is_autoregressive: ClassVar[bool] = False

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[nn.Module],
        norm: nn.Module,
        window: int | None,
        rotary_positions: SinusoidalPositionalEmbedding | None,
        upsampling: int,
        has_local_source: bool,
    ) -> None:
        super().__init__(embedding=embedding, layers=layers, norm=norm, window=window, rotary_positions=rotary_positions)
        d_model = embedding.weight.shape[1]
        self.upsampling = upsampling
        self.has_local_source = has_local_source
        self.upsample = Linear(d_model, upsampling * d_model)

    def start(self, memory_BSD: Tensor, inputs_BS: Tensor, source_BS: Tensor) -> DecoderState:
        """Raise BundleError, because there is no step from token to token."""
        refuse_steps("this")

    def forward(self, inputs_NT: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Raise BundleError, because no target tokens are read."""
        refuse_steps("this")

    def decode(self, memory_BSD: Tensor, inputs_BS: Tensor) -> Tensor:
        """Return the outputs of all positions, before the output matrix. → (B, F, D)

        inputs_BS: which vectors of the memory are no padding
        """
        mask_BF = inputs_BS.repeat_interleave(self.upsampling, dim=1)
        batch_size, source_length, d_model = memory_BSD.shape
        x_BFD = self.upsample(memory_BSD).view(batch_size, source_length * self.upsampling, d_model)
        x_BFD = self.embedding.add_positions(x_BFD)
        mask = build_mask(mask_BF, self.window)
        memory_mask: Mask = padding_mask(inputs_BS)
        if self.has_local_source:  # k equal vectors have the attention of one
            memory_BSD, memory_mask = memory_BSD.repeat_interleave(self.upsampling, dim=1), mask
        set_token_mask(self, mask_BF)
        rotation_FK = None if self.rotary_positions is None else self.rotary_positions(0, x_BFD.shape[1])
        for layer in self.layers:
            cross_kv = cast(DecoderLayer, layer).cross_attention.project_kv(memory_BSD)
            x_BFD, _ = layer(x_BFD, None, cross_kv, mask, memory_mask, rotation_FK)
        return cast(Tensor, self.norm(x_BFD))

    def count_learned(self, model: Transformer, batch: Batch) -> tuple[int, int]:
        """Return the target tokens that fit into the positions of their sentence, and the pairs whose target does not fit."""
        fits_B = find_fitting(batch.targets_BT, count_frames(model, batch.source_BS))
        num_tokens_B = (batch.targets_BT != PADDING_ID).sum(dim=1)
        return int(num_tokens_B[fits_B].sum()), int((~fits_B).sum())

    def search(self, model: Transformer, source_BS: NDArray[np.int64], **options: Any) -> list[list[Hypothesis]]:
        """Return the outputs of each source with PyTorch, on a GPU or without kernels. options: those of `CtcSearch`"""
        return CtcSearch(partial(predict_frames, model))(source_BS, **options)


def find_fitting(targets_BT: Tensor, num_frames_B: Tensor) -> Tensor:
    """Return whether each target, padded on the right, fits into the positions of its source. → (B,)

    Some path merges to such a target: there is a position for each token, and one between equal neighbors. A target that does
    not fit has no loss.
    """
    is_token_BT = targets_BT != PADDING_ID
    is_repeated_BT = (targets_BT[:, 1:] == targets_BT[:, :-1]) & is_token_BT[:, 1:]
    num_needed_B = is_token_BT.sum(dim=1) - 1 + is_repeated_BT.sum(dim=1)  # without the end token
    return num_needed_B <= num_frames_B


def compute_frame_outputs(model: Transformer, source_BS: Tensor) -> Tensor:
    """Return the outputs of all positions, before the output matrix. → (B, F, D)"""
    return _get_decoder(model).decode(model.encoder(source_BS), model.encoder.source_frontend.find_inputs(source_BS))


def count_frames(model: Transformer, source_BS: Tensor) -> Tensor:
    """Return the number of positions of each source, without those of padding. → (B,)"""
    return model.encoder.source_frontend.find_inputs(source_BS).sum(dim=1) * _get_decoder(model).upsampling


def _get_decoder(model: Transformer) -> CtcDecoder:
    assert isinstance(model.decoder, CtcDecoder), "the caller knows the decoder"
    return model.decoder


def predict_frames(
    model: Transformer, source_BS: NDArray[np.int64], suppressed: Sequence[int], count: int
) -> list[FramePredictions]:
    """Return the `count` likeliest predictions at each position, for each source.

    suppressed: ids that are not predicted, although they have a probability

    The natural log-probabilities are the model's own. At most `CHUNK_LOGITS` logits are in memory at once.
    """
    source = torch.from_numpy(source_BS).to(model.output.device)
    outputs_BFD = compute_frame_outputs(model, source)
    is_suppressed_V = outputs_BFD.new_zeros(len(model.output), dtype=torch.bool)
    is_suppressed_V[list(suppressed)] = True
    tokens, log_probs = [], []
    for chunk_ZD in torch.split(outputs_BFD.flatten(0, 1), max(CHUNK_LOGITS // len(model.output), 1)):
        logits_ZV = model.compute_logits(chunk_ZD).float()
        logsumexp_Z = logits_ZV.logsumexp(dim=-1)
        best = logits_ZV.masked_fill_(is_suppressed_V, float("-inf")).topk(min(count, len(model.output)), dim=-1)
        tokens.append(best.indices)
        log_probs.append(best.values - logsumexp_Z[:, None])
    batch_size, max_frames = outputs_BFD.shape[:2]
    tokens_BFK, log_probs_BFK = (torch.cat(rows).view(batch_size, max_frames, -1) for rows in (tokens, log_probs))
    return [
        FramePredictions(tokens_FK[:length].tolist(), log_probs_FK[:length].tolist())
        for tokens_FK, log_probs_FK, length in zip(tokens_BFK, log_probs_BFK, count_frames(model, source).tolist(), strict=True)
    ]
