"""Each command that writes a bundle anew keeps its parts, or measures them again."""

from __future__ import annotations

import ast
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dragoman
from conftest import MakeRecipe
from dragoman.adapter import Adapter, save_adapter
from dragoman.bundle import (
    BundleMetadata,
    ModelOrigin,
    SpeechTokens,
    compute_bundle_digest,
    load_bundle,
    read_config,
    save_bundle,
)
from dragoman.bundle_parts import HISTORY, PARTS, inherit_parts, inherit_shortlist
from dragoman.cli.main import cli
from dragoman.config import LoraConfig
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.model.lora import add_adapters, find_linears
from dragoman.model.weights import to_arrays
from dragoman.shortlist import Shortlist, compute_vocabulary_digest, read_shortlist
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.confidence import OutputSignals, calibrate
from dragoman.text.length_ratios import LengthRatios
from dragoman.training.run import train
from trainers import Recorder

pytestmark = pytest.mark.usefixtures("one_core")

FULL = BundleMetadata(
    alignment=AlignmentHead(0, 1),
    confidence=calibrate([OutputSignals(1 + row % 9, -row / 50, -row / 20, 1 - row / 300) for row in range(120)]),
    length_ratios=[LengthRatios("en", "de", (), (0.5,), (2.0,))],
    speech=SpeechTokens(
        languages={"en": 4},
        tasks={"transcribe": 5},
        first_special=4,
        no_timestamps=6,
        first_timestamp=7,
        no_speech=None,
        suppressed=[],
        suppressed_first=[],
        max_initial_timestamp=None,
    ),
    language_pairs=[("en", "de")],
    origin=ModelOrigin(format="huggingface-marian", name="opus-mt-en-de", license="cc-by-4.0"),
)


