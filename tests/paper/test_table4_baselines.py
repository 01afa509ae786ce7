"""Baselines of parsing: the tree without looking, a grammar that was counted, the best tree in a chart; and Table 4."""

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
from dragoman.bundle import collect_weights, read_config, save_bundle
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
ALONE = ("--threads", "1", "--replicas", "1")


def untagged(tree: Tree) -> list[Leaf]:
    return [Leaf(leaf.word, None) for leaf in get_leaves(tree)]


# --- right-branching ---------------------------------------------------------------------------------------------------------


def test_a_right_branching_tree_closes_at_the_end_and_leaves_the_full_stop_outside() -> None:
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
def test_short_sentences_have_right_branching_trees_too(sentence: list[Leaf], expected: str) -> None:
    assert format_brackets(build_right_branching_tree(sentence)) == expected


def test_right_branching_trees_hold_exactly_the_words_of_any_sentence() -> None:
    for length in range(8):
        for tags in itertools.product(("NN", "."), repeat=length):
            sentence = [Leaf(f"w{place}", tag) for place, tag in enumerate(tags)]
            tree = build_right_branching_tree(sentence)
            assert get_leaves(tree) == sentence
            assert build_right_branching_tree(sentence) == build_tree(iter_events(tree))


def test_labels_of_right_branching_trees_are_the_commonest_of_such_brackets() -> None:
    # Around sentences: S four times, and one NP of one word. At their ends, before the full stop: NP 4, VP 3, PP 2.
    assert find_most_common_labels(TREES) == RightBranchingLabels("S", "NP")
    assert find_most_common_labels([read_tree("(TOP (X (A a) (Y (A b) (A c)) (. .)))")]) == RightBranchingLabels("X", "Y")
    assert find_most_common_labels([]) == RightBranchingLabels("S", "VP")


def test_a_treebank_that_branches_to_the_right_is_found_whole() -> None:
    bank = [read_tree("(TOP (S (A a) (VP (B b) (VP (C c) (D d))) (. .)))"), read_tree("(TOP (S (A a) (VP (B b) (D d))))")]
    found = [build_right_branching_tree(get_leaves(tree), find_most_common_labels(bank)) for tree in bank]
    assert sum_scores(score_trees(bank, found)).f1 == 100.0


# --- the grammar -------------------------------------------------------------------------------------------------------------


def label(name: str, parent: str) -> Symbol:
    return Symbol("label", name, parent)


def test_rules_have_their_share_of_counts_in_closed_form() -> None:
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
    score, way = grammar.unary_chains[UnaryRule(top, Symbol("tag", "NN", "NP"))]
    assert score == pytest.approx(math.log(1 / 5))
    assert way == (top, label("NP", "TOP"), Symbol("tag", "NN", "NP"))


@pytest.mark.parametrize(("parents", "siblings"), [(True, 1), (True, 0), (False, 2)])
def test_the_rules_of_each_symbol_sum_to_one(parents: bool, siblings: int) -> None:
    grammar = induce_pcfg(TREES, parent_annotation=parents, horizontal_order=siblings)
    sums = Counter[Symbol]()
    for rule, score in grammar.binary_rules.items():
        sums[rule.parent] += math.exp(score)  # type: ignore[assignment]
    for ends, (score, way) in grammar.unary_chains.items():
        if len(way) == 2:
            sums[ends.parent] += math.exp(score)  # type: ignore[assignment]
    assert set(sums) == {symbol for symbol in grammar.log_prior if symbol.kind != "tag"}
    assert all(value == pytest.approx(1.0) for value in sums.values())
    assert sum(map(math.exp, grammar.log_prior.values())) == pytest.approx(1.0)


def test_a_word_never_met_is_tagged_by_its_ending() -> None:
    verbs = [f"(TOP (S (NN x{end}tion) (VBD x{end}ed)))" for end in "abcdefgh"]
    lexicon = induce_pcfg([read_tree(line) for line in verbs]).lexicon
    for word, tag in (("jumped", "VBD"), ("station", "NN")):
        scores = lexicon.score_symbols(word)
        assert max(scores, key=scores.__getitem__).label == tag
    assert {symbol.label for symbol in lexicon.score_symbols("jumped", "NN")} == {"NN"}
    assert {symbol.label for symbol in lexicon.score_symbols("jumped", "never met")} >= {"VBD"}


