"""Commands of domain adaptation: adapt, average of bundles, merge-adapter, and translate --adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from conftest import edit_config
from dragoman import model_packages
from dragoman.adapter import Adapter, save_adapter
from dragoman.bundle import compute_bundle_digest, load_bundle
from dragoman.cli.main import cli
from dragoman.config import LoraConfig
from dragoman.errors import DragomanError
from dragoman.model.lora import add_adapters, find_linears
from dragoman.model.weights import to_arrays
from dragoman.training.adapt_recipe import describe_result, prepare_adaptation
from dragoman.training.commands.train import join_numbers
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")

RunCommand = Callable[..., Result]


def run_command(*arguments: object) -> Result:
    """Run a command, and raise its error."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False, standalone_mode=False)


def fail_command(*arguments: object) -> str:
    """Return the message of the error of a command."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is not None
    return str(result.exception) if isinstance(result.exception, DragomanError) else result.output


@pytest.fixture(scope="module")
def adapter(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapter of the bundle with random matrices."""
    model, generator = load_bundle(bundle).model, torch.Generator().manual_seed(1)
    add_adapters(model, find_linears(model, ["*.output"]), rank=2, alpha=4.0, seed=1)
    weights = {
        name: torch.randn(parameter.shape, generator=generator)
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }
    path = tmp_path_factory.mktemp("adapter") / "adapter"
    save_adapter(path, Adapter("random", compute_bundle_digest(bundle), LoraConfig(rank=2, alpha=4.0), to_arrays(weights)))
    return path


def test_numbers_after_weights_are_one_value(subtests: pytest.Subtests) -> None:
    for arguments, expected in [
        (["A", "B", "--weights", "0.7", "0.3", "-o", "C"], ["A", "B", "--weights", "0.7,0.3", "-o", "C"]),
        (["--weights", ".5", "5e-1", "A", "B"], ["--weights", ".5,5e-1", "A", "B"]),
        (["--weights", "0.5,0.5", "A"], ["--weights", "0.5,0.5", "A"]),
        (["A", "--weights", "-o", "C"], ["A", "--weights", "-o", "C"]),
        (["A", "-o", "C"], ["A", "-o", "C"]),
    ]:
        with subtests.test(arguments=arguments, expected=expected):
            assert join_numbers(arguments, "--weights") == expected


def test_average_takes_names_of_models(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_packages, "find_model", lambda name: tmp_path / f"of-{name}")
    message = fail_command("model", "average", "own", bundle, "-o", tmp_path / "both")
    assert message.startswith(f"{tmp_path}/of-own: there is no such folder")


