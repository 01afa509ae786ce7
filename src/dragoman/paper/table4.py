"""Table 4: constituency parsing by F1, with the printed rows, parsers and baselines.

The printed scores are for section 23 of the Wall Street Journal, which is not free. Scores on another treebank are not
comparable with them. Trees are compared by the rules of COLLINS.prm for all lengths; a sentence without a tree counts as zero.
Gold tags replace the predicted ones first, because EVALB deletes punctuation by its tags.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dragoman.errors import DataError, RunError
from dragoman.formats.readers import list_corpus_files
from dragoman.inference.load import load
from dragoman.paper.cky import ChartParser
from dragoman.paper.pcfg import induce_pcfg
from dragoman.paper.right_branching import RightBranchingLabels, build_right_branching_tree, find_most_common_labels
from dragoman.parsing.evalb.params import COLLINS
from dragoman.parsing.evalb.parse_scores import ParseComparison
from dragoman.parsing.evalb.scorer import sum_scores
from dragoman.parsing.parser import Parser
from dragoman.parsing.treebank import read_trees
from dragoman.parsing.trees.simplify import simplify
from dragoman.parsing.trees.tree import Leaf, Tree, get_leaves
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.viz.charts import Bar, BarGroup, render_bar_chart

TagSource = Literal["gold", "own"]
"""Source of the part-of-speech tags: gold tags from the caller, or the parser's own."""
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class PaperParser:
    """Printed row: a parser, its training data and its F1 on section 23."""

    parser: str
    training: str
    f1: float


