"""Types of the JSON that the commands print with `--json`. `pydantic.TypeAdapter` makes JSON schemas of them.

Results whose classes import torch have their JSON beside their commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, cast

from dragoman.evaluation.bootstrap import SystemComparison
from dragoman.evaluation.evalb_scorer import EvalbTotals, SentenceScore
from dragoman.evaluation.metrics import Score
from dragoman.io.json_fields import OPTIONAL
from dragoman.training.monitoring.diagnostics import Diagnosis
from dragoman.training.monitoring.run_status import RunSummary
from dragoman.viz.explanation import BeamNode, ExplanationTree, TokenPrediction

OutputT = TypeVar("OutputT")


def copy_fields(kind: type[OutputT], source: object, /, **values: Any) -> OutputT:
    """Return an output of this class. The attributes of `source` give the fields that are not among the values."""
    names = [item.name for item in fields(cast(Any, kind)) if item.name not in values]
    return kind(**{name: getattr(source, name) for name in names}, **values)


@dataclass(frozen=True)
class LabeledSpan:
    """One bracket: its label, its first word, and the word after its last one. Words count from 0."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class ParseAlternative:
    """One tree of `dragoman parse --json`.

    status: ok, repaired, truncated, empty or too_long
    repairs: what was repaired in an unconstrained output, one sentence each
    """

    tree: str
    tags: Sequence[str | None]
    brackets: Sequence[LabeledSpan]
    score: float
    status: str
    repairs: Sequence[str]
    tokens: Sequence[str]
    token_log_probs: Sequence[float]


@dataclass(frozen=True)
class ParseLine:
    """One line of `dragoman parse --json`. Lines count from 1."""

    line: int
    words: Sequence[str]
    tree: str
    tags: Sequence[str | None]
    brackets: Sequence[LabeledSpan]
    score: float
    status: str
    repairs: Sequence[str]
    tokens: Sequence[str]
    token_log_probs: Sequence[float]
    alternatives: Sequence[ParseAlternative]


@dataclass(frozen=True)
class AlignmentLine:
    """One line of `dragoman align --json`: links as word numbers from 0, and the linked words."""

    line: int
    links: Sequence[Sequence[int]]
    words: Sequence[Sequence[str]]


@dataclass(frozen=True)
class AlignmentScores:
    """Output of `dragoman align --gold --json`. Rates are between 0 and 1."""

    pairs: int
    predicted_links: int
    gold_links: int
    matched_links: int
    alignment_error_rate: float
    precision: float
    recall: float


@dataclass(frozen=True)
class ModelScores:
    """Scores of a model by forced decoding: one score for each line, and nats per token of all.

    scores: null for a line that the model cannot score, because it has no text or is too long
    """

    scores: Sequence[float | None]
    nll: float
    perplexity: float
    tokens: int


@dataclass(frozen=True)
class ScoreOutput:
    """Output of `dragoman score --json`."""

    scores: Annotated[Sequence[Score] | None, OPTIONAL] = None
    model: Annotated[ModelScores | None, OPTIONAL] = None


@dataclass(frozen=True)
class PairEvaluation:
    """Scores of one pair of languages in `dragoman evaluate --json`."""

    source_language: str
    target_language: str
    sentences: int
    scores: Sequence[Score]


@dataclass(frozen=True)
class EvaluateOutput:
    """Output of `dragoman evaluate --json`. The statuses count the lines that have them.

    scores: scores of the test set; the means over the pairs of languages with --pair
    pairs: scores of each pair of languages, with --pair
    """

    bundle: str
    ensemble: Sequence[str]
    device: str
    precision: str
    sentences: int
    scores: Sequence[Score]
    truncated: int
    short: int
    repetition: int
    copied: int
    empty: int
    too_long: int
    pairs: Annotated[Sequence[PairEvaluation] | None, OPTIONAL] = None


@dataclass(frozen=True)
class CompareOutput(SystemComparison):
    """Output of `dragoman compare --json`."""

    significant: bool


