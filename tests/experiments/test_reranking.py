"""Reranking: scores by hand, weights by exhaustive search, and log-probabilities by forced decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import dragoman
from conftest import MakeRecipe
from dragoman import Translator
from dragoman.bundle import load_bundle, save_bundle
from dragoman.cli.main import cli
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.evaluation.metrics import bleu
from dragoman.experiments.reranking.reranking import (
    Reranker,
    RerankWeights,
    ScoredCandidate,
    choose_candidate,
    read_weights,
    reverse_words,
)
from dragoman.experiments.reranking.tuning import select_best, tune_weights
from dragoman.model.factory import build_model
from dragoman.model.weights import collect_weights
from expected_errors import raises_code
from tiny_runs import WORDS
from torch_models import bundle_model

pytestmark = pytest.mark.usefixtures("one_core")
CANDIDATES = [
    ScoredCandidate("a", forward=-1.0, length=3, reverse=-8.0, right_to_left=-2.0),
    ScoredCandidate("b", forward=-2.0, length=5, reverse=-4.0, right_to_left=-3.0),
    ScoredCandidate("c", forward=-3.0, length=9, reverse=-5.0, right_to_left=-9.0),
]


@pytest.fixture(scope="module")
def forward(bundle: Path, one_core: None) -> Translator:
    return dragoman.load(bundle, task="translation", device="cpu", precision="float32")


@pytest.fixture(scope="module")
def reverse_path(bundle: Path, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of a random model from German to English with the tokenizers of the trained one."""
    folder = tmp_path_factory.mktemp("reverse")
    recipe = tiny(folder / "run", "task.source_language=de", "task.target_language=en")
    trained = load_bundle(bundle).tokenizer
    assert trained.has_text_target
    tokenizer: Any = PairTokenizer(trained.target, trained.source, append_source_eos=recipe.model.append_source_eos)  # type: ignore[arg-type]
    torch.manual_seed(2)
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target)).eval()
    saved = bundle_model(recipe, tokenizer, model)
    save_bundle(folder / "bundle", recipe=recipe, tokenizer=tokenizer, weights=collect_weights(model), metadata=saved.metadata)
    return folder / "bundle"


@pytest.fixture(scope="module")
def reverse(reverse_path: Path) -> Translator:
    return dragoman.load(reverse_path, task="translation", device="cpu", precision="float32")


def test_score_is_weighted_sum(subtests: pytest.Subtests) -> None:
    for weights, scores, best in [
        (RerankWeights(), [-1.0, -2.0, -3.0], "a"),
        (RerankWeights(reverse=0.5), [-5.0, -4.0, -5.5], "b"),
        (RerankWeights(length=0.5), [0.5, 0.5, 1.5], "c"),
        (RerankWeights(0.5, 0.25, 0.1), [-5.2, -4.25, -6.85], "b"),
        (RerankWeights(0.25, 1.0, 1.0), [-2.0, -1.0, -4.25], "b"),
    ]:
        with subtests.test(weights=weights, scores=scores, best=best):
            assert [candidate.compute_score(weights) for candidate in CANDIDATES] == pytest.approx(scores)
            assert choose_candidate(CANDIDATES, weights).text == best


def test_tuning_finds_best_point_of_grid() -> None:
    rng = np.random.default_rng(1)
    words = list("abcdefgh")
    references = [" ".join(rng.choice(words, 6)) for _ in range(30)]
    candidates, features = [], []
    for reference in references:
        texts = [" ".join(rng.choice(words, 6)) for _ in range(3)] + [reference]
        candidates.append(texts)
        features.append(np.stack([rng.normal(size=4), [*rng.normal(-1, 1, 3), 1.0]], axis=1))
    grid = [0.0, 0.5, 1.0, 1.5, 2.0]
    tuned = tune_weights(candidates, features, references, [grid], tokenize="none")

    def score(weight: float) -> float:
        chosen = [texts[select_best(matrix, [weight])] for texts, matrix in zip(candidates, features, strict=True)]
        return bleu(chosen, [references], tokenize="none").value

    # `bleu` smooths, the tuned metric does not, as in `tokenized_bleu`; both agree where every n-gram order has a match.
    assert tuned.first_score < tuned.score == pytest.approx(max(map(score, grid)))
    assert score(tuned.weights[0]) == pytest.approx(max(map(score, grid)))


