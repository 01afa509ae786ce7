"""Tests of Table 4 and its baselines: right-branching trees, the PCFG and its chart parser."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner, Result

from conftest import on_one_core
from dragoman.bundle import BundleMetadata, collect_weights, read_config, save_bundle
from dragoman.cli.main import cli
from dragoman.config import CorpusConfig, make_recipe
from dragoman.data.tokenization.sentencepiece import train_sentencepiece
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.data.tokenization.tree_labels import collect_labels, to_source_text
from dragoman.errors import DragomanError
from dragoman.evaluation.evalb import score_trees, sum_scores
from dragoman.formats.readers import read_pairs
from dragoman.formats.treebank import read_trees
from dragoman.inference.parse import Parse
from dragoman.model.factory import build_model
from dragoman.paper.table4 import LATER_PARSERS, PAPER_PARSERS, SimplifiedTreebank, find_run_files, score_parses
from dragoman.tasks.parse_confidence import ConfidenceFilter, compute_mean_log_prob, evaluate_thresholds
from dragoman.tasks.parsing import fill_word_tables, parser_options
from dragoman.trees.cky import ChartParser
from dragoman.trees.pcfg import BinaryRule, Grammar, Symbol, UnaryRule, induce_pcfg
from dragoman.trees.ptb import read_tree
from dragoman.trees.right_branching import RightBranchingLabels, build_right_branching_tree, find_most_common_labels
from dragoman.trees.simplify import copy_tags, simplify
from dragoman.trees.tree import Leaf, Tree, TreeEvent, build_tree, format_brackets, get_leaves, get_words, iter_events
from dragoman.viz.bar_chart import BarGroup, render_bar_chart

CRAFT = Path(__file__).resolve().parents[3] / "shared" / "data" / "craft"
BANK = """
(TOP (S (NP (DT the) (NN cat)) (VP (VBD saw) (NP (DT a) (NN dog))) (. .)))
(TOP (S (NP (DT a) (NN dog)) (VP (VBD saw) (NP (NP (DT the) (NN cat)) (PP (IN with) (NP (DT a) (NN telescope)))))))
(TOP (S (NP (DT the) (NN dog)) (VP (VBD saw) (NP (DT the) (NN cat)) (PP (IN with) (NP (DT a) (NN telescope))))))
(TOP (S (NP (PRP it)) (VP (VBD slept)) (. .)))
(TOP (NP (NN telescope)))
"""
TREES = [read_tree(line) for line in BANK.strip().splitlines()]
SINGLE_THREAD = ("--intra-threads", "1", "--inter-threads", "1")


def untagged(tree: Tree) -> list[Leaf]:
    return [Leaf(leaf.word, None) for leaf in get_leaves(tree)]


# --- right-branching ---------------------------------------------------------------------------------------------------------


def test_right_branching_tree_leaves_full_stop_outside() -> None:
    sentence = [Leaf("the", "DT"), Leaf("cat", "NN"), Leaf("sat", "VBD"), Leaf(".", ".")]
    assert format_brackets(build_right_branching_tree(sentence)) == "(TOP (S (DT the) (VP (NN cat) (VBD sat)) (. .)))"
    assert format_brackets(build_right_branching_tree(sentence, RightBranchingLabels("FRAG", "NP"), outside_tags=())) == (
        "(TOP (FRAG (DT the) (NP (NN cat) (NP (VBD sat) (. .)))))"
    )


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ([], "(TOP)"),
        ([Leaf("no", "UH")], "(TOP (S (UH no)))"),
        ([Leaf(".", ".")], "(TOP (S (. .)))"),
        ([Leaf(".", "."), Leaf(".", ".")], "(TOP (S (. .) (. .)))"),
        ([Leaf("no", "UH"), Leaf(".", ".")], "(TOP (S (UH no) (. .)))"),
        ([Leaf("oh", None), Leaf("no", None)], "(TOP (S oh no))"),
    ],
)
def test_short_sentences_have_right_branching_trees(sentence: list[Leaf], expected: str) -> None:
    assert format_brackets(build_right_branching_tree(sentence)) == expected


def test_right_branching_trees_hold_exactly_their_words() -> None:
    for length in range(8):
        for tags in itertools.product(("NN", "."), repeat=length):
            sentence = [Leaf(f"w{index}", tag) for index, tag in enumerate(tags)]
            tree = build_right_branching_tree(sentence)
            assert get_leaves(tree) == sentence
            assert build_right_branching_tree(sentence) == build_tree(iter_events(tree))


def test_right_branching_labels_are_the_most_common() -> None:
    # Around sentences: S four times, and one NP of one word. At their ends, before the full stop: NP 4, VP 3, PP 2.
    assert find_most_common_labels(TREES) == RightBranchingLabels("S", "NP")
    assert find_most_common_labels([read_tree("(TOP (X (A a) (Y (A b) (A c)) (. .)))")]) == RightBranchingLabels("X", "Y")
    assert find_most_common_labels([]) == RightBranchingLabels("S", "VP")


def test_right_branching_treebank_is_recovered() -> None:
    bank = [read_tree("(TOP (S (A a) (VP (B b) (VP (C c) (D d))) (. .)))"), read_tree("(TOP (S (A a) (VP (B b) (D d))))")]
    trees = [build_right_branching_tree(get_leaves(tree), find_most_common_labels(bank)) for tree in bank]
    assert sum_scores(score_trees(bank, trees)).f1 == 100.0


# --- the grammar -------------------------------------------------------------------------------------------------------------


def label(name: str, parent: str) -> Symbol:
    return Symbol("label", name, parent)


def test_rule_probabilities_have_a_closed_form() -> None:
    grammar = induce_pcfg(TREES)
    top, sentence = Symbol("label", "TOP", ""), label("S", "TOP")
    assert grammar.root == top
    # TOP → S four times of five; S → NP VP twice of four; S → NP S|NP, S|NP → VP . the other two.
    assert grammar.unary_chains[UnaryRule(top, sentence)][0] == pytest.approx(math.log(4 / 5))
    rest = Symbol("remainder", "S", "TOP", ("NP",))
    assert grammar.binary_rules[BinaryRule(sentence, label("NP", "S"), label("VP", "S"))] == pytest.approx(math.log(2 / 4))
    assert grammar.binary_rules[BinaryRule(sentence, label("NP", "S"), rest)] == pytest.approx(math.log(2 / 4))
    assert grammar.binary_rules[BinaryRule(rest, label("VP", "S"), Symbol("tag", ".", "S"))] == pytest.approx(0.0)
    # Chains multiply: TOP → NP (1/5), then NP → NN (1/1).
    score, chain = grammar.unary_chains[UnaryRule(top, Symbol("tag", "NN", "NP"))]
    assert score == pytest.approx(math.log(1 / 5))
    assert chain == (top, label("NP", "TOP"), Symbol("tag", "NN", "NP"))


@pytest.mark.parametrize(("parents", "siblings"), [(True, 1), (True, 0), (False, 2)])
def test_rules_of_each_symbol_sum_to_one(parents: bool, siblings: int) -> None:
    grammar = induce_pcfg(TREES, parent_annotation=parents, horizontal_order=siblings)
    sums = Counter[Symbol]()
    for rule, score in grammar.binary_rules.items():
        sums[rule.parent] += math.exp(score)  # type: ignore[assignment]
    for ends, (score, chain) in grammar.unary_chains.items():
        if len(chain) == 2:
            sums[ends.parent] += math.exp(score)  # type: ignore[assignment]
    assert set(sums) == {symbol for symbol in grammar.log_prior if symbol.kind != "tag"}
    assert all(value == pytest.approx(1.0) for value in sums.values())
    assert sum(map(math.exp, grammar.log_prior.values())) == pytest.approx(1.0)


def test_unknown_word_is_tagged_by_its_suffix() -> None:
    verbs = [f"(TOP (S (NN x{end}tion) (VBD x{end}ed)))" for end in "abcdefgh"]
    lexicon = induce_pcfg([read_tree(line) for line in verbs]).lexicon
    for word, tag in (("jumped", "VBD"), ("station", "NN")):
        scores = lexicon.score_symbols(word)
        assert max(scores, key=scores.__getitem__).label == tag
    assert {symbol.label for symbol in lexicon.score_symbols("jumped", "NN")} == {"NN"}
    assert {symbol.label for symbol in lexicon.score_symbols("jumped", "never met")} >= {"VBD"}


def test_pcfg_needs_trees() -> None:
    with pytest.raises(ValueError, match="at least one tree"):
        induce_pcfg([])


# --- the chart ---------------------------------------------------------------------------------------------------------------


def derivations(grammar: Grammar, symbol: Symbol, sentence: Sequence[Leaf]) -> Iterator[tuple[float, tuple[TreeEvent, ...]]]:
    """Yield all derivations with at most one unary chain a node, with their scores, by exhaustive search."""
    chains = [(0.0, (symbol,)), *(chain for ends, chain in grammar.unary_chains.items() if ends.parent == symbol)]
    for chain_score, chain in chains:
        labels = [part for part in chain if part.kind == "label"]
        before = tuple(TreeEvent("open", part.label) for part in labels)
        after = tuple(TreeEvent("close", part.label) for part in reversed(labels))
        if chain[-1].kind == "tag":
            if len(sentence) == 1 and (score := grammar.lexicon.score_symbols(*sentence[0]).get(chain[-1])) is not None:
                yield chain_score + score, (*before, TreeEvent("leaf", chain[-1].label, sentence[0].word), *after)
            continue
        for rule, score in grammar.binary_rules.items():
            if rule.parent != chain[-1]:
                continue
            for cut in range(1, len(sentence)):
                for left, left_steps in derivations(grammar, rule.left, sentence[:cut]):
                    for right, right_steps in derivations(grammar, rule.right, sentence[cut:]):
                        yield chain_score + score + left + right, (*before, *left_steps, *right_steps, *after)


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.parametrize(
    "text", ["the cat saw a dog", "it saw the cat with a telescope", "telescope", "it slept .", "a zebra slept"]
)
def test_chart_parse_is_the_best_derivation(text: str, parents: bool) -> None:
    grammar = induce_pcfg(TREES, parent_annotation=parents)
    sentence = [Leaf(word, None) for word in text.split()]
    everything = {
        build_tree(steps): score
        for score, steps in sorted(derivations(grammar, grammar.root, sentence), key=lambda derivation: derivation[0])
    }
    tree = ChartParser(grammar, beam=math.inf).parse(sentence)
    assert tree is not None
    assert everything[tree] == pytest.approx(max(everything.values()))
    assert len(everything) > 1 or text == "telescope"


def test_parent_annotation_attaches_prepositional_phrases() -> None:
    """Check that counts of 2 to 1 attach to the verb: P(VP → VBD NP PP) against P(VP → VBD NP) · P(NP → NP PP)."""
    bank = [*TREES, TREES[2]]
    tree = ChartParser(induce_pcfg(bank)).parse(untagged(TREES[1]))
    assert tree is not None
    assert format_brackets(tree) == format_brackets(TREES[2]).replace("the dog", "a dog").replace(
        "(DT the) (NN dog)", "(DT a) (NN dog)"
    )


def test_unambiguous_grammar_recovers_its_treebank() -> None:
    bank = [TREES[0], *TREES[3:]]
    parser = ChartParser(induce_pcfg(bank))
    assert [parser.parse(get_leaves(tree)) for tree in bank] == bank
    assert [parser.parse(untagged(tree)) for tree in bank] == bank


def test_sentence_without_derivation_has_no_tree() -> None:
    parser = ChartParser(induce_pcfg(TREES))
    assert parser.parse([]) is None
    assert parser.parse([Leaf("saw", "VBD"), Leaf("saw", "VBD")]) is None
    assert parser.parse([Leaf("a", "DT")]) is None


@pytest.mark.parametrize(
    ("bank", "derivable", "not_derivable"),
    [("(TOP (NP (NN a)))", "a", "a b"), ("(TOP (A a) (B b))", "a b", "a")],
    ids=["unary", "binary"],
)
def test_grammar_of_only_unary_or_binary_rules(bank: str, derivable: str, not_derivable: str) -> None:
    parser = ChartParser(induce_pcfg([read_tree(bank)]))
    assert parser.parse([Leaf(word, None) for word in derivable.split()]) == read_tree(bank)
    assert parser.parse([Leaf(word, None) for word in not_derivable.split()]) is None


def test_given_unknown_tags_are_kept() -> None:
    tree = ChartParser(induce_pcfg(TREES)).parse([Leaf("the", "DT"), Leaf("dog", "FW"), Leaf("slept", "VBD")])
    assert tree is not None
    assert get_leaves(tree) == [Leaf("the", "DT"), Leaf("dog", "FW"), Leaf("slept", "VBD")]


def test_pcfg_accepts_deep_trees() -> None:
    depth = 1_000
    deep = read_tree("(TOP " + "(S (A a) " * depth + "(S (A a) (A a))" + ")" * depth + ")")
    assert induce_pcfg([deep]).binary_rules


# --- Table 4 -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "gold.mrg"
    path.write_text(BANK.lstrip(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of a parser with random weights."""
    recipe = make_recipe(
        {
            "preset": "modern",
            "size": "tiny",
            "task": {"kind": "parsing"},
            "data": {"train": {"file": "gold.mrg"}},
            "tokenizer": {"joint": False, "normalization": "identity", "byte_fallback": False},
            "model": {
                "tie_embeddings": "none",
                "encoder_layers": 1,
                "decoder_layers": 1,
                "d_model": 16,
                "d_ff": 32,
                "num_heads": 2,
            },
            "decoding": {"max_extra_tokens": 40},
        }
    )
    labels = collect_labels(TREES, recipe.task)
    source = train_sentencepiece((to_source_text(get_words(tree)) for tree in TREES), recipe.tokenizer, vocab_size=40, seed=1)
    tokenizer = PairTokenizer(source, labels, append_source_eos=recipe.model.append_source_eos)
    torch.manual_seed(2)
    parts = parser_options(recipe)
    model = build_model(recipe.model, source_vocab_size=len(source), target_vocab_size=len(labels), **parts)
    fill_word_tables(model, tokenizer)
    folder = tmp_path_factory.mktemp("parser") / "bundle"
    save_bundle(folder, recipe=recipe, tokenizer=tokenizer, weights=collect_weights(model), metadata=BundleMetadata())
    return folder


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["paper", "table4", *map(str, words)])


