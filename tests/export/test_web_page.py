"""The page beside an ONNX export: its tokenizer in Node, and its translations in a real browser."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece
import torch
from click.testing import CliRunner

import dragoman
from chromium import needs_chromium, open_browser
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.config import TokenizerConfig, update_section
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.data.tokenization.word_pieces import train_word_pieces
from dragoman.export.onnx import export_onnx
from dragoman.model_packages import resolve_model
from dragoman.quantization import quantize_bundle
from expected_errors import raises_code
from folder_server import serve_folder
from noisy_bundles import make_noisy_bundle, write_bundle
from tiny_runs import WORDS

RUNTIME = "onnxruntime-web@1.30.0"
SENTENCES = (
    "You must restart the server before changes take effect.",
    "Where is the nearest train station?",
    "Click Save to keep the settings of this page.",
    "The file cannot be opened.",
    "She has 3 dogs and 1,250 books.",
    "I don't know what to say.",
    "Tom bought a new car yesterday.",
    "This package contains the documentation.",
    "Enter your password again.",
    "The café in Zürich costs 5 € – “too much”!",
    "  It is   raining.  ",
    "Select the option “Print” in the menu.",
    "Can you help me?",
    "The update was installed successfully.",
    "We are looking for a doctor.",
    "Press Ctrl+C to cancel the command.",
    "The weather is nice today, isn't it?",
    "If the connection fails, check the network cable.",
    "He wrote a letter to his mother in Москва.",
    "Thank you very much 😀!",
)
ODD = "aeiou  \t\u00a0\u2581\u3000ﬁ①e\u0301é½😀👩\u200d👧\u200b\u00ad.,1234٣\uff21\uff42漢字"
"""Characters with other normal forms, spaces of all kinds, and characters that no piece has."""
SPLIT = """
import { SentencePiece } from "./sentencepiece.mjs";
import { readFileSync } from "node:fs";
const model = new SentencePiece(new Uint8Array(readFileSync("model")));
const lines = JSON.parse(readFileSync("lines.json"));
console.log(JSON.stringify(lines.map((line) => [model.encode(line), model.decode(model.encode(line))])));
"""


def train_bpe(**options: Any) -> bytes:
    """Return a BPE model of the sentences."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=buffer, model_type="bpe", minloglevel=2, **options
    )
    return buffer.getvalue()


def make_model(name: str) -> bytes:
    match name:
        case "unigram, NFC":
            return (resolve_model("en-de") / "source.model").read_bytes()
        case "BPE, NFKC, bytes":
            return train_bpe(vocab_size=400, byte_fallback=True)
        case "word-piece":
            config = TokenizerConfig(model_type="word-piece")
            return train_word_pieces(SENTENCES, config, normalization="identity", vocab_size=350, key="size").serialized_model
        case _:
            return train_bpe(
                vocab_size=150, normalization_rule_name="identity", character_coverage=0.98, hard_vocab_limit=False
            )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs the program node, a package of Debian")