PAPER_PARSERS = (
    PaperParser("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    PaperParser("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    PaperParser("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    PaperParser("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    PaperParser("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    PaperParser("Zhu et al. (2013)", "semi-supervised", 91.3),
    PaperParser("Huang & Harper (2009)", "semi-supervised", 91.3),
    PaperParser("McClosky et al. (2006)", "semi-supervised", 92.1),
    PaperParser("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    PaperParser("Transformer (4 layers)", "semi-supervised", 92.7),
    PaperParser("Luong et al. (2015)", "multi-task", 93.0),
    PaperParser("Dyer et al. (2016)", "generative", 93.3),
)
LATER_PARSERS = (
    PaperParser("benepar: Kitaev & Klein (2018)", "WSJ only", 93.55),
    PaperParser("benepar: Kitaev & Klein (2018)", "with ELMo", 95.13),
)
"""Later results on the same section: a chart parser with self-attention."""


@dataclass(frozen=True)
class Table4Result:
    """Scores of a parser. F1, precision, recall, complete matches and tagging accuracy are in percent.

    f1_short: F1 of the sentences up to 40 words
    f1_predicted_tags: F1 with the parser's own tags; None if it had gold tags
    failures: sentences without a tree, which count as zero
    repaired: sentences whose tree was repaired
    seconds: time of parsing
    """

    parser: str
    tags: TagSource
    sentences: int
    f1: float
    f1_short: float
    f1_predicted_tags: float | None
    precision: float
    recall: float
    complete: float
    tagging: float | None
    failures: int
    repaired: int
    seconds: float


@dataclass(frozen=True)
class Table4:
    """Results on one treebank.

    gold_name: files of the gold trees
    num_train_trees: training trees of the baselines
    """

    gold_name: str
    num_train_trees: int
    results: Sequence[Table4Result]


@dataclass(frozen=True)
class SimplifiedTreebank:
    """Trees without function tags and traces, and the names of their files."""

    name: str
    trees: Sequence[Tree]


def read_treebank(paths: Sequence[Path]) -> SimplifiedTreebank:
    """Read the trees of the files. Raises DataError with file and line for an unreadable tree, no words, or a missing tag."""
    trees: list[Tree] = []
    for path in paths:
        for tree_record in read_trees(path):
            tree = simplify(tree_record.tree, root="top")
            if not (tree_leaves := get_leaves(tree)):
                raise DataError(f"{path}, line {tree_record.line}: the tree has no words; remove it")
            if untagged_words := [leaf.word for leaf in tree_leaves if leaf.tag is None]:
                raise DataError(
                    f"{path}, line {tree_record.line}: the word {untagged_words[0][:40]!r} has no tag; write (TAG word)"
                )
            trees.append(tree)
    name = ", ".join(map(str, paths))
    if not trees:
        raise DataError(f"{name}: holds no tree; write one a line, such as (S (NP (PRP It)) (VP (VBZ works)))")
    return SimplifiedTreebank(name, trees)


def find_run_files(folder: Path) -> tuple[Path, list[Path], list[Path]]:
    """Return the bundle of a run, the files of its test trees (or else its validation trees), and its training files.

    Raises RunError if the folder holds no run of a parser with a bundle and trees to score.
    """
    recipe = read_run_status(folder).recipe
    if recipe.task.has_text_target:
        raise RunError(f"{folder}: is a run of {recipe.task.kind}; give one of task.kind = 'parsing'")
    if not (folder / "bundle").is_dir():
        raise RunError(f"{folder}: has no bundle to parse with; finish the run first", code="run-unfinished")
    test_corpus = recipe.data.test or recipe.data.valid
    if test_corpus is None:
        raise RunError(f"{folder}: its recipe names neither data.test nor data.valid to score; give --bundle and --gold")
    root = Path(recipe.data.root)
    corpora = [recipe.data.train] if recipe.data.train is not None else list(recipe.data.corpora.values())
    return (
        folder / "bundle",
        list_corpus_files(test_corpus, root),
        [path for corpus in corpora for path in list_corpus_files(corpus, root)],
    )


def score_baselines(
    gold: SimplifiedTreebank, train: SimplifiedTreebank | None, on_progress: OnProgress = lambda _: None
) -> list[Table4Result]:
    """Return the scores of right-branching trees and, with training trees, of a PCFG with gold tags and with its own."""
    labels = find_most_common_labels(train.trees) if train is not None else RightBranchingLabels()
    sentences = [get_leaves(tree) for tree in gold.trees]
    start_time = time.perf_counter()
    right_branching_trees: list[Tree | None] = [build_right_branching_tree(sentence, labels) for sentence in sentences]
    results = [
        score_parses("right-branching", gold, right_branching_trees, tags="gold", seconds=time.perf_counter() - start_time)
    ]
    if train is None:
        return results
    parser = ChartParser(induce_pcfg(train.trees))
    tag_sources: tuple[TagSource, ...] = ("gold", "own")
    for tags in tag_sources:
        start_time, predicted_trees = time.perf_counter(), list[Tree | None]()
        for sentence in sentences:
            predicted_trees.append(parser.parse(sentence if tags == "gold" else [Leaf(leaf.word, None) for leaf in sentence]))
            on_progress(1)
        results.append(score_parses("PCFG", gold, predicted_trees, tags=tags, seconds=time.perf_counter() - start_time))
    return results


def load_parsers(bundles: Sequence[Path], decoding: Mapping[str, Any]) -> list[Parser]:
    """Load all parsers and check the decoding options.

    Raises BundleError for a bundle that is not a parser's, and RecipeError for an unknown option.
    """
    parsers = [load(path, task="parsing", precision="float32") for path in bundles]  # the scores do not depend on the machine
    for parser in parsers:
        parser.resolve_decoding(decoding)
    return parsers


def score_parser(
    name: str,
    parser: Parser,
    gold: SimplifiedTreebank,
    *,
    decoding: Mapping[str, Any],
    constrained: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Table4Result:
    """Parse the sentences of the treebank and return the scores. `decoding` overrides the recipe's decoding options."""
    tags: TagSource = "gold" if parser.recipe.task.pos_tags == "given" else "own"
    gold_leaves = [get_leaves(tree) for tree in gold.trees]
    start_time = time.perf_counter()
    parses = parser.parse(
        [[leaf.word for leaf in sentence] for sentence in gold_leaves],
        tags=[[leaf.tag or "" for leaf in sentence] for sentence in gold_leaves] if tags == "gold" else None,
        constrained=constrained,
        on_progress=on_progress,
        **decoding,
    )
    seconds = time.perf_counter() - start_time
    repaired = sum(result.status in ("repaired", "truncated") for result in parses)
    return score_parses(name, gold, [result.tree for result in parses], tags=tags, seconds=seconds, repaired=repaired)


def score_parses(
    parser: str,
    gold: SimplifiedTreebank,
    predicted_trees: Sequence[Tree | None],
    *,
    tags: TagSource,
    seconds: float,
    repaired: int = 0,
) -> Table4Result:
    """Return the scores of predicted trees, which are in the order of the gold trees."""
    comparison, predicts_tags = ParseComparison(predicted_trees, gold.trees), tags == "own"
    scores = comparison.scores_with_gold_tags
    totals = sum_scores(scores)
    return Table4Result(
        parser=parser,
        tags=tags,
        sentences=len(gold.trees),
        f1=totals.f1,
        f1_short=sum_scores(scores, max_length=COLLINS.cutoff_length).f1,
        f1_predicted_tags=sum_scores(comparison.scores_with_predicted_tags).f1 if predicts_tags else None,
        precision=totals.precision,
        recall=totals.recall,
        complete=totals.complete_match,
        tagging=comparison.tagging_accuracy if predicts_tags else None,
        failures=sum(score.is_failed for score in scores),
        repaired=repaired,
        seconds=seconds,
    )


def draw_table4(table: Table4) -> str:
    """Draw the F1 of the printed rows, of the later rows and of the results as an SVG."""
    by_training: dict[str, list[Bar]] = {}
    for row in (*PAPER_PARSERS, *LATER_PARSERS):
        by_training.setdefault(row.training, []).append(Bar(row.parser, row.f1))
    printed = [BarGroup(f"WSJ, section 23: {training}", bars) for training, bars in by_training.items()]
    result_bars = [Bar(result.parser, result.f1, f"({result.tags} tags)") for result in table.results]
    results_group = BarGroup(
        f"{table.gold_name}: another treebank, not comparable with the above", result_bars, highlighted=True
    )
    return render_bar_chart(
        [*printed, results_group] if result_bars else printed,
        title="Table 4: constituency parsing",
        x_label="F1 of labeled brackets, in percent",
    )
