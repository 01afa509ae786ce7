"""Table 4: constituency parsing by F1, the printed rows beside bundles of parsers and beside what counting alone is worth.

The printed figures are of the Wall Street Journal's section 23, which is not free; those of another treebank stand beside them
for scale and are not comparable. Trees are compared by COLLINS.prm's rules, all lengths, a sentence without a tree as zero.
Gold tags are put into each tree first, since EVALB deletes punctuation by its tags.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dragoman.errors import DataError, RunError
from dragoman.evaluation.evalb import total
from dragoman.evaluation.evalb_params import COLLINS
from dragoman.evaluation.parse_scores import ParseComparison
from dragoman.formats.readers import corpus_files
from dragoman.formats.treebank import read_trees
from dragoman.inference.parser import Parser, load_parser
from dragoman.training.monitoring.run_status import read_record
from dragoman.trees.cky import ChartParser
from dragoman.trees.pcfg import learn
from dragoman.trees.right_branching import Branching, commonest_labels, right_branching
from dragoman.trees.simplify import simplify
from dragoman.trees.tree import Leaf, Tree, leaves
from dragoman.viz.bar_chart import Bar, Group, bar_chart

Tags = Literal["gold", "own"]
"""Whether a parser was given the words' tags, or had to find them."""
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Printed:
    """A row as printed: F1 on section 23, by its training."""

    parser: str
    training: str
    f1: float


