"""Types of the JSON that the commands `paper table1` to `table4`, `results`, `figures`, `scaling` and `positions` print.

They are apart from `json_outputs`, because the modules of the tables import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.paper.ablations import TrainedAblation
from dragoman.paper.figures import Figure
from dragoman.paper.relative_positions import OffsetRow
from dragoman.paper.results_table import ResultsRow
from dragoman.paper.scaling import ScalingRow
from dragoman.paper.table1 import PATH_LENGTHS, LayerSize, MeasuredSweep, PaperComplexity, Table1Row
from dragoman.paper.table2 import PAPER_COSTS, PaperCost, RunCost
from dragoman.paper.table2_results import SystemResult, Table2, TrainedSystem
from dragoman.paper.table3_results import Metric, Ordering, Table3, Table3Result, TrainedRow
from dragoman.paper.table3_rows import PaperRow
from dragoman.paper.table4 import LATER_PARSERS, PAPER_PARSERS, PaperParser, Table4, Table4Result

METRICS: tuple[Metric, ...] = ("perplexity", "bleu")


@dataclass(frozen=True)
class Table1Sweep:
    """Costs of one kind of layer while one dimension grows.

    sizes: values of the dimension
    points: sizes of the layer and of its input
    seconds: processor time at each size
    exponents: fitted exponents of time, memory and operations
    """

    sizes: Sequence[int]
    points: Sequence[LayerSize]
    seconds: Sequence[float]
    peak_bytes: Sequence[int]
    operations: Sequence[int]
    exponents: Mapping[str, float]

    @classmethod
    def from_measurement(cls, measured: MeasuredSweep) -> Table1Sweep:
        """Return the output of a measured sweep."""
        return cls(
            measured.sizes,
            measured.sweep.points,
            measured.seconds,
            [count.peak_bytes for count in measured.counts],
            [count.operations for count in measured.counts],
            measured.fit_exponents(),
        )


@dataclass(frozen=True)
class Table1Layer:
    """Measured and printed values of one kind of layer.

    sweeps: by the dimension that grows: n, d or reach
    lengths: lengths n at which the products and the path are counted
    sequential_products: sequential matrix products at each length
    path: layers that a signal crosses at each length
    """

    kind: str
    printed: PaperComplexity
    sweeps: Mapping[str, Table1Sweep]
    lengths: Sequence[int]
    sequential_products: Sequence[int]
    sequential_exponent: float
    path: Sequence[int]
    path_exponent: float

    @classmethod
    def from_row(cls, row: Table1Row) -> Table1Layer:
        """Return the output of a row."""
        return cls(
            row.kind,
            row.paper_row,
            {axis: Table1Sweep.from_measurement(measured) for axis, measured in row.sweeps_by_axis.items()},
            PATH_LENGTHS,
            row.sequential_matmuls,
            row.sequential_exponent,
            row.path_lengths,
            row.path_exponent,
        )


@dataclass(frozen=True)
class Table1Output:
    """Output of `dragoman paper table1 --json`."""

    table: int
    rows: Sequence[Table1Layer]


@dataclass(frozen=True)
class Table2Output:
    """Output of `dragoman paper table2 --json`."""

    table: int
    runs: Sequence[RunCost]
    printed: Sequence[PaperCost]


@dataclass(frozen=True)
class SeedStatistics:
    """Mean and standard deviation over the seeds. The deviation of one seed is null."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class SystemComparisonOutput:
    """Difference in BLEU from the Transformer, with the central 95 % of the paired bootstrap's differences."""

    difference: float
    interval: Sequence[float]
    p_value: float


