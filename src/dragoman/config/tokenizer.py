"""The pieces that text is split into."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.config.fields import FileName, Fraction, PositiveInt, RecipeSection, VocabSize


class TokenizerConfig(RecipeSection):
    model_type: Literal["bpe", "unigram"] = "bpe"
    """SentencePiece model."""
    joint: bool = True
    """One model for both languages; false learns one for each."""
    vocab_size: VocabSize = 32_000
    """Pieces in the (joint or source) model, the four special ones included."""
    target_vocab_size: VocabSize | None = None
    """Pieces in the target model where joint is false; as vocab_size when not given."""
    byte_fallback: bool = True
    """Spell unknown characters as bytes, so that nothing becomes <unk>."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the corpus's characters that get pieces of their own."""
    normalization: Literal["nfkc", "identity"] = "nfkc"
    """Unicode normalisation inside the model; `identity` leaves the text as it is."""
    split_digits: bool = False
    """Keep every digit a piece of its own, which numbers need to generalise."""
    lowercase: bool = False
    """Lower-case both sides before anything else."""
    model_file: FileName | None = None
    """Take this SentencePiece model (the joint one, or the source's) instead of learning one, whatever vocab_size."""
    target_model_file: FileName | None = None
    """Take this one for the target, where joint is false."""
    train_sentences: PositiveInt | None = None
    """Most lines to learn the pieces from, spread evenly over the corpora; two million for BPE, half a million for unigram."""
    sampling_alpha: Fraction = 0.0
    """Split training text differently each time: BPE-dropout with this probability, or unigram sampling with this α."""

    @property
    def max_train_sentences(self) -> int:
        """Lines to learn from, so that learning stays within 1.5 GiB where the recipe does not say."""
        return self.train_sentences or (2_000_000 if self.model_type == "bpe" else 500_000)
