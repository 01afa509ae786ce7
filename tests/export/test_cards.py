"""Code of the cards of exports, run as printed: each engine's texts equal those of dragoman, for each origin and start."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import dragoman
import joeynmt_folders
import opennmt_checkpoints
from dragoman.bundle import Bundle, load_bundle, read_config, replace_config
from dragoman.config import update_section
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import UNKNOWN_ID
from dragoman.export.ctranslate2 import export_ctranslate2
from dragoman.export.huggingface import export_huggingface
from dragoman.export.onnx import export_onnx
from dragoman.export.usage import list_tokens
from fairseq_checkpoints import list_merges, list_subwords, make_args, make_state
from fairseq_checkpoints import write_folder as write_fairseq_folder
from marian_folders import SOURCE_LETTERS, TARGET_LETTERS
from marian_folders import make_lines as make_random_lines
from noisy_bundles import make_noisy_bundle, write_bundle
from odd_texts import ODD, PLAIN
from tiny_runs import WORDS
from tuned_folders import LANGUAGES, write_m2m100, write_marian, write_nllb

pytestmark = pytest.mark.usefixtures("one_core", "quiet")
SENTENCE = "A sentence."
NUM_LINES = 50
MAX_TOKENS = 12


def make_lines(tokens: Sequence[str] = ()) -> list[str]:
    """Return sentences of known words, some with added tokens."""
    random = Random(5)
    words = [*" ".join(PLAIN).split(), *(list(tokens) * 4)]
    return [" ".join(random.choices(words, k=random.randint(1, 7))) for _ in range(NUM_LINES)]


def exclude_unknown(model: Any) -> None:
    """Let no output hold the unknown token, whose text differs between engines."""
    with torch.no_grad():
        model.final_logits_bias[0, 0] = 1.0
        model.final_logits_bias[0, 1] = -torch.inf
        for name, weight in model.named_parameters():
            if "encoder_attn" in name or "fc" in name:
                weight.mul_(3.0)


def write_marian_source(folder: Path, **options: Any) -> list[str]:
    tokens = options.pop("tokens", [])
    write_marian(folder, lambda tokenizer: tokenizer.add_tokens(tokens), change_model=exclude_unknown, **options)
    return make_lines(tokens)


def write_fairseq_source(folder: Path) -> list[str]:
    letters = "abcdefgh"
    tokens = list_subwords(letters)
    args = make_args(encoder_normalize_before=True, decoder_normalize_before=True)
    codes = "".join(f"{left} {right} 9\n" for left, right in list_merges(letters))
    state = make_state(args, len(tokens) + 4, len(tokens) + 4)
    write_fairseq_folder(folder, args=args, state=state, dictionaries={"en": tokens, "de": tokens}, codes=codes)
    random = Random(5)
    return [" ".join("".join(random.choices(letters, k=random.randint(1, 6))) for _ in range(4)) for _ in range(NUM_LINES)]


def list_sides(special_tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the tokens of both sides."""
    return [*special_tokens, *list_subwords(SOURCE_LETTERS)], [*special_tokens, *list_subwords(TARGET_LETTERS)]


def write_opennmt_source(folder: Path) -> list[str]:
    model, tokens = opennmt_checkpoints.make_model(), list_sides(opennmt_checkpoints.SPECIAL_TOKENS)
    state = opennmt_checkpoints.make_state(model, *map(len, tokens))
    opt = opennmt_checkpoints.make_opt(model)
    opennmt_checkpoints.write_checkpoint(folder, version=3, opt=opt, state=state, tokens=tokens)
    random = Random(5)  # the model reads text that is split already
    return [" ".join(random.choices(list_subwords(SOURCE_LETTERS), k=random.randint(1, 7))) for _ in range(NUM_LINES)]


def write_joeynmt_source(folder: Path) -> list[str]:
    """The model reads characters."""
    pytest.importorskip("yaml", reason="the configuration needs PyYAML: dragoman[joeynmt]")
    config, tokens = joeynmt_folders.make_config(), list_sides(joeynmt_folders.SPECIAL_TOKENS)
    state = joeynmt_folders.make_state(config, *map(len, tokens))
    for side in ("src", "trg"):
        config["data"][side]["level"] = "char"
    joeynmt_folders.write_folder(folder, config=config, state=state, tokens=tokens)
    return make_random_lines(SOURCE_LETTERS, NUM_LINES, 3)


def write_multilingual(write: Callable[..., Any], folder: Path) -> list[str]:
    write(folder, lambda tokenizer: tokenizer.add_tokens(["<sep>"]))
    return make_lines(["<sep>"])