def test_learning_from_no_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="needs trees"):
        induce_pcfg([])


# --- the chart ---------------------------------------------------------------------------------------------------------------


def derivations(grammar: Grammar, symbol: Symbol, sentence: Sequence[Leaf]) -> Iterator[tuple[float, tuple[TreeEvent, ...]]]:
    """Every derivation of at most one chain a place, by trying everything: what the chart's best is compared with."""
    ways = [(0.0, (symbol,)), *(found for ends, found in grammar.unary_chains.items() if ends.parent == symbol)]
    for worth, way in ways:
        opened = [one for one in way if one.kind == "label"]
        before = tuple(TreeEvent("open", one.label) for one in opened)
        after = tuple(TreeEvent("close", one.label) for one in reversed(opened))
        if way[-1].kind == "tag":
            if len(sentence) == 1 and (score := grammar.lexicon.score_symbols(*sentence[0]).get(way[-1])) is not None:
                yield worth + score, (*before, TreeEvent("leaf", way[-1].label, sentence[0].word), *after)
            continue
        for rule, score in grammar.binary_rules.items():
            if rule.parent != way[-1]:
                continue
            for cut in range(1, len(sentence)):
                for left, left_steps in derivations(grammar, rule.left, sentence[:cut]):
                    for right, right_steps in derivations(grammar, rule.right, sentence[cut:]):
                        yield worth + score + left + right, (*before, *left_steps, *right_steps, *after)


@pytest.mark.parametrize("parents", [True, False])
@pytest.mark.parametrize(
    "text", ["the cat saw a dog", "it saw the cat with a telescope", "telescope", "it slept .", "a zebra slept"]
)
def test_the_chart_s_tree_is_the_best_of_all_derivations(text: str, parents: bool) -> None:
    grammar = induce_pcfg(TREES, parent_annotation=parents)
    sentence = [Leaf(word, None) for word in text.split()]
    everything = {
        build_tree(steps): score
        for score, steps in sorted(derivations(grammar, grammar.root, sentence), key=lambda one: one[0])
    }
    found = ChartParser(grammar, beam=math.inf).parse(sentence)
    assert found is not None
    assert everything[found] == pytest.approx(max(everything.values()))
    assert len(everything) > 1 or text == "telescope"


def test_parents_tell_where_a_prepositional_phrase_goes() -> None:
    """The counts are 2 to 1 for the verb's: P(VP → VBD NP PP) against P(VP → VBD NP) · P(NP → NP PP)."""
    bank = [*TREES, TREES[2]]
    found = ChartParser(induce_pcfg(bank)).parse(untagged(TREES[1]))
    assert found is not None
    assert format_brackets(found) == format_brackets(TREES[2]).replace("the dog", "a dog").replace(
        "(DT the) (NN dog)", "(DT a) (NN dog)"
    )


def test_a_grammar_without_ambiguity_gives_its_treebank_back_with_tags_given_or_found() -> None:
    bank = [TREES[0], *TREES[3:]]
    parser = ChartParser(induce_pcfg(bank))
    assert [parser.parse(get_leaves(tree)) for tree in bank] == bank
    assert [parser.parse(untagged(tree)) for tree in bank] == bank


def test_where_no_rule_leads_there_is_no_tree() -> None:
    parser = ChartParser(induce_pcfg(TREES))
    assert parser.parse([]) is None
    assert parser.parse([Leaf("saw", "VBD"), Leaf("saw", "VBD")]) is None
    assert parser.parse([Leaf("a", "DT")]) is None


@pytest.mark.parametrize(
    ("bank", "there", "not_there"),
    [("(TOP (NP (NN a)))", "a", "a b"), ("(TOP (A a) (B b))", "a b", "a")],
    ids=["unary", "binary"],
)
def test_grammars_of_one_kind_of_rule_work(bank: str, there: str, not_there: str) -> None:
    parser = ChartParser(induce_pcfg([read_tree(bank)]))
    assert parser.parse([Leaf(word, None) for word in there.split()]) == read_tree(bank)
    assert parser.parse([Leaf(word, None) for word in not_there.split()]) is None


