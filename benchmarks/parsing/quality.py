"""F1 on CRAFT's development part: right-branching trees, a PCFG, and a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.benchmark import print_progress
from common.results import Section, Table

from dragoman.paper.table4 import LATER_PARSERS, Table4Result, load_parsers, score_baselines, score_parser
from dragoman.paper.table4 import SimplifiedTreebank as Trees
from dragoman.parsing.evalb.scorer import score_trees, sum_scores
from dragoman.parsing.parse_confidence import compute_mean_log_prob
from dragoman.parsing.parser import Parser
from dragoman.parsing.trees.simplify import copy_tags
from dragoman.parsing.trees.tree import Tree, get_words

from .models import Treebank

NO_TREEBANK = "shared/craft: holds no CRAFT; give its folder by --shared"
QUICK_STRIDE, QUICK_LONGEST = 20, 40


def measure_quality(treebank: Treebank, bundle: Path | None, *, quick: bool) -> Section:
    """Score the baselines and a bundle, if one is given, on the same trees; quick: a sample of up to 40 words."""
    if not treebank.dev:
        return Section(notes=[NO_TREEBANK])
    gold = Trees("CRAFT dev", _sample(treebank.dev, quick))
    print_progress(f"counting a grammar over {len(treebank.train):,} trees, and parsing {len(gold.trees):,} with it twice")
    results: list[Table4Result] = score_baselines(gold, Trees("CRAFT train", treebank.train))
    if bundle is not None:
        print_progress("parsing them with the bundle")
        [parser] = load_parsers([bundle], {})
        results.append(score_parser(str(bundle), parser, gold, decoding={}))
    title = f"F1 on CRAFT dev, {len(gold.trees):,} trees" + (f" of up to {QUICK_LONGEST} words" if quick else "")
    header = ["parser", "tags", "F1", "to 40 words", "precision", "recall", "no tree", "sentences/s"]
    table = Table(title, header)
    for item in results:
        figures = [f"{value:.2f}" for value in (item.f1, item.f1_short, item.precision, item.recall)]
        rate = item.sentences / max(item.seconds, 1e-9)
        table.rows.append([item.parser, item.tags, *figures, str(item.failures), f"{rate:,.1f}"])
    published_scores = ", ".join(f"{row.f1:g} ({row.training})" for row in LATER_PARSERS)
    return Section(
        tables=[table],
        notes=[
            "COLLINS.prm, failures count as zero, gold tags",
            f"not comparable: benepar on WSJ section 23 has {published_scores}",
        ],
        figures={"results": [vars(item) for item in results]},
    )


def measure_confidence(parser: Parser, treebank: Treebank, *, quick: bool) -> Section:
    """Report which fraction of parses a threshold on the mean log-probability keeps, and their F1."""
    if not treebank.dev:
        return Section(notes=[NO_TREEBANK])
    gold = _sample(treebank.dev, quick)
    print_progress(f"parsing {len(gold):,} sentences")
    parses = parser.parse([get_words(tree) for tree in gold])
    retagged = [item.tree and copy_tags([tree], [item.tree])[0] for item, tree in zip(parses, gold, strict=True)]
    mean_log_probs, scores = [compute_mean_log_prob(item.token_log_probs) for item in parses], score_trees(gold, retagged)
    order = sorted(range(len(parses)), key=lambda index: -mean_log_probs[index])
    results = []
    for fraction in (1.0, 0.9, 0.75, 0.5, 0.25, 0.1):
        threshold = mean_log_probs[order[max(1, round(fraction * len(order))) - 1]]
        kept = [index for index in order if mean_log_probs[index] >= threshold]  # equal confidences are kept together
        f1, f1_rejected = (sum_scores([scores[index] for index in part]).f1 for part in (kept, order[len(kept) :]))
        results.append({"fraction": len(kept) / len(order), "threshold": threshold, "f1": f1, "f1_rejected": f1_rejected})
    table = Table("parses kept at a threshold (--min-score)", ["kept", "threshold", "F1", "F1 of the rejected"])
    table.rows = [
        [f"{item['fraction']:.0%}", f"{item['threshold']:.4f}", f"{item['f1']:.2f}", f"{item['f1_rejected']:.2f}"]
        for item in results
    ]
    return Section(tables=[table], figures={"thresholds": results})


def _sample(trees: Sequence[Tree], quick: bool) -> list[Tree]:
    return [tree for tree in trees[::QUICK_STRIDE] if len(get_words(tree)) <= QUICK_LONGEST] if quick else list(trees)