@pytest.mark.slow
def test_merge_adapter_then_average_with_the_base(bundle: Path, adapter: Path, tmp_path: Path) -> None:
    result = run_command("model", "merge-adapter", bundle, adapter, "-o", tmp_path / "merged", "--json")
    assert json.loads(result.stdout) == {"bundle": str(tmp_path / "merged"), "base": str(bundle), "adapter": str(adapter)}
    result = run_command(
        "model", "average", bundle, tmp_path / "merged", "--weights", "0.75", "0.25", "-o", tmp_path / "both", "--json"
    )
    assert json.loads(result.stdout) == {
        "bundle": str(tmp_path / "both"),
        "interpolated_bundles": {str(bundle): 0.75, str(tmp_path / "merged"): 0.25},
    }
    base, merged, both = (load_file(path / "weights.safetensors") for path in (bundle, tmp_path / "merged", tmp_path / "both"))
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    assert changed == {name for name in base if name.endswith(".output.weight")}
    for name in base:
        torch.testing.assert_close(both[name], 0.75 * base[name] + 0.25 * merged[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_translate_with_adapter_equals_merged_bundle(bundle: Path, adapter: Path, corpus: Path, tmp_path: Path) -> None:
    run_command("model", "merge-adapter", bundle, adapter, "-o", tmp_path / "merged")
    options = [corpus / "test.en", "--device", "cpu", "--precision", "float32"]
    adapted, merged, base = (
        run_command("translate", *arguments, *options).stdout
        for arguments in ([bundle, "--adapter", adapter], [tmp_path / "merged"], [bundle])
    )
    assert adapted == merged
    assert adapted != base


def test_mistakes_are_one_line(subtests: pytest.Subtests, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for arguments, message in [
        (["model", "average", "{bundle}", "-o", "{tmp}/out", "--weights", "1"], "--last N"),
        (["model", "average", "{bundle}", "{tmp}", "-o", "{tmp}/out", "--last", "1"], "two or more bundles"),
        (["model", "average", "{bundle}", "--last", "1", "--weights", "1", "-o", "{tmp}/out"], "--weights goes with"),
        (["model", "average", "{bundle}", "{tmp}/none", "-o", "{tmp}/out"], "none"),
        (["model", "average", "{bundle}", "{tmp}/none", "-o", "{tmp}/out", "--weights", "x"], "needs numbers"),
        (["model", "average", "{bundle}", "{tmp}/none", "-o", "{tmp}/out", "--weights", "0.5", "0.6"], "sum 1"),
        (["model", "merge-adapter", "{bundle}", "{tmp}/none", "-o", "{tmp}/out"], "holds no adapter"),
        (["model", "merge-adapter", "{bundle}", "{bundle}", "-o", "{tmp}/out"], "holds no adapter"),
        (["translate", "{bundle}", "--adapter", "{tmp}/none"], "holds no adapter"),
        (["adapt", "{tmp}/none", "{tmp}/none.tmx"], "none"),
        (["adapt", "{bundle}", "{tmp}/none.tmx"], "none.tmx"),
        (["adapt", "{bundle}", "training.max_steps=2"], "name a translation memory"),
    ]:
        with subtests.test(arguments=arguments, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            assert message in fail_command(*(argument.format(bundle=bundle, tmp=tmp_path) for argument in arguments))
            assert not (tmp_path / "out").exists()


def write_tsv(path: Path, corpus: Path, count: int, *, split: str = "train") -> Path:
    """Write the first pairs of a part of the corpus, and one that is not translated."""
    sources, targets = ((corpus / f"{split}.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de"))
    rows = [*zip(sources[:count], targets[:count], strict=True), ("not translated", "")]
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


def test_adapt_holds_out_a_tenth(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "own.tsv", corpus, 60)
    adaptation = prepare_adaptation(bundle, [file], tmp_path / "run")
    assert (adaptation.num_training_pairs, adaptation.num_held_out_pairs, adaptation.num_untranslated_pairs) == (51, 6, 1)
    sides = {
        name: (tmp_path / "run" / "pairs" / f"{name}.source.txt").read_text(encoding="utf-8")
        for name in ("train", "validation", "held-out")
    }
    sources = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
    assert sides["held-out"].splitlines() == sources[5::10]
    assert sides["validation"].splitlines() == [source for index, source in enumerate(sources) if index % 10 != 5][10::20]
    assert sorted("".join(sides.values()).splitlines()) == sorted(sources)
    modified = (tmp_path / "run" / "pairs" / "train.source.txt").stat().st_mtime_ns
    prepare_adaptation(bundle, [file], tmp_path / "run")
    assert (tmp_path / "run" / "pairs" / "train.source.txt").stat().st_mtime_ns == modified
    with raises_code("empty-data", "few.tsv: 19 translated pairs", "20 or more"):
        prepare_adaptation(bundle, [write_tsv(tmp_path / "few.tsv", corpus, 19)] * 2, tmp_path / "few")
    with raises_code("empty-data", "none.tsv: 0 translated pairs", "the test on general text needs 1"):
        prepare_adaptation(bundle, [file], tmp_path / "none", general=write_tsv(tmp_path / "none.tsv", corpus, 0))
    assert not (tmp_path / "none").exists()
    with raises_code("write-failed", "own.tsv/run/pairs: cannot be written: Not a directory"):
        prepare_adaptation(bundle, [file], file / "run")


@pytest.mark.slow
def test_adapt_writes_a_bundle_and_a_verdict(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "own.tsv", corpus, 60)
    general = write_tsv(tmp_path / "general.tsv", corpus, 8, split="test")
    settings = ("--run", tmp_path / "run", "--general", general, "training.max_steps=2", "training.batch_tokens=300")
    (tmp_path / "more.tsv").write_text("more\tmehr\n", encoding="utf-8")
    result = run_command("adapt", bundle, file, tmp_path / "more.tsv", *settings)
    assert "The training takes about" in result.stderr
    assert f"adapted to 2 files, into {tmp_path / 'run'}" in result.stderr.replace("\n", "")
    assert "On the held-out pairs (6 sentences), " in result.output
    assert "On the general text (8 sentences), " in result.output
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["init_from"] == str(bundle)
    assert list(report["test_sets"]) == ["held-out", "general"]
    assert load_bundle(tmp_path / "run" / "bundle").recipe.training.init_from == str(bundle)


def test_adaptation_follows_the_training_of_the_bundle(bundle: Path, bundle_copy: Path, corpus: Path, tmp_path: Path) -> None:
    """The learning rate is a fifth of the bundle's 0.01, or 2e-4 · √(512 / d_model) for a converted model."""
    file = write_tsv(tmp_path / "own.tsv", corpus, 60)
    recipe = prepare_adaptation(bundle, [file], tmp_path / "run").recipe
    own = load_bundle(bundle).recipe
    assert recipe.training.peak_lr == pytest.approx(0.01 / 5)
    assert recipe.training.label_smoothing == own.training.label_smoothing

    def change(config: dict[str, Any]) -> None:
        config["recipe"]["training"] |= {"label_smoothing": 0.0, "label_smoothing_mode": "exclude_target"}
        config["recipe"]["data"]["noise"] |= {"placeholders": 0.25, "typos": 0.5}
        config["recipe"]["tokenizer"]["byte_fallback"] = True
        config["recipe"]["card"] |= {"purpose": "captions", "license": "CC-BY-4.0"}
        config["metadata"]["origin"] = {"format": "huggingface-marian", "name": "x"}

    edit_config(bundle_copy, change)
    recipe = prepare_adaptation(bundle_copy, [file], tmp_path / "converted").recipe
    assert recipe.training.peak_lr == pytest.approx(2e-4 * (512 / 16) ** 0.5)
    assert (recipe.training.label_smoothing, recipe.training.label_smoothing_mode) == (0.0, "exclude_target")
    assert (recipe.data.noise.placeholders, recipe.data.noise.typos) == (0.25, 0.0)
    assert (recipe.card.purpose, recipe.card.license) == ("", "CC-BY-4.0")


@pytest.mark.slow
def test_adaptation_keeps_a_start_that_nothing_beats(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    """A learning rate that destroys the model leaves the old weights, and the verdict says so."""
    file = write_tsv(tmp_path / "own.tsv", corpus, 60)
    settings = ("training.max_steps=4", "training.patience=2", "training.peak_lr=10", "training.warmup_steps=1")
    result = run_command("adapt", bundle, file, "--run", tmp_path / "run", *settings, "training.validate_every_steps=1")
    assert "the new bundle has the weights of the old one" in result.output
    before, after = (load_file(path / "weights.safetensors") for path in (bundle, tmp_path / "run" / "bundle"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["steps"] == 2
    assert {change["difference"] for change in report["test_sets"]["held-out"]["changes"].values()} == {0.0}


def test_verdict_follows_the_bootstrap(subtests: pytest.Subtests) -> None:
    for bleu, chrf, verdict in [
        ((2.0, 0.01), (1.0, 0.01), "the new bundle is better"),
        ((2.0, 0.2), (1.0, 0.01), "the new bundle is better"),
        ((0.0, 1.0), (-9.0, 0.01), "the new bundle is worse"),
        ((2.0, 0.2), (1.0, 0.05), "no difference is proven"),
        ((2.0, 0.01), (-1.0, 0.01), "the metrics disagree"),
    ]:
        with subtests.test(bleu=bleu, chrf=chrf, verdict=verdict):
            changes: dict[str, Any] = {
                metric: {"before": 20.0, "after": 20.0 + difference, "difference": difference, "p_value": p_value}
                for metric, (difference, p_value) in (("bleu", bleu), ("chrf", chrf))
            }
            sentence, _ = describe_result({"test_sets": {"held-out": {"sentences": 1000, "changes": changes}}})
            assert verdict in sentence
            assert f"BLEU 20.0 → {20.0 + bleu[0]:.1f}, p = {bleu[1]:.3f}; chrF 20.0 → {20.0 + chrf[0]:.1f}" in sentence
