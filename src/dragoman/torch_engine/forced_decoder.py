"""Forced decoding by a PyTorch model: for a live model of a training, for other layers than the paper's, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.tokenization.special_tokens import PADDING_ID
from dragoman.errors import BundleError
from dragoman.model.attention import Attention, record_attention
from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class TorchForcedDecoder:
    """The model as it is, with the interface of `dragoman.tasks.forced_decoding.ForcedDecoder`."""

    model: Transformer

    @property
    def is_autoregressive(self) -> bool:
        return self.model.is_autoregressive

    @torch.no_grad()
    def compute_log_probs(
        self, source_BS: NDArray[np.int64], inputs_BT: NDArray[np.int64], targets_BT: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        device = self.model.output.device
        source, inputs, targets = (torch.from_numpy(ids).to(device) for ids in (source_BS, inputs_BT, targets_BT))
        logits_BTV = self.model(source, inputs)
        log_probs_BT = torch.zeros(targets.shape, device=device)
        for row, logits_TV in enumerate(logits_BTV):  # one sentence at a time, because the vocabulary is large
            positions = targets[row] != PADDING_ID
            log_probs_XV = logits_TV[positions].float().log_softmax(dim=-1)
            log_probs_BT[row, positions] = log_probs_XV.gather(1, targets[row, positions, None])[:, 0]
        result: NDArray[np.float32] = log_probs_BT.cpu().numpy()
        return result

    @torch.no_grad()
    def compute_cross_attentions(self, source_BS: NDArray[np.int64], inputs_BT: NDArray[np.int64]) -> NDArray[np.float32]:
        attentions = [module for name, module in self.model.decoder.named_modules() if name.endswith("cross_attention")]
        if not attentions:
            raise BundleError(
                "this model: the decoder has no attention to the source, so there are no alignments; use another model",
                code="no-cross-attention",
            )
        device = self.model.output.device
        with record_attention([module for module in attentions if isinstance(module, Attention)]) as weights:
            self.model(torch.from_numpy(source_BS).to(device), torch.from_numpy(inputs_BT).to(device))
        result: NDArray[np.float32] = torch.stack(weights, dim=1).float().cpu().numpy()
        return result

    @torch.no_grad()
    def compute_tag_log_probs(self, source_BS: NDArray[np.int64]) -> NDArray[np.float32]:
        model, source = self.model, torch.from_numpy(source_BS).to(self.model.output.device)
        assert model.words is not None, "a translator, not a parser"
        assert model.tagger is not None, "a parser without a tag head"
        logits_BWV = model.tagger(model.words.gather_word_outputs(model.encoder(source), source))
        result: NDArray[np.float32] = logits_BWV.log_softmax(-1).cpu().numpy()
        return result
