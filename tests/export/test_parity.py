"""Each export of one trained model against dragoman on 200 sentences: logits, greedy search, and a beam of 4."""

from __future__ import annotations

import json
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dragoman
from conftest import MakeRecipe
from dragoman.bundle import Bundle, load_bundle
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.export.argos import export_argos
from dragoman.export.ctranslate2 import export_ctranslate2
from dragoman.export.huggingface import export_huggingface
from dragoman.export.onnx import export_onnx
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.training.run import train
from tiny_runs import NO_DROPOUT, WORDS

pytestmark = [pytest.mark.usefixtures("one_core"), pytest.mark.slow]

NUM_SENTENCES = 200
BEAM_SIZE = 4
FORBIDDEN_IDS = [PADDING_ID, BEGIN_ID]
MAX_EXTRA_TOKENS = 10
RELATIVE_TOLERANCE = 3e-6
"""About 25 times the rounding of float32, which matters for logits of more than ten."""
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "beam": {
        "method": "beam", "beam_size": BEAM_SIZE, "length_penalty": "power", "alpha": 1.0, "early_stopping": "beam_full",
    },
}  # fmt: skip
POST_NORM = ["norm=post", "final_norm=false", "norm_epsilon=1e-5", "position_encoding=interleaved", "d_model=32", "d_ff=64"]