PRINTED = (
    Printed("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    Printed("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    Printed("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    Printed("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    Printed("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    Printed("Zhu et al. (2013)", "semi-supervised", 91.3),
    Printed("Huang & Harper (2009)", "semi-supervised", 91.3),
    Printed("McClosky et al. (2006)", "semi-supervised", 92.1),
    Printed("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    Printed("Transformer (4 layers)", "semi-supervised", 92.7),
    Printed("Luong et al. (2015)", "multi-task", 93.0),
    Printed("Dyer et al. (2016)", "generative", 93.3),
)
QUOTED = (
    Printed("benepar: Kitaev & Klein (2018)", "WSJ only", 93.55),
    Printed("benepar: Kitaev & Klein (2018)", "with ELMo", 95.13),
)
"""Later than the paper, on the same section: what a chart parser over self-attention comes to."""


@dataclass(frozen=True)
class Result:
    """What a parser came to; F1, precision, recall, complete matches and tags in percent.

    f1_short: over sentences up to 40 words
    f1_own_tags: with the tags that it found itself; none where it was given them
    failures: sentences without a tree, which count as zero
    mended: sentences in whose tree something had to be mended
    seconds: of parsing alone
    """

    parser: str
    tags: Tags
    sentences: int
    f1: float
    f1_short: float
    f1_own_tags: float | None
    precision: float
    recall: float
    complete: float
    tagging: float | None
    failures: int
    mended: int
    seconds: float


@dataclass(frozen=True)
class Table4:
    """gold: the file that the results are of. train: trees that the baselines were counted over."""

    gold: str
    train: int
    results: Sequence[Result]

    def as_json(self) -> dict[str, Any]:
        return {
            "table": 4,
            "printed": [asdict(row) for row in PRINTED],
            "quoted": [asdict(row) for row in QUOTED],
            "gold": self.gold,
            "rules": "EVALB's COLLINS.prm, all lengths, failures zero, gold tags put in",
            "train_trees": self.train,
            "results": [asdict(one) for one in self.results],
        }


@dataclass(frozen=True)
class Treebank:
    """Trees without function tags and traces, and the files that they are from."""

    name: str
    trees: Sequence[Tree]


def read_treebank(paths: Sequence[Path]) -> Treebank:
    """Raises DataError naming file and line for what cannot be read, a tree without words and a word without a tag."""
    trees: list[Tree] = []
    for path in paths:
        for placed in read_trees(path):
            tree = simplify(placed.tree, root="top")
            if not (found := leaves(tree)):
                raise DataError(f"{path}, line {placed.line}: a tree without words; take it out")
            if bare := [leaf.word for leaf in found if leaf.tag is None]:
                raise DataError(f"{path}, line {placed.line}: the word {bare[0][:40]!r} stands in its bracket without a tag")
            trees.append(tree)
    name = ", ".join(map(str, paths))
    if not trees:
        raise DataError(f"{name}: holds no tree; a file in brackets has one a line, (S (NP (PRP It)) (VP (VBZ works)))")
    return Treebank(name, trees)


def files_of_run(folder: Path) -> tuple[Path, list[Path], list[Path]]:
    """A run's bundle, the files of its test trees (of data.valid, where it names no test), and those of its training trees.

    Raises RunError where the folder holds no run of a parser with a bundle and trees to score.
    """
    recipe = read_record(folder).recipe
    if recipe.task.kind != "parsing":
        raise RunError(f"{folder}: is a run of {recipe.task.kind}; Table 4 takes one of task.kind = 'parsing'")
    if not (folder / "bundle").is_dir():
        raise RunError(f"{folder}: has no bundle to parse with; the run has to come to its end first")
    held = recipe.data.test or recipe.data.valid
    if held is None:
        raise RunError(f"{folder}: its recipe names neither data.test nor data.valid to score; give --bundle and --gold")
    root = Path(recipe.data.root)
    corpora = [recipe.data.train] if recipe.data.train is not None else list(recipe.data.corpora.values())
    return folder / "bundle", corpus_files(held, root), [path for corpus in corpora for path in corpus_files(corpus, root)]


def baselines(gold: Treebank, train: Treebank | None, advance: Advance = lambda _: None) -> list[Result]:
    """What a right-branching tree is worth and, with trees to count, a grammar's best tree: tags given, and found."""
    labels = commonest_labels(train.trees) if train is not None else Branching()
    sentences = [leaves(tree) for tree in gold.trees]
    begun = time.perf_counter()
    straight: list[Tree | None] = [right_branching(sentence, labels) for sentence in sentences]
    results = [scored("right-branching", gold, straight, tags="gold", seconds=time.perf_counter() - begun)]
    if train is None:
        return results
    parser = ChartParser(learn(train.trees))
    tellings: tuple[Tags, ...] = ("gold", "own")
    for tags in tellings:
        begun, found = time.perf_counter(), list[Tree | None]()
        for sentence in sentences:
            found.append(parser.parse(sentence if tags == "gold" else [Leaf(leaf.word, None) for leaf in sentence]))
            advance(1)
        results.append(scored("PCFG", gold, found, tags=tags, seconds=time.perf_counter() - begun))
    return results


def open_parsers(bundles: Sequence[Path], decoding: Mapping[str, Any]) -> list[Parser]:
    """All of them, before any takes its time. `decoding`: knobs of their recipes' that are to be set otherwise.

    Raises BundleError where one is no parser's, RecipeError for a knob that does not exist.
    """
    parsers = [load_parser(path, precision="float32") for path in bundles]  # scores are the trained model's, not this machine's
    for parser in parsers:
        parser.check(decoding)
    return parsers


def parsed(
    name: str,
    parser: Parser,
    gold: Treebank,
    *,
    decoding: Mapping[str, Any],
    constrained: bool = True,
    advance: Advance = lambda _: None,
) -> Result:
    """What a parser comes to, its tags its own. `decoding`: knobs of its recipe's that are set otherwise."""
    tags: Tags = "gold" if parser.recipe.task.pos_tags == "given" else "own"
    leaves_of = [leaves(tree) for tree in gold.trees]
    begun = time.perf_counter()
    parses = parser.parse(
        [[leaf.word for leaf in sentence] for sentence in leaves_of],
        tags=[[leaf.tag or "" for leaf in sentence] for sentence in leaves_of] if tags == "gold" else None,
        constrained=constrained,
        advance=advance,
        **decoding,
    )
    seconds = time.perf_counter() - begun
    mended = sum(one.status in ("mended", "truncated") for one in parses)
    return scored(name, gold, [one.tree for one in parses], tags=tags, seconds=seconds, mended=mended)


def scored(parser: str, gold: Treebank, found: Sequence[Tree | None], *, tags: Tags, seconds: float, mended: int = 0) -> Result:
    """What trees are worth beside the gold ones, in their order."""
    compared, own = ParseComparison(found, gold.trees), tags == "own"
    scores = compared.by_gold_tags
    whole = total(scores)
    return Result(
        parser=parser,
        tags=tags,
        sentences=len(gold.trees),
        f1=whole.f1,
        f1_short=total(scores, longest=COLLINS.cutoff).f1,
        f1_own_tags=total(compared.by_own_tags).f1 if own else None,
        precision=whole.precision,
        recall=whole.recall,
        complete=whole.complete,
        tagging=compared.tagging if own else None,
        failures=sum(one.failed for one in scores),
        mended=mended,
        seconds=seconds,
    )


def picture(table: Table4) -> str:
    """The printed rows' F1, what is quoted, and ours below, as an SVG."""
    by_training: dict[str, list[Bar]] = {}
    for row in (*PRINTED, *QUOTED):
        by_training.setdefault(row.training, []).append(Bar(row.parser, row.f1))
    printed = [Group(f"WSJ, section 23: {training}", bars) for training, bars in by_training.items()]
    ours = [Bar(one.parser, one.f1, f"({one.tags} tags)") for one in table.results]
    below = Group(f"{table.gold}: another treebank, not comparable with the above", ours, bright=True)
    return bar_chart(
        [*printed, below] if ours else printed,
        title="Table 4: constituency parsing",
        x_label="F1 of labelled brackets, in percent",
    )
