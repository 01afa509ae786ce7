"""Results of Table 2: systems over their seeds, ensembles, and the comparison of each system with the Transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dragoman.evaluation.bootstrap import ResampledScore, SystemComparison, compare_resampled
from dragoman.paper.budget import Budget
from dragoman.paper.table2 import PAPER_COSTS, PaperCost
from dragoman.paper.table2_systems import System
from dragoman.runtime.counts import format_count
from dragoman.viz.charts import Panel, Series, render_learning_curve

Point = tuple[float, float]


@dataclass(frozen=True)
class TrainedSystem:
    """Results of a system with one seed, from its report.

    perplexity: per subword token of the validation set, without label smoothing
    seconds: training time by the clock of the budget, without validations and checkpoints
    flops: floating-point operations of all steps
    target_tokens: target tokens of all steps, without padding
    """

    system: str
    seed: int
    bleu: float
    signature: str
    perplexity: float
    parameters: int
    steps: int
    seconds: float
    flops: float
    target_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.target_tokens / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class TranslationSpeed:
    """Tokens of the best hypotheses of the test set, and the seconds by the clock of the budget."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class SystemResult:
    """Results of a system over its seeds.

    resampled_bleu: BLEU of each seed over the bootstrap samples
    ensemble: BLEU of the ensemble of all seeds over the same samples; None for one seed
    longest_path: see `table2_systems.count_longest_path`, for `PATH_LENGTH` positions
    curve: mean validation loss in nats per token over the seeds, by the share of the budget
    """

    system: System
    trained: Sequence[TrainedSystem]
    resampled_bleu: Sequence[ResampledScore]
    ensemble: ResampledScore | None
    speed: TranslationSpeed
    ensemble_speed: TranslationSpeed | None
    longest_path: int
    curve: Sequence[Point]

    @property
    def bleu(self) -> float:
        return self.mean("bleu")

    @property
    def bleu_std(self) -> float | None:
        """Return the standard deviation of BLEU over the seeds, or None for one seed."""
        return stdev(run.bleu for run in self.trained) if len(self.trained) > 1 else None

    def mean(self, name: str) -> float:
        """Return the mean of a field of `TrainedSystem` over the seeds."""
        return fmean(getattr(run, name) for run in self.trained)

    @property
    def training_tokens_per_second(self) -> float:
        return sum(run.target_tokens for run in self.trained) / max(sum(run.seconds for run in self.trained), 1e-9)

    @property
    def parameters(self) -> int:
        return self.trained[0].parameters

    def find_paper_row(self, *, ensemble: bool = False) -> PaperCost | None:
        """Return the printed row of the system or of its ensemble; None if the paper has none."""
        name = self.system.paper_ensemble_row if ensemble else self.system.paper_row
        return next((row for row in PAPER_COSTS if row.model == name), None)


@dataclass(frozen=True)
class Table2:
    """Results of all systems. The Transformer is the first one."""

    corpus: str
    languages: str
    budget: Budget
    seeds: int
    results: Sequence[SystemResult]

    @property
    def title(self) -> str:
        """Return the corpus, the budget and the number of seeds as text."""
        return f"Table 2: {self.corpus}, {self.languages}, {self.budget} a run, {format_count(self.seeds, 'seed')}"

    def compare_with_transformer(self, result: SystemResult, *, ensemble: bool = False) -> SystemComparison | None:
        """Return the paired bootstrap against the Transformer, for the mean of the seeds or for the ensembles.

        None for the Transformer itself, and for ensembles of one seed.
        """
        baseline = self.results[0]
        if result is baseline:
            return None
        if not ensemble:
            return compare_resampled(result.resampled_bleu, baseline.resampled_bleu)
        if result.ensemble is None or baseline.ensemble is None:
            return None
        return compare_resampled([result.ensemble], [baseline.ensemble])

    @property
    def parameter_spread(self) -> float:
        """Return how many more parameters the largest system has than the smallest, as a share of the smallest."""
        sizes = [result.parameters for result in self.results]
        return max(sizes) / min(sizes) - 1.0


def draw_table2(table: Table2) -> str:
    """Draw the validation loss of each system over its budget as an SVG."""
    series = [Series(result.system.name, result.curve) for result in table.results]
    return render_learning_curve(
        [Panel("nats per token", series)], title=table.title, x_label="share of the budget", panel_height=320
    )
