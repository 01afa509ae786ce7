"""Recipe section `tokenizer`: the SentencePiece models of both languages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.config.fields import FileName, Fraction, PositiveInt, RecipeSection, VocabSize


class TokenizerConfig(RecipeSection):
    """Tokenizer: a SentencePiece model for both languages, or one for each."""

    model_type: Literal["bpe", "unigram"] = "bpe"
    """Type of the SentencePiece model."""
    joint: bool = True
    """Whether both languages share one model and vocabulary."""
    vocab_size: VocabSize = 32_000
    """Pieces of the joint or source vocabulary, the four special pieces included."""
    target_vocab_size: VocabSize | None = None
    """Pieces of the target vocabulary if joint = false, by default vocab_size."""
    byte_fallback: bool = True
    """Whether unknown characters become byte pieces instead of `<unk>`."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0)] = 1.0
    """Share of the training text's characters that the vocabulary covers."""
    normalization: Literal["nfkc", "identity"] = "nfkc"
    """Unicode normalization of the model; `identity` leaves the text unchanged."""
    split_digits: bool = False
    """Whether each digit is a piece of its own, which helps with numbers that are not in the training text."""
    lowercase: bool = False
    """Whether both sides are lower-cased before tokenization."""
    model_file: FileName | None = None
    """Existing SentencePiece model, joint or of the source, instead of a new one; vocab_size is then ignored."""
    target_model_file: FileName | None = None
    """Existing SentencePiece model of the target if joint = false."""
    train_sentences: PositiveInt | None = None
    """Most sentences to train the model on, spread over the corpora, by default 2,000,000 for BPE and 500,000 for unigram."""
    sampling_alpha: Fraction = 0.0
    """Subword regularization of training text: the probability of BPE-dropout, or α of unigram sampling; 0 turns it off."""

    @property
    def max_train_sentences(self) -> int:
        """Return the most sentences to train on. The defaults keep the memory of training below 1.5 GiB."""
        return self.train_sentences or (2_000_000 if self.model_type == "bpe" else 500_000)
