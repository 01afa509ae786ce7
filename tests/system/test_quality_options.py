"""Options that improve quality: R-Drop, minimum Bayes risk, synthetic data, and evaluation of ensembles."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

import dragoman.training.losses.chunked
from conftest import MakeRecipe
from dragoman import Translation, Translator, load
from dragoman.cli.main import cli, main
from dragoman.config import CorpusConfig, DecodingConfig, ModelConfig, make_recipe, parse_toml, recipe_from_dict
from dragoman.data.collate import collate, split_in_half
from dragoman.data.prepare import prepare
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.errors import DataError, InterruptedRun
from dragoman.evaluation.pairwise_similarity import pairwise_bleu, pairwise_chrf
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.formats.resumable import resumable_file
from dragoman.formats.text import read_lines
from dragoman.inference import synthetic_data
from dragoman.inference.synthetic_data import Augmentation, augment
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.mbr import rerank_by_mbr
from dragoman.tasks.translation import TranslationStatus
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.losses.rdrop import consistency_loss, r_drop_loss
from dragoman.training.monitoring.events import StepDone, TrainingEvent
from dragoman.training.resume_checks import check_recipe_unchanged
from dragoman.training.run import train
from expected_errors import raises_code
from rank_processes import find_free_port, read_losses, run_ranks, train_all
from trainers import new_trainer

pytestmark = pytest.mark.usefixtures("one_core")

CHRF_SENTENCE, BLEU_SENTENCE = CHRF(), BLEU(effective_order=True)


# R-Drop

PLACES, WIDTH, VOCABULARY, ALPHA = 9, 4, 11, 5.0
FORMS = ("uniform", "exclude_target", "exclude_target_and_pad")


def equation_4(outputs_2XD: Tensor, output_VD: Tensor, targets_X: Tensor, *, form: str, alpha: float) -> Tensor:
    """Return half of equation 4, by PyTorch's own cross-entropy and divergence over all logits at once."""
    log_probs_2XV = (outputs_2XD @ output_VD.t()).log_softmax(-1)
    vocabulary = len(output_VD)
    target_probs_XV = torch.full((len(targets_X), vocabulary), 0.1 / (vocabulary - FORMS.index(form)), dtype=output_VD.dtype)
    if form == "exclude_target_and_pad":
        target_probs_XV[:, 0] = 0.0
    target_probs_XV.scatter_(1, targets_X[:, None], 0.9 + (0.1 / vocabulary if form == "uniform" else 0.0))
    likelihoods = [F.cross_entropy(log_probs_XV, target_probs_XV, reduction="sum") for log_probs_XV in log_probs_2XV]
    first_XV, second_XV = log_probs_2XV
    pairs = ((first_XV, second_XV), (second_XV, first_XV))
    divergences = [F.kl_div(q_XV, p_XV, reduction="sum", log_target=True) for p_XV, q_XV in pairs]
    return (torch.stack(likelihoods).sum() + alpha / 2 * torch.stack(divergences).sum()) / 2


def drawn_places() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    outputs_2XD = torch.randn(2, PLACES, WIDTH, dtype=torch.float64, requires_grad=True)
    output_VD = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
    return outputs_2XD, output_VD, torch.randint(1, VOCABULARY, (PLACES,))