def one_line(result: Result) -> str:
    """Return the one line of an error."""
    message = (
        result.stderr.strip() if result.exception is None or isinstance(result.exception, SystemExit) else str(result.exception)
    )
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, (SystemExit, DragomanError))
    return message.splitlines()[-1]


def test_printed_rows_equal_table_4() -> None:
    """Compare with Table 4: WSJ only, semi-supervised, multi-task, generative."""
    assert [row.f1 for row in PAPER_PARSERS] == [88.3, 90.4, 90.4, 91.7, 91.3, 91.3, 91.3, 92.1, 92.1, 92.7, 93.0, 93.3]
    assert [row.f1 for row in PAPER_PARSERS if row.parser.startswith("Transformer")] == [91.3, 92.7]
    result = command()
    assert result.exit_code == 0
    assert "92.7" in result.stdout


def test_scores_use_gold_tags_and_count_failures() -> None:
    bank = SimplifiedTreebank("bank", TREES[:4])
    full_stop = read_tree(format_brackets(TREES[0]).replace("(. .)", "(NN .)"))
    result = score_parses("x", bank, [full_stop, None, *TREES[2:4]], tags="own", seconds=1.0)
    # TREES[1] has 7 of 4 + 7 + 6 + 3 brackets (without TOP and punctuation), and no predicted tree.
    assert (result.failures, result.precision) == (1, 100.0)
    assert result.recall == pytest.approx(100 * 13 / 20)
    assert result.f1 == pytest.approx(200 * 13 / (13 + 20))
    # With its predicted tag, the full stop counts as a word, so that the sentence fails as well.
    assert result.f1_predicted_tags is not None
    assert result.f1_predicted_tags < result.f1
    assert result.tagging == pytest.approx(100 * (5 + 8 + 3) / (6 + 8 + 8 + 3))


