"""Guided alignment: links on disk, alignment targets of pieces, the loss, and a head that learns it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dragoman
from conftest import MakeRecipe
from dragoman.config import Recipe
from dragoman.data.collate import Batch, split_in_half
from dragoman.data.dataloader import DataPosition, TrainingBatches
from dragoman.data.encoded_corpus import Corpus, list_pair_files
from dragoman.data.link_table import LinkTable, get_links_file, write_links
from dragoman.data.prepare import PreparedData, prepare
from dragoman.data.tokenization.word_boundaries import PairTokens, get_word_numbers
from dragoman.evaluation.aer import score_alignments
from dragoman.model.attention import record_attention
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.training.distributed.parallelize import ModelLoss
from dragoman.training.losses.guided_alignment import AlignmentLossConfig, alignment_layer, alignment_loss, record_head_weights
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.run import train
from expected_errors import raises_code
from tiny_runs import NO_DROPOUT

pytestmark = pytest.mark.usefixtures("one_core")

SMOOTHED_LOSS = partial(batch_loss, epsilon=0.1, smoothing_mode="uniform")
GUIDED = "training.guided_alignment_weight=0.5"


@pytest.fixture(scope="module")
def recipe(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return tiny(tmp_path_factory.mktemp("guided") / "run", GUIDED, "model.decoder_layers=2")


@pytest.fixture(scope="module")
def prepared(recipe: Recipe, one_core: None) -> PreparedData:
    return prepare(recipe, Path(recipe.run) / "data")


@pytest.fixture(scope="module")
def batch(recipe: Recipe, prepared: PreparedData) -> Batch:
    (first_batch,) = TrainingBatches(recipe, prepared.folder, start_id=get_decoder_start_id(recipe.model))[DataPosition()]
    return first_batch


@pytest.fixture
def model(recipe: Recipe, prepared: PreparedData) -> Transformer:
    torch.manual_seed(1)
    source, target = len(prepared.tokenizer.source), len(prepared.tokenizer.target)
    return build_model(recipe.model, source_vocab_size=source, target_vocab_size=target)


def test_alignment_targets_link_pieces_of_linked_words(prepared: PreparedData) -> None:
    sides = PairTokens(prepared.tokenizer)
    source = np.array(prepared.tokenizer.encode_source("three one"))
    target = np.array(prepared.tokenizer.encode_target("zzz eins drei"))
    from_words, to_words = (
        get_word_numbers(prepared.tokenizer.source.ids_to_pieces(source[:-1].tolist())),
        sides.target.get_word_numbers(target),
    )
    # The last link is of a word beyond the end of a truncated pair.
    target_positions, source_positions, shares = sides.build_alignment_target(
        np.array([[1, 1], [0, 2], [1, 2], [7, 0]], dtype=np.int32), source, target
    )
    weights = np.zeros((len(target), len(source)))
    weights[target_positions, source_positions] = shares
    expected = np.zeros_like(weights)
    for position, word in enumerate(to_words):
        linked = {0: [], 1: [1], 2: [0, 1]}[int(word)]
        columns = [column for column, source_word in enumerate(from_words) if source_word in linked]
        expected[position, columns] = 1 / max(len(columns), 1)
    assert weights == pytest.approx(expected)
    assert expected.any()
    assert [len(part) for part in sides.build_alignment_target(np.empty((0, 2), np.int32), source, target)] == [0, 0, 0]
    assert [len(part) for part in sides.build_alignment_target(np.array([[0, 0]], np.int32), source[-1:], target)] == [0, 0, 0]


def test_link_table_holds_written_links(tmp_path: Path) -> None:
    rows = [[(0, 1), (2, 0)], [], [(5, 5)]]
    write_links(tmp_path / "x.links.arrow", rows)
    table = LinkTable(tmp_path / "x.links.arrow")
    assert [table[index].tolist() for index in range(len(table))] == [[list(link) for link in row] for row in rows]
    (tmp_path / "x.links.arrow").write_bytes(b"no")
    with raises_code("prepared-data-damaged", "x.links.arrow"):
        LinkTable(tmp_path / "x.links.arrow")


def test_word_aligner_links_a_corpus(recipe: Recipe, prepared: PreparedData, tmp_path: Path) -> None:
    # The words of both sides have the same order, one for one.
    corpus, table = Corpus(list_pair_files(prepared.folder, "train")), LinkTable(get_links_file(prepared.folder, "train"))
    sides = PairTokens(prepared.tokenizer)
    links = [[(int(source), int(target)) for source, target in table[index]] for index in range(len(table))]
    gold = [[(word, word) for word in range(sides.target.count_words(corpus.target(index)))] for index in range(len(corpus))]
    assert score_alignments(links, gold).error_rate < 0.02
    repeated = prepare(recipe, tmp_path / "data")
    assert get_links_file(repeated.folder, "train").read_bytes() == get_links_file(prepared.folder, "train").read_bytes()
    assert not prepare(recipe, tmp_path / "data").is_new
    get_links_file(repeated.folder, "train").unlink()
    assert prepare(recipe, tmp_path / "data").is_new


def test_unguided_recipe_has_no_links(tiny: MakeRecipe, tmp_path: Path, prepared: PreparedData) -> None:
    plain = tiny(tmp_path / "run", "model.decoder_layers=2")
    assert AlignmentLossConfig.from_training(plain.training, plain.alignment_layer) is None
    result = prepare(plain, tmp_path / "data")
    assert not get_links_file(result.folder, "train").exists()
    for name in ("train-00000.arrow", "train.lengths.arrow", "source.model"):
        assert (result.folder / name).read_bytes() == (prepared.folder / name).read_bytes()
    (first_batch,) = TrainingBatches(plain, result.folder, start_id=get_decoder_start_id(plain.model))[DataPosition()]
    assert first_batch.alignment_targets is None


# Link files


def recipe_with_links(tiny: MakeRecipe, folder: Path, links: str, *settings: str, source: str = "one two\n\nthree\n") -> Recipe:
    (folder / "en").write_text(source, encoding="utf-8")
    (folder / "de").write_text("zwei eins\n\ndrei vier\n", encoding="utf-8")
    (folder / "links").write_text(links, encoding="utf-8")
    names = [f"data.train.{key}={folder / name}" for key, name in (("source", "en"), ("target", "de"), ("alignments", "links"))]
    return tiny(folder / "run", GUIDED, *names, "tokenizer.vocab_size=30", *settings)


def test_links_are_read_from_file(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = recipe_with_links(tiny, tmp_path, "1-0 0-1\n\n0-0 0-1\n")
    result = prepare(recipe, tmp_path / "data")
    table = LinkTable(get_links_file(result.folder, "train"))
    links = [table[index].tolist() for index in range(len(table))]
    assert links == [[[1, 0], [0, 1]], [[0, 0], [0, 1]]]  # the empty pair is dropped
    (tmp_path / "links").write_text("1-0\n\n0-1\n")
    assert prepare(recipe, tmp_path / "data").is_new
    assert LinkTable(get_links_file(result.folder, "train"))[0].tolist() == [[1, 0]]


def test_bad_links_fail_with_line_number(
    subtests: pytest.Subtests, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for links, code, names in [
        ("1-0\n\n", "length-mismatch", ["links: has 2 lines", "3 pairs"]),
        ("1-0\n\n0-0\n0-0\n", "length-mismatch", ["links: has 4 lines", "3 pairs"]),
        ("1-0\n\n0-2\n", "invalid-alignment", ["links, line 3: 0-2", "the source has 1 words, the target 2"]),
        ("2-0\n\n0-0\n", "invalid-alignment", ["links, line 1: 2-0", "the source has 2 words"]),
        ("1-0\n1:0\n0-0\n", "invalid-alignment", ["links, line 2: '1:0'"]),
        ("-1-0\n\n0-0\n", "invalid-alignment", ["links, line 1: '-1-0'"]),
    ]:
        with subtests.test(links=links, code=code, names=names):
            tmp_path = tmp_path_factory.mktemp("case")
            with raises_code(code, *names):
                prepare(recipe_with_links(tiny, tmp_path, links), tmp_path / "data")


def test_words_split_by_normalization_are_reported(tiny: MakeRecipe, tmp_path: Path) -> None:
    # A zero-width space is not white space for Python, but NFKC of SentencePiece makes a space of it.
    notices: list[str] = []
    recipe = recipe_with_links(
        tiny, tmp_path, "0-0 0-1\n\n0-0\n", "tokenizer.normalization=nfkc", source="one\u200btwo\n\nthree\n"
    )
    result = prepare(recipe, tmp_path / "data", notices.append)
    table = LinkTable(get_links_file(result.folder, "train"))
    assert [len(table[index]) for index in range(2)] == [0, 1]
    assert any("train: 1 pairs have no links" in notice and "links, line 1)" in notice for notice in notices)


def test_truncated_pair_keeps_remaining_links(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = recipe_with_links(tiny, tmp_path, "1-0 0-1\n\n0-0\n", "data.max_length=3", "data.overlong_pairs=truncate")
    result = prepare(recipe, tmp_path / "data")
    assert LinkTable(get_links_file(result.folder, "train"))[0].tolist() == [[1, 0], [0, 1]]
    alignment_target = PairTokens(result.tokenizer).build_alignment_target(np.array([[1, 0], [0, 1]], np.int32), *(
        side(0) for side in (result.corpus("train").source, result.corpus("train").target)
    ))  # fmt: skip
    assert len(alignment_target[0]) < 4


def test_impossible_alignment_config_fails(
    subtests: pytest.Subtests, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for settings, message in [
        (["data.train.alignments=x"], r"data.train.alignments has no effect without training.guided_alignment_weight: set it"),
        ([GUIDED, "data.valid.alignments=x"], "alignments is for training corpora"),
        ([GUIDED, "training.alignment_layer=2"], r"training.alignment_layer = 2: the decoder has 1; give 1"),
        ([GUIDED, "training.alignment_head=3"], r"training.alignment_head = 3: the decoder has 2"),
        (["training.guided_alignment_weight=-1"], r"guided_alignment_weight"),
    ]:
        with subtests.test(settings=settings, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            with raises_code("invalid-recipe", message):
                tiny(tmp_path, *settings)


def test_default_head_is_in_second_last_layer(tiny: MakeRecipe, tmp_path: Path) -> None:
    def head(*settings: str) -> AlignmentLossConfig | None:
        recipe = tiny(tmp_path, "training.guided_alignment_weight=0.25", *settings)
        return AlignmentLossConfig.from_training(recipe.training, recipe.alignment_layer)

    assert head() == AlignmentLossConfig(0.25, 0, 0)
    assert head("model.decoder_layers=4") == AlignmentLossConfig(0.25, 2, 0)
    assert head("model.decoder_layers=4", "training.alignment_layer=4", "training.alignment_head=2") == AlignmentLossConfig(
        0.25, 3, 1
    )


# Loss


def test_loss_is_cross_entropy_of_head_weights(model: Transformer, batch: Batch) -> None:
    alignment_config = AlignmentLossConfig(0.5, layer=1, head=1)
    model.eval()
    assert batch.alignment_targets is not None
    with record_attention([alignment_layer(model, alignment_config).cross_attention]) as recorded, torch.no_grad():
        model(batch.source_BS, batch.inputs_BT)
    weights = recorded[0][:, alignment_config.head].double().log()
    shares = torch.zeros_like(weights)
    shares[tuple(batch.alignment_targets.positions_3G)] = batch.alignment_targets.weights_G.double()
    expected = -float((shares * weights.masked_fill(shares == 0, 0.0)).sum())
    # The shares of a position sum to one, and most positions are guided.
    assert sorted(set(shares.sum(dim=2).round(decimals=5).flatten().tolist())) == [0.0, 1.0]
    with torch.no_grad():
        both = [ModelLoss(model, SMOOTHED_LOSS, alignment_config=config)(batch) for config in (None, alignment_config)]
    assert float(both[1][0] - both[0][0]) == pytest.approx(0.5 * expected, rel=1e-4)
    assert torch.equal(both[0][1], both[1][1])  # recording changes no bit of the output


def test_gradient_reaches_the_guided_head_only(model: Transformer, batch: Batch) -> None:
    alignment_config = AlignmentLossConfig(1.0, layer=0, head=0)
    assert batch.alignment_targets is not None
    with record_head_weights(model, alignment_config) as recorded:
        model(batch.source_BS, batch.inputs_BT)
    torch.autograd.backward(alignment_loss(recorded[0], batch.alignment_targets))
    attention = alignment_layer(model, alignment_config).cross_attention
    width = attention.query.weight.shape[0] // 2
    assert attention.query.weight.grad is not None
    assert attention.query.weight.grad[:width].abs().sum() > 0
    assert attention.query.weight.grad[width:].abs().sum() == 0  # the other head
    assert attention.output.weight.grad is None
    assert alignment_layer(model, AlignmentLossConfig(1.0, 1, 0)).cross_attention.query.weight.grad is None
    assert attention.observer is None  # the observer is removed


def test_losses_of_halves_sum_to_whole(model: Transformer, batch: Batch) -> None:
    model.eval()
    loss = ModelLoss(model, SMOOTHED_LOSS, alignment_config=AlignmentLossConfig(0.7, 1, 0))
    parts = [quarter for half in split_in_half(batch) for quarter in split_in_half(half)]
    assert all(part.alignment_targets is not None for part in parts)
    with torch.no_grad():
        assert sum(loss(part)[0] for part in parts).item() == pytest.approx(loss(batch)[0].item(), rel=1e-5)


# Batches


def test_sampled_pieces_keep_links_and_noise_drops_them(tiny: MakeRecipe, tmp_path: Path) -> None:
    def make_batches(name: str, *settings: str) -> tuple[list[Batch], TrainingBatches]:
        recipe = tiny(tmp_path / name, GUIDED, "tokenizer.byte_fallback=true", "tokenizer.vocab_size=310", *settings)
        result = prepare(recipe, tmp_path / "data" / name)
        batches = TrainingBatches(recipe, result.folder, start_id=get_decoder_start_id(recipe.model))
        return [part for number in range(batches.count_batches(0)) for part in batches[DataPosition(0, number)]], batches

    (tmp_path / "data").mkdir()
    for part in make_batches("sampled", "tokenizer.model_type=unigram", "tokenizer.sampling_alpha=0.2")[0]:
        assert part.alignment_targets is not None
        # All words of this corpus are linked, so each target position except the end is guided.
        num_guided = torch.unique(part.alignment_targets.positions_3G[:2], dim=1).shape[1]
        assert num_guided >= 0.9 * (part.num_target_tokens - len(part.source_BS))
    upper = make_batches("upper", "data.noise.upper_case=1.0")[0]
    assert all(part.alignment_targets is not None and part.alignment_targets.weights_G.numel() == 0 for part in upper)
    assert all(
        alignment_loss(torch.zeros(part.source_BS.shape[0], 9, 9), part.alignment_targets).item() == 0
        for part in upper
        if part.alignment_targets
    )


# Training


@pytest.mark.slow
def test_guided_head_aligns_better(tiny: MakeRecipe, tmp_path: Path, bundle: Path) -> None:
    steps = ["training.max_steps=200", "training.batch_tokens=400"]  # the settings of the fixture `bundle`
    recipe = tiny(tmp_path, *NO_DROPOUT, *steps, "training.guided_alignment_weight=1", "training.alignment_head=2")
    train(recipe)
    root = Path(recipe.data.root)
    pairs = [(root / f"train.{end}").read_text(encoding="utf-8").splitlines() for end in ("en", "de")]
    gold = [[(word, word) for word in range(len(line.split()))] for line in pairs[0]]
    plain, guided = (
        dragoman.load(path, task="translation", device="cpu", precision="float32") for path in (bundle, tmp_path / "bundle")
    )
    errors = [score_alignments(translator.align(*pairs), gold).error_rate for translator in (plain, guided)]
    assert errors[1] < 0.2 * errors[0]
    assert guided.metadata.alignment is not None
    assert (guided.metadata.alignment.layer, guided.metadata.alignment.head) == (0, 1)  # the bundle names the guided head
    assert guided.metadata.alignment.error_rate is not None