def test_tags_that_were_given_stay_even_if_never_met() -> None:
    found = ChartParser(induce_pcfg(TREES)).parse([Leaf("the", "DT"), Leaf("dog", "FW"), Leaf("slept", "VBD")])
    assert found is not None
    assert get_leaves(found) == [Leaf("the", "DT"), Leaf("dog", "FW"), Leaf("slept", "VBD")]


def test_deep_trees_are_learnt_from() -> None:
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
    """A bundle that parses, with random weights."""
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
    tokeniser = PairTokenizer(source, labels, append_source_eos=recipe.model.append_source_eos)
    torch.manual_seed(2)
    parts = parser_options(recipe)
    model = build_model(recipe.model, source_vocab_size=len(source), target_vocab_size=len(labels), **parts)
    fill_word_tables(model, tokeniser)
    folder = tmp_path_factory.mktemp("parser") / "bundle"
    save_bundle(folder, recipe=recipe, tokenizer=tokeniser, weights=collect_weights(model), metadata={})
    return folder


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["paper", "table4", *map(str, words)])


def one_line(result: Result) -> str:
    """What a user is told of a mistake, on one line."""
    told = (
        result.stderr.strip() if result.exception is None or isinstance(result.exception, SystemExit) else str(result.exception)
    )
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, (SystemExit, DragomanError))
    return told.splitlines()[-1]


def test_the_printed_rows_are_the_paper_s() -> None:
    """Table 4: WSJ only; semi-supervised; multi-task; generative."""
    assert [row.f1 for row in PAPER_PARSERS] == [88.3, 90.4, 90.4, 91.7, 91.3, 91.3, 91.3, 92.1, 92.1, 92.7, 93.0, 93.3]
    assert [row.f1 for row in PAPER_PARSERS if row.parser.startswith("Transformer")] == [91.3, 92.7]
    result = command()
    assert result.exit_code == 0
    assert "92.7" in result.stdout


def test_scores_put_gold_tags_in_and_count_what_failed_as_zero() -> None:
    bank = SimplifiedTreebank("bank", TREES[:4])
    full_stop = read_tree(format_brackets(TREES[0]).replace("(. .)", "(NN .)"))
    found = score_parses("x", bank, [full_stop, None, *TREES[2:4]], tags="own", seconds=1.0)
    # TREES[1] has 7 of 4 + 7 + 6 + 3 brackets (TOP and punctuation aside), and nothing stands in their place.
    assert (found.failures, found.precision) == (1, 100.0)
    assert found.recall == pytest.approx(100 * 13 / 20)
    assert found.f1 == pytest.approx(200 * 13 / (13 + 20))
    # With its own tag, the full stop is a word that counts, and the sentence fails, too.
    assert found.f1_predicted_tags is not None
    assert found.f1_predicted_tags < found.f1
    assert found.tagging == pytest.approx(100 * (5 + 8 + 3) / (6 + 8 + 8 + 3))


def test_baselines_stand_beside_the_printed_rows(gold: Path, tmp_path: Path) -> None:
    picture = tmp_path / "table4.svg"
    result = command("--gold", gold, "--train", gold, "--json", "-o", picture)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    right = score_trees(TREES, [build_right_branching_tree(get_leaves(tree), find_most_common_labels(TREES)) for tree in TREES])
    grammar = ChartParser(induce_pcfg(TREES))
    counted = score_trees(TREES, [grammar.parse(get_leaves(tree)) for tree in TREES])
    figures = {(one["parser"], one["tags"]): one["f1"] for one in told["results"]}
    assert figures[("right-branching", "gold")] == pytest.approx(sum_scores(right).f1)
    assert figures[("PCFG", "gold")] == pytest.approx(sum_scores(counted).f1)
    assert figures[("PCFG", "own")] > 80.0
    assert told["train_trees"] == len(TREES)
    drawn = ElementTree.parse(picture).getroot()
    bars = [one for one in drawn.iter("{http://www.w3.org/2000/svg}rect") if one.get("class", "").startswith("bar")]
    assert len(bars) == len(PAPER_PARSERS) + len(LATER_PARSERS) + 3
    assert float(bars[-1].get("width", "")) / float(bars[0].get("width", "")) == pytest.approx(
        figures[("PCFG", "own")] / 88.3, abs=1e-3
    )