def test_baselines_follow_the_printed_rows(gold: Path, tmp_path: Path) -> None:
    picture = tmp_path / "table4.svg"
    result = command("--gold", gold, "--train", gold, "--json", "-o", picture)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    right = score_trees(TREES, [build_right_branching_tree(get_leaves(tree), find_most_common_labels(TREES)) for tree in TREES])
    grammar = ChartParser(induce_pcfg(TREES))
    counted = score_trees(TREES, [grammar.parse(get_leaves(tree)) for tree in TREES])
    figures = {(row["parser"], row["tags"]): row["f1"] for row in document["results"]}
    assert figures[("right-branching", "gold")] == pytest.approx(sum_scores(right).f1)
    assert figures[("PCFG", "gold")] == pytest.approx(sum_scores(counted).f1)
    assert figures[("PCFG", "own")] > 80.0
    assert document["train_trees"] == len(TREES)
    drawn = ElementTree.parse(picture).getroot()
    bars = [rect for rect in drawn.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class", "").startswith("bar")]
    assert len(bars) == len(PAPER_PARSERS) + len(LATER_PARSERS) + 3
    assert float(bars[-1].get("width", "")) / float(bars[0].get("width", "")) == pytest.approx(
        figures[("PCFG", "own")] / 88.3, abs=1e-3
    )


def test_row_of_a_bundle_equals_parse_and_evalb(gold: Path, parser: Path, tmp_path: Path) -> None:
    text, parsed = tmp_path / "text.txt", tmp_path / "parsed.mrg"
    text.write_text("".join(" ".join(get_words(tree)) + "\n" for tree in TREES))
    with on_one_core():
        row = json.loads(command("--gold", gold, "--bundle", parser, "--no-baselines", "--json", "beam_size=2").stdout)[
            "results"
        ]
        assert (
            CliRunner()
            .invoke(cli, ["parse", str(parser), str(text), *SINGLE_THREAD, "beam_size=2", "-o", str(parsed)])
            .exit_code
            == 0
        )
    scores = json.loads(CliRunner().invoke(cli, ["evalb", str(gold), str(parsed), "--gold-tags", "--json"]).stdout)
    assert [result["f1"] for result in row] == [pytest.approx(scores["failures_zero"]["all"]["f1"])]
    assert (row[0]["tags"], row[0]["failures"], row[0]["repaired"]) == ("own", 0, 0)


def test_unconstrained_parses_are_repaired_and_counted(gold: Path, parser: Path) -> None:
    with on_one_core():
        result = command("--gold", gold, "--bundle", parser, "--no-baselines", "--unconstrained", "beam_size=1")
    assert result.exit_code == 0, result.output
    assert "unconstrained: 5 of 5 trees were malformed and are repaired" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bundle", "b"], "--gold FILE"),
        (["--run", "r", "--gold", "g"], "--run gives bundle, gold and training trees"),
        (["beam_size=4"], "'beam_size=4' is an option of a bundle's search; give --bundle or --run"),
        (["--unconstrained"], "--unconstrained needs a bundle; give --bundle or --run"),
        (["--gold", "g", "--train", "t", "--no-baselines"], "--train is for the baselines"),
        (["--gold", "g", "--no-baselines"], "--no-baselines leaves nothing to score"),
        (["--gold", "missing.mrg"], "missing.mrg"),
        (["--run", "missing"], "no recipe.json"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], message: str) -> None:
    assert message in one_line(command(*arguments))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no tree"),
        ("(S (NP (-NONE- *)))\n", "line 1: the tree has no words"),
        (f"{format_brackets(TREES[0])}\n(S (A a) b)\n", "line 2: the word 'b' has no tag"),
        ("(S (A a)\n", "line 1: the tree that begins here has 1 brackets that never close"),
    ],
)
def test_invalid_trees_are_named_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text)
    line = one_line(command("--gold", path))
    assert message in line
    assert "bad.mrg" in line