@dataclass(frozen=True)
class Table2System:
    """One system of `dragoman paper table2 --run`.

    perplexity: mean over the seeds, per subword token of the validation set
    flops, seconds, steps: mean of a run
    ensemble_bleu: BLEU of the ensemble of all seeds; null for one seed
    longest_path: positions or layers between the ends of a source of 32 tokens
    path: the same as an order of growth, as in Table 1
    against_transformer, ensemble_against_transformer: null for the Transformer
    curve: share of the budget and mean nats per token of each validation
    """

    system: str
    printed: PaperCost | None
    printed_ensemble: PaperCost | None
    parameters: int
    bleu: SeedStatistics
    perplexity: float
    ensemble_bleu: float | None
    against_transformer: SystemComparisonOutput | None
    ensemble_against_transformer: SystemComparisonOutput | None
    flops: float
    seconds: float
    steps: float
    training_tokens_per_second: float
    translation_tokens_per_second: float
    ensemble_tokens_per_second: float | None
    longest_path: int
    path: str
    curve: Sequence[Sequence[float]]
    runs: Sequence[TrainedSystem]

    @classmethod
    def from_result(cls, table: Table2, result: SystemResult) -> Table2System:
        """Return the output of a result."""
        comparisons = []
        for ensemble in (False, True):
            compared = table.compare_with_transformer(result, ensemble=ensemble)
            comparisons.append(
                None if compared is None else SystemComparisonOutput(compared.difference, compared.interval, compared.p_value)
            )
        return cls(
            system=result.system.name,
            printed=result.find_paper_row(),
            printed_ensemble=result.find_paper_row(ensemble=True),
            parameters=result.parameters,
            bleu=SeedStatistics(result.bleu, result.bleu_std),
            perplexity=result.perplexity,
            ensemble_bleu=None if result.ensemble is None else result.ensemble.score.value,
            against_transformer=comparisons[0],
            ensemble_against_transformer=comparisons[1],
            flops=result.flops,
            seconds=result.seconds,
            steps=result.steps,
            training_tokens_per_second=result.training_tokens_per_second,
            translation_tokens_per_second=result.speed.tokens_per_second,
            ensemble_tokens_per_second=None if result.ensemble_speed is None else result.ensemble_speed.tokens_per_second,
            longest_path=result.longest_path,
            path=result.system.path,
            curve=result.curve,
            runs=result.trained,
        )


@dataclass(frozen=True)
class Table2RunOutput:
    """Output of `dragoman paper table2 --run --json`.

    clock: wall or processor, for seconds and speeds
    """

    table: int
    corpus: str
    languages: str
    budget: str
    clock: str
    seeds: int
    systems: Sequence[Table2System]
    printed: Sequence[PaperCost]

    @classmethod
    def from_table(cls, table: Table2) -> Table2RunOutput:
        """Return the output of the table."""
        return cls(
            2,
            table.corpus,
            table.languages,
            str(table.budget),
            table.budget.clock,
            table.seeds,
            [Table2System.from_result(table, result) for result in table.results],
            PAPER_COSTS,
        )


@dataclass(frozen=True)
class Table3OutputRow:
    """Printed and measured values of one row of Table 3."""

    printed: PaperRow
    parameters: int
    perplexity: SeedStatistics
    bleu: SeedStatistics
    runs: Sequence[TrainedRow]

    @classmethod
    def from_result(cls, result: Table3Result) -> Table3OutputRow:
        """Return the output of a result."""
        perplexity, bleu = (SeedStatistics(result.mean(metric), result.std(metric)) for metric in METRICS)
        return cls(result.paper_row, result.parameters, perplexity, bleu, result.trained_rows)


@dataclass(frozen=True)
class Table3Output:
    """Output of `dragoman paper table3 --json`.

    orderings: each two rows of a series with their printed order, by perplexity and by BLEU
    remarks: sentences about missing comparisons
    """

    table: int
    corpus: str
    scale: str
    budget: str
    seeds: int
    rows: Sequence[Table3OutputRow]
    orderings: Sequence[Ordering]
    remarks: Sequence[str]

    @classmethod
    def from_table(cls, table: Table3) -> Table3Output:
        """Return the output of the table."""
        return cls(
            3,
            table.corpus,
            table.scale,
            str(table.budget),
            table.seeds,
            [Table3OutputRow.from_result(result) for result in table.results],
            [ordering for metric in METRICS for ordering in table.compare_rows(metric)],
            table.remarks,
        )


