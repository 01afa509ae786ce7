"""How outputs are searched for."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dragoman.config.fields import Integer, NonNegativeInt, PositiveInt, RecipeSection, SmallPositiveInt

DEFAULT_MBR_SAMPLES = 32
"""Compared by minimum Bayes risk where a recipe does not say."""


class DecodingConfig(RecipeSection):
    method: Literal["beam", "greedy", "sample"] = "beam"
    """How the next token is chosen."""
    beam_size: SmallPositiveInt = 4
    """Hypotheses alive at once."""
    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """`gnmt`: ((5+|Y|)/6)^α (the paper); `power`: |Y|^α (most other toolkits). |Y| counts the end token."""
    alpha: Annotated[float, Field(ge=0.0, le=10.0)] = 0.6
    """α of the length penalty."""
    max_extra_tokens: Annotated[Integer, Field(ge=0, le=100_000)] = 50
    """Longest output is the input's length plus this, in tokens."""
    max_source_tokens: PositiveInt = 1024
    """Longest input in tokens that the model is given at once."""
    long_input: Literal["split", "error"] = "split"
    """A longer line is cut where a reader would pause and translated in parts, or left untranslated; both are reported."""
    early_stopping: Literal["exhaustive", "best", "beam_full"] = "exhaustive"
    """End early when no hypothesis alive can still beat the worst (the paper's code) or the best (later) of the finished; or,
    as most other toolkits do, once as many as the beam is wide have ended among the best."""
    nbest: SmallPositiveInt = 1
    """Translations returned for each sentence."""
    temperature: Annotated[float, Field(ge=1e-4, le=1e4)] = 1.0
    """Sampling: divides the logits."""
    top_k: NonNegativeInt = 0
    """Sampling: only the k likeliest tokens; 0 takes all."""
    top_p: Annotated[float, Field(ge=0.001, le=1.0)] = 1.0
    """Sampling: only the likeliest tokens that together reach this probability."""
    seed: NonNegativeInt = 1
    """Sampling: draws are a function of this and the sentence's place."""
    num_beam_groups: SmallPositiveInt = 1
    """Diverse alternatives: the beam in so many groups that keep apart; `nbest` gives the best of each first."""
    diversity_penalty: Annotated[float, Field(gt=0.0, le=100.0)] = 0.5
    """With groups: how much lower, in natural logarithms, a token ranks for each hypothesis before that says it."""
    min_length: NonNegativeInt = 0
    """Fewest tokens of an output; where an input's length plus `max_extra_tokens` is less, that."""
    no_repeat_ngram_size: NonNegativeInt = 0
    """No sequence of so many tokens stands twice in an output; 0 lets all stand."""
    suppress_tokens: list[Annotated[str, Field(min_length=1)]] = []
    """Pieces of the target's subword model that are never said."""
    repetition_window: NonNegativeInt = 32
    """Stop an output as looped where one group of tokens, said four times or more, fills its last so many; 0: never."""
    mbr: Literal["none", "chrf", "bleu"] = "none"
    """Minimum Bayes risk: of several hypotheses, samples or a beam's, the one is returned that by this is most like all."""
    mbr_candidates: SmallPositiveInt | None = None
    """With mbr: hypotheses that are compared; 32 with sampling, and all of a beam when not given."""
    batch_tokens: PositiveInt = 4096
    """Padded source tokens in a batch, times the beam."""

    @property
    def effective_mbr_candidates(self) -> int:
        """Hypotheses that a choice by minimum Bayes risk compares."""
        return self.mbr_candidates or (self.beam_size if self.method == "beam" else DEFAULT_MBR_SAMPLES)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.method == "beam" and self.nbest > self.beam_size:
            raise ValueError(f"nbest = {self.nbest} is more than beam_size = {self.beam_size}")
        if self.method == "greedy" and self.nbest > 1:
            raise ValueError(f"nbest = {self.nbest} needs a beam or sampling; greedy search gives one translation")
        if self.num_beam_groups > 1 and self.method != "beam":
            raise ValueError(
                f"groups = {self.num_beam_groups} divide a beam, but method = {self.method!r}: use method = 'beam'"
            )
        if self.beam_size % self.num_beam_groups:
            raise ValueError(
                f"groups = {self.num_beam_groups} cannot share beam_size = {self.beam_size} evenly: make it a multiple"
            )
        if self.mbr == "none" and self.mbr_candidates is not None:
            raise ValueError(
                f"candidates = {self.mbr_candidates} are compared by mbr: set mbr = 'chrf' or 'bleu', or drop them"
            )
        if self.mbr != "none":
            self._check_mbr()
        if 0 < self.repetition_window < 8:
            raise ValueError(
                f"repetition_window = {self.repetition_window} would stop what people write: give 8 or more, or 0 for never"
            )
        return self

    def _check_mbr(self) -> None:
        """Raise ValueError where there is nothing for mbr to choose from."""
        if self.method == "greedy":
            raise ValueError(f"mbr = {self.mbr!r} compares hypotheses, and greedy search finds one: use sampling or a beam")
        if self.method == "beam" and self.effective_mbr_candidates > self.beam_size:
            raise ValueError(f"candidates = {self.mbr_candidates} is more than beam_size = {self.beam_size}")
        if self.nbest > self.effective_mbr_candidates:
            raise ValueError(
                f"nbest = {self.nbest} is more than the {self.effective_mbr_candidates} candidates that mbr compares"
            )

    def find_parsing_problem(self) -> str | None:
        """What a search for trees cannot be asked, in a sentence; nothing where all is well."""
        for is_invalid, message in (
            (self.mbr != "none", "mbr compares translations, not trees; drop it"),
            (self.max_extra_tokens < 3, "max_extra_tokens: a tree has more tokens than words; set it to 300"),
            (self.min_length, "min_length: a tree is as long as its words ask for; drop it"),
            (self.no_repeat_ngram_size, "no_repeat_ngram_size: trees repeat their tokens; drop it"),
            (self.suppress_tokens, "suppressed: a tree may need any of its tokens; drop it"),
        ):
            if is_invalid:
                return message
        return None
