"""Training of parsers: labels, the pointer, the tag head, and whole runs."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.bundle import load_bundle
from dragoman.config import ModelConfig, Recipe, TaskConfig, make_recipe
from dragoman.data.collate import collate
from dragoman.data.prepare import prepare
from dragoman.data.tokenization.pair_tokenizer import LABELS_FILE
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer, train_sentencepiece
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.parsing.evalb.scorer import score_files, sum_scores
from dragoman.parsing.sentence_parser import SentenceParser, score_parses
from dragoman.parsing.tree_labels import XX_ID, collect_labels, read_labels, to_source_text
from dragoman.parsing.trees.linearization import LINEARIZATION_NAMES
from dragoman.parsing.trees.ptb import format_tree, read_tree
from dragoman.parsing.trees.repair import repair_tree
from dragoman.parsing.trees.tree import get_leaves
from dragoman.torch_engine.forced_decoder import TorchForcedDecoder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.losses.label_smoothing import batch_loss, pos_tag_loss
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.training.run import train
from expected_errors import raises_code
from tiny_runs import NO_DROPOUT, on_one_core

CAT = "(S (NP (DT the) (NN cat)) (VP (VBD sat)) (. .))"
WORDS = {
    "DT": ["the", "a", "this", "every"],
    "JJ": ["big", "small", "red", "old"],
    "NN": ["cat", "dog", "tree", "parser", "bird", "house"],
    "IN": ["in", "on", "under", "near"],
    "VBZ": ["sees", "likes", "eats", "finds"],
}
SPLITS = {"train": 400, "valid": 30, "test": 30}

pytestmark = pytest.mark.usefixtures("one_core")


def sentence(rng: random.Random) -> str:
    """Return a tree of a small grammar, with function tags, a trace and an unlabeled root, as in the Penn Treebank."""

    def word(tag: str) -> str:
        return f"({tag} {rng.choice(WORDS[tag])})"

    def phrase(depth: int) -> str:
        adjective = f"{word('JJ')} " if rng.random() < 0.4 else ""
        noun = f"(NP {word('DT')} {adjective}{word('NN')})"
        return f"(NP {noun} (PP-LOC {word('IN')} {phrase(depth + 1)}))" if depth < 2 and rng.random() < 0.3 else noun

    return f"( (S {phrase(0)} (VP {word('VBZ')} {phrase(0)} (ADVP (-NONE- *T*-1))) (. .)) )"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("treebank")
    rng = random.Random(1)
    for name, size in SPLITS.items():
        (folder / f"{name}.mrg").write_text("".join(sentence(rng) + "\n" for _ in range(size)))
    return folder


Make = Callable[..., Recipe]


@pytest.fixture(scope="module")
def parsing(treebank: Path) -> Make:
    """Return a function from a run folder and "section.key=value" settings to a tiny recipe over the grammar's trees."""

    def make(run: Path, *changes: str) -> Recipe:
        document: dict[str, Any] = {
            "name": "trees",
            "run": str(run),
            "preset": "modern",
            "size": "tiny",
            "task": {"kind": "parsing"},
            "data": {"root": str(treebank), **{name: {"file": f"{name}.mrg"} for name in SPLITS}, "max_length": 120},
            "tokenizer": {"joint": False, "vocab_size": 90, "byte_fallback": False, "normalization": "identity"},
            "model": {
                "tie_embeddings": "decoder",
                "pointer": True,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "d_model": 32,
                "d_ff": 64,
                "num_heads": 2,
            },
            "training": {
                "precision": "float32",
                "batch_tokens": 1000,
                "max_steps": 60,
                "schedule": "inverse_sqrt",
                "peak_lr": 5e-3,
                "warmup_steps": 30,
                "log_every_steps": 20,
                "validate_every_steps": 30,
                "num_validation_translations": 10,
                "checkpoint_every_steps": 30,
                "num_averaged_checkpoints": 1,
            },
            "decoding": {"beam_size": 2, "max_extra_tokens": 100},
        }
        return make_recipe(document, [*NO_DROPOUT, *changes])

    return make