@dataclass(frozen=True)
class Table4Output:
    """Output of `dragoman paper table4 --json`.

    later: results after the paper
    gold: files of the gold trees
    train_trees: training trees of the baselines
    """

    table: int
    printed: Sequence[PaperParser]
    later: Sequence[PaperParser]
    gold: str
    rules: str
    train_trees: int
    results: Sequence[Table4Result]

    @classmethod
    def from_table(cls, table: Table4) -> Table4Output:
        """Return the output of the table, with the printed rows."""
        rules = "EVALB's COLLINS.prm, all lengths, failures count as zero, gold tags"
        return cls(4, PAPER_PARSERS, LATER_PARSERS, table.gold_name, rules, table.num_train_trees, table.results)


@dataclass(frozen=True)
class ResultsOutput:
    """Output of `dragoman paper results --json`."""

    rows: Sequence[ResultsRow]


@dataclass(frozen=True)
class AblationOutput:
    """One row of `dragoman paper ablations`.

    parameters: null if the run diverged with every seed
    nll, bleu: scores of each seed that has one; nats per token, without smoothing
    curve: step and mean nll of each validation
    """

    row: str
    series: str
    settings: Mapping[str, object]
    parameters: int | None
    nll: Sequence[float]
    bleu: Sequence[float]
    diverged_seeds: Sequence[int]
    curve: Sequence[Sequence[float]]

    @classmethod
    def from_result(cls, result: TrainedAblation) -> AblationOutput:
        """Return the output of a result."""
        row = result.row
        return cls(
            row.name,
            row.series,
            row.settings,
            result.parameters,
            result.nlls,
            result.bleus,
            result.diverged_seeds,
            result.curve,
        )


@dataclass(frozen=True)
class AblationsOutput:
    """Output of `dragoman paper ablations --json`."""

    corpus: str
    budget: str
    seeds: int
    rows: Sequence[AblationOutput]


@dataclass(frozen=True)
class ScalingOutput:
    """Output of `dragoman paper scaling --json`.

    products: number of dot products for each d_k
    """

    products: int
    rows: Sequence[ScalingRow]


@dataclass(frozen=True)
class PositionsOutput:
    """Output of `dragoman paper positions --json`.

    positions: number of positions that each error is the largest of
    """

    layout: str
    d_model: int
    positions: int
    rows: Sequence[OffsetRow]


@dataclass(frozen=True)
class FigureWeights:
    """Attention weights of one panel, as head × query × key, with four decimals. Heads count from 1, positions from 0."""

    heads: Sequence[int]
    query_positions: Sequence[int]
    weights: Sequence[Sequence[Sequence[float]]]


@dataclass(frozen=True)
class FigureValues:
    """One figure. The layer counts from 1.

    layers: number of layers of the encoder
    word: query word; null if the figure has none
    """

    figure: int
    model: str
    sentence: str
    tokens: Sequence[str]
    layer: int
    layers: int
    word: str | None
    panels: Sequence[FigureWeights]

    @classmethod
    def from_figure(cls, figure: Figure) -> FigureValues:
        """Return the output of a figure."""
        attention = figure.attention
        weights_HTS = attention.weights_LHTS[figure.layer]
        panels = []
        for panel in figure.panels:
            positions = panel.query_positions or range(len(attention.tokens))
            weights = weights_HTS[list(panel.heads)][:, list(positions)].round(4).tolist()
            panels.append(FigureWeights([head + 1 for head in panel.heads], list(positions), weights))
        word = None if figure.word is None else attention.spell_words()[figure.word]
        num_layers = len(attention.weights_LHTS)
        return cls(
            figure.number, attention.model, attention.sentence, attention.tokens, figure.layer + 1, num_layers, word, panels
        )


@dataclass(frozen=True)
class FiguresOutput:
    """Output of `dragoman paper figures --json`."""

    figures: Sequence[FigureValues]
