"""What parsers are worth on CRAFT's dev part: a right-branching tree, a grammar that was counted, and a bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from common.results import Section, Table

from dragoman.evaluation.evalb import score_trees
from dragoman.inference.parser import Parser
from dragoman.paper.table4 import LATER_PARSERS, Table4Result, load_parsers, score_baselines, score_parser
from dragoman.paper.table4 import SimplifiedTreebank as Trees
from dragoman.tasks.parse_confidence import compute_mean_log_prob, evaluate_thresholds
from dragoman.trees.simplify import copy_tags
from dragoman.trees.tree import Tree, get_words

from .models import Treebank

NO_TREEBANK = "CRAFT is not here"
QUICK_STRIDE, QUICK_LONGEST = 20, 40


def measure_quality(treebank: Treebank, bundle: Path | None, *, say: Callable[[str], None], quick: bool) -> Section:
    """The baselines and, where one is given, a trained bundle, on the same trees; quick: a sample of up to 40 words."""
    if not treebank.dev:
        return Section(remarks=[NO_TREEBANK])
    gold = Trees("CRAFT dev", _some(treebank.dev, quick))
    say(f"counting a grammar over {len(treebank.train):,} trees, and parsing {len(gold.trees):,} with it twice")
    results: list[Table4Result] = score_baselines(gold, Trees("CRAFT train", treebank.train))
    if bundle is not None:
        say("parsing them with the bundle")
        [parser] = load_parsers([bundle], {})
        results.append(score_parser(str(bundle), parser, gold, decoding={}))
    title = f"F1 on CRAFT dev, {len(gold.trees):,} trees" + (f" of up to {QUICK_LONGEST} words" if quick else "")
    header = ["parser", "tags", "F1", "to 40 words", "precision", "recall", "no tree", "sentences/s"]
    table = Table(title, header)
    for one in results:
        figures = [f"{value:.2f}" for value in (one.f1, one.f1_short, one.precision, one.recall)]
        rate = one.sentences / max(one.seconds, 1e-9)
        table.rows.append([one.parser, one.tags, *figures, str(one.failures), f"{rate:,.1f}"])
    quoted = ", ".join(f"{row.f1:g} ({row.training})" for row in LATER_PARSERS)
    return Section(
        tables=[table],
        remarks=[
            "COLLINS.prm, failures as zero, gold tags put in",
            f"for scale, on WSJ section 23 and not comparable: benepar {quoted}",
        ],
        figures={"results": [vars(one) for one in results]},
    )


def measure_confidence(parser: Parser, treebank: Treebank, *, say: Callable[[str], None], quick: bool) -> Section:
    """What a threshold on the mean log-probability of a token keeps, and what is kept is worth."""
    if not treebank.dev:
        return Section(remarks=[NO_TREEBANK])
    gold = _some(treebank.dev, quick)
    say(f"parsing {len(gold):,} sentences")
    parses = parser.parse([get_words(tree) for tree in gold])
    retagged = [one.tree and copy_tags([tree], [one.tree])[0] for one, tree in zip(parses, gold, strict=True)]
    kept = evaluate_thresholds([compute_mean_log_prob(one.token_log_probs) for one in parses], score_trees(gold, retagged))
    table = Table("what is kept at a threshold (--min-score)", ["kept", "threshold", "F1", "F1 of the rest"])
    table.rows = [
        [f"{one.fraction:.0%}", f"{one.min_mean_log_prob:.4f}", f"{one.f1:.2f}", f"{one.f1_rejected:.2f}"] for one in kept
    ]
    return Section(tables=[table], figures={"thresholds": [vars(one) for one in kept]})


def _some(trees: Sequence[Tree], quick: bool) -> list[Tree]:
    return [tree for tree in trees[::QUICK_STRIDE] if len(get_words(tree)) <= QUICK_LONGEST] if quick else list(trees)