@pytest.mark.parametrize("slices", [None, (88, 50)], ids=["whole", "sliced"])
@pytest.mark.parametrize("form", FORMS)
def test_r_drop_and_its_gradients_equal_the_equation(
    form: str, slices: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slices is not None:
        monkeypatch.setattr(dragoman.training.losses.chunked, "CPU_CHUNK_LOGITS", slices[0])
        monkeypatch.setattr(dragoman.training.losses.chunked, "CPU_BLOCK_LOGITS", slices[1])
    outputs_2XD, output_VD, targets_X = drawn_places()
    settings = {"epsilon": 0.1, "smoothing_mode": form, "alpha": ALPHA}
    loss, nll = consistency_loss(outputs_2XD, output_VD, targets_X, **settings)  # type: ignore[arg-type]
    expected = equation_4(outputs_2XD, output_VD, targets_X, form=form, alpha=ALPHA)
    torch.testing.assert_close(loss, expected)
    log_probs_2XV = (outputs_2XD @ output_VD.t()).log_softmax(-1)
    torch.testing.assert_close(
        nll, sum(F.nll_loss(log_probs_XV, targets_X, reduction="sum") for log_probs_XV in log_probs_2XV) / 2
    )
    leaves = (outputs_2XD, output_VD)
    for actual_values, expected_values in zip(
        torch.autograd.grad(loss * 0.7, leaves), torch.autograd.grad(expected * 0.7, leaves), strict=True
    ):
        torch.testing.assert_close(actual_values, expected_values)

    def by(outputs_2XD: Tensor, output_VD: Tensor) -> Tensor:
        return consistency_loss(outputs_2XD, output_VD, targets_X, **settings)[0]  # type: ignore[arg-type]

    if slices is None:
        assert torch.autograd.gradcheck(by, leaves)  # finite differences


def test_r_drop_never_holds_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.training.losses.chunked, "CPU_CHUNK_LOGITS", 88)
    made = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
        made.append((len(x), len(weight)))
        return F.linear(x, weight, bias)

    outputs_2XD, output_VD, targets_X = drawn_places()
    consistency_loss(outputs_2XD, output_VD, targets_X, epsilon=0.1, smoothing_mode="uniform", alpha=1.0, matmul=product)
    assert max(rows * columns for rows, columns in made) <= 88 < 2 * PLACES * VOCABULARY


def small_model(dropout: float) -> Transformer:
    torch.manual_seed(2)
    config = ModelConfig(
        encoder_layers=1,
        decoder_layers=1,
        d_model=16,
        d_ff=32,
        num_heads=2,
        residual_dropout=dropout,
        embedding_dropout=dropout,
    )
    return build_model(config, source_vocab_size=17, target_vocab_size=17)


BATCH = collate([[5, 6, 7, 3], [8, 3], [9, 10, 3]], [[4, 5], [6, 7, 8, 9], [10]], start_id=2)


