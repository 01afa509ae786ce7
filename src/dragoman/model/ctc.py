"""Decoder that predicts all tokens at once, trained by connectionist temporal classification (CTC).

The encoder's output is upsampled: a linear layer makes k vectors of each source token (Libovický and Helcl 2018, section 3).
Decoder layers without a causal mask read these positions and the source. The model predicts a token or a blank at each
position. An output is what remains after repeated predictions are merged and blanks are removed. The blank is the padding id,
which no output contains otherwise, so the output matrix and the embeddings can be shared as in the Transformer.

F counts the positions of the decoder: k for each source token, those of padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, cast

import torch
from torch import Tensor, nn

from dragoman.errors import BundleError
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import Linear
from dragoman.model.local_attention import LocalMask, Mask
from dragoman.model.masks import padding_mask
from dragoman.model.normalization import normalize
from dragoman.model.transformer import Decoder, DecoderState, Embedding, Transformer

CHUNK_LOGITS = 2**22
"""Logits in memory at once: 16 MB in float32."""


class CtcDecoder(Decoder):
    """Stack of decoder layers over the upsampled memory, each position of which attends to all others and to the source.

    embedding: gives the positions and the dropout; its weight is the output matrix, because no target tokens are read
    upsampling: positions for each source token, k
    """

    def __init__(
        self, *, embedding: Embedding, layers: Sequence[nn.Module], norm: nn.Module, window: int | None, upsampling: int
    ) -> None:
        super().__init__(embedding=embedding, layers=layers, norm=norm, window=window)
        d_model = embedding.weight.shape[1]
        self.upsampling = upsampling
        self.upsample = Linear(d_model, upsampling * d_model)

    def start(self, memory_BSD: Tensor, source_BS: Tensor) -> DecoderState:
        """Raise BundleError, because there is no step from token to token."""
        refuse_steps("this")

    def forward(self, inputs_NT: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Raise BundleError, because no target tokens are read."""
        refuse_steps("this")

    def decode(self, memory_BSD: Tensor, source_BS: Tensor) -> Tensor:
        """Return the outputs of all positions, before the output matrix. → (B, F, D)"""
        source_mask_BS = source_BS != self.embedding.padding_id
        mask_BF = source_mask_BS.repeat_interleave(self.upsampling, dim=1)
        batch_size, source_length, d_model = memory_BSD.shape
        x_BFD = self.upsample(memory_BSD).view(batch_size, source_length * self.upsampling, d_model)
        x_BFD = self.embedding.dropout(x_BFD + self.embedding.positions(0, x_BFD.shape[1]))
        mask, memory_mask = self._build_frame_mask(mask_BF), padding_mask(source_mask_BS)
        token_mask_BF = mask_BF if self.training else None
        for layer in self.layers:
            cross_kv = cast(DecoderLayer, layer).cross_attention.project_kv(memory_BSD)
            x_BFD, _ = layer(x_BFD, None, cross_kv, mask, memory_mask, token_mask_BF)
        return normalize(self.norm, x_BFD, token_mask_BF)

    def _build_frame_mask(self, mask_BF: Tensor) -> Mask:
        """Return which positions each position attends to: all those of tokens, or those within the window."""
        if self.window is None:
            return padding_mask(mask_BF)
        return LocalMask(self.window, mask_BF).choose(mask_BF.shape[1], device=mask_BF.device)


def is_ctc(model: Transformer) -> bool:
    """Return whether the model predicts all tokens at once."""
    return isinstance(model.decoder, CtcDecoder)


def compute_frame_outputs(model: Transformer, source_BS: Tensor) -> Tensor:
    """Return the outputs of all positions, before the output matrix. → (B, F, D)"""
    assert isinstance(model.decoder, CtcDecoder), "the caller knows the decoder"
    return model.decoder.decode(model.encoder(source_BS), source_BS)


def predict_frames(model: Transformer, source_BS: Tensor, suppressed: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the likeliest prediction of each position (B, F), its log-probability (B, F), and the number of positions (B,).

    suppressed: ids that are not predicted, although they have a probability

    The natural log-probabilities are the model's own. At most `CHUNK_LOGITS` logits are in memory at once.
    """
    outputs_BFD = compute_frame_outputs(model, source_BS)
    is_suppressed_V = outputs_BFD.new_zeros(len(model.output), dtype=torch.bool)
    is_suppressed_V[list(suppressed)] = True
    tokens, log_probs = [], []
    for chunk_ZD in torch.split(outputs_BFD.flatten(0, 1), max(CHUNK_LOGITS // len(model.output), 1)):
        logits_ZV = model.compute_logits(chunk_ZD).float()
        logsumexp_Z = logits_ZV.logsumexp(dim=-1)
        best = logits_ZV.masked_fill_(is_suppressed_V, float("-inf")).max(dim=-1)
        tokens.append(best.indices)
        log_probs.append(best.values - logsumexp_Z)
    shape, padding_id = outputs_BFD.shape[:2], model.encoder.embedding.padding_id
    num_frames_B = (source_BS != padding_id).sum(dim=1) * (shape[1] // source_BS.shape[1])
    return torch.cat(tokens).view(shape), torch.cat(log_probs).view(shape), num_frames_B


def check_predicts_by_steps(model: Transformer, feature: str) -> None:
    """Raise BundleError if the model predicts all tokens at once.

    feature: what needs a prediction token by token, such as "explain"
    """
    if is_ctc(model):
        refuse_steps(feature)


def refuse_steps(feature: str) -> NoReturn:
    """Raise BundleError for a feature that needs a prediction token by token."""
    raise BundleError(
        f"{feature}: needs a model that predicts token by token, but model.decoder = 'ctc' predicts all tokens at once; use "
        "another model",
        code="not-autoregressive",
    )