@pytest.mark.parametrize("name", ["unigram, NFC", "BPE, NFKC, bytes", "BPE, identity", "word-piece"])
def test_text_is_split_as_by_sentencepiece(name: str, tmp_path: Path) -> None:
    model, random = make_model(name), Random(1)
    lines = [*SENTENCES, *("".join(random.choices(ODD, k=random.randint(0, 30))) for _ in range(500))]
    (tmp_path / "sentencepiece.mjs").write_bytes((files("dragoman.export") / "page" / "sentencepiece.js").read_bytes())
    (tmp_path / "model").write_bytes(model)
    (tmp_path / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
    (tmp_path / "split.mjs").write_text(SPLIT, encoding="utf-8")
    done = subprocess.run(["node", "split.mjs"], cwd=tmp_path, capture_output=True, check=True)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for line, (pieces, text) in zip(lines, json.loads(done.stdout), strict=True):
        ids = [processor.piece_to_id(piece) for piece in pieces]
        unknown = processor.unk_id()
        merged = [index for last, index in zip([-1, *ids], ids, strict=False) if not index == last == unknown]
        assert merged == processor.encode(line), line
        if unknown not in ids:
            assert text == processor.decode(ids).replace("\n", " "), line


def write_student(trained: Path, path: Path) -> list[str]:
    """Write a student with random weights, and return sentences of known words."""
    settings: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
    settings |= {"output_bias": True, "decoder_autoregression": "ssru"}

    def get_scale(name: str) -> float:
        return 0.1 if "norm" in name or name == "output_bias" else 2.0 if "cross_attention." in name else 0.7

    document = {"preset": "paper", "model": settings}
    bundle = make_noisy_bundle(load_bundle(trained).tokenizer, document, get_scale=get_scale)
    assert bundle.model.output_bias is not None
    with torch.no_grad():
        bundle.model.output_bias[UNKNOWN_ID] = -1e4
    write_bundle(bundle, path)
    random = Random(4)
    return [" ".join(random.choices(list(WORDS), k=random.randint(1, 6))) for _ in range(20)]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder `node_modules` with onnxruntime-web."""
    if shutil.which("npm") is None:
        pytest.skip("needs the program npm, a package of Debian")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", RUNTIME]
    if subprocess.run(command, capture_output=True, check=False, timeout=300).returncode:
        pytest.skip(f"npm cannot install {RUNTIME}")
    return folder / "node_modules"


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("name", ["en-de", "student"])
def test_browser_translates_as_dragoman(name: str, bundle: Path, runtime: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    path, lines = resolve_model("en-de"), list(SENTENCES)
    if name == "student":
        path, lines = tmp_path / "bundle", write_student(bundle, tmp_path / "bundle")
    output = CliRunner().invoke(cli, ["export", str(path), "--to", "onnx", str(tmp_path / "out"), "--int8", "--page", "--json"])
    assert output.exit_code == 0, output.output
    (tmp_path / "out" / "node_modules").symlink_to(runtime)
    export = load_bundle(path)
    if name == "student":  # the graphs have the rounded matrices
        quantize_bundle(path, tmp_path / "int8")
        path = tmp_path / "int8"
    translator = dragoman.load(path, task="translation", device="cpu", precision="float32")
    translations = translator.translate(lines, method="greedy", repetition_window=0, min_length_ratio=0)
    expected = [export.tokenizer.target.decode(ids_of(export, translation.tokens)).strip() for translation in translations]
    assert len(set(expected)) > 5
    with open_browser() as browser, serve_folder(tmp_path / "out") as url:
        page = browser.new_page()
        requests: list[str] = []
        problems: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url)
        page.locator("#state:not(:text('Loading'))").wait_for(timeout=60_000)
        assert page.locator("#state").inner_text() == "Ready"
        assert page.locator("h1").inner_text() == ("English to German" if name == "en-de" else "Translate")
        page.locator("#text").fill("\n".join(lines))
        page.locator("#run").click()
        page.locator("#run:not([disabled])").wait_for(timeout=240_000)
        assert page.locator("#state").inner_text() == "Done"
        assert (page.locator("#output").text_content() or "").split("\n") == expected
    assert ([address for address in requests if not address.startswith((url, "data:"))], problems) == ([], [])


def ids_of(bundle: Any, pieces: Any) -> list[int]:
    return [bundle.tokenizer.target.piece_to_id(piece) for piece in pieces]


@pytest.mark.slow
@needs_chromium
def test_page_names_the_missing_runtime(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    export_onnx(load_bundle(bundle), tmp_path / "out", has_page=True)
    with open_browser() as browser, serve_folder(tmp_path / "out") as url:
        page = browser.new_page()
        page.goto(url)
        page.locator("#state", has_text="npm install --prefix .").wait_for()
        assert page.locator("#run").is_disabled()


def test_options_of_onnx_are_refused_elsewhere(bundle: Path, tmp_path: Path) -> None:
    for option in ("--int8", "--page"):
        output = CliRunner().invoke(cli, ["export", str(bundle), "--to", "ctranslate2", str(tmp_path / "out"), option])
        assert output.exit_code == 2
        assert f"{option}: is for --to onnx" in output.output


def test_page_refuses_split_text(bundle: Path, tmp_path: Path) -> None:
    model = load_bundle(bundle)
    task = update_section(model.recipe.task, {"tokenized": True}, where="task")
    recipe = model.recipe.model_copy(update={"task": task})
    with raises_code("export-unsupported", "task.tokenized = True"):
        export_onnx(type(model)(recipe, model.tokenizer, model.arrays), tmp_path / "out", has_page=True)
    assert not (tmp_path / "out").exists()