def test_r_drop_without_dropout_is_plain_loss() -> None:
    model = small_model(0.3).eval()
    plain, settings = (
        batch_loss(model, BATCH, epsilon=0.1, smoothing_mode="uniform"),
        {"epsilon": 0.1, "smoothing_mode": "uniform", "alpha": 7.0},
    )
    losses = r_drop_loss(model, BATCH, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(torch.stack(losses), torch.stack(plain))
    in_halves = [r_drop_loss(model, half, **settings) for half in split_in_half(BATCH)]  # type: ignore[arg-type]
    torch.testing.assert_close(torch.stack([sum(part) for part in zip(*in_halves, strict=True)]), torch.stack(plain))


def test_r_drop_has_two_dropout_masks() -> None:
    model, twice = small_model(0.3), BATCH.source_BS.repeat(2, 1)
    torch.manual_seed(3)
    loss, _ = r_drop_loss(model, BATCH, epsilon=0.1, smoothing_mode="uniform", alpha=ALPHA)
    torch.manual_seed(3)
    outputs_BTD, _ = model.decoder(BATCH.inputs_BT.repeat(2, 1), model.start(twice))
    real_X = BATCH.find_nonpad_positions()
    outputs_2XD = torch.stack([half.flatten(0, 1)[real_X] for half in outputs_BTD.chunk(2)])
    targets_X = BATCH.targets_BT.flatten()[real_X]
    expected = equation_4(outputs_2XD, model.output, targets_X, form="uniform", alpha=ALPHA)
    torch.testing.assert_close(loss, expected)
    assert expected > equation_4(outputs_2XD, model.output, targets_X, form="uniform", alpha=0.0) + 0.1
    parameters = list(model.parameters())
    actual_values, expected_values = (torch.autograd.grad(value, parameters, retain_graph=True) for value in (loss, expected))
    for actual, reference in zip(actual_values, expected_values, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-5)


R_DROP = ("training.r_drop_alpha=5", "training.batches_per_update=2", "training.max_steps=4", "training.batch_tokens=60")


class StopsAfter:
    """Callback that interrupts a run with a signal after this number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, event: TrainingEvent) -> None:
        if isinstance(event, StepDone):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)


def test_r_drop_step_costs_two_steps(tiny: MakeRecipe, tmp_path: Path) -> None:
    trainers = {alpha: new_trainer(tiny(tmp_path / alpha, *R_DROP, f"training.r_drop_alpha={alpha}")) for alpha in ("5", "0")}
    for trainer in trainers.values():
        trainer._step()
    assert trainers["5"].state.flops == 2 * trainers["0"].state.flops
    twice, once = ([weight.detach().clone() for weight in trainer.model.parameters()] for trainer in trainers.values())
    assert not all(torch.equal(first, second) for first, second in zip(twice, once, strict=True))
    nll = {alpha: float(trainer._nll_since_log / trainer._tokens_since_log) for alpha, trainer in trainers.items()}
    assert nll["5"] == pytest.approx(nll["0"], rel=0.1)  # likelihoods of equal weights, with other dropout masks


@pytest.mark.slow
def test_r_drop_run_resumes_exactly(tiny: MakeRecipe, tmp_path: Path) -> None:
    """The last scores are by minimum Bayes risk, the scores during training by greedy search."""
    settings = (*R_DROP, "training.validate_every_steps=2", "decoding.method='sample'", "decoding.mbr='chrf'")
    train(tiny(tmp_path / "whole", *settings, "decoding.mbr_candidates=3"))
    recipe = tiny(tmp_path / "resumed", *settings, "decoding.mbr_candidates=3")
    with pytest.raises(InterruptedRun):
        train(recipe, StopsAfter(3))
    train(recipe)
    whole, resumed = (list_checkpoints(tmp_path / name / "checkpoints")[-1] for name in ("whole", "resumed"))
    assert all(torch.equal(weight, resumed.weights()[name]) for name, weight in whole.weights().items())
    assert read_losses(tmp_path / "whole") == read_losses(tmp_path / "resumed")


@pytest.mark.slow
def test_ranks_share_r_drop(tiny: MakeRecipe, tmp_path: Path) -> None:
    train(tiny(tmp_path / "alone", *R_DROP))
    methods = ("ddp", "fsdp")
    run_ranks(
        2, train_all, {find_free_port(): tiny(tmp_path / method, *R_DROP, f"training.parallel={method}") for method in methods}
    )
    for method in methods:
        assert read_losses(tmp_path / method) == pytest.approx(read_losses(tmp_path / "alone"), rel=1e-6)


def test_r_drop_needs_dropout(tiny: MakeRecipe, tmp_path: Path) -> None:
    off = [f"model.{place}_dropout=0" for place in ("residual", "embedding", "attention", "activation")]
    with raises_code("invalid-recipe", "training.r_drop_alpha = 5", "model.residual_dropout"):
        tiny(tmp_path / "run", "training.r_drop_alpha=5", *off)
    with raises_code("invalid-recipe", "training.r_drop_alpha"):
        tiny(tmp_path / "run", "training.r_drop_alpha=-1")


def test_run_without_a_new_key_resumes(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run")
    before = recipe.model_dump()
    del before["training"]["r_drop_alpha"]
    check_recipe_unchanged(before, recipe.model_dump(), tmp_path)
    changed = tiny(tmp_path / "run", "training.r_drop_alpha=1")
    with raises_code("recipe-changed", "training.r_drop_alpha was 0.0 and is 1.0"):
        check_recipe_unchanged(before, changed.model_dump(), tmp_path)


# Minimum Bayes risk

WORDS = ["the", "a", "dog", ",", ".", "runs", "ran", "fast", "é", "中", "文", "aaaa", "ab", "ab.", "x-y", "3.5", "&amp;", '"q"']


def drawn_lines() -> Iterator[list[str]]:
    rng = random.Random(1)
    for number in range(40):
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(rng.randint(1, 6))]
        yield ["", *lines] if number % 5 == 0 else lines


def test_pairwise_scores_equal_sacrebleu() -> None:
    tokens = BLEU(effective_order=True, tokenize="none")
    for lines in drawn_lines():
        for table, metric in (
            (pairwise_chrf(lines), CHRF_SENTENCE),
            (pairwise_bleu(lines), BLEU_SENTENCE),
            (pairwise_bleu(lines, tokenize="none"), tokens),
        ):
            expected = [[metric.sentence_score(line, [reference]).score for reference in lines] for line in lines]
            np.testing.assert_allclose(table, expected, rtol=0, atol=1e-9)


def hypothesis(text: str, log_prob: float, *, finished: bool = True) -> tuple[Hypothesis, str]:
    return Hypothesis((len(text),), (log_prob,), log_prob, finished), text


CANDIDATES = [
    hypothesis("a dog runs fast", -1.0),
    hypothesis("the dog runs fast", -1.5),
    hypothesis("a cat sleeps", -2.0),
    hypothesis("the dog runs fast", -2.5),
    hypothesis("the dog runs", -3.0, finished=False),
]


@pytest.mark.parametrize("method", ["sample", "beam"])
@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_mbr_ranks_by_expected_utility(utility: str, method: str) -> None:
    hypotheses, texts = (list(side) for side in zip(*CANDIDATES, strict=True))
    decoding = DecodingConfig(method=method, mbr=utility, beam_size=8, nbest=4)  # type: ignore[arg-type]
    ranked = rerank_by_mbr(hypotheses, texts, decoding, bleu_tokenizer="13a")
    metric = CHRF_SENTENCE if utility == "chrf" else BLEU_SENTENCE
    weights = [np.exp(candidate.log_prob) if method == "beam" else 1.0 for candidate, _ in CANDIDATES]
    expected = {
        text: sum(w * metric.sentence_score(text, [other]).score for w, (_, other) in zip(weights, CANDIDATES, strict=True))
        / sum(weights)
        for text in texts
    }
    whole = sorted({text for candidate, text in CANDIDATES if candidate.finished}, key=lambda text: -expected[text])
    assert [texts[hypotheses.index(replace(best, mbr_score=None))] for best in ranked] == [*whole, "the dog runs"]
    for best in ranked:
        assert best.mbr_score == pytest.approx(expected[texts[hypotheses.index(replace(best, mbr_score=None))]])
    assert ranked[0].score == (
        -1.5 if whole[0] == "the dog runs fast" else -1.0
    )  # the likelier of two hypotheses with one text


@pytest.fixture(scope="module")
def translator(bundle: Path, one_core: None) -> Translator:
    return load(bundle, task="translation", device="cpu", precision="float32")


LINES = ["one two three", "ten", "", "big small red blue"]


@pytest.mark.parametrize("settings", [{"method": "sample", "temperature": 3.0, "mbr_candidates": 6}, {"beam_size": 6}], ids=str)
def test_mbr_translation_is_the_best_candidate(translator: Translator, settings: dict[str, Any]) -> None:
    plain = {name: value for name, value in settings.items() if name != "mbr_candidates"}
    for line, chosen in zip(LINES, translator.translate(LINES, mbr="bleu", **settings), strict=True):
        assert chosen.alternatives == ()
        if not line:
            assert chosen.text == ""
            continue
        (listed,) = translator.translate([line], start_index=LINES.index(line), nbest=6, **plain)
        candidates = [listed, *listed.alternatives]
        finished = [candidate for candidate in candidates if candidate.status not in ("truncated", "repetition")]
        whole = [candidate.text for candidate in finished or candidates]
        weights = np.exp([sum(item.token_log_probs) if "beam_size" in settings else 0.0 for item in candidates])
        scores = {
            candidate.text: sum(
                weight * BLEU_SENTENCE.sentence_score(candidate.text, [other.text]).score
                for weight, other in zip(weights, candidates, strict=True)
            )
            for candidate in candidates
        }
        best = max(scores[text] for text in whole)  # unfinished candidates rank last
        assert scores[chosen.text] == pytest.approx(best)
        assert chosen.mbr_score == pytest.approx(
            best / sum(weights), rel=1e-5
        )  # float32 log-probabilities of a large magnitude
    assert all(translation.mbr_score is None for translation in translator.translate(LINES, **plain))


def test_mbr_without_candidates_raises_error(subtests: pytest.Subtests, translator: Translator) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "greedy", "mbr": "chrf"}, "greedy search gives one"),
        ({"mbr": "chrf", "beam_size": 4, "mbr_candidates": 5}, "mbr_candidates = 5 is more than beam_size = 4"),
        ({"method": "sample", "mbr": "chrf", "nbest": 33}, "nbest = 33 is more than the 32 candidates"),
        ({"mbr_candidates": 5}, "mbr_candidates = 5 has no effect"),
        ({"mbr": "comet"}, "mbr"),
    ]
    for settings, message in cases:
        with subtests.test(settings=settings, message=message), raises_code("invalid-recipe", message):
            translator.translate(LINES, **settings)


def test_evaluate_takes_ensembles_and_mbr(bundle: Path, corpus: Path) -> None:
    files = ["--src", str(corpus / "test.en"), "--ref", str(corpus / "test.de"), "--device", "cpu", "--json"]
    sources, targets = (list(read_lines(corpus / f"test.{side}")) for side in ("en", "de"))
    outputs = [
        json.loads(CliRunner().invoke(cli, ["evaluate", str(bundle), *files, *options], catch_exceptions=False).stdout)
        for options in ([], ["--ensemble", str(bundle)], ["mbr=chrf"])
    ]
    assert [output["ensemble"] for output in outputs] == [[], [str(bundle)], []]
    assert outputs[1]["scores"] == outputs[0]["scores"]  # an ensemble of equal models
    translator = load(bundle, task="translation", device="cpu", precision="float32")
    chosen = [translation.text for translation in translator.translate(sources, mbr="chrf")]
    by_name = {score["name"]: score["value"] for score in outputs[2]["scores"]}
    assert by_name["chrF2"] == CHRF_SENTENCE.corpus_score(chosen, [targets]).score
    result = CliRunner().invoke(cli, ["translate", str(bundle), str(corpus / "test.en"), "mbr=chrf", "--json"])
    assert all(0 < json.loads(line)["mbr_score"] <= 100.0001 for line in result.stdout.splitlines())


# Synthetic data


def answer(text: str, status: TranslationStatus = "ok", alternatives: tuple[Translation, ...] = ()) -> Translation:
    """Return the translation of a line."""
    return Translation(text, score=-1.0, status=status, alternatives=alternatives)


def test_augmentation_drops_unusable_outputs(subtests: pytest.Subtests) -> None:
    for pair, output, outcome, source in [
        (Pair("ein Hund", ""), answer("a dog"), "written", "<BT> a dog"),
        (Pair(" ", ""), answer(" ", "empty"), "blank", None),
        (Pair("ein Hund", ""), answer("a dog a", "truncated"), "truncated", None),
        (Pair("ein Hund", ""), answer("a a a", "repetition"), "written", "<BT> a a a"),
        (Pair("ein Hund", ""), answer(" ", "repetition"), "empty", None),
        (Pair("ein Hund", ""), answer("ein Hund", "copied", alternatives=(answer("a dog"),)), "written", "<BT> a dog"),
        (Pair("ein Hund", ""), answer("", "too_long"), "too_long", None),
        (Pair("ein Hund", ""), answer("a\ndog"), "written", "<BT> a dog"),
        (Pair("\ufeff", ""), answer("a dog"), "blank", None),
        (Pair("ein Hund", ""), answer(" \ufeff"), "empty", None),
    ]:
        with subtests.test(pair=pair, output=output, outcome=outcome, source=source):
            augmentation = Augmentation("back-translate", tag="<BT>", keep_statuses=frozenset({"repetition"}))
            actual, result, _ = augmentation.apply(pair, output)
            assert (actual, result and result.source) == (outcome, source)
            assert result is None or result.target == pair.target or result.target == pair.source


def test_distillation_chooses_most_similar_output() -> None:
    texts = ["the cat sleeps here", "a dog runs very fast", "a dog is running fast today"]
    pair = Pair("ein Hund rennt schnell", "a dog is running fast", "x:1")
    made = answer(texts[0], alternatives=(answer(texts[1]), answer(texts[2]), answer(pair.target, "truncated")))
    for similarity, metric in (("bleu", BLEU_SENTENCE), ("chrf", CHRF_SENTENCE)):
        _, chosen, _ = Augmentation("distill", similarity=similarity).apply(pair, made)  # type: ignore[arg-type]
        best = max(texts, key=lambda text: metric.sentence_score(text, [pair.target]).score)
        assert chosen == Pair(pair.source, best, "x:1")
    repeated = answer("a a", "repetition")
    assert Augmentation("distill").apply(pair, repeated) == ("repetition", None, None)
    assert Augmentation("distill", fallback_to_reference=True).apply(pair, repeated) == ("original", pair, None)


def shouted(lines: Sequence[str], first: int) -> list[Translation]:
    return [answer(f"{line.upper()}\t{first + number}") for number, line in enumerate(lines)]


def killed(content: Path, after: int, lines: Sequence[str], first: int) -> list[Translation]:
    """Translate like `shouted`, but end the process after this number of lines, in the middle of a write."""
    if first >= after:
        with content.open("a", encoding="utf-8") as stream:
            stream.write("half a li")
        raise KeyboardInterrupt
    return shouted(lines, first)


def test_killed_augmentation_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_data, "WINDOW_LINES", 3)
    pairs = [Pair(f"line {number}" if number % 4 else "", "", f"x:{number}") for number in range(20)]
    augmentation, request = Augmentation("self-train"), {"text": "one"}
    for form in ("tsv", "jsonl"):
        with resumable_file(tmp_path / f"whole.{form}", request) as output:
            counts = augment(pairs, augmentation, shouted, output, file_format=form)
        assert counts == {"written": 15, "blank": 5, **({"tabs": 15} if form == "tsv" else {})}
        resumed = tmp_path / f"resumed.{form}"
        for window in range(8):  # each time killed one window later
            translate = partial(killed, tmp_path / f"resumed.{form}.part" / "content", 3 * window)
            progress: list[int] = []
            try:
                with resumable_file(resumed, request) as output:
                    assert output.num_read == min(max(0, window - 1) * 3, 18)
                    assert (
                        augment(pairs, augmentation, translate, output, file_format=form, on_progress=progress.append) == counts
                    )
            except KeyboardInterrupt:
                assert not resumed.exists()
        assert sum(progress) == 20
        assert resumed.read_bytes() == (tmp_path / f"whole.{form}").read_bytes()
        assert not resumed.with_name(f"{resumed.name}.part").exists()
    assert next(read_lines(tmp_path / "whole.tsv")) == "line 1\tLINE 1 1"


def begin(path: Path, request: dict[str, Any], *, overwrite: bool = False) -> int:
    """Write a line, end as if killed, and return the number of lines before."""
    with suppress(KeyboardInterrupt), resumable_file(path, request, overwrite=overwrite) as output:
        before = output.num_read
        output.append("a line\n", num_read=1, summary={"written": 1})
        raise KeyboardInterrupt
    return before


def test_output_of_other_settings_is_kept(tmp_path: Path) -> None:
    path, first = tmp_path / "a.tsv", {"text": ["x"], "decoding": {"beam_size": 4, "seed": 1}}
    assert begin(path, first) == 0
    assert begin(path, first) == 1
    for changed, difference in (
        ({**first, "text": ["y"]}, "another text"),
        ({**first, "decoding": {"beam_size": 5, "seed": 1}}, r"decoding.beam_size = 4, not 5"),
    ):
        with raises_code("output-mismatch", difference, "--overwrite"), resumable_file(path, changed):
            pass
    content = (tmp_path / "a.tsv.part" / "content").read_text()
    assert content == "a line\na line\n"
    assert begin(path, {**first, "text": ["y"]}, overwrite=True) == 0
    assert begin(path, {**first, "text": ["y"]}, overwrite=True) == 1  # the same request resumes
    (tmp_path / "a.tsv.part" / "progress.json").write_text("{")
    with raises_code("output-damaged", "a.tsv.part"), resumable_file(path, first):
        pass
    (tmp_path / "a.tsv.part" / "mine").write_text("")
    with raises_code("not-replaceable", "mine"), resumable_file(path, first):
        pass
    path.write_text("somebody's\n")
    with raises_code("output-exists", "a.tsv"), resumable_file(path, first):
        pass
    assert path.read_text() == "somebody's\n"


def test_back_translation_end_to_end(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "news.en"
    text.write_text("one two\n\nred big ten\n", encoding="utf-8")
    output = tmp_path / "news.jsonl"
    arguments = ["augment", "back-translate", bundle, text, "-o", output, "--tag", "<BT>", "--device", "cpu", "method=greedy"]
    monkeypatch.setattr(sys, "argv", ["dragoman", *map(str, arguments), "--json"])
    main()
    summary = json.loads(capsys.readouterr().out)
    assert (summary["lines"], summary["pairs"], summary["dropped"]) == (3, 2, {"blank": 1})
    pairs = list(read_pairs(CorpusConfig(file=str(output)), Path()))
    targets = ["one two", "red big ten"]
    translator = load(bundle, task="translation", device="cpu")
    made = [f"<BT> {translation.text}" for translation in translator.translate(targets, method="greedy")]
    assert [(pair.source, pair.target) for pair in pairs] == list(zip(made, targets, strict=True))
    documents = [json.loads(line) for line in read_lines(output)]
    assert [document["origin"] for document in documents] == [f"{text}:1", f"{text}:3"]
    assert all((item["method"], item["status"]) == ("back-translate", "ok") and item["score"] < 0 for item in documents)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["news.en", "news.jsonl"]
    with pytest.raises(SystemExit):
        main()
    assert "exists already" in capsys.readouterr().err


def test_distillation_and_self_training_end_to_end(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    runner, teacher = CliRunner(), load(bundle, task="translation", device="cpu")
    sources, targets = (list(read_lines(corpus / f"test.{side}")) for side in ("en", "de"))
    sides = [str(corpus / "test.en"), str(corpus / "test.de")]
    made = {
        "best": ["distill", str(bundle), *sides, "--best-of", "6", "--device", "cpu"],
        "plain": ["distill", str(bundle), *sides, "--device", "cpu"],
        "self": ["self-train", str(bundle), sides[0], "--device", "cpu", "beam_size=2"],
    }
    written = {}
    for name, arguments in made.items():
        output = tmp_path / f"{name}.tsv"
        result = runner.invoke(cli, ["augment", *arguments, "-o", str(output)], catch_exceptions=False)
        assert result.exit_code == 0
        assert f"{len(sources)} pairs of {len(sources)} lines" in result.stdout
        written[name] = [tuple(line.split("\t")) for line in read_lines(output)]
    plain = [translation.text for translation in teacher.translate(sources)]
    assert written["plain"] == list(zip(sources, plain, strict=True))
    assert written["self"] == list(
        zip(sources, [translation.text for translation in teacher.translate(sources, beam_size=2)], strict=True)
    )
    for (source, target), reference, best in zip(
        written["best"], targets, teacher.translate(sources, beam_size=6, nbest=6), strict=True
    ):
        candidates = (best, *best.alternatives)
        scores = {item.text: BLEU_SENTENCE.sentence_score(item.text, [reference]).score for item in candidates}
        assert scores[target] == max(scores.values()), source


def test_augment_without_pairs_exits_with_3(bundle: Path, tmp_path: Path) -> None:
    runner, text, output = CliRunner(), tmp_path / "news.en", str(tmp_path / "out.tsv")
    arguments = ["augment", "self-train", str(bundle), str(text), "-o", output, "--device", "cpu"]
    text.write_text("")
    with pytest.raises(DataError, match=r"news\.en: is empty"):
        runner.invoke(cli, arguments, catch_exceptions=False)
    text.write_text("\n\n")
    result = runner.invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 3
    assert "0 pairs of 2 lines" in result.stdout


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_replaced_tabs_are_counted(bundle: Path, tmp_path: Path, form: str) -> None:
    """A .tsv file separates its columns with tabs; a .jsonl file can hold them."""
    sides, output, runner = [tmp_path / "x.en", tmp_path / "x.de"], tmp_path / f"made.{form}", CliRunner()
    for path, text in zip(sides, ("one\ttwo\nred big ten\none\t\ttwo\n", "a\nb\nc\n"), strict=True):
        path.write_text(text, encoding="utf-8")
    options = ["augment", "distill", str(bundle), *map(str, sides), "--fallback-to-reference", "--device", "cpu"]
    arguments = [*options, "-o", str(output), "--overwrite"]
    result = runner.invoke(cli, arguments, catch_exceptions=False)
    assert "3 pairs of 3 lines" in result.stdout
    assert ("pairs whose tabs became spaces, because a .tsv has tabs between columns: 2\n" in result.stderr) == (form == "tsv")
    second = json.loads(runner.invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert (second["pairs"], second["tabs_replaced"]) == (3, 2 if form == "tsv" else 0)
    sources = [pair.source for pair in read_pairs(CorpusConfig(file=str(output)), Path())]
    between = " " if form == "tsv" else "\t"
    assert sources == [f"one{between}two", "red big ten", f"one{2 * between}two"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["self-train", "B", "nowhere.en", "-o", "a.tsv"], "nowhere.en"),
        (["self-train", "B", "nowhere.en", "-o", "a.txt"], "is not a .tsv or .jsonl"),
        (["self-train", "B", "nowhere.en", "-o", "a.tsv", "--tag", "a b"], "holds a space; give one word"),
        (["self-train", "B", "a.en", "b.en", "-o", "a.tsv"], "2 files are given; allowed: one file"),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--best-of", "4", "method=greedy"], "nbest = 4"),
        (["distill", "B", "x.unknown", "-o", "a.tsv"], "x.unknown: there is no such file"),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--best-of", "4", "beam_size=3"], "--best-of 4 sets nbest = 4: "),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--best-of", "4", "nbest=5"], "--best-of 4 and nbest=5 both set"),
        (["distill", "B", "x.en", "y.de", "-o", "a.tsv", "--similarity", "chrf"], "--similarity chrf: needs --best-of"),
        (["self-train", "B", ".", "-o", "a.tsv"], "is not a regular file"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_augment_errors_are_one_line(
    arguments: list[str],
    message: str,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = [str(bundle) if word == "B" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", ["dragoman", "augment", *typed, "--device", "cpu"])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


# The documentation

PAGES = [Path(__file__).parents[2] / "docs" / "how-to" / name for name in ("quality.md", "synthetic-data.md")]


def read_toml_blocks() -> list[str]:
    """Return the TOML code blocks of the pages about quality."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_recipes_of_the_pages_are_valid(bundle: Path) -> None:
    recipes = read_toml_blocks()
    assert len(recipes) >= 2
    for text in recipes:
        document = parse_toml(text, where="page")
        if "init_from" in document.get("training", {}):
            document["training"]["init_from"] = str(bundle)
        make_recipe(document)


def test_mixture_of_the_page_can_be_prepared(tmp_path: Path, corpus: Path, tiny: MakeRecipe) -> None:
    """Use the names of the page, with files like those that `augment` writes."""
    documents = (parse_toml(text, where="page") for text in read_toml_blocks())
    document = next(candidate for candidate in documents if "corpora" in candidate.get("data", {}))
    corpora = document["data"]["corpora"]
    for settings in corpora.values():
        if "file" in settings:
            lines = [{"source": f"<BT> {line}", "target": line, "origin": "x:1"} for line in ("eins", "zwei drei")]
            (tmp_path / settings["file"]).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        else:
            for side in ("source", "target"):
                (tmp_path / settings[side]).write_bytes((corpus / f"train.{'en' if side == 'source' else 'de'}").read_bytes())
    base = tiny(tmp_path / "run").model_dump()
    base["data"] = {**document["data"], "root": str(tmp_path), "max_length": 40}
    prepared = prepare(recipe_from_dict(base, where="page"), tmp_path / "data", lambda _: None)
    assert {name: stats.kept for name, stats in prepared.pair_counts.items()} == {
        name: (2 if "file" in settings else 60) for name, settings in corpora.items()
    }