def test_bundles_and_options_are_checked_before_parsing(
    gold: Path, parser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.paper.table4.score_baselines", None)  # a call would raise a TypeError
    arguments = ("--gold", gold, "--bundle", parser)
    assert "none" in one_line(command(*arguments, "--bundle", tmp_path / "none"))
    assert "beam_sise" in one_line(command(*arguments, "beam_sise=2"))


def test_table_is_printed_before_a_write_error(gold: Path, tmp_path: Path) -> None:
    result = command("--gold", gold, "--json", "-o", tmp_path / "none" / "table4.svg")
    assert "table4.svg" in one_line(result)
    assert [row["parser"] for row in json.loads(result.stdout)["results"]] == ["right-branching"]


def test_run_must_be_a_finished_parser_run(tmp_path: Path) -> None:
    for task, message in (("translation", "is a run of translation"), ("parsing", "has no bundle to parse with")):
        files = {"file": "x.mrg" if task == "parsing" else "x.tsv"}
        recipe = make_recipe(
            {
                "task": {"kind": task},
                "data": {"train": files},
                "tokenizer": {"joint": False, "normalization": "identity"},
                "model": {"tie_embeddings": "none"},
            }
        )
        (tmp_path / task).mkdir()
        (tmp_path / task / "recipe.json").write_text(recipe.model_dump_json())
        assert message in one_line(command("--run", tmp_path / task))


def test_run_gives_bundle_test_and_training_files(parser: Path, gold: Path, tmp_path: Path) -> None:
    document = read_config(parser)[0].model_dump(mode="json")
    document["data"] |= {"root": str(gold.parent), "valid": {"file": "valid.mrg"}}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    shutil.copytree(parser, tmp_path / "bundle")
    assert find_run_files(tmp_path) == (tmp_path / "bundle", [gold.parent / "valid.mrg"], [gold])
    document["data"]["test"] = {"file": "test.mrg"}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    assert find_run_files(tmp_path)[1] == [gold.parent / "test.mrg"]


def test_bar_chart_needs_a_bar() -> None:
    with pytest.raises(ValueError, match="needs a bar"):
        render_bar_chart([BarGroup("none", [])], title="t", x_label="x")


# --- self-training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "reason"),
    [
        (Parse(("a",), TREES[0], token_log_probs=(-0.1, -0.3)), None),
        (Parse(("a",), TREES[0], token_log_probs=(-0.1, -0.31)), "low_confidence"),
        (Parse(("a",), TREES[0], token_log_probs=(-0.1,), status="repaired"), "repaired"),
        (Parse((), status="empty"), "empty"),
    ],
)
def test_confidence_filter_rejects_uncertain_parses(parse: Parse, reason: str | None) -> None:
    assert ConfidenceFilter(-0.2).find_rejection(parse) == reason


