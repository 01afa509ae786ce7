"""Models of a session with the decoding options of one call, and what depends on both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, Recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.inference.detokenization import Detokenizer
from dragoman.inference.session import InferenceSession
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import get_source_limit

if TYPE_CHECKING:
    from dragoman.inference.alignment import AttentionAligner


@dataclass(frozen=True)
class ConfiguredModel:
    """Models of a session with the decoding options of one call. Scores and attention are those of the first model."""

    session: InferenceSession
    decoding: DecodingConfig

    @property
    def bundle(self) -> Bundle:
        """The first bundle."""
        return self.session.bundle

    @cached_property
    def tokenizer(self) -> PairTokenizer:
        """Tokenizers with the languages of the call. Raises RecipeError for a pair that the model does not serve."""
        config = self.decoding
        return self.bundle.select_languages(config.source_language, config.target_language, zero_shot=config.zero_shot)

    @cached_property
    def marked_tokenizer(self) -> PairTokenizer | None:
        """Return the tokenizers with marks of placeholders; None if the vocabulary has no reserved tokens for them."""
        marked = self.bundle.tokenizer.marked
        return None if marked is None else marked.with_languages(self.tokenizer.languages)

    @cached_property
    def recipe(self) -> Recipe:
        """Recipe of the first model, with the languages of the call for a model of many languages."""
        recipe, languages = self.bundle.recipe, self.tokenizer.languages
        return recipe if languages is None else recipe.with_languages((languages.source_language, languages.target_language))

    @property
    def start_id(self) -> int:
        """First decoder input."""
        return get_decoder_start_id(self.recipe.model)

    @cached_property
    def aligner(self) -> AttentionAligner:
        """Word aligner that reads attention."""
        from dragoman.inference.alignment import AttentionAligner  # few translations have alignments

        head = self.bundle.metadata.alignment or AlignmentHead()
        return AttentionAligner(self.session.forced_decoders[0], self.tokenizer, self.start_id, head)

    @cached_property
    def source_limit(self) -> int:
        """Longest source in tokens that all models read."""
        return get_source_limit(self.session.inference_model.max_positions, self.decoding)

    def make_detokenizer(self, *, has_marks: bool = False) -> Detokenizer:
        """Return the converter from hypotheses to translations. has_marks: reserved tokens are written as marks"""
        tokenizer = (has_marks and self.marked_tokenizer) or self.tokenizer
        return Detokenizer(tokenizer, self.recipe.task)
