"""Recipe section `decoding`: search method, length limits, sampling and constraints on repetition."""

from typing import Annotated, Any, ClassVar, Literal, cast

from dragoman.config.extension import ExtensibleSection, Extension
from dragoman.config.fields import NonNegativeInt, PositiveInt, SmallPositiveInt
from dragoman.config.section import Limits, model_validator

DEFAULT_MBR_SAMPLES = 32
"""Default number of samples that minimum Bayes risk decoding compares."""


class SearchExtension(Extension):
    """Keys that a search adds to the section `decoding`, and the search itself."""

    def search(self, inference_model: Any, source_BS: Any, *, limits: Any, settings: Any, constraints: Any) -> Any:
        """Return the hypotheses of each source of a batch, best first.

        inference_model: `InferenceModel` with the start and the steps of the model
        source_BS: source ids as a NumPy array, padded on the right
        limits: maximum output length of each source in tokens
        settings: `SearchSettings`, such as the ids that no output contains
        constraints: constraints on the output of each source, or an empty sequence
        """
        raise NotImplementedError


class DecodingConfig(ExtensibleSection):
    """Decoding options. The CLI and the Python API can override each of them."""

    hook: ClassVar[str] = "searches"

    method: Literal["beam", "greedy", "sample"] = "beam"
    """Search method: beam search, greedy search or sampling."""
    beam_size: SmallPositiveInt = 4
    """Hypotheses that beam search keeps at each step."""
    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """Length normalization of scores: `gnmt` divides by ((5+|Y|)/6)^α, as the paper does, and `power` by |Y|^α."""
    alpha: Annotated[float, Limits(ge=0.0, le=10.0)] = 0.6
    """α of the length penalty."""
    max_extra_tokens: Annotated[int, Limits(ge=0, le=100_000)] = 50
    """Most tokens by which an output may be longer than its source (section 6.1)."""
    max_source_tokens: PositiveInt = 1024
    """Most tokens of one source segment; `long_input` treats longer lines."""
    long_input: Literal["split", "error"] = "split"
    """Treatment of a line beyond max_source_tokens: split it and translate the segments, or leave it untranslated."""
    early_stopping: Literal["exhaustive", "worst_finished", "best", "beam_full", "heuristic"] = "exhaustive"
    """End of beam search: no alive hypothesis can beat the worst of all slots, the worst finished one, or the best; or all
    slots are finished; or Hugging Face's rule."""
    nbest: SmallPositiveInt = 1
    """Outputs for each sentence."""
    temperature: Annotated[float, Limits(ge=1e-4, le=1e4)] = 1.0
    """Sampling: divisor of the logits."""
    top_k: NonNegativeInt = 0
    """Sampling: number of most probable tokens to draw from; 0 draws from all."""
    top_p: Annotated[float, Limits(ge=0.001, le=1.0)] = 1.0
    """Sampling: total probability of the most probable tokens to draw from."""
    seed: NonNegativeInt = 1
    """Sampling: seed of the draws, which depend only on it and on the sentence's index."""
    num_beam_groups: SmallPositiveInt = 1
    """Diverse beam search: number of groups that divide the beam; `nbest` lists the best of each group first."""
    diversity_penalty: Annotated[float, Limits(gt=0.0, le=100.0)] = 0.5
    """Diverse beam search: log-probability taken from a token for each hypothesis of earlier groups that chose it."""
    min_length: NonNegativeInt = 0
    """Fewest tokens of an output, limited by the source length plus max_extra_tokens."""
    no_repeat_ngram_size: NonNegativeInt = 0
    """Length in tokens of sequences that may occur only once in an output; 0 turns it off."""
    repetition_penalty: Annotated[float, Limits(ge=1.0, le=100.0)] = 1.0
    """Divisor of the logits of tokens that an output has already; 1 turns it off."""
    coverage_penalty: Annotated[float, Limits(ge=0.0, le=100.0)] = 0.0
    """Beam search: β of the penalty for source tokens without attention, which ranks the hypotheses; 0 turns it off."""
    suppress_tokens: list[Annotated[str, Limits(min_length=1)]] = []
    """Pieces of the target vocabulary that never occur in an output."""
    repetition_window: NonNegativeInt = 32
    """Last tokens that a group of tokens, repeated four times or more, must fill to end an output as `repetition`; 0: never."""
    min_length_ratio: Annotated[float, Limits(ge=0.0, le=1.0)] = 0.4
    """Fewest output tokens per source token before an output counts as `short`, for sources of 20 tokens or more; 0: never."""
    replace_unknowns: bool = False
    """Replace `<unk>` in an output by the source word with the most attention, for vocabularies of words."""
    unknown_dictionary: str | None = None
    """File of `source word TAB translation` lines, whose translations replace_unknowns prefers to a copy."""
    mbr: Literal["none", "chrf", "bleu", "comet"] = "none"
    """Minimum Bayes risk decoding: metric that selects the hypothesis most similar to all others."""
    mbr_model: str | None = None
    """Folder of the COMET model that `mbr = "comet"` compares with; an option of a call and not of a recipe."""
    mbr_candidates: SmallPositiveInt | None = None
    """Hypotheses that minimum Bayes risk decoding compares, by default 32 samples or the whole beam."""
    source_language: str | None = None
    """Language of the text, for a model of many languages; by default task.source_language."""
    target_language: str | None = None
    """Language of the translation, for a model of many languages; by default task.target_language."""
    zero_shot: bool = False
    """Whether a model of many languages translates between a pair of its languages that it was not trained on."""
    batch_tokens: PositiveInt = 4096
    """Most source tokens in a batch, padding included, times the beam size."""

    @property
    def effective_mbr_candidates(self) -> int:
        """Return the number of hypotheses that minimum Bayes risk decoding compares."""
        return self.mbr_candidates or (self.beam_size if self.method == "beam" else DEFAULT_MBR_SAMPLES)

    @model_validator
    def _check_consistency(self) -> None:
        if self.method == "beam" and self.nbest > self.beam_size:
            raise ValueError(f"nbest = {self.nbest} is more than beam_size = {self.beam_size}")
        if self.method == "greedy" and self.nbest > 1:
            raise ValueError(f"nbest = {self.nbest}: greedy search gives one output; use beam search or sampling")
        if self.num_beam_groups > 1 and self.method != "beam":
            raise ValueError(
                f"num_beam_groups = {self.num_beam_groups} is for beam search, but method = {self.method!r}: "
                "use method = 'beam'"
            )
        if self.coverage_penalty and self.method != "beam":
            raise ValueError(
                f"coverage_penalty = {self.coverage_penalty} ranks the hypotheses of a beam, but method = {self.method!r}: "
                "use method = 'beam', or drop it"
            )
        if self.coverage_penalty and self.mbr != "none":
            raise ValueError(
                f"coverage_penalty = {self.coverage_penalty} and mbr = {self.mbr!r} both rank the hypotheses: drop one of them"
            )
        if self.unknown_dictionary is not None and not self.replace_unknowns:
            raise ValueError(
                f"unknown_dictionary = {self.unknown_dictionary!r} has no effect without replace_unknowns: set it to true"
            )
        if self.beam_size % self.num_beam_groups:
            raise ValueError(
                f"num_beam_groups = {self.num_beam_groups} does not divide beam_size = {self.beam_size}: make it a multiple"
            )
        if self.mbr == "none" and self.mbr_candidates is not None:
            raise ValueError(
                f"mbr_candidates = {self.mbr_candidates} has no effect with mbr = 'none': set mbr = 'chrf' or 'bleu', "
                "or drop it"
            )
        if (self.mbr == "comet") != (self.mbr_model is not None):
            raise ValueError(f"mbr = {self.mbr!r} with mbr_model = {self.mbr_model!r}: mbr = 'comet' and mbr_model go together")
        if self.mbr != "none":
            self._check_mbr()
        if 0 < self.repetition_window < 8:
            raise ValueError(
                f"repetition_window = {self.repetition_window} would stop ordinary text: give 8 or more, or 0 to turn it off"
            )

    def _check_mbr(self) -> None:
        """Raise ValueError if the search gives mbr too few hypotheses."""
        if self.method == "greedy":
            raise ValueError(
                f"mbr = {self.mbr!r} compares hypotheses, but greedy search gives one: use sampling or beam search"
            )
        if self.method == "beam" and self.effective_mbr_candidates > self.beam_size:
            raise ValueError(f"mbr_candidates = {self.mbr_candidates} is more than beam_size = {self.beam_size}")
        if self.nbest > self.effective_mbr_candidates:
            raise ValueError(
                f"nbest = {self.nbest} is more than the {self.effective_mbr_candidates} candidates that mbr compares"
            )

    @property
    def own_search(self) -> SearchExtension | None:
        """Return the search of an extension, which replaces `method`; None without one."""
        return next(iter(cast(tuple[SearchExtension, ...], self.extensions)), None)

    def find_parsing_problem(self) -> str | None:
        """Return the first option that does not fit a search for trees, as an error message, or None."""
        for is_invalid, message in (
            (self.extensions, "a search of another package knows no trees; drop its key"),
            (self.mbr != "none", "mbr compares translations, not trees; drop it"),
            (self.max_extra_tokens < 3, "max_extra_tokens: a tree has more tokens than words; set it to 300"),
            (self.min_length, "min_length: the words determine the length of a tree; drop it"),
            (self.no_repeat_ngram_size, "no_repeat_ngram_size: trees repeat their tokens; drop it"),
            (self.repetition_penalty != 1.0, "repetition_penalty: trees repeat their tokens; drop it"),
            (self.coverage_penalty > 0, "coverage_penalty: a tree covers all its words; drop it"),
            (self.replace_unknowns, "replace_unknowns: a tree holds the words of its sentence; drop it"),
            (self.suppress_tokens, "suppress_tokens: a tree may need any token; drop it"),
        ):
            if is_invalid:
                return message
        return None