MARIAN: dict[str, dict[str, Any]] = {
    "padding starts": {},
    "end starts": {"start": "</s>"},
    "another piece starts": {"start": "s"},
    "separate vocabularies": {"separate": True},
    "added tokens": {"tokens": ["<sep>", "<b>"]},
    "one language": {"languages": LANGUAGES[:1]},
    "languages": {"languages": LANGUAGES},
    "languages, separate": {"languages": LANGUAGES, "separate": True},
}
ORIGINS: dict[str, Callable[[Path], list[str]]] = {
    **{f"MarianMT, {name}": partial(write_marian_source, **options) for name, options in MARIAN.items()},
    "M2M-100": lambda folder: write_multilingual(write_m2m100, folder),
    "NLLB": lambda folder: write_multilingual(write_nllb, folder),
    "fairseq": write_fairseq_source,
    "OpenNMT-py": write_opennmt_source,
    "JoeyNMT": write_joeynmt_source,
}
FAST = ("MarianMT, padding starts", "MarianMT, end starts")
ONNX_ORIGINS = [name for name in ORIGINS if "languages" not in name and name not in ("M2M-100", "NLLB")]
HUGGINGFACE_ORIGINS = [name for name in ORIGINS if name.startswith("MarianMT")]
GREEDY: dict[str, dict[str, Any]] = {
    "huggingface": {"num_beams": 1, "max_new_tokens": MAX_TOKENS, "max_length": None},
    "ctranslate2": {"beam_size": 1, "max_decoding_length": MAX_TOKENS, "num_hypotheses": 1},
    "onnx": {"max_extra_tokens": MAX_TOKENS},
}
"""Options that make the search of each engine greedy."""


def prepare(origin: str, folder: Path) -> tuple[Path, list[str]]:
    """Return a converted bundle, and lines."""
    lines = ORIGINS[origin](folder / "source")
    dragoman.convert(folder / "source", folder / "bundle")
    return folder / "bundle", lines


def translate_greedily(bundle: Path, lines: Sequence[str], engine: str) -> list[str]:
    """Return the texts of greedy outputs: whole for ONNX, else of the first tokens, since the engines limit those alone."""
    max_tokens = None if engine == "onnx" else MAX_TOKENS
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    recipe = translator.bundle.recipe
    languages: dict[str, Any] = {}
    if recipe.tokenizer.language_token is not None:
        languages["target_language"] = recipe.task.target_language or "deu"
        if recipe.tokenizer.language_token_placement == "both":
            languages["source_language"] = recipe.task.source_language
    target = translator.bundle.tokenizer.target
    added = {token.text: token.id for token in target.piece_list.added} if isinstance(target, PieceVocabulary) else {}
    texts = []
    for line in lines:
        (translation,) = translator.translate(
            [line], method="greedy", max_extra_tokens=MAX_TOKENS, repetition_window=0, **languages
        )
        ids = [added.get(piece, target.piece_to_id(piece) or 0) for piece in translation.tokens]
        texts.append(target.decode(ids[:max_tokens]))
    return texts


def run_card(folder: Path, lines: Sequence[str], greedy: dict[str, Any]) -> list[str]:
    """Run the Python code of a card on these lines, and return the texts that it prints.

    greedy: options in dragoman.json that make the search greedy
    """
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    prefix = re.search(r'"([^"]*)A sentence\."', code)
    assert prefix is not None
    code = code.replace(f'["{prefix[1]}{SENTENCE}"]', repr([prefix[1] + line for line in lines])).replace("PATH", str(folder))
    for name in ("generation_config.json", "dragoman.json"):
        if (folder / name).exists():
            document = json.loads((folder / name).read_text(encoding="utf-8"))
            document.get("decoder", document.get("decoding_options", document)).update(greedy)
            (folder / name).write_text(json.dumps(document), encoding="utf-8")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    texts: list[str] = eval(output.getvalue())
    return texts


def mark_slow(names: Sequence[str]) -> list[Any]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


