"""What a model does."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from dragoman.config.fields import RecipeSection, Weight


class TaskConfig(RecipeSection):
    kind: Literal["translation", "parsing"] = "translation"
    """What the model does; the one place where translation and parsing part."""
    source_language: str = ""
    """Language code of the source: for reports, tokenised scores, cleaning, and files that hold many languages."""
    target_language: str = ""
    """Language code of the target, likewise."""
    tokenized: bool = False
    """The text is tokenised already: BLEU counts its tokens as they stand."""
    linearization: Literal["typed", "tensor2tensor", "topdown"] = "typed"
    """Parsing: how a tree becomes a sequence of labels; `topdown` has XX for each word, as `typed` has."""
    function_tags: Literal["keep", "strip"] = "strip"
    """Parsing: function tags and indices of brackets, NP-SBJ-1, are learnt or left out."""
    traces: Literal["keep", "strip"] = "strip"
    """Parsing: traces are left out, or stand among the words, as in a text that was annotated with them."""
    pos_tags: Literal["head", "sequence", "given"] = "head"
    """Parsing: tags come of a layer above the encoder, of the sequence (`tensor2tensor`), or with the words that are parsed."""
    pos_loss_weight: Weight = 1.0
    """Parsing: what the loss of a word's tag weighs, against that of a token, where tags = 'head'."""

    @property
    def has_tagging_head(self) -> bool:
        """Whether a layer above the encoder learns the tags."""
        return self.kind == "parsing" and self.pos_tags == "head"

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.kind == "parsing" and (self.linearization == "tensor2tensor") != (self.pos_tags == "sequence"):
            raise ValueError(
                f"tags = {self.pos_tags!r} with linearization = {self.linearization!r}: tensor2tensor's sequence says the tags, so "
                "it goes with tags = 'sequence', and the other two with 'head' or 'given'"
            )
        return self