@pytest.mark.parametrize(("candidates", "references"), [([["a"]], []), ([], []), ([[]], ["a"])])
def test_tuning_needs_a_candidate_and_a_reference(candidates: list[list[str]], references: list[str]) -> None:
    with raises_code("length-mismatch"):
        tune_weights(candidates, [np.ones((1, 2))] * len(candidates), references, [[0.0]])


def test_candidates_have_forced_log_probs(forward: Translator, reverse: Translator) -> None:
    reranker = Reranker(forward, reverse, right_to_left=forward)
    lines = reranker.make_candidates(["red one ten", "", "big blue"], beam_size=4)
    for source, line in zip(["red one ten", "big blue"], (lines[0], lines[2]), strict=True):
        assert len(line) > 1
        assert len({candidate.text for candidate in line}) == len(line)
        for candidate in line:
            (reversed_pair,) = reverse.score([candidate.text], [source])
            (right_to_left,) = forward.score([source], [reverse_words(candidate.text)])
            assert candidate.reverse == pytest.approx(sum(reversed_pair.token_log_probs), abs=1e-4)
            assert candidate.right_to_left == pytest.approx(sum(right_to_left.token_log_probs), abs=1e-4)
    best = forward.translate(["red one ten"], beam_size=4)[0]
    assert (lines[0][0].text, lines[0][0].length) == (best.text, len(best.token_log_probs))
    assert lines[0][0].forward == pytest.approx(sum(best.token_log_probs), abs=1e-4)
    assert lines[1] == [ScoredCandidate("", 0.0, 0)]


def test_model_of_same_direction_is_no_reverse_model(forward: Translator) -> None:
    with raises_code("wrong-task"):
        Reranker(forward, reverse=forward)


def test_reranking_needs_second_model(forward: Translator) -> None:
    with raises_code("missing-key"):
        Reranker(forward)


def test_wrong_weights_are_an_error(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text in ["", "[]", '{"reverse": "1"}', '{"other": 1}', '{"length": NaN}', '{"length": true}']:
        with subtests.test(text=text):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "weights.json"
            path.write_text(text, encoding="utf-8")
            with raises_code("invalid-format"):
                read_weights(path)


def test_missing_weights_are_an_error(tmp_path: Path) -> None:
    with raises_code("file-not-found"):
        read_weights(tmp_path / "none.json")


def test_command_tunes_and_reranks(bundle: Path, reverse_path: Path, tmp_path: Path) -> None:
    sources = ["red one ten", "big blue four", "seven"]
    (tmp_path / "in.en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    references = [" ".join(WORDS[word] for word in line.split()) for line in sources]
    (tmp_path / "in.de").write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    shared = ["rerank", str(bundle), str(tmp_path / "in.en"), "beam_size=3", "--reverse", str(reverse_path), "--device", "cpu"]
    shared += ["--weights", str(tmp_path / "weights.json")]
    tuning = CliRunner().invoke(cli, [*shared, "--tune", str(tmp_path / "in.de"), "--metric", "chrf"], catch_exceptions=False)
    assert "chrf on" in tuning.stdout
    weights = read_weights(tmp_path / "weights.json")
    result = CliRunner().invoke(cli, [*shared, "--json"], catch_exceptions=False)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["source"] for line in lines] == sources
    for line in lines:
        scores = [
            candidate["forward"] + weights.reverse * candidate["reverse"] + weights.length * candidate["length"]
            for candidate in line["candidates"]
        ]
        assert [candidate["score"] for candidate in line["candidates"]] == pytest.approx(scores)
        assert line["text"] == line["candidates"][int(np.argmax(scores))]["text"]
    text = CliRunner().invoke(cli, shared, catch_exceptions=False).stdout.splitlines()
    assert text == [line["text"] for line in lines]