def test_a_bundle_s_row_is_what_parse_and_evalb_say(gold: Path, parser: Path, tmp_path: Path) -> None:
    text, parsed = tmp_path / "text.txt", tmp_path / "parsed.mrg"
    text.write_text("".join(" ".join(get_words(tree)) + "\n" for tree in TREES))
    with on_one_core():
        row = json.loads(command("--gold", gold, "--bundle", parser, "--no-baselines", "--json", "beam_size=2").stdout)[
            "results"
        ]
        assert (
            CliRunner().invoke(cli, ["parse", str(parser), str(text), *ALONE, "beam_size=2", "-o", str(parsed)]).exit_code == 0
        )
    scores = json.loads(CliRunner().invoke(cli, ["evalb", str(gold), str(parsed), "--gold-tags", "--json"]).stdout)
    assert [one["f1"] for one in row] == [pytest.approx(scores["failures_zero"]["all"]["f1"])]
    assert (row[0]["tags"], row[0]["failures"], row[0]["mended"]) == ("own", 0, 0)


def test_free_search_is_mended_and_told(gold: Path, parser: Path) -> None:
    with on_one_core():
        result = command("--gold", gold, "--bundle", parser, "--no-baselines", "--unconstrained", "beam_size=1")
    assert result.exit_code == 0, result.output
    assert "unconstrained: 5 of 5 trees were malformed, and mended" in result.stdout


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--bundle", "b"], "--gold FILE"),
        (["--run", "r", "--gold", "g"], "--run names bundle, gold and training trees by itself"),
        (["beam_size=4"], "'beam_size=4' changes how a bundle searches; give --bundle or --run"),
        (["--unconstrained"], "--unconstrained is a bundle's; give --bundle or --run"),
        (["--gold", "g", "--train", "t", "--no-baselines"], "--train is for the baselines"),
        (["--gold", "g", "--no-baselines"], "--no-baselines leaves nothing to score"),
        (["--gold", "missing.mrg"], "missing.mrg"),
        (["--run", "missing"], "no recipe.json"),
    ],
)
def test_wrong_use_is_told_in_one_line(given: list[str], told: str) -> None:
    assert told in one_line(command(*given))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no tree"),
        ("(S (NP (-NONE- *)))\n", "line 1: a tree without words"),
        (f"{format_brackets(TREES[0])}\n(S (A a) b)\n", "line 2: the word 'b' stands in its bracket without a tag"),
        ("(S (A a)\n", "line 1: the tree that begins here has 1 brackets that never close"),
    ],
)
def test_trees_that_cannot_be_scored_are_told_with_file_and_line(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text)
    line = one_line(command("--gold", path))
    assert told in line
    assert "bad.mrg" in line


def test_all_bundles_and_knobs_are_looked_at_before_anything_is_parsed(
    gold: Path, parser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.paper.table4.baselines", None)  # which to call would be a traceback
    one = ("--gold", gold, "--bundle", parser)
    assert "none" in one_line(command(*one, "--bundle", tmp_path / "none"))
    assert "beam_sise" in one_line(command(*one, "beam_sise=2"))


def test_a_table_whose_picture_cannot_be_written_is_seen(gold: Path, tmp_path: Path) -> None:
    result = command("--gold", gold, "--json", "-o", tmp_path / "none" / "table4.svg")
    assert "table4.svg" in one_line(result)
    assert [one["parser"] for one in json.loads(result.stdout)["results"]] == ["right-branching"]


def test_a_run_needs_to_be_a_parser_s_and_at_its_end(tmp_path: Path) -> None:
    for task, told in (("translation", "is a run of translation"), ("parsing", "has no bundle to parse with")):
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
        assert told in one_line(command("--run", tmp_path / task))


def test_a_run_names_its_bundle_its_test_trees_and_what_it_learnt_from(parser: Path, gold: Path, tmp_path: Path) -> None:
    document = read_config(parser)[0].model_dump(mode="json")
    document["data"] |= {"root": str(gold.parent), "valid": {"file": "valid.mrg"}}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    shutil.copytree(parser, tmp_path / "bundle")
    assert find_run_files(tmp_path) == (tmp_path / "bundle", [gold.parent / "valid.mrg"], [gold])
    document["data"]["test"] = {"file": "test.mrg"}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    assert find_run_files(tmp_path)[1] == [gold.parent / "test.mrg"]


def test_a_chart_needs_a_bar() -> None:
    with pytest.raises(ValueError, match="needs a bar"):
        render_bar_chart([BarGroup("none", [])], title="t", x_label="x")


# --- learning from one's own trees -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "doubt"),
    [
        (Parse(("a",), TREES[0], token_log_probs=(-0.1, -0.3)), None),
        (Parse(("a",), TREES[0], token_log_probs=(-0.1, -0.31)), "low_confidence"),
        (Parse(("a",), TREES[0], token_log_probs=(-0.1,), status="mended"), "mended"),
        (Parse((), status="empty"), "empty"),
    ],
)
def test_what_is_not_sure_is_not_learnt_from(parse: Parse, doubt: str | None) -> None:
    assert ConfidenceFilter(-0.2).find_rejection(parse) == doubt


