"""JSON of the commands `paper differences`, `table1` to `table4`, `figures` and `ablations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.paper.ablations import TrainedAblation
from dragoman.paper.differences import Difference
from dragoman.paper.figures import Figure
from dragoman.paper.table1 import PATH_LENGTHS, Sweep, Table1Row
from dragoman.paper.table2 import PAPER_COSTS
from dragoman.paper.table2_results import SystemResult, Table2
from dragoman.paper.table3_results import Metric, Table3, Table3Result
from dragoman.paper.table4 import LATER_PARSERS, PAPER_PARSERS, Table4

METRICS: tuple[Metric, ...] = ("perplexity", "bleu", "token_accuracy")


def describe_differences(preset: str, size: str, differences: Sequence[Difference]) -> dict[str, Any]:
    """Return the settings on which the paper, its code and later code may differ, and their state in a recipe.

    state: as printed, not in the text, deviates, fixed or left to the recipe
    text, code, later: setting in the paper, in tensor2tensor 1.0.3 and in later code
    recipe: setting in the recipe
    deviations: one sentence for each deviating key
    """
    rows = [
        {
            "number": difference.item.number,
            "item": difference.item.name,
            "state": difference.state,
            "text": difference.item.text,
            "code": difference.item.code,
            "later": difference.item.later_code,
            "recipe": difference.value,
            "deviations": [deviation.describe() for deviation in difference.deviations],
        }
        for difference in differences
    ]
    return {"preset": preset, "size": size, "differences": rows}


def describe_table1(rows: Sequence[Table1Row]) -> dict[str, Any]:
    """Return the measured and the printed values of each kind of layer.

    sweeps: costs while one dimension grows: n, d or reach. Times are in seconds of the processor, memory in bytes.
    lengths: lengths n at which the sequential matrix products and the path are counted
    path: layers that a signal crosses at each length
    """
    return {"table": 1, "rows": list(map(_describe_layer, rows))}


def _describe_layer(row: Table1Row) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "printed": row.paper_row,
        "sweeps": {axis: _describe_sweep(measured) for axis, measured in row.sweeps_by_axis.items()},
        "lengths": PATH_LENGTHS,
        "sequential_products": row.sequential_matmuls,
        "sequential_exponent": row.sequential_exponent,
        "path": row.path_lengths,
        "path_exponent": row.path_exponent,
    }


def _describe_sweep(measured: Sweep) -> dict[str, Any]:
    return {
        "sizes": measured.sizes,
        "points": measured.points,
        "seconds": measured.seconds,
        "peak_bytes": [count.peak_bytes for count in measured.counts],
        "operations": [count.operations for count in measured.counts],
        "exponents": measured.fit_exponents(),
    }


def describe_table2(table: Table2) -> dict[str, Any]:
    """Return all systems of Table 2 that were trained.

    clock: wall or processor, for seconds and speeds
    bleu: mean and standard deviation over the seeds; the deviation of one seed is null
    perplexity: mean over the seeds, per subword token of the validation set
    flops, seconds, steps: mean of a run
    ensemble_bleu: BLEU of the ensemble of all seeds; null for one seed
    longest_path: positions or layers between the ends of a source of 32 tokens
    path: the same as an order of growth, as in Table 1
    against_transformer, ensemble_against_transformer: difference in BLEU, with the central 95 % of the paired bootstrap's
        differences; null for the Transformer
    curve: share of the budget and mean nats per token of each validation
    """
    return {
        "table": 2,
        "corpus": table.corpus,
        "languages": table.languages,
        "budget": str(table.budget),
        "clock": table.budget.clock,
        "seeds": table.seeds,
        "systems": [_describe_system(table, result) for result in table.results],
        "printed": PAPER_COSTS,
    }


def _describe_system(table: Table2, result: SystemResult) -> dict[str, Any]:
    compared, compared_ensemble = (table.compare_with_transformer(result, ensemble=ensemble) for ensemble in (False, True))
    names = ("difference", "interval", "p_value")
    ensemble_speed = result.ensemble_speed
    return {
        "system": result.system.name,
        "printed": result.find_paper_row(),
        "printed_ensemble": result.find_paper_row(ensemble=True),
        "parameters": result.parameters,
        "bleu": {"mean": result.bleu, "std": result.bleu_std},
        "perplexity": result.mean("perplexity"),
        "ensemble_bleu": None if result.ensemble is None else result.ensemble.score.value,
        "against_transformer": compared and {name: getattr(compared, name) for name in names},
        "ensemble_against_transformer": compared_ensemble and {name: getattr(compared_ensemble, name) for name in names},
        "flops": result.mean("flops"),
        "seconds": result.mean("seconds"),
        "steps": result.mean("steps"),
        "training_tokens_per_second": result.training_tokens_per_second,
        "translation_tokens_per_second": result.speed.tokens_per_second,
        "ensemble_tokens_per_second": None if ensemble_speed is None else ensemble_speed.tokens_per_second,
        "longest_path": result.longest_path,
        "path": result.system.path,
        "curve": result.curve,
        "runs": result.trained,
    }


def describe_table3(table: Table3) -> dict[str, Any]:
    """Return the printed and the measured values of each row.

    perplexity, bleu, token_accuracy: mean and standard deviation over the seeds; the deviation of one seed is null
    orderings: each two rows of a series with their printed order, by each of them; by token accuracy, what section 5.4 states
    remarks: sentences about missing comparisons
    """
    return {
        "table": 3,
        "corpus": table.corpus,
        "scale": table.scale,
        "budget": str(table.budget),
        "seeds": table.seeds,
        "rows": list(map(_describe_row, table.results)),
        "orderings": [ordering for metric in METRICS for ordering in table.compare_rows(metric)],
        "remarks": table.remarks,
    }


def _describe_row(result: Table3Result) -> dict[str, Any]:
    statistics: dict[str, Any] = {
        metric: {"mean": result.mean(metric), "std": result.std(metric)} for metric in METRICS if result.has(metric)
    }
    return {"printed": result.paper_row, "parameters": result.parameters, **statistics, "runs": result.trained_rows}


def describe_table4(table: Table4) -> dict[str, Any]:
    """Return the parsers of Table 4 with the printed rows.

    later: results after the paper
    gold: files of the gold trees
    train_trees: training trees of the baselines
    """
    return {
        "table": 4,
        "printed": PAPER_PARSERS,
        "later": LATER_PARSERS,
        "gold": table.gold_name,
        "rules": "EVALB's COLLINS.prm, all lengths, failures count as zero, gold tags",
        "train_trees": table.num_train_trees,
        "results": table.results,
    }


def describe_ablation(result: TrainedAblation) -> dict[str, Any]:
    """Return one row of `dragoman paper ablations`.

    parameters: null if the run diverged with every seed
    nll, bleu: scores of each seed that has one; nats per token, without smoothing
    curve: step and mean nll of each validation
    """
    return {
        "row": result.row.name,
        "series": result.row.series,
        "settings": result.row.settings,
        "parameters": result.parameters,
        "nll": result.nlls,
        "bleu": result.bleus,
        "diverged_seeds": result.diverged_seeds,
        "curve": result.curve,
    }


def describe_figure(figure: Figure) -> dict[str, Any]:
    """Return the weights of one figure, as head × query × key, with four decimals.

    Layers and heads count from 1, positions from 0. layers: number of layers of the encoder; word: query word, or null
    """
    attention = figure.attention
    weights_HTS = attention.weights_LHTS[figure.layer]
    panels = []
    for panel in figure.panels:
        positions = list(panel.query_positions or range(len(attention.tokens)))
        weights = weights_HTS[list(panel.heads)][:, positions].round(4).tolist()
        panels.append({"heads": [head + 1 for head in panel.heads], "query_positions": positions, "weights": weights})
    return {
        "figure": figure.number,
        "model": attention.model,
        "sentence": attention.sentence,
        "tokens": attention.tokens,
        "layer": figure.layer + 1,
        "layers": len(attention.weights_LHTS),
        "word": None if figure.word is None else attention.spell_words()[figure.word],
        "panels": panels,
    }
