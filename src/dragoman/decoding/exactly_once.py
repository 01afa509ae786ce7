"""Tokens that an output must contain exactly once, such as those that stand for placeholders: a mask on the logits.

The mask bars such a token once the output has it, and the end token while one is missing. When the length limit leaves room for
the missing tokens alone, only they are allowed. So every output that ends has each of them once, and every output that reaches
the limit as well. All searches use the mask, because it reads nothing but the outputs so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor


class ExactlyOnceMask:
    """Mask for the tokens of each sentence. C counts the tokens of the sentence with most of them.

    token_BC: the tokens, with -1 behind them
    max_length_B1: maximum output length in tokens, the end token included
    """

    def __init__(
        self, tokens: Sequence[Sequence[int]], max_lengths: Sequence[int], *, rows_per_sentence: int, device: torch.device
    ) -> None:
        width = max(map(len, tokens))
        rows = [[*sentence, *[-1] * (width - len(sentence))] for sentence in tokens]
        self.token_BC = torch.tensor(rows, dtype=torch.long, device=device)
        self.max_length_B1 = torch.tensor(max_lengths, device=device)[:, None]
        self.rows_per_sentence = rows_per_sentence

    def gather_logits(self, logits_NV: Tensor) -> Tensor:
        """Return the logits of the tokens. → (N, C)"""
        return logits_NV.gather(1, self._expand(self.token_BC).clamp(min=0))

    def find_missing(self, outputs_NT: Tensor) -> Tensor:
        """Return which tokens are not in each output yet. → (N, C)"""
        token_NC = self._expand(self.token_BC)
        return (token_NC >= 0) & (outputs_NT[:, :, None] != token_NC[:, None]).all(1)

    def __call__(self, logits_NV: Tensor, logit_NC: Tensor, outputs_NT: Tensor, *, length: int, end_id: int) -> None:
        """Mask token number `length` (from 1) after these outputs, in place.

        logit_NC: logits that the missing tokens get, also if another mask bars them
        """
        missing_NC = self.find_missing(outputs_NT)
        num_missing_N1 = missing_NC.sum(1, keepdim=True)
        has_no_room_N1 = (num_missing_N1 > 0) & (self._expand(self.max_length_B1) - length <= num_missing_N1)
        token_NC = self._expand(self.token_BC)
        index_NC = token_NC.clamp(min=0)
        logits_NV[:, end_id].masked_fill_(num_missing_N1[:, 0] > 0, -inf)
        logits_NV.scatter_reduce_(1, index_NC, torch.where(token_NC >= 0, -inf, inf).to(logits_NV.dtype), "amin")
        logits_NV.masked_fill_(has_no_room_N1, -inf)
        logits_NV.scatter_reduce_(1, index_NC, torch.where(missing_NC, logit_NC, -inf), "amax")

    def _expand(self, tensor_BX: Tensor) -> Tensor:
        """Return the row of each hypothesis. → (N, X)"""
        return tensor_BX.repeat_interleave(self.rows_per_sentence, dim=0)

    def select_sentences(self, sentences_B: Tensor) -> None:
        """Keep the tokens of these sentences alone."""
        self.token_BC, self.max_length_B1 = self.token_BC[sentences_B], self.max_length_B1[sentences_B]