def test_thresholds_keep_the_surest_and_say_what_they_are_worth() -> None:
    """Four sentences, the surest two right: F1 100 of them; of the others 0."""
    wrong = read_tree("(TOP (X (UH it) (UH slept) (. .)))")
    scores = score_trees([TREES[3]] * 4, [TREES[3], wrong, TREES[3], None])
    half, whole = evaluate_thresholds([-0.1, -0.5, -0.2, -0.9], scores, fractions=(0.5, 1.0))
    assert (half.fraction, half.min_mean_log_prob, half.num_sentences, half.f1, half.f1_rejected) == (0.5, -0.2, 2, 100.0, 0.0)
    assert (whole.num_sentences, whole.min_mean_log_prob, whole.f1) == (4, -0.9, sum_scores(scores).f1)


def test_parse_keeps_the_lines_that_it_is_sure_of_for_a_recipe_to_learn_from(parser: Path, tmp_path: Path) -> None:
    text, silver = tmp_path / "raw.txt", tmp_path / "silver.mrg"
    text.write_text("the cat saw a dog .\n\nit slept .\ntelescope\na dog saw it\n")
    with on_one_core():
        whole = CliRunner().invoke(cli, ["parse", str(parser), str(text), *ALONE, "--json"]).stdout
        sure = [compute_mean_log_prob(told["token_log_probs"]) for told in map(json.loads, whole.splitlines())]
        least = sorted(sure)[-2]
        result = CliRunner().invoke(
            cli, ["parse", str(parser), str(text), *ALONE, "--min-score", str(least), "-o", str(silver)]
        )
    assert result.exit_code == 0, result.output
    assert "kept 2 of 5 lines" in result.stderr
    kept = [bool(line) for line in silver.read_text().split("\n")[:-1]]
    assert kept == [one >= least for one in sure]
    corpus = CorpusConfig(file="silver.mrg", weight=1)
    sources = [line for line, there in zip(text.read_text().splitlines(), kept, strict=True) if there]
    assert [pair.source for pair in read_pairs(corpus, tmp_path)] == sources


@pytest.mark.slow
def test_the_grammar_of_craft_parses_it() -> None:
    """A sample of 140 dev trees of up to 40 words: Klein and Manning (2003) have 77 to 78 on WSJ for such a grammar."""
    if not CRAFT.is_dir():
        pytest.skip("the treebank CRAFT is not here")
    train, dev = ([simplify(one.tree, root="top") for one in read_trees(CRAFT / f"{name}.tsv.gz")] for name in ("train", "dev"))
    sample = [tree for tree in dev[::17] if len(get_words(tree)) <= 40]
    parser, labels = ChartParser(induce_pcfg(train)), find_most_common_labels(train)
    right = [build_right_branching_tree(get_leaves(tree), labels) for tree in sample]
    with_tags = [parser.parse(get_leaves(tree)) for tree in sample]
    without = [parser.parse(untagged(tree)) for tree in sample]
    scores = [
        sum_scores(score_trees(sample, copy_tags(sample, [one or Tree("TOP", ()) for one in found]))).f1
        for found in (right, with_tags, without)
    ]
    assert scores[0] < 20.0
    assert scores[1] > 75.0
    assert 72.0 < scores[2] < scores[1]
