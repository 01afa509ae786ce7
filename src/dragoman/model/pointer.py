"""Which word comes next: deterministic attention, and tags, for models that say trees over their source's words.

A token of the target may consume a word; so the word that comes next is known from what was said (the pointer of a stack
automaton), and nothing has to be learnt to find it. That is the deterministic attention of Liu, Zhu and Shi 2018. Only ids are
read: of the source, which pieces begin a word; of the target, which tokens consume one.

W counts places in the source's row of words: its words, then its end token until the row is full. Other dimensions are the
model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dragoman.model.linear import Linear


class WordTables(nn.Module):
    """What ids tell of words, as tables that are part of a model's state: 1 where it holds, else 0.

    begins_V: a source piece begins a word
    shifts_V: a target token consumes one
    hidden_V: a target token is read and said as `word_id`: the tags, which the sequence does not tell
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
        """Fill the tables, ids by ids."""
        for table_V, ids in ((self.begins_V, begins), (self.shifts_V, shifts), (self.hidden_V, hidden)):
            table_V.zero_()[torch.as_tensor(ids, dtype=torch.long, device=table_V.device)] = 1.0

    def hide_tags(self, target_BT: Tensor) -> Tensor:
        """Target ids as the decoder reads and says them."""
        return target_BT.masked_fill(self.hidden_V[target_BT] > 0, self.word_id)

    def is_word_start(self, source_BS: Tensor) -> Tensor:
        """Which places of the source begin a word. (B, S)"""
        return self.begins_V[source_BS] > 0

    def find_word_starts(self, source_BS: Tensor) -> Tensor:
        """The place of each word's first piece, then that of the end token. (B, W), W being S"""
        is_start_BS = self.is_word_start(source_BS)
        length = source_BS.shape[1]
        end_B1 = (source_BS != self.padding_id).sum(1, keepdim=True) - 1
        row_BS = torch.where(
            is_start_BS, is_start_BS.cumsum(1) - 1, length
        )  # what begins no word goes into a column that is cut off
        position_BS = torch.arange(length, device=source_BS.device).expand_as(source_BS)
        return end_B1.repeat(1, length + 1).scatter_(1, row_BS, position_BS)[:, :length]

    def gather_word_outputs(self, memory_BSD: Tensor, source_BS: Tensor) -> Tensor:
        """The encoder's output at these places. (B, W, D)"""
        return memory_BSD.gather(1, self.find_word_starts(source_BS)[:, :, None].expand(-1, -1, memory_BSD.shape[2]))

    def gather_tags(self, target_BT: Tensor, width: int) -> Tensor:
        """The tokens that consume a word, in its row of words of this width; padding in what is left of the row. (B, W)"""
        shift_BT = self.shifts_V[target_BT] > 0
        row_BT = torch.where(shift_BT, shift_BT.cumsum(1) - 1, width).clamp(max=width)
        tags_BX = target_BT.new_full((len(target_BT), width + 1), self.padding_id)
        return tags_BX.scatter_(1, row_BT, target_BT)[:, :width]


@dataclass(frozen=True)
class PointerState:
    """What each word in turn adds to the decoder's input, and how far each hypothesis is.

    vectors_BWD: one row a sentence
    count_N: words consumed, one row a hypothesis; none before the first step
    """

    vectors_BWD: Tensor
    num_words_N: Tensor | None = None

    def reorder(self, rows_N: Tensor) -> PointerState:
        return replace(self, num_words_N=None if self.num_words_N is None else self.num_words_N[rows_N])

    def select_sentences(self, sentences_B: Tensor) -> PointerState:
        """Only these sentences, with all their rows."""
        num_words_N = self.num_words_N
        if num_words_N is not None:
            num_words_N = num_words_N.view(len(self.vectors_BWD), -1)[sentences_B].flatten()
        return PointerState(self.vectors_BWD[sentences_B], num_words_N)


class Pointer(nn.Module):
    """Adds to each of the decoder's inputs a projection of the encoder's output at the word that comes next."""

    def __init__(self, *, d_model: int, words: WordTables) -> None:
        super().__init__()
        self.words = words
        self.projection = Linear(d_model, d_model)

    def start(self, memory_BSD: Tensor, source_BS: Tensor) -> PointerState:
        """Nothing is said yet."""
        return PointerState(self.projection(self.words.gather_word_outputs(memory_BSD, source_BS)))

    def forward(self, inputs_NT: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        """What is added to the inputs (N, T, D), and where the hypotheses are after them."""
        vectors_BWD, num_words_N = state.vectors_BWD, state.num_words_N
        num_words_NT = self.words.shifts_V[inputs_NT].long().cumsum(1)
        if num_words_N is not None:
            num_words_NT = num_words_NT + num_words_N[:, None]
        sentences, width, _ = vectors_BWD.shape
        # The rows of a sentence stand together, so that they are one row of places in it.
        word_index_BX1 = num_words_NT.clamp(max=width - 1).view(sentences, -1, 1)
        added_BXD = vectors_BWD.gather(1, word_index_BX1.expand(-1, -1, vectors_BWD.shape[2]))
        return added_BXD.view(*inputs_NT.shape, -1), replace(state, num_words_N=num_words_NT[:, -1])


class TagHead(nn.Module):
    """The logits of words' tags from the encoder's outputs at their first pieces, over the target's vocabulary."""

    def __init__(self, *, d_model: int, words: WordTables) -> None:
        super().__init__()
        self.words = words
        self.projection = Linear(d_model, len(words.shifts_V))

    def forward(self, words_BWD: Tensor) -> Tensor:
        """→ (B, W, V), -inf for what is no tag."""
        logits_BWV: Tensor = self.projection(words_BWD)
        return logits_BWV.float().masked_fill(self.words.shifts_V == 0, float("-inf"))