def check(actual: Sequence[str], expected: Sequence[str]) -> None:
    """Check that texts are equal, and that the model writes some."""
    assert list(actual) == list(expected)
    assert len(expected) == NUM_LINES
    assert len(set(expected)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("origin", mark_slow(HUGGINGFACE_ORIGINS))
def test_huggingface_card(origin: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="runs the card with transformers: dragoman[test]")
    transformers.logging.set_verbosity_error()
    bundle, lines = prepare(origin, tmp_path)
    check_card("huggingface", bundle, lines, tmp_path / "out")


@pytest.mark.parametrize("origin", mark_slow(list(ORIGINS)))
def test_ctranslate2_card(origin: str, tmp_path: Path) -> None:
    bundle, lines = prepare(origin, tmp_path)
    check_card("ctranslate2", bundle, lines, tmp_path / "out", has_language=origin in ("M2M-100", "NLLB"))


def test_card_puts_prefix_before_sources(tmp_path: Path) -> None:
    path, lines = prepare(FAST[0], tmp_path)
    recipe, _, _ = read_config(path)
    tokenizer = update_section(recipe.tokenizer, {"source_prefix": "sun in: "}, where="tokenizer")
    replace_config(path, recipe=recipe.model_copy(update={"tokenizer": tokenizer}))
    check_card("ctranslate2", path, lines, tmp_path / "out")
    notes = export_huggingface(load_bundle(path), tmp_path / "folder").notes
    assert notes[0] == "the model reads 'sun in: ' before each source; put it there"


@pytest.mark.parametrize("origin", mark_slow(["MarianMT, padding starts", "MarianMT, languages", "M2M-100", "fairseq"]))
def test_card_splits_odd_texts(origin: str, tmp_path: Path) -> None:
    """Texts with special tokens, codes of languages and all kinds of spaces have the tokens of the bundle."""
    bundle = load_bundle(prepare(origin, tmp_path)[0])
    export_ctranslate2(bundle, tmp_path / "out")
    (code,) = re.findall(r"```python\n(.*?)\ntranslator =", (tmp_path / "out/README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("PATH", str(tmp_path / "out")), names)
    tokens = list_tokens(bundle.tokenizer.source)
    for text in [*PLAIN, *ODD, "</s> a", ">>a b<< c", ">>", "a <unk>b"]:
        expected = [tokens[index] for index in bundle.tokenizer.source.encode(text)]
        assert [token if token in tokens else tokens[UNKNOWN_ID] for token in names["encode"](text)] == expected, text


@pytest.mark.slow
@pytest.mark.parametrize("origin", mark_slow(ONNX_ORIGINS))
def test_onnx_card(origin: str, tmp_path: Path) -> None:
    bundle, lines = prepare(origin, tmp_path)
    check_card("onnx", bundle, lines, tmp_path / "out")


def write_own_bundle(trained: Bundle, path: Path) -> list[str]:
    """Write a model of the paper with random weights and the tokenizer of a training, and return lines."""
    settings = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2, "norm_epsilon": 1e-5}
    model_section = settings | {"decoder_start_token": "bos", "output_bias": True}
    languages = {"source_language": "en", "target_language": "de"}

    def get_scale(name: str) -> float:
        is_small = name.endswith("norm.weight") or name == "output_bias"
        return 0.1 if is_small else 2.0 if "cross_attention." in name else 0.7

    document = {"preset": "paper", "model": model_section, "task": languages}
    bundle = make_noisy_bundle(trained.tokenizer, document, get_scale=get_scale)
    assert bundle.model.output_bias is not None
    with torch.no_grad():
        bundle.model.output_bias[UNKNOWN_ID] = -1e4
    write_bundle(bundle, path)
    random = Random(4)
    return [" ".join(random.choices(list(WORDS), k=random.randint(1, 6))) for _ in range(NUM_LINES)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", GREEDY)
def test_card_of_own_training(engine: str, bundle: Path, tmp_path: Path) -> None:
    lines = write_own_bundle(load_bundle(bundle), tmp_path / "bundle")
    check_card(engine, tmp_path / "bundle", lines, tmp_path / "out")


def check_card(engine: str, bundle: Path, lines: Sequence[str], output: Path, *, has_language: bool = False) -> None:
    """Export a bundle, run its card on lines, and compare the texts with those of the bundle.

    has_language: outputs begin with the token of a language, which CTranslate2 counts
    """
    for package in {"huggingface": ["transformers"], "ctranslate2": ["ctranslate2"], "onnx": ["onnx", "onnxruntime"]}[engine]:
        pytest.importorskip(package, reason=f"runs the card of {engine}")
    export = {"huggingface": export_huggingface, "ctranslate2": export_ctranslate2, "onnx": export_onnx}[engine]
    export(load_bundle(bundle), output)
    greedy = GREEDY[engine] | ({"max_decoding_length": MAX_TOKENS + 1} if has_language else {})
    check(run_card(output, lines, greedy), translate_greedily(bundle, lines, engine))