def test_thresholds_keep_the_most_confident_parses() -> None:
    """Check four sentences, of which the two most confident are correct: F1 is 100 for these and 0 for the others."""
    wrong = read_tree("(TOP (X (UH it) (UH slept) (. .)))")
    scores = score_trees([TREES[3]] * 4, [TREES[3], wrong, TREES[3], None])
    half, whole = evaluate_thresholds([-0.1, -0.5, -0.2, -0.9], scores, fractions=(0.5, 1.0))
    assert (half.fraction, half.min_mean_log_prob, half.num_sentences, half.f1, half.f1_rejected) == (0.5, -0.2, 2, 100.0, 0.0)
    assert (whole.num_sentences, whole.min_mean_log_prob, whole.f1) == (4, -0.9, sum_scores(scores).f1)


def test_parse_min_score_keeps_confident_lines(parser: Path, tmp_path: Path) -> None:
    text, silver = tmp_path / "raw.txt", tmp_path / "silver.mrg"
    text.write_text("the cat saw a dog .\n\nit slept .\ntelescope\na dog saw it\n")
    with on_one_core():
        whole = CliRunner().invoke(cli, ["parse", str(parser), str(text), *SINGLE_THREAD, "--json"]).stdout
        confidences = [compute_mean_log_prob(line["token_log_probs"]) for line in map(json.loads, whole.splitlines())]
        min_score = sorted(confidences)[-2]
        result = CliRunner().invoke(
            cli, ["parse", str(parser), str(text), *SINGLE_THREAD, "--min-score", str(min_score), "-o", str(silver)]
        )
    assert result.exit_code == 0, result.output
    assert "kept 2 of 5 lines" in result.stderr
    kept = [bool(line) for line in silver.read_text().split("\n")[:-1]]
    assert kept == [confidence >= min_score for confidence in confidences]
    corpus = CorpusConfig(file="silver.mrg", weight=1)
    sources = [line for line, is_kept in zip(text.read_text().splitlines(), kept, strict=True) if is_kept]
    assert [pair.source for pair in read_pairs(corpus, tmp_path)] == sources


@pytest.mark.slow
def test_pcfg_of_craft_has_expected_f1() -> None:
    """Check 140 dev trees of up to 40 words. Klein and Manning (2003) have 77 to 78 on WSJ with such a grammar."""
    if not CRAFT.is_dir():
        pytest.skip("the treebank CRAFT is missing")
    train, dev = (
        [simplify(record.tree, root="top") for record in read_trees(CRAFT / f"{name}.tsv.gz")] for name in ("train", "dev")
    )
    sample = [tree for tree in dev[::17] if len(get_words(tree)) <= 40]
    parser, labels = ChartParser(induce_pcfg(train)), find_most_common_labels(train)
    right = [build_right_branching_tree(get_leaves(tree), labels) for tree in sample]
    with_tags = [parser.parse(get_leaves(tree)) for tree in sample]
    without = [parser.parse(untagged(tree)) for tree in sample]
    scores = [
        sum_scores(score_trees(sample, copy_tags(sample, [tree or Tree("TOP", ()) for tree in predicted]))).f1
        for predicted in (right, with_tags, without)
    ]
    assert scores[0] < 20.0
    assert scores[1] > 75.0
    assert 72.0 < scores[2] < scores[1]