@dataclass(frozen=True)
class ShortlistOutput:
    """Output of `dragoman shortlist --json`."""

    shortlist: str
    pairs: int
    skipped_pairs: int
    source_tokens: int
    frequent_tokens: int


@dataclass(frozen=True)
class AugmentOutput:
    """Output of `dragoman augment … --json`.

    resumed_lines: lines that an interrupted command had done
    reference_pairs: pairs that kept their reference, by --fallback-to-reference
    tabs_replaced: pairs whose tabs became spaces
    dropped: number of lines for each reason
    """

    output: str
    resumed_lines: int
    seconds: float
    lines: int
    pairs: int
    reference_pairs: int
    tabs_replaced: int
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class CleanOutput:
    """Output of `dragoman clean --json`. The statistics of a corpus are those of `cleaning.json`."""

    folder: str
    corpora: Mapping[str, Any]


@dataclass(frozen=True)
class PrepareOutput:
    """Output of `dragoman prepare --json`. The counts of a corpus are those of `prepared.json`."""

    folder: str
    is_new: bool
    corpora: Mapping[str, Any]


@dataclass(frozen=True)
class RerankCandidate:
    """One candidate of `dragoman rerank --json`, with the log-probabilities of all models.

    score: weighted sum
    length: tokens of the forward model, the end token included
    """

    text: str
    score: float
    forward: float
    length: int
    reverse: Annotated[float | None, OPTIONAL] = None
    right_to_left: Annotated[float | None, OPTIONAL] = None


@dataclass(frozen=True)
class RerankLine:
    """One line of `dragoman rerank --json`. Lines count from 1, and the best candidate comes first."""

    line: int
    source: str
    text: str
    candidates: Sequence[RerankCandidate]


@dataclass(frozen=True)
class CalibrateOutput:
    """Output of `dragoman calibrate --json`.

    sentences: number of translations in the calibration set
    chrf_correlation: Spearman's rank correlation of the confidence with sentence chrF, with references
    """

    bundle: str
    sentences: int
    chrf_correlation: Annotated[float | None, OPTIONAL] = None


@dataclass(frozen=True)
class AverageOutput:
    """Output of `dragoman average --json`.

    averaged_checkpoints: names of the checkpoints of a run
    interpolated_bundles: share of each bundle
    """

    bundle: str
    averaged_checkpoints: Annotated[Sequence[str] | None, OPTIONAL] = None
    interpolated_bundles: Annotated[Mapping[str, float] | None, OPTIONAL] = None


@dataclass(frozen=True)
class MergeAdapterOutput:
    """Output of `dragoman merge-adapter --json`: the folders of the new bundle, of its base and of the adapter."""

    bundle: str
    base: str
    adapter: str


@dataclass(frozen=True)
class QuantizeOutput:
    """Output of `dragoman quantize --json`: the folders of the new bundle and of its base, and the bytes of their weights."""

    bundle: str
    base: str
    bytes: int
    base_bytes: int


@dataclass(frozen=True)
class VocabularySizes:
    """Numbers of tokens of the two sides."""

    source: int
    target: int


@dataclass(frozen=True)
class InfoOutput:
    """Output of `dragoman info --json`.

    language_pairs: source and target language of each pair that the bundle was trained on; empty if they are not known
    """

    bundle: str
    bytes: int
    language_pairs: Sequence[Sequence[str]]
    vocabulary: VocabularySizes
    recipe: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class DoctorOutput:
    """Output of `dragoman doctor --json`. torch, instructions, bfloat16, gpu: None without PyTorch"""

    dragoman: str
    python: str
    torch: str | None
    processors: int | None
    threads: int
    instructions: str | None
    bfloat16: bool | None
    gpu: str | None
    disk_free_gib: float
    remarks: Sequence[str]


@dataclass(frozen=True)
class ServeOutput:
    """Line of `dragoman serve --json` when the server accepts requests. languages: targets of each source language"""

    url: str
    bundles: list[str]
    languages: dict[str, list[str]]


@dataclass(frozen=True)
class TreeOutput:
    """Output of `dragoman draw-tree --json`."""

    file: str
    line: int
    words: Sequence[str]
    tags: Sequence[str | None]
    brackets: Sequence[LabeledSpan]


