"""Deterministic attention and word tagging for parsers, whose output is a tree over the words of the source.

A target token may consume a source word. The output so far therefore determines the next word, and the model need not learn to
find it (deterministic attention, Liu, Zhu and Shi 2018). The tables hold the source pieces that begin a word and the target
tokens that consume one.

W counts the words of the source; the end token fills the row after the last word. Other dimensions are those of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dragoman.model.linear import Linear


class WordTables(nn.Module):
    """Tables of token properties, stored with the weights: 1 for a token with the property, else 0.

    begins_V: source pieces that begin a word
    shifts_V: target tokens that consume a word
    hidden_V: target tokens that the decoder reads and predicts as `word_id`: tags, which the tag head predicts
    """

    begins_V: Tensor
    shifts_V: Tensor
    hidden_V: Tensor

    def __init__(self, *, source_vocab_size: int, target_vocab_size: int, word_id: int, padding_id: int) -> None:
        super().__init__()
        self.word_id = word_id
        self.padding_id = padding_id
        self.register_buffer("begins_V", torch.zeros(source_vocab_size))
        self.register_buffer("shifts_V", torch.zeros(target_vocab_size))
        self.register_buffer("hidden_V", torch.zeros(target_vocab_size))

    def fill(self, *, begins: Sequence[int], shifts: Sequence[int], hidden: Sequence[int]) -> None:
        """Set the tables from lists of token ids."""
        for table_V, ids in ((self.begins_V, begins), (self.shifts_V, shifts), (self.hidden_V, hidden)):
            table_V.zero_()[torch.as_tensor(ids, dtype=torch.long, device=table_V.device)] = 1.0

    def hide_tags(self, target_BT: Tensor) -> Tensor:
        """Return the target ids with hidden tags replaced by `word_id`, as the decoder reads and predicts them. → (B, T)"""
        return target_BT.masked_fill(self.hidden_V[target_BT] > 0, self.word_id)

    def is_word_start(self, source_BS: Tensor) -> Tensor:
        """Return whether each source piece begins a word. → (B, S)"""
        return self.begins_V[source_BS] > 0

    def find_word_starts(self, source_BS: Tensor) -> Tensor:
        """Return the position of each word's first piece, then that of the end token. → (B, W) for W = S"""
        is_start_BS = self.is_word_start(source_BS)
        length = source_BS.shape[1]
        end_B1 = (source_BS != self.padding_id).sum(1, keepdim=True) - 1
        # Pieces that begin no word go into an extra column, which the last line removes.
        word_index_BS = torch.where(is_start_BS, is_start_BS.cumsum(1) - 1, length)
        position_BS = torch.arange(length, device=source_BS.device).expand_as(source_BS)
        return end_B1.repeat(1, length + 1).scatter_(1, word_index_BS, position_BS)[:, :length]

    def gather_word_outputs(self, memory_BSD: Tensor, source_BS: Tensor) -> Tensor:
        """Return the encoder's output at the first piece of each word. → (B, W, D)"""
        return memory_BSD.gather(1, self.find_word_starts(source_BS)[:, :, None].expand(-1, -1, memory_BSD.shape[2]))

    def gather_tags(self, target_BT: Tensor, width: int) -> Tensor:
        """Return the target tokens that consume each word, padded to `width` words. → (B, W)"""
        shift_BT = self.shifts_V[target_BT] > 0
        word_index_BT = torch.where(shift_BT, shift_BT.cumsum(1) - 1, width).clamp(max=width)
        tags_BX = target_BT.new_full((len(target_BT), width + 1), self.padding_id)
        return tags_BX.scatter_(1, word_index_BT, target_BT)[:, :width]


@dataclass(frozen=True)
class PointerState:
    """Vectors of the source words, and the number of words that each hypothesis has consumed.

    vectors_BWD: the vector that each word adds to the decoder's input, one row a sentence
    num_words_N: consumed words, one row a hypothesis; None before the first step
    """

    vectors_BWD: Tensor
    num_words_N: Tensor | None = None

    def reorder(self, rows_N: Tensor) -> PointerState:
        """Return the state in which row i is the former row rows_N[i]."""
        return replace(self, num_words_N=None if self.num_words_N is None else self.num_words_N[rows_N])

    def select_sentences(self, sentences_B: Tensor) -> PointerState:
        """Return the state of these sentences alone, with all their rows."""
        num_words_N = self.num_words_N
        if num_words_N is not None:
            num_words_N = num_words_N.view(len(self.vectors_BWD), -1)[sentences_B].flatten()
        return PointerState(self.vectors_BWD[sentences_B], num_words_N)


class Pointer(nn.Module):
    """Deterministic attention: adds a projection of the encoder's output at the next word to each decoder input."""

    def __init__(self, *, d_model: int, words: WordTables) -> None:
        super().__init__()
        self.words = words
        self.projection = Linear(d_model, d_model)

    def start(self, memory_BSD: Tensor, source_BS: Tensor) -> PointerState:
        """Return the state before the first target token."""
        return PointerState(self.projection(self.words.gather_word_outputs(memory_BSD, source_BS)))

    def forward(self, inputs_NT: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        """Return the vectors to add to the decoder's inputs (N, T, D), and the state after these inputs."""
        vectors_BWD, num_words_N = state.vectors_BWD, state.num_words_N
        num_words_NT = self.words.shifts_V[inputs_NT].long().cumsum(1)
        if num_words_N is not None:
            num_words_NT = num_words_NT + num_words_N[:, None]
        sentences, width, _ = vectors_BWD.shape
        # The hypotheses of a sentence are adjacent, so their positions form one row of X = N / B · T indices.
        word_index_BX1 = num_words_NT.clamp(max=width - 1).view(sentences, -1, 1)
        added_BXD = vectors_BWD.gather(1, word_index_BX1.expand(-1, -1, vectors_BWD.shape[2]))
        return added_BXD.view(*inputs_NT.shape, -1), replace(state, num_words_N=num_words_NT[:, -1])


class TagHead(nn.Module):
    """Tag classifier: logits over the target vocabulary from the encoder's output at each word's first piece."""

    def __init__(self, *, d_model: int, words: WordTables) -> None:
        super().__init__()
        self.words = words
        self.projection = Linear(d_model, len(words.shifts_V))

    def forward(self, words_BWD: Tensor) -> Tensor:
        """Return the logits of each word's tag; tokens other than tags have -inf. → (B, W, V)"""
        logits_BWV: Tensor = self.projection(words_BWD)
        return logits_BWV.float().masked_fill(self.words.shifts_V == 0, float("-inf"))
