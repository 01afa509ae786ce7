"""Command accelerate, and greedy search with the prediction heads that it trains."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import dragoman
from conftest import edit_config
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.errors import DragomanError
from dragoman.inference.explain.explain_translation import explain
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.translator import Translator

pytestmark = pytest.mark.usefixtures("one_core")

LINES = ["one two three", "red blue", "", "five six seven eight nine", "ten"]


def run_command(*arguments: object) -> str:
    """Run a command and return its output. Raises its error."""
    return (
        CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False, standalone_mode=False).stdout
    )


def fail_command(*arguments: object) -> str:
    """Return the message of the error of a command, which is one line."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is not None
    message = str(result.exception) if isinstance(result.exception, DragomanError) else result.output
    assert not isinstance(result.exception, DragomanError) or "\n" not in message
    return message


@pytest.fixture(scope="module")
def fast(bundle: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle with two heads that the command has trained."""
    output = tmp_path_factory.mktemp("fast") / "bundle"
    options = ["--num-heads", "2", "--device", "cpu", "--precision", "float32", "--json"]
    facts = json.loads(run_command("accelerate", bundle, corpus / "train.en", "-o", output, *options))
    assert (facts["bundle"], facts["base"], facts["num_proposals"], facts["lines"]) == (str(output), str(bundle), 2, 60)
    trained_tokens = load_bundle(bundle).metadata.target_tokens
    assert trained_tokens is not None
    assert facts["target_tokens"] == pytest.approx(trained_tokens / 10, rel=0.1)
    assert all(1.0 <= rate <= int(size) for size, rate in facts["tokens_per_step"].items())
    assert not output.with_name("bundle.part").exists()
    return output


@pytest.fixture(scope="module")
def translator(fast: Path) -> Translator:
    return dragoman.load(fast, task="translation", device="cpu", precision="float32")


def test_heads_do_not_change_the_output(translator: Translator) -> None:
    expected = translator.translate(LINES, method="greedy", speculative="off")
    for line, reference in zip(translator.translate(LINES, method="greedy", speculative="on"), expected, strict=True):
        assert (line.text, line.tokens, line.status) == (reference.text, reference.tokens, reference.status)
        assert line.token_log_probs == pytest.approx(reference.token_log_probs, abs=1e-4)
        assert reference.tokens_per_step is None
        assert (line.tokens_per_step is None) == (not reference.tokens)
        assert sum(line.step_lengths or ()) == len(line.token_log_probs)
        assert 1.0 <= (line.tokens_per_step or 1.0) <= 3.0
    assert [line.text for line in translator.translate(LINES, method="greedy")] == [line.text for line in expected]


def test_segments_of_a_line_share_their_tokens_per_step(translator: Translator) -> None:
    (line,) = translator.translate(["one two three. four five six."], method="greedy", speculative="on", max_source_tokens=8)
    assert line.num_segments > 1
    assert sum(line.step_lengths or ()) == len(line.token_log_probs)
    assert line.tokens_per_step is not None
    assert 1.0 <= line.tokens_per_step <= 3.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "beam"}, "method"),
        ({"method": "sample"}, "method"),
        ({"method": "greedy", "repetition_penalty": 1.5}, "repetition_penalty"),
        ({"method": "greedy", "constraints": [TranslationConstraints("drei")]}, "constraints"),
    ],
)
def test_search_without_heads_says_so_in_one_line(
    translator: Translator, options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="dragoman"):
        (line,) = translator.translate(["three"], speculative="on", **options)
        (expected,) = translator.translate(["three"], speculative="off", **options)
    assert line == expected
    (message,) = caplog.messages
    assert "token by token" in message
    assert reason in message


def test_bundle_without_heads_and_ensemble_say_so(bundle: Path, fast: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dragoman"):
        plain = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
        plain.translate(["one"], method="greedy", speculative="on")
        both = dragoman.load(fast, bundle, task="translation", device="cpu", precision="float32")
        both.translate(["one"], method="greedy", speculative="on")
    assert ["accelerate" in caplog.messages[0], "ensemble" in caplog.messages[1]] == [True, True]


def test_explanation_has_the_tokens_of_each_step(translator: Translator) -> None:
    options: dict[str, Any] = {"method": "greedy", "speculative": "on"}
    (line,) = translator.translate(["five six seven"], **options)
    explanation = explain(translator, "five six seven", **options)
    assert explanation.step_lengths == line.step_lengths
    assert sum(explanation.step_lengths) == len(explanation.output_tokens)
    assert explain(translator, "five six seven", method="greedy", speculative="off").step_lengths == ()


def test_two_seeds_train_other_heads(bundle: Path, fast: Path, corpus: Path, tmp_path: Path) -> None:
    """The outputs stay those of greedy search for any proposals."""
    options = ["--num-heads", "2", "--device", "cpu", "--precision", "float32", "--seed", "2", "--json"]
    run_command("accelerate", bundle, corpus / "train.en", "-o", tmp_path / "second", *options)
    first, second = (load_bundle(folder).proposer for folder in (fast, tmp_path / "second"))
    assert first is not None
    assert second is not None
    assert not torch.equal(next(first.parameters()), next(second.parameters()))
    translator = dragoman.load(tmp_path / "second", task="translation", device="cpu", precision="float32")
    expected = translator.translate(LINES, method="greedy", speculative="off")
    outputs = translator.translate(LINES, method="greedy", speculative="on")
    assert [line.tokens for line in outputs] == [line.tokens for line in expected]


def test_draft_does_not_change_the_output(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    options = ["--method", "draft", "--num-proposals", "2", "--device", "cpu", "--precision", "float32", "--json"]
    facts = json.loads(run_command("accelerate", bundle, corpus / "train.en", "-o", tmp_path / "draft", *options))
    assert (facts["method"], facts["num_proposals"]) == ("draft", 2)
    translator = dragoman.load(tmp_path / "draft", task="translation", device="cpu", precision="float32")
    expected = translator.translate(LINES, method="greedy", speculative="off")
    outputs = translator.translate(LINES, method="greedy", speculative="on")
    assert [line.tokens for line in outputs] == [line.tokens for line in expected]
    assert all(line.tokens_per_step is not None for line in outputs if line.tokens)


def test_json_lines_have_tokens_per_step(fast: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.en"
    source.write_text("one two three\nred\n", encoding="utf-8")
    options = ["--device", "cpu", "--precision", "float32", "--json", "method=greedy"]
    lines = [json.loads(line) for line in run_command("translate", fast, source, *options, "speculative=on").splitlines()]
    assert all(1.0 <= line["tokens_per_step"] <= 3.0 for line in lines)
    assert "tokens_per_step" not in run_command("translate", fast, source, *options, "speculative=off")


def test_wrong_input_is_refused(bundle: Path, fast: Path, corpus: Path, tmp_path: Path) -> None:
    train, output = corpus / "train.en", tmp_path / "out"
    (tmp_path / "empty").write_text("\n \n")
    assert "holds no text" in fail_command("accelerate", bundle, tmp_path / "empty", "-o", output)
    assert "missing.en" in fail_command("accelerate", bundle, tmp_path / "missing.en", "-o", output)
    assert "at most a tenth" in fail_command("accelerate", bundle, train, "-o", output, "--tokens", "1000000000")
    assert str(fast) in fail_command("accelerate", bundle, train, "-o", fast)
    assert "is an input" in fail_command("accelerate", bundle, train, "-o", bundle, "--overwrite")
    assert "num-proposals" in fail_command("accelerate", bundle, train, "-o", output, "--num-heads", "16")
    unfinished = tmp_path / "out.part"
    unfinished.mkdir()
    (unfinished / "own.txt").write_text("text")
    assert "another output" in fail_command("accelerate", bundle, train, "-o", output)
    (unfinished / "own.txt").unlink()
    (unfinished / "request.json").write_text('{"seed": 3}')
    assert "was started with another" in fail_command("accelerate", bundle, train, "-o", output)
    assert not output.exists()


def test_model_with_a_window_has_no_heads(bundle_copy: Path, corpus: Path, tmp_path: Path) -> None:
    edit_config(bundle_copy, lambda config: config["recipe"]["model"].update(attention_window=4))
    message = fail_command("accelerate", bundle_copy, corpus / "train.en", "-o", tmp_path / "out")
    assert "attention window" in message