@dataclass(frozen=True)
class ExplainOutput:
    """Output of `dragoman explain --json`.

    teacher_forced: whether the caller gave the output
    source_tokens: encoder input, with the end token
    output_tokens: decoder output, with the end token if the output has it
    decoder_input: decoder input: the start token, the language token of some models, then the output tokens without the last
    attention: weights by kind (encoder, decoder, cross), as layer × head × query × key, with four decimals
    predictions: one for each output token
    beam: all hypotheses that the search considered; if it is empty, `notes` has the reason
    tree: tree of a parse
    """

    model: str
    source: str
    target: str
    teacher_forced: bool
    source_tokens: Sequence[str]
    output_tokens: Sequence[str]
    decoder_input: Sequence[str]
    attention: Mapping[str, Sequence[Sequence[Sequence[Sequence[float]]]]]
    predictions: Sequence[TokenPrediction]
    beam: Sequence[BeamNode]
    notes: Sequence[str]
    tree: Annotated[ExplanationTree | None, OPTIONAL] = None


@dataclass(frozen=True)
class ConvertOutput:
    """Output of `dragoman convert --json`.

    format: format of the source
    source: name of the source: its folder, or its name and revision on the hub
    license: license of the model, or null if the source states none
    source_languages, target_languages: language codes; empty if the source states none
    parameters: number of weights
    num_bytes: size of the bundle in bytes
    notes: differences to the source, one sentence each
    """

    bundle: str
    format: str
    source: str
    license: str | None
    source_languages: Sequence[str]
    target_languages: Sequence[str]
    parameters: int
    num_bytes: int
    notes: Sequence[str]


@dataclass(frozen=True)
class ExportOutput:
    """Output of `dragoman export --json`.

    folder: folder or file of the export
    max_positions: most tokens of a source and of an output, end token included
    decoding_options: arguments of the engine that are nearest to the recipe's [decoding] section
    notes: differences to dragoman, one sentence each
    """

    folder: str
    format: str
    num_bytes: int
    max_positions: int
    decoding_options: Mapping[str, Any]
    notes: Sequence[str]


@dataclass(frozen=True)
class EvalbFailure:
    """Sentence without a score. Lines count from 1."""

    line: int
    reason: str


@dataclass(frozen=True)
class EvalbOutput:
    """Output of `dragoman evalb --json`. The totals have the keys `all` and `length<=N`.

    parameters: COLLINS, or the parameter file
    failures_zero: totals in which a failure counts as zero
    failures_dropped: totals without the failures, as EVALB prints them
    sentences: each sentence, with --sentences
    """

    gold: str
    test: str
    parameters: str
    failures: Sequence[EvalbFailure]
    failures_zero: Mapping[str, EvalbTotals]
    failures_dropped: Mapping[str, EvalbTotals]
    sentences: Annotated[Sequence[SentenceScore] | None, OPTIONAL] = None


@dataclass(frozen=True)
class DashboardOutput(RunSummary):
    """Output of `dragoman dashboard --json`: the newest values of a run. A value that is not logged is null."""


@dataclass(frozen=True)
class DiagnoseOutput(RunSummary):
    """Output of `dragoman diagnose --json`: the newest values of a run, and its problems, the most serious first."""

    diagnoses: Sequence[Diagnosis]


@dataclass(frozen=True)
class RecipeDifference:
    """Setting on which the paper, its code and later code may differ, and its state in a recipe.

    state: as printed, not in the text, deviates, fixed or left to the recipe
    text, code, later: setting in the paper, in tensor2tensor 1.0.3 and in later code
    recipe: setting in the recipe
    deviations: one sentence for each deviating key
    """

    number: int
    item: str
    state: str
    text: str
    code: str
    later: str
    recipe: str
    deviations: Sequence[str]


@dataclass(frozen=True)
class DifferencesOutput:
    """Output of `dragoman paper differences --json`."""

    preset: str
    size: str
    differences: Sequence[RecipeDifference]