@pytest.fixture(scope="module")
def full(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the bundle with every part."""
    path, plain = tmp_path_factory.mktemp("full") / "bundle", load_bundle(bundle)
    tokenizer = plain.tokenizer
    save_bundle(
        path,
        recipe=plain.recipe,
        tokenizer=tokenizer,
        weights=plain.arrays,
        metadata=replace(plain.metadata, **{part.name: getattr(FULL, part.name) for part in PARTS}),
        shortlist=Shortlist(
            np.zeros((len(tokenizer.source), 1), np.int32),
            np.array([5, 7], np.int32),
            tokenizer.shares_vocabulary,
            compute_vocabulary_digest(tokenizer),
        ),
    )
    return path


def run(*words: object) -> str:
    """Run a command, and return what it printed."""
    return CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False, standalone_mode=False).output


def write_adapter(base: Path, path: Path) -> Path:
    model = load_bundle(base).model
    add_adapters(model, find_linears(model, ["*.output"]), rank=2, alpha=4.0, seed=1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters() if ".lora_" in name}
    save_adapter(path, Adapter("x", compute_bundle_digest(base), LoraConfig(rank=2, alpha=4.0), to_arrays(weights)))
    return path


def fine_tune(base: Path, tiny: MakeRecipe, run_dir: Path, *settings: str) -> str:
    """Fine-tune the bundle for two steps, and return the notices."""
    recorder = Recorder()
    train(_keep_base(tiny, run_dir, base, "training.max_steps=2", *settings), recorder)
    return "\n".join(recorder.notices)


def _keep_base(tiny: MakeRecipe, run_dir: Path, base: Path, *settings: str) -> Any:
    from dragoman.config import make_recipe

    own = tiny(run_dir).model_dump()
    training = {name: own["training"][name] for name in ("precision", "batch_tokens", "peak_lr", "warmup_steps", "schedule")}
    document = {
        "name": "tuned",
        "run": str(run_dir),
        "preset": "modern",
        "data": {name: own["data"][name] for name in ("root", "train", "valid", "max_length")},
        "training": training | {"init_from": str(base), "checkpoint_averaging": "none"},
    }
    return make_recipe(document, settings, where="test")


def average(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    fine_tune(base, tiny, tmp_path / "run")
    return tmp_path / "out", run("model", "average", tmp_path / "run", "--last", 1, "-o", tmp_path / "out")


def average_after_corpus_is_gone(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    corpus = Path(tiny(tmp_path / "x").data.root)
    recorder = Recorder()
    moved = tmp_path / "corpus"
    moved.mkdir()
    for file in corpus.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    train(_keep_base(tiny, tmp_path / "run", base, "training.max_steps=2", f"data.root={moved}"), recorder)
    for file in moved.iterdir():
        file.unlink()
    return tmp_path / "out", run("model", "average", tmp_path / "run", "--last", 1, "-o", tmp_path / "out")


def interpolate(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    other = shutil.copytree(base, tmp_path / "other")
    return tmp_path / "out", run("model", "average", base, other, "-o", tmp_path / "out")


def merge_adapter(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    adapter = write_adapter(base, tmp_path / "adapter")
    return tmp_path / "out", run("model", "merge-adapter", base, adapter, "-o", tmp_path / "out")


def quantize(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "out", run("model", "quantize", base, "-o", tmp_path / "out")


def train_from_bundle(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "run" / "bundle", fine_tune(base, tiny, tmp_path / "run", "training.num_validation_translations=0")


def train_adapter(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "run" / "bundle", fine_tune(base, tiny, tmp_path / "run", "training.lora={rank=2}")


def adapt(base: Path, tiny: MakeRecipe, tmp_path: Path) -> tuple[Path, str]:
    corpus = Path(tiny(tmp_path / "x").data.root)
    sides = [(corpus / f"train.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")]
    memory = tmp_path / "own.tsv"
    memory.write_text("".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True)), encoding="utf-8")
    settings = ("training.max_steps=2", "training.batch_tokens=300")
    return tmp_path / "run" / "bundle", run("adapt", base, memory, "--run", tmp_path / "run", *settings)


COMMANDS = (
    average, average_after_corpus_is_gone, interpolate, merge_adapter, quantize, train_from_bundle, train_adapter, adapt,
)  # fmt: skip


@pytest.mark.slow
def test_no_part_is_lost(
    subtests: pytest.Subtests, full: Path, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for command in COMMANDS:
        with subtests.test(command=command):
            tmp_path = tmp_path_factory.mktemp("case")
            path, messages = command(full, tiny, tmp_path)
            recipe, _, metadata = read_config(path)
            assert read_shortlist(path, load_bundle(path).tokenizer).frequent_F.tolist() == [5, 7]
            for part in PARTS:
                assert getattr(metadata, part.name) is not None, f"{part.name} is lost"
                if part.depends_on_weights and getattr(metadata, part.name) == getattr(FULL, part.name):
                    assert part.title in messages, f"{part.name} was not measured with the new weights"
            assert (metadata.origin, metadata.language_pairs) == (FULL.origin, FULL.language_pairs)
            assert recipe.decoding == read_config(full)[0].decoding


def test_average_describes_the_training(tiny: MakeRecipe, tmp_path: Path) -> None:
    """The average of the last checkpoint alone is the bundle of the run, up to the time of its end."""
    settings = ("training.max_steps=2", "training.checkpoint_averaging=none")
    train(tiny(tmp_path / "run", *settings), Recorder())
    run("model", "average", tmp_path / "run", "--last", 1, "-o", tmp_path / "out")
    expected, metadata = (read_config(path)[2] for path in (tmp_path / "run" / "bundle", tmp_path / "out"))
    assert replace(metadata, finished=expected.finished) == expected


def test_kept_measurements_are_named(full: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    _, messages = merge_adapter(full, tiny, tmp_path)
    (kept,) = [line for line in messages.splitlines() if line.startswith("kept")]
    assert kept == (
        f"kept as measured with the earlier weights: the attention head of word alignments of {full}, the calibration of the "
        f"confidence of {full}; dragoman model calibrate measures the confidence again"
    )


def test_parts_come_from_the_first_bundle_that_has_them() -> None:
    other = BundleMetadata(alignment=AlignmentHead(0, 0))
    metadata, sentences = inherit_parts(BundleMetadata(), {"a": other, "b": FULL})
    assert metadata == replace(FULL, alignment=AlignmentHead(0, 0))
    assert [sentence.count(" of a") for sentence in sentences] == [1]
    assert inherit_parts(BundleMetadata(), {"a": BundleMetadata()}) == (BundleMetadata(), [])
    assert inherit_parts(FULL, {"a": other}) == (FULL, [])


def test_shortlist_of_other_tokenizers_is_left_out(full: Path) -> None:
    tokenizer = load_bundle(full).tokenizer
    assert isinstance(tokenizer.source, SentencePieceTokenizer)
    pieces = PieceVocabulary(tokenizer.source.serialized_model, ("<pad>", "<unk>", "<s>", "</s>", "▁eins"))
    other = PairTokenizer(tokenizer.source, pieces, append_source_eos=True)
    shortlist, sentences = inherit_shortlist([full], other)
    assert shortlist is None
    reason = "is left out, because the tokenizers differ; dragoman model shortlist builds one"
    assert sentences == [f"the shortlist of {full} {reason}"]


def test_each_field_of_the_metadata_is_a_part_or_history() -> None:
    assert sorted([*(part.name for part in PARTS), *HISTORY]) == sorted(field.name for field in fields(BundleMetadata))


def test_each_writer_of_bundles_decides_about_the_parts() -> None:
    """A new caller of `save_bundle` must inherit the parts. A converted model has no bundle to inherit from."""
    root = Path(dragoman.__file__).parent
    writers = {}
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text)) if "save_bundle(" in text else ()
        calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        if "save_bundle" in calls:
            writers[str(path.relative_to(root))] = {"inherit_parts", "inherit_shortlist"} <= calls
    assert writers == {
        "adapter.py": True,
        "conversion/converter.py": False,
        "interpolation.py": True,
        "quantization.py": True,
        "training/finalize.py": True,
    }