@pytest.fixture(scope="module")
def path(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of a model that translates most sentences of the toy corpus, in the architecture that all formats have."""
    folder, rng = tmp_path_factory.mktemp("parity"), random.Random(3)
    lines = [rng.choices(list(WORDS), k=rng.randint(1, 5)) for _ in range(3000)]
    for name, split in {"train": lines, "valid": lines[:10], "test": lines[:10]}.items():
        (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in split), encoding="utf-8")
        targets = "".join(" ".join(WORDS[word] for word in line) + "\n" for line in split)
        (folder / f"{name}.de").write_text(targets, encoding="utf-8")
    settings = [*(f"model.{setting}" for setting in POST_NORM), "training.max_steps=400", "training.batch_tokens=800"]
    train(tiny(folder / "run", *NO_DROPOUT, *settings, f"data.root={folder}"))
    return folder / "run" / "bundle"


@pytest.fixture(scope="module")
def bundle(path: Path) -> Bundle:
    return load_bundle(path)


@pytest.fixture(scope="module")
def lines(path: Path) -> list[str]:
    """Sentences whose outputs the model ends by itself in both searches; how many it does not end depends on the processor."""
    rng = random.Random(8)
    candidates = [" ".join(rng.choices(list(WORDS), k=rng.randint(1, 5))) for _ in range(NUM_SENTENCES * 5 // 4)]
    translator = dragoman.load(path, task="translation", device="cpu", precision="float32")
    ended = set(range(len(candidates)))
    for decoding in DECODING.values():
        translations = translator.translate(candidates, max_extra_tokens=MAX_EXTRA_TOKENS, repetition_window=0, **decoding)
        ended &= {index for index, translation in enumerate(translations) if translation.status in ("ok", "short")}
    assert len(ended) >= NUM_SENTENCES
    return [candidates[index] for index in sorted(ended)[:NUM_SENTENCES]]


@pytest.fixture(scope="module")
def outputs(path: Path, lines: list[str]) -> dict[str, list[list[int]]]:
    """Output ids of dragoman for each search, which all end by themselves."""
    translator = dragoman.load(path, task="translation", device="cpu", precision="float32")
    target = translator.bundle.tokenizer.target
    outputs = {}
    for name, decoding in DECODING.items():
        translations = translator.translate(lines, max_extra_tokens=MAX_EXTRA_TOKENS, repetition_window=0, **decoding)
        assert all(translation.status in ("ok", "short") for translation in translations)
        outputs[name] = [[target.piece_to_id(piece) or 0 for piece in translation.tokens] for translation in translations]
    return outputs


def check_outputs(actual: list[list[int]], expected: list[list[int]], min_share: float = 0.99) -> None:
    """Check that nearly all outputs are equal: engines stop a beam by rules that differ in rare cases."""
    assert sum(ids == other for ids, other in zip(actual, expected, strict=True)) >= min_share * NUM_SENTENCES


def pad(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PADDING_ID] * (width - len(row)) for row in rows])


def make_batch(bundle: Bundle, lines: list[str], outputs: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the sources, and the decoder's inputs of these outputs. (200, S), (200, T)"""
    start = get_decoder_start_id(bundle.recipe.model)
    return pad([bundle.tokenizer.encode_source(line) for line in lines]), pad([[start, *output] for output in outputs])


@torch.no_grad()
def test_huggingface(bundle: Bundle, lines: list[str], outputs: dict[str, list[list[int]]], tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="compares with transformers: dragoman[test]")
    export_huggingface(bundle, tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers deprecates parts of its own
        transformers.logging.set_verbosity_error()
        model = transformers.MarianMTModel.from_pretrained(tmp_path / "out").eval()
        tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "out")
    source, inputs = make_batch(bundle, lines, outputs["beam"])
    encoded = tokenizer(lines, return_tensors="pt", padding=True)
    assert torch.equal(encoded["input_ids"], source)
    logits = model(input_ids=source, attention_mask=source != PADDING_ID, decoder_input_ids=inputs).logits
    is_token = inputs != PADDING_ID
    is_token[:, 0] = True  # the decoder may start with padding
    expected = bundle.model(source, inputs)
    torch.testing.assert_close(logits[is_token][:, 1:], expected[is_token][:, 1:], rtol=RELATIVE_TOLERANCE, atol=1e-5)
    for name, options in (("greedy", {"num_beams": 1}), ("beam", {"num_beams": BEAM_SIZE, "early_stopping": True})):
        penalty = {} if name == "greedy" else {"length_penalty": 1.0}
        rows = model.generate(**encoded, max_new_tokens=30, max_length=None, **options, **penalty).tolist()
        check_outputs([cut(row[1:]) for row in rows], outputs[name])


def cut(ids: list[int]) -> list[int]:
    """Return the ids before the end token."""
    return ids[: ids.index(END_ID)] if END_ID in ids else ids


@torch.no_grad()
def test_onnx(bundle: Bundle, lines: list[str], outputs: dict[str, list[list[int]]], tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="writes the graphs with onnx: dragoman[onnx]")
    onnxruntime = pytest.importorskip("onnxruntime", reason="runs the graphs with onnxruntime: dragoman[onnx]")
    export_onnx(bundle, tmp_path / "out")
    for name in ("encoder", "decoder"):
        onnx.checker.check_model(str(tmp_path / "out" / f"{name}.onnx"), full_check=True)
    info = json.loads((tmp_path / "out" / "dragoman.json").read_bytes())["decoder"]
    encoder, decoder = (onnxruntime.InferenceSession(tmp_path / "out" / f"{name}.onnx") for name in ("encoder", "decoder"))
    shapes = info["key_cache_shape"], info["value_cache_shape"]

    def start(source: Any) -> dict[str, Any]:
        """Return the fixed inputs and the empty caches of a batch."""
        cross_keys, cross_values = encoder.run(None, {"source": source})
        caches = [np.zeros([shape[0], len(source), *shape[2:]], np.float32) for shape in shapes]
        return {
            "source": source, "cross_keys": cross_keys, "cross_values": cross_values,
            "self_keys": caches[0], "self_values": caches[1],
        }  # fmt: skip

    def step(state: dict[str, Any], tokens: list[int]) -> Any:
        """Advance by one token a row, and return the logits. (B, V)"""
        logits, keys, values = decoder.run(None, state | {"tokens": np.array(tokens)})
        state |= {"self_keys": keys, "self_values": values}
        return logits

    source, inputs = make_batch(bundle, lines, outputs["beam"])
    expected, state = bundle.model(source, inputs).numpy(), start(source.numpy())
    allowed = [index for index in range(expected.shape[-1]) if index not in FORBIDDEN_IDS]
    for position in range(inputs.shape[1]):
        logits = step(state, inputs[:, position].tolist())
        is_token = (inputs[:, position].numpy() != PADDING_ID) | (position == 0)
        rows, expected_rows = (values[is_token][:, allowed] for values in (logits, expected[:, position]))
        np.testing.assert_allclose(rows, expected_rows, rtol=RELATIVE_TOLERANCE, atol=1e-5)
    for name, beam_size in (("greedy", 1), ("beam", BEAM_SIZE)):
        ids = [
            search(start, step, [row[row != PADDING_ID].numpy()], info["start_id"], beam_size, len(output) + MAX_EXTRA_TOKENS)
            for row, output in zip(source, outputs[name], strict=True)
        ]
        check_outputs(ids, outputs[name])


def search(
    start: Callable[[Any], dict[str, Any]],
    step: Callable[[dict[str, Any], list[int]], Any],
    source: list[Any],
    start_id: int,
    beam_size: int,
    max_tokens: int,
) -> list[int]:
    """Return the best output of one source by beam search, scored by its mean log-probability: the textbook's rules."""
    state = start(np.stack(source * beam_size))
    beam: list[tuple[float, list[int]]] = [(0.0, [start_id])]
    finished: list[tuple[float, list[int]]] = []
    while beam and len(finished) < beam_size and len(beam[0][1]) <= max_tokens:
        tokens = [ids[-1] for _, ids in beam]
        logits = step(state, tokens + [tokens[0]] * (beam_size - len(beam)))[: len(beam)]
        log_probs = torch.from_numpy(logits).log_softmax(-1) + torch.tensor([[score] for score, _ in beam])
        scores, indices = log_probs.flatten().topk(2 * beam_size if beam_size > 1 else 1)
        rows: list[int] = []
        new_beam: list[tuple[float, list[int]]] = []
        for rank, (score, index) in enumerate(zip(scores.tolist(), indices.tolist(), strict=True)):
            row, token = divmod(index, log_probs.shape[1])
            if token == END_ID and rank < beam_size:
                finished.append((score / len(beam[row][1]), beam[row][1][1:]))
            elif token != END_ID and len(new_beam) < beam_size:
                rows.append(row)
                new_beam.append((score, [*beam[row][1], token]))
        beam = new_beam
        rows += [0] * (beam_size - len(rows))
        for name in ("self_keys", "self_values"):
            state[name] = state[name][:, rows]
    return max(finished)[1] if finished else beam[0][1][1:]


def test_ctranslate2_and_argos(bundle: Bundle, lines: list[str], outputs: dict[str, list[list[int]]], tmp_path: Path) -> None:
    """Compare scores and outputs of the float32 export, and the outputs of the int8 package, most of which are equal."""
    ctranslate2: Any = pytest.importorskip("ctranslate2", reason="compares with CTranslate2: dragoman[ctranslate2]")
    export_ctranslate2(bundle, tmp_path / "out")
    export_argos(bundle, tmp_path / "en_de.argosmodel")
    with zipfile.ZipFile(tmp_path / "en_de.argosmodel") as archive:
        archive.extractall(tmp_path)
    target = bundle.tokenizer.target
    sources = [bundle.tokenizer.source.ids_to_pieces(bundle.tokenizer.encode_source(line)[:-1]) for line in lines]
    targets = [target.ids_to_pieces(output) for output in outputs["beam"]]
    translators = {
        # In float32, because int8 products saturate where oneDNN has AVX2 only; the weights of the package are int8.
        name: ctranslate2.Translator(str(tmp_path / folder), compute_type="float32", intra_threads=1)
        for name, folder in (("float32", "out"), ("int8", "translate-en_de-1_0/model"))
    }
    scores = translators["float32"].score_batch(sources, targets)
    source, inputs = make_batch(bundle, lines, outputs["beam"])
    with torch.no_grad():
        logits = bundle.model(source, inputs)
    logits[:, :, FORBIDDEN_IDS] = -torch.inf
    log_probs = logits.log_softmax(-1)
    for index, (result, output) in enumerate(zip(scores, outputs["beam"], strict=True)):
        expected = [float(log_probs[index, position, token]) for position, token in enumerate([*output, END_ID])]
        assert result.log_probs == pytest.approx(expected, abs=1e-5)
    options: dict[str, Any] = {"max_input_length": 0, "min_decoding_length": 0, "max_decoding_length": 30}
    for name in DECODING:
        beam = {"beam_size": 1} if name == "greedy" else {"beam_size": BEAM_SIZE, "length_penalty": 1.0}
        # CTranslate2 counts an end token among the four best candidates of a beam, dragoman among eight.
        for translator, min_share in ((translators["float32"], 0.98), (translators["int8"], 0.95)):
            results = translator.translate_batch(sources, **options, **beam)
            rows = [[target.piece_to_id(piece) or 0 for piece in result.hypotheses[0]] for result in results]
            check_outputs(rows, outputs[name], min_share)