@pytest.fixture(scope="module")
def run(parsing: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short run; tests do not write into it."""
    folder = tmp_path_factory.mktemp("parser") / "run"
    with on_one_core():
        train(parsing(folder, "training.best_metric=f1"))
    return folder


# Labels


@pytest.mark.parametrize("linearization", LINEARIZATION_NAMES)
def test_labels_encode_tree_and_tags(linearization: Any) -> None:
    """The ids are the linearization of the tree, with tags at the words."""
    task = TaskConfig(
        kind="parsing", linearization=linearization, pos_tags="sequence" if linearization == "tensor2tensor" else "head"
    )
    trees = [read_tree(sentence(random.Random(seed))) for seed in range(20)] + [
        read_tree("(NN word)"),
        read_tree("(NP (JJ x) y)"),
    ]
    labels = collect_labels(trees[:-1] if linearization == "tensor2tensor" else trees, task)
    again = read_labels(labels.serialized_model, name="labels.json")
    assert (again.tokens, again.shift_ids, again.hidden_ids) == (labels.tokens, labels.shift_ids, labels.hidden_ids)
    assert labels.tokens[:5] == ["<pad>", "<unk>", "<s>", "</s>", "XX"]
    for tree in map(labels.normalize, trees[:-1]):
        words = [leaf.word for leaf in get_leaves(tree)]
        ids = labels.encode_tree(tree)
        tags_of_ids = [labels.tokens[index] for index in ids if index in labels.shift_ids]
        assert tags_of_ids == [leaf.tag for leaf in get_leaves(tree)]
        tags = None if linearization == "tensor2tensor" else tags_of_ids
        assert repair_tree(labels.linearization, labels.ids_to_pieces(labels.hide_tags(ids)), words, tags).tree == tree
        assert labels.encode(labels.decode(ids)) == ids
        assert not set(labels.hide_tags(ids)) & set(labels.hidden_ids)


def test_unknown_labels_are_counted() -> None:
    labels = collect_labels([read_tree(CAT)], TaskConfig(kind="parsing"))
    unknown = Counter[str]()
    ids = labels.encode_tree(read_tree("(S (QP (CD two) (NN x)) (. .))"), unknown)
    tokens = ["(S", "<unk>", "XX", "NN", "<unk>", ".", ")S"]
    assert (labels.ids_to_pieces(ids), dict(unknown)) == (tokens, {"QP": 1, "CD": 1})
    assert ids[1] == UNKNOWN_ID
    assert ids[2] == XX_ID


def test_damaged_labels_raise_error(subtests: pytest.Subtests) -> None:
    for written in [
        "",
        "[]",
        '{"linearization": "typed"}',
        '{"linearization": "odd", "functions": "strip", "traces": "strip", "brackets": ["S"], "tags": []}',
        '{"linearization": "typed", "functions": "strip", "traces": "strip", "brackets": [1], "tags": []}',
        "[" * 100_000,
    ]:
        with subtests.test(written=written), raises_code("tokenizer-damaged", "labels.json"):
            read_labels(written.encode(), name="labels.json")


@pytest.fixture(scope="module")
def pieces() -> SentencePieceTokenizer:
    texts = [" ".join(leaf.word for leaf in get_leaves(read_tree(sentence(random.Random(seed))))) for seed in range(200)]
    config = make_recipe({"tokenizer": {"normalization": "identity"}}).tokenizer
    return train_sentencepiece(texts, config, vocab_size=350, seed=1)


@settings(max_examples=40, deadline=None, database=None)
@given(
    words=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), min_size=1, max_size=6), alpha=st.floats(0, 1)
)
def test_every_word_has_one_start_piece(pieces: SentencePieceTokenizer, words: list[str], alpha: float) -> None:
    """Words may have any characters, also brackets, white space and ▁; sampled pieces keep the property."""
    text = to_source_text(words)
    assert int(pieces.word_start_mask[pieces.encode(text)].sum()) == len(words)
    assert int(pieces.word_start_mask[pieces.sample_encode(text, alpha=alpha, seed=1)].sum()) == len(words)
    assert pieces.decode(pieces.encode(text)) == text


def test_source_text_escapes_words() -> None:
    assert to_source_text(["(", "-LRB-", "a\u2581b", "no\u00a0break", "", "x)"]) == "-LRB- -LRB- a_b no_break _ x-RRB-"


# Pointer and tag head

BEGINS, SHIFTS, HIDDEN = [5, 6], [4, 8, 9], [8, 9]
SOURCES = [[5, 7, 6, 6, 3], [6, 5, 7, 7, 7, 3]]
TARGETS = [[10, 8, 4, 11, 9, 11], [10, 10, 8, 11, 9, 11]]


def parser(*, pointer: bool = True, tagging: bool = True) -> Transformer:
    config = ModelConfig(
        encoder_layers=1,
        decoder_layers=2,
        d_model=16,
        d_ff=32,
        num_heads=2,
        tie_embeddings="none",
        pointer=pointer,
        norm="pre",
        residual_dropout=0.0,
        embedding_dropout=0.0,
    )
    torch.manual_seed(1)
    model = build_model(config, source_vocab_size=8, target_vocab_size=12, word_id=4, tagging=tagging)
    assert model.words is not None
    model.words.fill(begins=BEGINS, shifts=SHIFTS, hidden=HIDDEN)
    return model.eval()


def test_pointer_adds_the_next_word() -> None:
    """The pointer adds the projection of the encoder's output at the next word that is not yet consumed."""
    model = parser()
    pointer = model.decoder.pointer
    assert pointer is not None
    source_BS, inputs_BT = torch.tensor([SOURCES[0]]), torch.tensor([[2, *TARGETS[0], 4, 4]])
    memory_BSD = model.encoder(source_BS)
    added_BTD, after = pointer(inputs_BT, pointer.start(memory_BSD, source_BS))
    places = [0, 0, 2, 3, 3, 4, 4, 4, 4]  # the last two consume words that do not exist
    expected_TD = pointer.projection(memory_BSD[0, places])
    torch.testing.assert_close(added_BTD[0], expected_TD)
    assert after.num_words_N is not None
    assert after.num_words_N.tolist() == [5]


def test_pointer_steps_equal_teacher_forcing() -> None:
    model = parser()
    source_BS = torch.tensor([[*SOURCES[0], 0], SOURCES[1]])
    inputs_BT = torch.tensor([[2, *target] for target in TARGETS])
    with torch.no_grad():
        forced_BTV = model(source_BS, inputs_BT)
        state = model.start(source_BS)
        rows_N = torch.tensor([1, 0, 3, 2])
        others_BT = inputs_BT.flip(1)
        for place in range(inputs_BT.shape[1]):
            # Two hypotheses a sentence, the reference first; they swap rows after every step.
            tokens_N = torch.stack([inputs_BT[:, place], others_BT[:, place]], dim=1)
            tokens_N = (tokens_N if place % 2 == 0 else tokens_N.flip(1)).flatten()
            logits_NV, state = model.step(tokens_N, state)
            true_BV = logits_NV.view(2, 2, -1)[:, place % 2]
            torch.testing.assert_close(true_BV, forced_BTV[:, place], atol=1e-5, rtol=1e-5)
            state = state.reorder(rows_N)
        kept = state.select_sentences(torch.tensor([1]))
    assert state.pointer is not None
    assert state.pointer.num_words_N is not None
    assert kept.pointer is not None
    assert kept.pointer.num_words_N is not None
    assert kept.pointer.num_words_N.tolist() == state.pointer.num_words_N.tolist()[2:]


def test_tag_loss_equals_a_loop_over_words() -> None:
    """Compare with a loop over words, and the combined loss with its parts."""
    model = parser()
    assert model.tagger is not None
    batch = collate(SOURCES, TARGETS, start_id=2)
    with torch.no_grad():
        memory_BSD = model.encoder(batch.source_BS)
        tag_loss = pos_tag_loss(model, memory_BSD, batch)
        expected = 0.0
        for row, places in enumerate(([0, 2, 3], [0, 1])):
            tags = [token for token in TARGETS[row] if token in SHIFTS]
            for place, tag in zip(places, tags, strict=True):
                logits_V = model.tagger.projection(memory_BSD[row, place])
                expected -= float(logits_V[SHIFTS].log_softmax(0)[SHIFTS.index(tag)])
        assert float(tag_loss) == pytest.approx(expected, rel=1e-5)
        alone, nll = batch_loss(model, batch, epsilon=0.1, smoothing_mode="uniform")
        both, same = batch_loss(model, batch, epsilon=0.1, smoothing_mode="uniform", pos_loss_weight=0.5)
    assert float(both) == pytest.approx(float(alone) + 0.5 * expected, rel=1e-5)
    assert nll == same


def test_decoder_never_reads_tags() -> None:
    """Other tags at the positions of XX give the same likelihood."""
    model = parser()
    others = [[{8: 9, 9: 8}.get(token, token) for token in target] for target in TARGETS]
    nlls = [
        batch_loss(model, collate(SOURCES, targets, start_id=2), epsilon=0.1, smoothing_mode="uniform")[1]
        for targets in (TARGETS, others)
    ]
    assert nlls[0] == nlls[1]


# Recipes and files


def test_impossible_recipes_raise_error(
    subtests: pytest.Subtests, parsing: Make, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for change, message in [
        ("task.pos_tags=sequence", "only the tensor2tensor sequence holds tags"),
        ("task.linearization=tensor2tensor", "only the tensor2tensor sequence holds tags"),
        ("tokenizer.joint=true", "set joint = false"),
        ("tokenizer.normalization=nfkc", "set 'identity' or drop it"),
        ("data.overlong_pairs=truncate", "cuts trees"),
        ("data.noise.upper_case=0.1", "would change words but not their trees"),
        ("training.best_metric=bleu", "is not for parsing: set 'f1' or 'loss'"),
        ("model.append_source_eos=false", "needs model.append_source_eos = true"),
        ("decoding.max_extra_tokens=2", "more tokens than words"),
        ("data.train={source='a.en',target='a.de'}", "data.train: task.kind = 'parsing' needs trees"),
        ("data.valid={file='a.tsv',format='tsv'}", "data.valid: task.kind = 'parsing' needs trees"),
        ("task.kind=translation", "is for task.kind = 'parsing'"),
    ]:
        with subtests.test(change=change, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            with raises_code("invalid-recipe", message):
                parsing(tmp_path, "tokenizer.byte_fallback=true", change)


def test_tasks_reject_files_of_the_other(parsing: Make, tiny: Make, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    with raises_code("format-mismatch", "pairs.tsv"):
        train(parsing(tmp_path / "run", f"data.train={{file='{tmp_path}/pairs.tsv'}}"))
    with raises_code("invalid-recipe", "data.train.format = 'brackets'", "task.kind = 'parsing'"):
        tiny(tmp_path / "run", "data.train={file='a.tsv',format='brackets'}")
    (tmp_path / "trees.mrg").write_text(CAT)
    with raises_code("format-mismatch", "trees.mrg", "task.kind = 'translation'"):
        train(tiny(tmp_path / "run", f"data.train={{file='{tmp_path}/trees.mrg'}}"))
    assert not (tmp_path / "run").exists()


def test_wrong_trees_raise_error(subtests: pytest.Subtests, parsing: Make, tmp_path_factory: pytest.TempPathFactory) -> None:
    for split, written, code, name in [
        ("train", CAT + "\n(S (NP x)\n", "invalid-tree", ", line 2: "),
        ("train", "", "empty-data", ""),
        ("train", "(S )\n( (S (NP )))\n", "empty-data", "2 pairs with an empty side"),
        ("valid", CAT + "\n( (S (-NONE- *)) )\n", "empty-data", ":2: "),
        ("test", "\n(S )\n", "empty-data", ":2: "),
        ("test", "(S (NP the cat) (. .))", "invalid-tree", ":1: the word 'the'"),
        ("test", "", "empty-data", ""),
    ]:
        with subtests.test(split=split, written=written, code=code, name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "bad.mrg").write_text(written)
            with raises_code(code, f"{tmp_path}/bad.mrg", name):
                train(parsing(tmp_path / "run", f"data.{split}={{file='{tmp_path}/bad.mrg'}}"))


def test_tensor2tensor_linearization_needs_tags(parsing: Make, tmp_path: Path) -> None:
    (tmp_path / "bare.mrg").write_text(f"{CAT}\n(S (NP the cat) (. .))\n")
    settings_pair = ("task.linearization=tensor2tensor", "task.pos_tags=sequence", "tokenizer.vocab_size=20")
    recipe = parsing(tmp_path / "run", f"data.train={{file='{tmp_path}/bare.mrg'}}", *settings_pair)
    with raises_code("invalid-tree", "bare.mrg:2"):
        prepare(recipe, tmp_path / "data")


# Runs


@pytest.mark.slow
def test_run_writes_parser_and_report(run: Path, treebank: Path) -> None:
    report = json.loads((run / "report.json").read_bytes())
    assert 0 < report["f1"] <= report["f1_gold_tags"] <= 100
    assert report["valid"]["f1"] > 0
    assert report["test_sentences"] == SPLITS["test"]
    assert "F1" in (run / "report.html").read_text()
    valid = [entry for entry in read_run_status(run).valid]
    assert [entry["step"] for entry in valid] == [30, 60]
    assert all(entry["f1_gold_tags"] >= entry["f1"] > 0 and entry["bleu"] is None for entry in valid)
    # A parser with a pointer is worse with the words of another sentence.
    assert valid[-1]["nll_shuffled_source"] > 1.2 * valid[-1]["nll_own_source"]
    bundle = load_bundle(run / "bundle")
    document = json.loads((run / "bundle" / LABELS_FILE).read_bytes())
    counted = Counter(re.findall(r"\((\w+|\.)", (treebank / "train.mrg").read_text()))
    for which, known in (("brackets", ["NP", "PP", "S", "VP"]), ("tags", [*WORDS, "."])):
        assert sorted(document[which]) == sorted(known)
        assert document[which] == sorted(known, key=lambda label: (-counted[label], label))
    assert bundle.model.words is not None
    begins = bundle.model.words.begins_V.numpy() > 0
    assert np.array_equal(begins, bundle.tokenizer.source.word_start_mask)


@pytest.mark.slow
def test_parses_are_trees_over_the_words(run: Path) -> None:
    bundle = load_bundle(run / "bundle")
    words = [["the", "cat", "sees", "a", "dog", "."], [], ["("] * 3, ["\u2581", "x y", "\N{GRINNING FACE}"], ["the"] * 400]
    tagged: Sequence[Sequence[str] | None] = [["A", "B", "C", "D", "E", "F"], None, None, None, None]
    decoding = bundle.recipe.decoding.model_copy(update={"max_source_tokens": 300})
    parser = SentenceParser(
        as_inference_model([bundle.model]), [TorchForcedDecoder(bundle.model)], bundle.tokenizer, bundle.recipe, decoding
    )
    parses = parser.parse(words, tags=tagged)
    assert [parse.status for parse in parses] == ["ok", "empty", "ok", "ok", "too_long"]
    for parse, sentence_words in zip(parses, words, strict=True):
        assert parse.tree is None or [leaf.word for leaf in get_leaves(parse.tree)] == sentence_words
    first, third = ([leaf.tag for leaf in get_leaves(parse.tree)] for parse in (parses[0], parses[2]) if parse.tree)
    assert first == tagged[0]
    assert {*third} <= {*WORDS, "."}
    assert len(parses[0].hypotheses) == 1
    free = parser.parse(words[:4], constrained=False)
    assert all(
        parse.tree is None or [leaf.word for leaf in get_leaves(parse.tree)] == sentence_words
        for parse, sentence_words in zip(free, words, strict=False)
    )
    with raises_code("invalid-tags", "sentence 1"):
        parser.parse(words[:1], tags=[["A"]])


@pytest.mark.slow
def test_resumed_parser_run_is_exact(parsing: Make, run: Path, tmp_path: Path) -> None:
    train(parsing(tmp_path / "run", "training.best_metric=f1", "training.max_steps=30"))
    train(parsing(tmp_path / "run", "training.best_metric=f1"))
    weights = [(folder / "bundle" / "weights.safetensors").read_bytes() for folder in (run, tmp_path / "run")]
    assert weights[0] == weights[1]


def test_f1_equals_evalb(tmp_path: Path) -> None:
    """The scores equal those of `dragoman tree evalb` over files; a sentence without a parse counts as zero."""
    gold = [
        read_tree(CAT),
        read_tree("(S (NP (NN dogs)) (VP (VBP run) (ADVP (RB far))) (. .))"),
        read_tree("(NP (NN x) (NN y))"),
    ]
    parses = [
        read_tree("(S (NP (DT the)) (NN cat) (VP (VBD sat)) (. .))"),
        read_tree("(S (NP (NN dogs)) (VP (VBP run) (RB far)) (. .))"),
        None,
    ]
    (tmp_path / "gold").write_text("".join(format_tree(tree) + "\n" for tree in gold))
    (tmp_path / "test").write_text("".join(f"{format_tree(tree) if tree is not None else ''}\n" for tree in parses))
    expected = sum_scores(score_files(tmp_path / "gold", tmp_path / "test"))
    scores = score_parses(parses, gold)
    assert scores["f1"].value == expected.f1
    assert scores["tagging"].value == 80.0  # 8 of 10 words: the third sentence has no tree
    assert 0 < expected.f1 < 100


@pytest.mark.slow
def test_toy_treebank_is_learned(parsing: Make, tmp_path: Path) -> None:
    """Learn an unambiguous grammar from 400 trees; nearly all brackets and tags of other trees are right."""
    sizes = ("model.d_model=64", "model.d_ff=128", "model.num_heads=4", "training.label_smoothing=0.05")
    report = train(
        parsing(
            tmp_path / "run",
            *sizes,
            "training.max_steps=500",
            "training.lr_decay_ratio=0.3",
            "training.validate_every_steps=250",
        )
    )
    assert report["f1"] > 95
    assert report["tagging"] > 98
