"""Conversion of MarianMT folders: bundles that load, languages, memory, and errors of one line."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

import dragoman
from damaged_sources import change_json, check_any_refusal, check_refusal
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.conversion import hub
from dragoman.errors import MissingDependencyError
from dragoman.inference.translator import Translator
from expected_errors import raises_code
from marian_folders import D_MODEL, list_pieces, make_tensors, write_folder

LANGUAGE_PIECES = (">>deu<<", ">>fra<<", ">>cmn_Hans<<")


def load_translator(path: Path) -> Translator:
    return dragoman.load(path, task="translation", device="cpu", precision="float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "opus-mt-en-de")


@pytest.fixture
def multilingual(tmp_path: Path) -> Translator:
    pieces = list_pieces(LANGUAGE_PIECES)
    write_folder(tmp_path / "marian", pieces=pieces)
    (tmp_path / "marian" / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "roa"}')
    dragoman.convert(tmp_path / "marian", tmp_path / "bundle")
    return load_translator(tmp_path / "bundle")


# Bundles


def test_bundle_has_origin_license_and_languages(folder: Path, tmp_path: Path) -> None:
    card = "---\nlicense: cc-by-4.0\nlanguage:\n- en\n- de\ntags: [translation]\n---\n# A model\nlicense: other\n"
    (folder / "README.md").write_text(card)
    result = dragoman.convert(folder, tmp_path / "bundle")
    bundle = load_bundle(tmp_path / "bundle")
    origin = bundle.metadata.origin
    assert origin == result.origin
    assert origin is not None
    assert (origin.format, origin.name, origin.license) == ("huggingface-marian", "opus-mt-en-de", "cc-by-4.0")
    assert (origin.source_languages, origin.target_languages) == (["en"], ["de"])
    assert (bundle.recipe.task.source_language, bundle.recipe.task.target_language) == ("en", "de")
    assert result.parameters == bundle.model.num_parameters()
    assert result.num_bytes == sum(path.stat().st_size for path in (tmp_path / "bundle").iterdir())


def test_command_reports_a_conversion(folder: Path, tmp_path: Path) -> None:
    """Text and JSON name the same facts, and a second conversion does not replace the first one."""
    words = ["convert", str(folder), "-o", str(tmp_path / "bundle")]
    text = CliRunner().invoke(cli, words)
    assert text.exit_code == 0, text.output
    assert re.search(r"source +opus-mt-en-de \(huggingface-marian\)", text.stdout)
    assert re.search(r"license +not stated", text.stdout)
    assert re.search(r"languages +en → de", text.stdout)
    assert "exists already" in str(CliRunner().invoke(cli, words).exception)
    report = json.loads(CliRunner().invoke(cli, [*words[:-1], str(tmp_path / "again"), "--json"]).stdout)
    assert (report["format"], report["source"], report["license"]) == ("huggingface-marian", "opus-mt-en-de", None)
    assert (report["source_languages"], report["target_languages"]) == (["en"], ["de"])
    assert f"{report['parameters']:,}" in text.stdout
    assert all(note in text.stdout for note in report["notes"])


def test_positions_of_old_checkpoints_are_checked(tmp_path: Path) -> None:
    """Old checkpoints store the sinusoids: sin(p / 10000^(2i/d)) in the first half, and cosines in the second."""
    table = torch.tensor(
        [
            [f(position / 10000 ** (2 * index / D_MODEL)) for f in (math.sin, math.cos) for index in range(D_MODEL // 2)]
            for position in range(64)
        ]
    )
    name = "model.encoder.embed_positions.weight"
    first = write_folder(tmp_path / "first", change_tensors=lambda tensors: tensors.update({name: table.half()}))
    dragoman.convert(first, tmp_path / "bundle")
    second = write_folder(tmp_path / "second", change_tensors=lambda tensors: tensors.update({name: table.flip(1)}))
    check_refusal(second, "conversion-unsupported", name)


def test_progress_ends_at_the_size_of_the_weights(folder: Path, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    dragoman.convert(folder, tmp_path / "bundle", on_progress=lambda written, total: progress.append((written, total)))
    weights = load_file(tmp_path / "bundle" / "weights.safetensors")
    assert progress[-1] == (4 * sum(tensor.numel() for tensor in weights.values()),) * 2
    assert [written for written, _ in progress] == sorted(written for written, _ in progress)


# Languages


def test_target_language_is_the_first_source_token(multilingual: Translator) -> None:
    recipe = multilingual.recipe
    assert (recipe.task.source_language, recipe.task.target_language) == ("en", "")
    tokenizer = multilingual.bundle.tokenizer
    german = tokenizer.select_languages(None, "deu").encode_source("ab")
    assert tokenizer.source.ids_to_pieces(german[:1]) == [">>deu<<"]
    assert tokenizer.encode_source(">>deu<< ab") == german
    assert tokenizer.select_languages(None, "fra").encode_source(">>deu<<ab") == german
    scores = {
        language: multilingual.translate(["ab cd"], target_language=language, repetition_window=0)[0].score
        for language in ("deu", "fra", "cmn_Hans")
    }
    assert multilingual.translate([">>fra<< ab cd"], repetition_window=0)[0].score == pytest.approx(scores["fra"], abs=1e-5)
    assert len({round(score, 4) for score in scores.values()}) == 3


def test_alignment_counts_words_behind_the_token_of_a_line(multilingual: Translator, tmp_path: Path) -> None:
    """Each linked word of a line with its own token is the word of the same line without it."""
    for name, text in (("own", ">>fra<< ab cd\nef"), ("plain", "ab cd\nef"), ("target", "cd ab\nef")):
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    options = [str(tmp_path / "target"), "--bundle", str(tmp_path / "bundle"), "--to", "fra", "--json"]
    own, plain = (CliRunner().invoke(cli, ["align", str(tmp_path / name), *options]).stdout for name in ("own", "plain"))
    assert own == plain
    assert {word for line in own.splitlines() for word, _ in json.loads(line)["words"]} <= {"ab", "cd", "ef"}
    assert '"words":[[' in own.replace(" ", "")


def test_long_lines_keep_their_language(multilingual: Translator) -> None:
    line = ">>deu<<" + " ab, cd. ef" * 30
    translation = multilingual.translate([line], max_source_tokens=40, method="greedy")[0]
    assert translation.num_segments > 1
    assert translation.source_tokens.count(">>deu<<") == translation.num_segments


@pytest.mark.parametrize(("options", "code"), [({}, "unsupported-language"), ({"target_language": "xyz"}, "invalid-option")])
def test_unknown_language_raises(options: Any, code: str, multilingual: Translator) -> None:
    with raises_code(code, "deu, fra, cmn_Hans"):
        multilingual.translate(["ab cd"], **options)


def test_language_of_a_bilingual_model_raises(folder: Path, tmp_path: Path) -> None:
    dragoman.convert(folder, tmp_path / "bundle")
    with raises_code("invalid-option", "target_language"):
        load_translator(tmp_path / "bundle").translate(["ab"], target_language="fra")


def test_default_language_is_in_the_bundle(tmp_path: Path) -> None:
    write_folder(tmp_path / "marian", pieces=list_pieces(LANGUAGE_PIECES))
    dragoman.convert(tmp_path / "marian", tmp_path / "bundle", target_language="fra")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.source.ids_to_pieces(tokenizer.encode_source("ab")[:1]) == [">>fra<<"]
    with raises_code("conversion-unsupported", "xyz"):
        dragoman.convert(tmp_path / "marian", tmp_path / "other", target_language="xyz")


# Refusals


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"normalize_before": True}, "normalize_before"),
        ({"static_position_embeddings": False}, "static_position_embeddings"),
        ({"activation_function": "gelu_new"}, "gelu_new"),
        ({"activation_function": {}}, "activation_function"),
        ({"decoder_ffn_dim": 32}, "decoder_ffn_dim"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"do_sample": True}, "do_sample"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id"),
        ({"bad_words_ids": [[5, 6]]}, "bad_words_ids"),
        ({"bad_words_ids": 5}, "bad_words_ids"),
        ({"decoder_start_token_id": 1}, "decoder_start_token_id"),
        ({"early_stopping": 3}, "early_stopping"),
    ],
)
def test_unsupported_feature_raises(config: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "marian", config=config)
    check_refusal(tmp_path / "marian", "conversion-unsupported", name, str(tmp_path / "marian" / "config.json"))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"d_model": "16"}, "d_model"),
        ({"d_model": -1}, "d_model"),
        ({"d_model": 17}, "17"),
        ({"d_model": 2**40}, "d_model"),
        ({"vocab_size": 5}, "vocab.json"),
        ({"vocab_size": 10**12}, "1000000000000 tokens"),
        ({"encoder_layers": 3}, "model.encoder.layers.2"),
        ({"encoder_layers": 10**9}, "model.encoder.layers.2"),
        ({"pad_token_id": 10**9}, "pad_token_id"),
        ({"eos_token_id": [0, 1]}, "eos_token_id"),
        ({"pad_token_id": 0}, "pad_token_id"),
        ({"scale_embedding": "yes"}, "scale_embedding"),
        ({"dropout": "high"}, "dropout"),
        ({"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}, "feed_forward"),
    ],
)
def test_false_settings_raise(config: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "marian", config=config)
    check_refusal(tmp_path / "marian", "source-damaged", name)


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (lambda tensors: tensors.pop("model.shared.weight"), "source-damaged", "model.shared.weight"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "conversion-unsupported", "extra"),
        (
            lambda tensors: tensors.update({"model.encoder.layernorm_embedding.weight": torch.ones(D_MODEL)}),
            "conversion-unsupported",
            "layernorm_embedding",
        ),
        (lambda tensors: tensors["model.shared.weight"][7, 3:4].fill_(math.nan), "source-damaged", "output"),
        (lambda tensors: tensors.update(final_logits_bias=torch.zeros(1, 3)), "source-damaged", "final_logits_bias"),
        (lambda tensors: tensors.update({"model.shared.weight": torch.zeros(9, D_MODEL)}), "source-damaged", "(9, "),
        (
            lambda tensors: tensors.update({"model.decoder.layers.0.fc1.bias": torch.zeros(D_MODEL)}),
            "source-damaged",
            "feed_forward.inner.bias",
        ),
        (
            lambda tensors: tensors.update({"model.decoder.layers.0.fc1.bias": torch.zeros(24, dtype=torch.int64)}),
            "source-damaged",
            "int64",
        ),
        (
            lambda tensors: tensors.update({"model.decoder.layers.0.fc1.bias": torch.tensor(1.0)}),
            "source-damaged",
            "inner.bias",
        ),
    ],
)
@pytest.mark.parametrize("as_checkpoint", [False, True])
def test_false_tensors_raise(
    change: Callable[[dict[str, Tensor]], object], code: str, name: str, as_checkpoint: bool, tmp_path: Path
) -> None:
    write_folder(tmp_path / "marian", change_tensors=change, as_checkpoint=as_checkpoint)
    check_refusal(tmp_path / "marian", code, name)


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b"\xff" * 100, b'{"a": 1e999}', b"[" * 100_000])
def test_false_file_raises(name: str, content: bytes | None, folder: Path) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    check_any_refusal(folder)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ({"config.json": '{"model_type": "bert"}'}, "unknown-format"),
        ({}, "unknown-format"),
        ({"config.json": "["}, "source-damaged"),
    ],
)
def test_unknown_format_raises(names: dict[str, str], code: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name, text in names.items():
        (tmp_path / "model" / name).write_text(text)
    check_refusal(tmp_path / "model", code)


@pytest.mark.parametrize("model_type", ["blenderbot", "nllb-moe", "seamless_m4t"])
def test_other_family_of_huggingface_is_named(model_type: str, folder: Path) -> None:
    """All other files are those of a MarianMT model, and of a training that was interrupted."""
    for name in ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "training_args.bin"):
        torch.save({}, folder / name)
    change_json(folder / "config.json", model_type=model_type)
    check_refusal(folder, "unknown-format", f"model_type = {model_type!r}", "dragoman converts")


def test_existing_output_is_kept(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "mine.txt").write_text("kept")
    with raises_code("output-exists"):
        dragoman.convert(folder, tmp_path / "bundle")
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["mine.txt"]


def test_missing_source_raises(tmp_path: Path, folder: Path) -> None:
    check_refusal(tmp_path / "missing" / "folder", "file-not-found")
    check_refusal(folder / "config.json", "unknown-format")


@pytest.mark.parametrize("file_name", ["../model.safetensors", "/etc/passwd", "model.safetensors.index.json", "missing.bin"])
def test_index_never_leads_out_of_the_folder(file_name: str, folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": dict.fromkeys(make_tensors(4), file_name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_any_refusal(folder)


# Memory


MEMORY_PROGRAM = """
import sys, dragoman
from pathlib import Path
from dragoman.conversion.converter import convert  # imports torch
def read(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
convert(sys.argv[1], sys.argv[3])  # a small model first, so that all libraries are loaded
Path("/proc/self/clear_refs").write_text("5")
base = read("VmRSS")
convert(sys.argv[2], sys.argv[4])
print(read("VmHWM") - base)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's peak of resident memory")
@pytest.mark.slow
@pytest.mark.parametrize("as_checkpoint", [False, True])
def test_memory_is_bounded_by_the_file(as_checkpoint: bool, tmp_path: Path) -> None:
    """A model of 100 MiB, most of it in four large matrices, converts with less than a third of its size in memory."""
    write_folder(tmp_path / "small", as_checkpoint=as_checkpoint)
    write_folder(tmp_path / "large", d_ff=200_000, as_checkpoint=as_checkpoint)
    size = max(path.stat().st_size for path in (tmp_path / "large").iterdir())
    paths = [str(tmp_path / name) for name in ("small", "large", "small-bundle", "large-bundle")]
    command = [sys.executable, "-c", MEMORY_PROGRAM, *paths]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert size > 100e6
    assert int(output) < 0.3 * size


# Hub


def test_hub_name_is_fetched_with_its_revision(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    snapshot = folder.rename(tmp_path / "0123abc")
    calls: list[tuple[str, str | None]] = []

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        assert not local_files_only
        calls.append((name, revision))
        assert "*.spm" in allow_patterns
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    result = dragoman.convert("Helsinki-NLP/opus-mt-en-de", tmp_path / "bundle", revision="main")
    assert calls == [("Helsinki-NLP/opus-mt-en-de", "main")]
    assert result.origin.name == "Helsinki-NLP/opus-mt-en-de@0123abc"


@pytest.mark.slow
def test_offline_hub_raises_one_line(tmp_path: Path) -> None:
    """The library itself decides that there is no network."""
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    program = """
import dragoman, sys
try:
    dragoman.convert("a/b", sys.argv[1])
except dragoman.DragomanError as error:
    print(error.code, error)
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    arguments = [sys.executable, "-c", program, str(tmp_path / "bundle")]
    output = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout
    assert output.startswith("hub-unavailable a/b: ")
    assert output.count("\n") == 1


def test_missing_hub_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"dragoman\[hub\]"):
        dragoman.convert("a/b", tmp_path / "bundle")


@pytest.mark.parametrize(
    ("source", "expected"),
    [("Helsinki-NLP/opus-mt-en-de", True), ("opus-mt-en-de", False), ("a/b/c", False), ("../b", False), ("a b/c", False)],
)
def test_hub_names_are_recognized(source: str, expected: bool) -> None:
    assert hub.is_hub_name(source) is expected
