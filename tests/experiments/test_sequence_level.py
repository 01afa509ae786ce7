"""Minimum risk training and expected GLEU: gradients against enumeration, samples, exact resumption, several processes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import MakeRecipe
from dragoman.config import DecodingConfig, ModelConfig, Recipe
from dragoman.data.collate import Batch, collate
from dragoman.data.padding import pad_sequences
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.errors import RecipeError
from dragoman.evaluation.gleu import count_ngrams, ngram_gleu
from dragoman.experiments.risk_training.candidates import (
    OutputCandidates,
    SequenceLossSettings,
    draw_candidates,
    make_counter_sampler,
)
from dragoman.experiments.risk_training.config import SequenceLossConfig
from dragoman.experiments.risk_training.loss import compute_risk, expected_risk, sequence_level_loss
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.torch_engine.arrays import TorchArrays
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.monitoring.flops import compute_batch_cost, count_forward_flops
from dragoman.training.run import train
from expected_errors import raises_code
from rank_processes import find_free_port, read_losses, run_ranks, train_all
from tiny_runs import NO_DROPOUT
from trainers import Recorder, assert_equal_states, new_trainer, without

pytestmark = pytest.mark.usefixtures("one_core")

START_ID, VOCAB_SIZE, MAX_LENGTH = 0, 7, 2
TOY = ModelConfig(
    encoder_layers=1, decoder_layers=1, d_model=8, d_ff=16, num_heads=2, residual_dropout=0.0, embedding_dropout=0.0
)
# Two sentences whose outputs have at most two tokens; the second reference is the end token and a word before it.
SOURCES, REFERENCES = [[4, 5, END_ID], [6, END_ID]], [[5, 4], [6]]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(7)
    return build_model(TOY, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE).double()


@pytest.fixture
def batch() -> Batch:
    return collate(SOURCES, REFERENCES, start_id=START_ID)


def settings_of(**options: object) -> SequenceLossSettings:
    config = SequenceLossConfig.model_validate({"weight": 1.0, **options})
    return SequenceLossSettings(config, START_ID, MAX_LENGTH, DecodingConfig(max_extra_tokens=10))


def all_outputs() -> list[tuple[int, ...]]:
    """Return every output of at most two tokens: those that end, and those that the length limit cuts."""
    words = [token for token in range(VOCAB_SIZE) if token not in (*FORBIDDEN_IDS, END_ID)]
    return [(END_ID,), *((word, END_ID) for word in words), *product(words, words)]


def gleu_of(output: tuple[int, ...], sentence: int) -> float:
    return ngram_gleu(count_ngrams([token for token in output if token != END_ID]), count_ngrams(REFERENCES[sentence]))


def all_candidates() -> OutputCandidates:
    outputs = all_outputs()
    sentences = torch.arange(len(SOURCES)).repeat_interleave(len(outputs))
    gleus = [gleu_of(output, sentence) for sentence in range(len(SOURCES)) for output in outputs]
    return OutputCandidates(outputs * len(SOURCES), sentences, torch.ones(len(gleus)), torch.tensor(gleus))


def enumerate_log_probs(model: Transformer) -> Tensor:
    """Return the log-probability of every output of both sentences with plain PyTorch, without the tokens that never occur."""
    outputs = all_outputs()
    targets_RT = torch.from_numpy(pad_sequences(outputs))
    inputs_RT = torch.from_numpy(pad_sequences([output[:-1] for output in outputs], prefix_id=START_ID))
    is_forbidden_V = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill_(0, torch.tensor(FORBIDDEN_IDS), True)
    rows = []
    for source in SOURCES:
        logits_RTV = model(torch.tensor([source] * len(outputs)), inputs_RT)
        log_probs_RTV = logits_RTV.masked_fill(is_forbidden_V, float("-inf")).log_softmax(dim=-1)
        log_probs_RT = log_probs_RTV.gather(2, targets_RT[:, :, None])[:, :, 0]
        rows.append(log_probs_RT.masked_fill(targets_RT == PADDING_ID, 0.0).sum(dim=1))
    return torch.cat(rows)


def gradients(model: Transformer, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("sharpness", [1.0, 0.3])
def test_minimum_risk_gradient_equals_enumeration(model: Transformer, batch: Batch, sharpness: float) -> None:
    log_probs_R, candidates = enumerate_log_probs(model), all_candidates()
    assert log_probs_R.exp().view(2, -1).sum(dim=1).tolist() == pytest.approx([1.0, 1.0], abs=1e-9)
    weights_R = (sharpness * log_probs_R).view(2, -1).softmax(dim=1).flatten()
    exact = (weights_R * (1.0 - candidates.gleu_R)).sum()
    risk = expected_risk(model, batch, candidates, settings_of(sharpness=sharpness).config, start_id=START_ID)
    assert risk.item() == pytest.approx(exact.item(), abs=1e-6)
    for mine, expected in zip(gradients(model, risk), gradients(model, exact), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-5)


def test_expected_gleu_gradient_is_unbiased() -> None:
    """The mean of the estimate over all pairs of samples is P(y) · (risk(y) − mean risk), the gradient of the mean risk."""
    gleus = torch.tensor([0.0, 0.25, 1.0, 0.5])
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    config = settings_of(objective="expected_gleu", num_candidates=2).config
    mean_gradient, mean_risk = torch.zeros(4), 0.0
    for first, second in product(range(4), range(4)):
        drawn = [first] if first == second else [first, second]
        counts = torch.tensor([2.0]) if first == second else torch.ones(2)
        candidates = OutputCandidates([(END_ID,)] * len(drawn), torch.zeros(len(drawn), dtype=torch.long), counts, gleus[drawn])
        risk, gradient = compute_risk(candidates, config, 1, None)
        mean_gradient[drawn] += probs[first] * probs[second] * gradient
        mean_risk += float(probs[first] * probs[second] * risk)
    exact_risk = 1.0 - float(probs @ gleus)
    assert mean_risk == pytest.approx(exact_risk, abs=1e-6)
    torch.testing.assert_close(mean_gradient, probs * (1.0 - gleus - exact_risk))


def test_expected_gleu_gradient_weighs_log_probabilities(model: Transformer, batch: Batch) -> None:
    config = settings_of(objective="expected_gleu").config
    candidates = all_candidates()
    _, gradient_R = compute_risk(candidates, config, 2, None)
    exact = (gradient_R * enumerate_log_probs(model)).sum()
    risk = expected_risk(model, batch, candidates, config, start_id=START_ID)
    assert risk.item() == pytest.approx(float((1.0 - candidates.gleu_R).view(2, -1).mean(dim=1).sum()), abs=1e-6)
    for mine, expected in zip(gradients(model, risk), gradients(model, exact), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-5)


def test_samples_follow_the_distribution_of_the_model(model: Transformer, batch: Batch) -> None:
    num_samples = 1000
    torch.manual_seed(3)
    candidates = draw_candidates(model, batch, settings_of(num_candidates=num_samples))
    counts = {(int(sentence), output): float(count) for sentence, output, count in zip(
        candidates.sentences_R, candidates.target_ids, candidates.counts_R, strict=True
    )}  # fmt: skip
    assert sum(counts.values()) == 2 * num_samples
    probs = enumerate_log_probs(model).exp().tolist()
    outputs = list(product(range(2), all_outputs()))
    # Pearson's statistic has a mean of one a degree of freedom, here 2 · 20, and a standard deviation of √(2 · 40) ≈ 9.
    statistic = sum(
        (counts.get(output, 0.0) - num_samples * prob) ** 2 / (num_samples * prob)
        for output, prob in zip(outputs, probs, strict=True)
    )
    assert 40 - 4 * 9 < statistic < 40 + 4 * 9
    for sentence, output, gleu in zip(candidates.sentences_R, candidates.target_ids, candidates.gleu_R, strict=True):
        assert float(gleu) == pytest.approx(gleu_of(output, int(sentence)))


def test_draw_depends_on_row_number_and_not_on_other_rows() -> None:
    logits_NV, arrays = torch.zeros(4, 1000), TorchArrays(torch.device("cpu"))
    whole, part = make_counter_sampler(5, arrays), make_counter_sampler(5, arrays)
    topk = None
    tokens_N = whole(logits_NV, [0, 1, 2, 3], 1, topk)  # type: ignore[arg-type]
    assert torch.equal(part(logits_NV[:2], [1, 3], 1, topk), tokens_N[[1, 3]])  # type: ignore[arg-type]


def test_nbest_candidates_are_different_and_finished(model: Transformer, batch: Batch) -> None:
    candidates = draw_candidates(model, batch, settings_of(candidates="nbest", num_candidates=4))
    pairs = list(zip(candidates.sentences_R.tolist(), candidates.target_ids, strict=True))
    assert len(set(pairs)) == len(pairs)
    assert all(output[-1] == END_ID for output in candidates.target_ids)
    # Outputs of at most two tokens that end: the end token, or one of four words before it.
    log_probs = enumerate_log_probs(model).view(2, -1)[:, :5]
    for sentence in range(2):
        best = [all_outputs()[index] for index in log_probs[sentence].argsort(descending=True)[:4].tolist()]
        assert {output for row, output in pairs if row == sentence} <= set(best) | {all_outputs()[0]}


def test_reference_is_one_more_candidate(model: Transformer, batch: Batch) -> None:
    for include_reference in (False, True):
        torch.manual_seed(1)
        candidates = draw_candidates(model, batch, settings_of(num_candidates=2, include_reference=include_reference))
        has_reference = [
            (*REFERENCES[sentence], END_ID) in {
                output for row, output in zip(candidates.sentences_R, candidates.target_ids, strict=True) if row == sentence
            }
            for sentence in range(2)
        ]  # fmt: skip
        assert all(has_reference) == include_reference


def test_mixture_is_the_weighted_sum_of_both_losses(model: Transformer, batch: Batch) -> None:
    settings = settings_of(weight=3.0, likelihood_weight=0.5)
    torch.manual_seed(1)
    loss, nll = sequence_level_loss(model, batch, settings, epsilon=0.1, smoothing_mode="uniform")
    torch.manual_seed(1)
    candidates = draw_candidates(model, batch, settings)
    reference_loss, reference_nll = batch_loss(model, batch, epsilon=0.1, smoothing_mode="uniform")
    risk = expected_risk(model, batch, candidates, settings.config, start_id=START_ID)
    assert nll.item() == reference_nll.item()
    assert loss.item() == pytest.approx(0.5 * reference_loss.item() + 3.0 * risk.item(), rel=1e-6)


def test_cost_counts_search_and_training_of_candidates(batch: Batch) -> None:
    sources, targets = (torch.tensor(lengths).numpy() for lengths in ([3, 2], [3, 2]))
    forward = count_forward_flops(TOY, VOCAB_SIZE, sources, targets)
    encoder_only = count_forward_flops(TOY, VOCAB_SIZE, sources, 0 * targets)
    plain = compute_batch_cost(TOY, VOCAB_SIZE, batch).flops
    assert plain == 3 * forward
    assert compute_batch_cost(TOY, VOCAB_SIZE, batch, num_candidates=5).flops - plain == 4 * (
        encoder_only + 5 * (forward - encoder_only)
    )


# Runs

SHORT = ("training.max_steps=4", "training.warmup_steps=2", "training.checkpoint_every_steps=2", "training.batch_tokens=40")
RISK = "training.sequence_loss={num_candidates = 3}"
VARIANTS = {
    "risk": (RISK, "training.batches_per_update=2"),
    "nbest": ("training.sequence_loss={candidates = 'nbest', num_candidates = 3, sharpness = 1.0}", "training.lora.rank=2"),
}


def make_recipe_without_evaluation(tiny: MakeRecipe, run: Path, bundle: Path, *settings: str) -> Recipe:
    return without(tiny(run, f"training.init_from='{bundle}'", *SHORT, *settings), "valid", "test")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_run_equals_unbroken_run(variant: str, bundle: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    def recipe_of(name: str) -> Recipe:
        return make_recipe_without_evaluation(tiny, tmp_path / name, bundle, *VARIANTS[variant])

    new_trainer(recipe_of("unbroken")).run()
    for stop_after in (1, 2):
        with raises_code("interrupted"):
            new_trainer(recipe_of("run"), Recorder(stop_after=stop_after)).run()
    new_trainer(recipe_of("run")).run()
    runs = (tmp_path / "run", tmp_path / "unbroken")
    assert_equal_states(*(list_checkpoints(run / "checkpoints")[-1] for run in runs))


@pytest.mark.slow
def test_two_ranks_make_the_run_of_one_process(bundle: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (RISK, "training.batches_per_update=2", "training.sequence_loss.likelihood_weight=1.0", *NO_DROPOUT)
    recipes = {name: make_recipe_without_evaluation(tiny, tmp_path / name, bundle, *settings) for name in ("alone", "together")}
    train(recipes["alone"])
    run_ranks(2, train_all, {find_free_port(): recipes["together"]})
    alone, together = (read_losses(tmp_path / name) for name in ("alone", "together"))
    # Sums in another order differ by rounding.
    assert together == pytest.approx(alone, rel=1e-4)
    first, second = (list_checkpoints(tmp_path / name / "checkpoints")[-1].weights() for name in recipes)
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=2e-4, rtol=1e-3)


def test_options_that_do_not_go_together_are_refused(
    subtests: pytest.Subtests, bundle: Path, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for settings, names in [
        (("training.kl_to_init=1",), ("sequence_loss and kl_to_init",)),
        (("training.guided_alignment_weight=1",), ("sequence_loss and guided_alignment_weight",)),
        (("training.compile=true",), ("sequence_loss and compile",)),
        (("training.parallel='fsdp'",), ("sequence_loss and parallel = 'fsdp'",)),
        (("tokenizer.sampling_alpha=0.1",), ("tokenizer.sampling_alpha = 0.1",)),
        (("training.sequence_loss.weight=0", "training.sequence_loss.likelihood_weight=0"), ("there is no loss",)),
        (("training.sequence_loss.num_candidates=1",), ("num_candidates = 1",)),
        (("training.sequence_loss.objective='expected_gleu'", "training.sequence_loss.candidates='nbest'"), ("'nbest'",)),
        (
            ("training.sequence_loss.objective='expected_gleu'", "training.sequence_loss.include_reference=true"),
            ("include_reference",),
        ),
        (("training.sequence_loss.objective='expected_gleu'", "training.sequence_loss.sharpness=1.0"), ("sharpness = 1",)),
    ]:
        with subtests.test(settings=settings, names=names):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(RecipeError) as raised:
                tiny(tmp_path / "run", f"training.init_from='{bundle}'", RISK, *settings)
            assert all(name in str(raised.value) for name in names), raised.value
            assert "\n" not in str(raised.value)


def test_risk_needs_a_trained_run(tiny: MakeRecipe, tmp_path: Path) -> None:
    with raises_code("invalid-recipe", "sequence_loss needs a bundle to start from"):
        tiny(tmp_path / "run", RISK)
