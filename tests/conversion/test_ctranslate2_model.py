"""Conversion of CTranslate2 folders against CTranslate2: logits, outputs, types of weights, and errors of one line."""

from __future__ import annotations

import json
import shutil
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file

import dragoman
from damaged_sources import check_refusal
from dragoman.bundle import load_bundle
from dragoman.conversion.language_codes import M2M100_LANGUAGES
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.export.ctranslate2 import export_ctranslate2
from dragoman.inference.translator import Translator
from dragoman.tasks.inference_model import get_decoder_start_id
from expected_errors import raises_code
from marian_folders import SOURCE_LETTERS, make_lines, train_model, write_folder

ctranslate2: Any = pytest.importorskip("ctranslate2", reason="converts models that CTranslate2 writes")
pytestmark = pytest.mark.usefixtures("one_core")
NUM_SENTENCES, MAX_LENGTH = 200, 60
LINES = make_lines(SOURCE_LETTERS, NUM_SENTENCES, 2)
SEARCH = {"max_input_length": 0, "min_decoding_length": 0, "max_decoding_length": MAX_LENGTH, "return_end_token": True}
OPENNMT_SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]


@dataclass
class Peer:
    """Model of CTranslate2 and the translator of its conversion."""

    folder: Path
    engine: Any
    translator: Translator

    def encode(self, line: str) -> tuple[list[int], list[str]]:
        """Return the source in dragoman's ids, and as tokens for CTranslate2, which may append the end token itself."""
        tokenizer = self.translator.bundle.tokenizer
        ids = tokenizer.encode_source(line)
        appends_end = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))["add_source_eos"]
        return ids, [list_tokens(tokenizer.source)[index] for index in (ids[:-1] if appends_end else ids)]


def list_tokens(vocabulary: Any) -> tuple[str, ...]:
    """Return the tokens of a vocabulary by id, as CTranslate2 names them."""
    tokens: tuple[str, ...] = vocabulary.tokens if isinstance(vocabulary, TokenListTokenizer) else vocabulary.pieces
    return tokens


def write_marian(folder: Path, quantization: str | None = None, **options: Any) -> Path:
    """Write a folder by CTranslate2's converter of Hugging Face models."""
    transformers: Any = pytest.importorskip("transformers", reason="CTranslate2 reads MarianMT by transformers: dragoman[test]")
    transformers.logging.set_verbosity_error()

    def change_tensors(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and "layers" in name:
                tensor *= 2  # so that the output depends on the source
        tensors["final_logits_bias"][0, 0] = 3  # so that most outputs end
        tensors["model.shared.weight"][-1] = 0  # CTranslate2 starts from zero

    source = folder.with_name(f"{folder.name}-source")
    write_folder(source, change_tensors=change_tensors, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converter = ctranslate2.converters.TransformersConverter(str(source), copy_files=["source.spm", "target.spm"])
        converter.convert(str(folder), quantization=quantization)
    return folder


def write_opennmt(
    folder: Path,
    change: Callable[[Any], object] = lambda spec: None,
    *,
    quantization: str | None = None,
    **config: Any,
) -> Path:
    """Write a pre-norm model of two word vocabularies through CTranslate2's specification, as from OpenNMT-py."""
    generator = np.random.default_rng(3)

    def noise(*shape: int) -> Any:
        return (generator.standard_normal(shape) * 0.3).astype(np.float32)

    sizes: dict[str, Any] = {"pre_norm": True, "activation": ctranslate2.specs.Activation.RELU}
    spec = ctranslate2.specs.TransformerSpec.from_config((2, 1), 4, **sizes | config)
    words = sorted({word for line in LINES for word in line.split()})
    source, target = [*OPENNMT_SPECIAL, *words[:100]], [*OPENNMT_SPECIAL, *(word.upper() for word in words[50:])]
    angle = np.arange(64)[:, None] / 10000 ** (np.arange(0, 32, 2) / 32)
    positions = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(64, 32).astype(np.float32)
    for stack, vocabulary in ((spec.encoder, source), (spec.decoder, target)):
        embeddings = stack.embeddings[0] if stack is spec.encoder else stack.embeddings
        embeddings.weight = noise(len(vocabulary), 32)
        stack.position_encodings.encodings = positions
        norms = [getattr(stack, name) for name in ("layer_norm", "layernorm_embedding") if hasattr(stack, name)]
        for layer in stack.layer:
            attentions = [layer.self_attention, *([layer.attention] if stack is spec.decoder else [])]
            for attention in attentions:
                heights = [96, 32] if len(attention.linear) == 2 else [32, 64, 32]
                for linear, height in zip(attention.linear, heights, strict=True):
                    linear.weight, linear.bias = noise(height, 32), noise(height)
            layer.ffn.linear_0.weight, layer.ffn.linear_0.bias = noise(48, 32), noise(48)
            layer.ffn.linear_1.weight, layer.ffn.linear_1.bias = noise(32, 48), noise(32)
            norms += [layer.ffn.layer_norm, *(attention.layer_norm for attention in attentions)]
        for norm in norms:
            norm.gamma, norm.beta = 1 + noise(32), noise(32)
    spec.decoder.projection.weight, spec.decoder.projection.bias = noise(len(target), 32), noise(len(target))
    spec.decoder.projection.bias[: len(OPENNMT_SPECIAL)] = [0, -100, -100, 4]
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    change(spec)
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True)
    spec.save(str(folder))
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {"marian": write_marian, "opennmt": write_opennmt}


@pytest.fixture(scope="module", params=[pytest.param("marian", marks=pytest.mark.slow), "opennmt"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    root = tmp_path_factory.mktemp("peer")
    folder = WRITERS[request.param](root / "ctranslate2")
    dragoman.convert(folder, root / "bundle")
    translator = dragoman.load(root / "bundle", task="translation", device="cpu", precision="float32")
    return Peer(folder, ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1), translator)


def test_logits_are_equal(peer: Peer) -> None:
    """CTranslate2 returns the logits of each step of its own output, in the order of its vocabulary."""
    check_logits(peer, LINES[:20])


@torch.no_grad()
def check_logits(peer: Peer, lines: list[str]) -> None:
    """Compare the logits of each step of CTranslate2's own greedy outputs."""
    bundle = peer.translator.bundle
    target = bundle.tokenizer.target
    for line in lines:
        source, tokens = peer.encode(line)
        (result,) = peer.engine.translate_batch([tokens], beam_size=1, return_logits_vocab=True, **SEARCH)
        names = list_target_tokens(peer.folder)
        ids = [find_id(target, name) for name in names]
        outputs = [find_id(target, token) for token in result.hypotheses[0]]
        inputs = [get_decoder_start_id(bundle.recipe.model), *outputs[:-1]]
        logits = bundle.model(torch.tensor([source]), torch.tensor([inputs]))[0][:, ids]
        expected = torch.tensor(np.array([np.array(step) for step in result.logits[0]])).reshape(logits.shape)
        # Only a model without a final normalization has logits of a hundred, which float32 rounds in proportion.
        largest = float(expected.abs().max())
        tolerance = 1e-5 if largest < 20 else 8e-6 * largest
        torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)


def list_target_tokens(folder: Path) -> list[str]:
    name = "shared" if (folder / "shared_vocabulary.json").exists() else "target"
    tokens: list[str] = json.loads((folder / f"{name}_vocabulary.json").read_text(encoding="utf-8"))
    return tokens


def find_id(vocabulary: Any, token: str) -> int:
    """Return dragoman's id of a token; `<blank>` is OpenNMT's padding."""
    return list_tokens(vocabulary).index("<pad>" if token == "<blank>" else token)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_outputs_are_equal(beam_size: int, peer: Peer) -> None:
    """Compare greedy outputs up to the limit of CTranslate2, and the outputs of a beam that end by themselves."""
    sources = [peer.encode(line)[1] for line in LINES]
    results = peer.engine.translate_batch(sources, beam_size=beam_size, length_penalty=1.0, **SEARCH)
    translations = peer.translator.translate(
        LINES,
        method="beam" if beam_size > 1 else "greedy",
        beam_size=max(2, beam_size),
        alpha=1.0,
        max_extra_tokens=MAX_LENGTH,
        min_length=0,
        repetition_window=0,
    )
    outputs = [[token.removesuffix("▁") for token in translation.tokens][:MAX_LENGTH] for translation in translations]
    expected = [[token for token in result.hypotheses[0] if token != "</s>"] for result in results]
    has_end = [result.hypotheses[0][-1] == "</s>" for result in results]
    if beam_size > 1:
        outputs, expected = ([side[index] for index in range(len(LINES)) if has_end[index]] for side in (outputs, expected))
    assert outputs == expected
    assert len(outputs) > NUM_SENTENCES / 2
    assert len({tuple(tokens) for tokens in outputs}) > 10
    assert has_end.count(True) > 50


# Types of weights


TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32, "int16": torch.float32}


@pytest.mark.parametrize("name", TYPES)
@torch.no_grad()
def test_quantized_weights_are_those_of_the_engine(name: str, tmp_path: Path) -> None:
    """CTranslate2 dequantizes the same file, and its logits then equal those of the bundle."""
    folder = write_opennmt(tmp_path / "model", set_learned_positions, quantization=name)  # sinusoids are not rounded
    dragoman.convert(folder, tmp_path / "bundle")
    weights = load_file(tmp_path / "bundle" / "weights.safetensors")
    assert weights["decoder.layers.0.feed_forward.inner.weight"].dtype == TYPES[name]
    translator = dragoman.load(tmp_path / "bundle", task="translation", device="cpu", precision="float32")
    peer = Peer(folder, ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1), translator)
    check_logits(peer, LINES[:4])


def test_equal_integers_with_other_scales_are_other_weights(tmp_path: Path) -> None:
    """Twice a matrix has the same integers, which are stored once, and half the scale."""

    def double(spec: Any) -> None:
        spec.decoder.projection.weight = 2 * spec.decoder.embeddings.weight

    folder = write_opennmt(tmp_path / "model", double, quantization="int8")
    variables = collect_variables(folder)
    names = ["decoder/embeddings/weight", "decoder/projection/weight"]
    assert np.array_equal(variables[names[0]], variables.pop(names[1]))
    for index, name in enumerate(names):
        variables[f"{name}_scale"] = np.full(len(variables[names[0]]), 10 - 5 * index, np.float32)
    quantized = [name for name, array in variables.items() if array.dtype == np.int8 and array.ndim == 2]
    for name in quantized:
        variables.setdefault(f"{name}_scale", np.ones(len(variables[name]), np.float32))
    write_binary(folder / "model.bin", 6, 7, variables, aliases={names[1]: names[0]})
    dragoman.convert(folder, tmp_path / "bundle")
    weights = load_file(tmp_path / "bundle" / "weights.safetensors")
    assert torch.equal(weights["output"], 2 * weights["decoder.embedding.weight"])


# Architectures


def set_learned_positions(spec: Any) -> None:
    for seed, stack in enumerate((spec.encoder, spec.decoder)):
        stack.position_encodings.encodings = np.random.default_rng(seed).standard_normal((64, 32)).astype(np.float32)


def remove_positions(spec: Any) -> None:
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = "__optional"


def remove_biases(spec: Any) -> None:
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        for linear in layer.self_attention.linear:
            linear.bias = "__optional"
        layer.ffn.linear_1.bias = "__optional"


def share_embeddings(spec: Any) -> None:
    spec.decoder.projection.weight = spec.decoder.embeddings.weight


def set_query_scale(spec: Any) -> None:
    for layer in spec.decoder.layer:
        layer.attention.queries_scale = 0.7


def set_flags(spec: Any) -> None:
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = False
    spec.decoder.start_from_zero_embedding = True
    spec.config.add_source_eos, spec.config.layer_norm_epsilon = True, 0.01


VARIANTS: dict[str, tuple[Callable[[Any], object], dict[str, Any], dict[str, Any]]] = {
    "learned positions": (set_learned_positions, {}, {"position_encoding": "learned", "max_positions": 64}),
    "own positions": (remove_positions, {}, {"position_encoding": "concatenated", "position_offset": 1}),
    "few biases": (remove_biases, {}, {"attention_bias": True}),
    "tied": (share_embeddings, {}, {"tie_embeddings": "decoder"}),
    "query scale": (set_query_scale, {}, {"d_k": None}),
    "flags": (set_flags, {}, {"decoder_start_token": "zero", "scale_embeddings": False, "norm_epsilon": 0.01}),
    "post-norm": (lambda spec: None, {"pre_norm": False}, {"norm": "post", "final_norm": False}),
    "no final norm": (lambda spec: None, {"no_final_norm": True}, {"norm": "pre", "final_norm": False}),
    "embedding norm": (lambda spec: None, {"layernorm_embedding": True}, {"embedding_norm": True}),
    "SiLU": (lambda spec: None, {"activation": 2}, {"activation": "silu"}),
    "GELU": (lambda spec: None, {"activation": 3}, {"activation": "gelu"}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_equal(variant: str, tmp_path: Path) -> None:
    change, config, expected = VARIANTS[variant]
    folder = write_opennmt(tmp_path / "model", change, **config)
    dragoman.convert(folder, tmp_path / "bundle")
    translator = dragoman.load(tmp_path / "bundle", task="translation", device="cpu", precision="float32")
    section = translator.recipe.model.model_dump()
    assert {name: section[name] for name in expected} == expected
    peer = Peer(folder, ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1), translator)
    check_logits(peer, LINES[:4])


def write_binary(
    path: Path,
    version: int,
    revision: int,
    variables: dict[str, Any],
    name: str = "TransformerSpec",
    *,
    aliases: dict[str, str] | None = None,
) -> None:
    """Write a model.bin. aliases: other names of variables"""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value.encode()) + 1) + value.encode() + b"\0"

    types = ["float32", "int8", "int16", "int32", "float16"]
    parts = [struct.pack("<I", version), text(name), struct.pack("<2I", revision, len(variables))]
    for key, array in variables.items():
        header = struct.pack("<B", array.ndim) + b"".join(struct.pack("<I", width) for width in array.shape)
        parts += [text(key), header, struct.pack("<BI", types.index(array.dtype.name), array.nbytes), array.tobytes()]
    path.write_bytes(b"".join([*parts, struct.pack("<I", len(aliases or {})), *map(text, chain(*(aliases or {}).items()))]))


def collect_variables(folder: Path) -> dict[str, Any]:
    """Return the variables of a folder as arrays."""
    from dragoman.conversion.ctranslate2_binary import read_binary
    from dragoman.conversion.source_files import SourceFiles

    binary = read_binary(SourceFiles(folder).map_file("model.bin"), folder / "model.bin")
    return {name: np.array(array.values) for name, array in binary.arrays.items()}


def test_old_folder_gives_the_same_weights(tmp_path: Path) -> None:
    """Models of revision 4 have settings for both stacks, flags in model.bin, and vocabularies of lines."""
    folder = write_opennmt(tmp_path / "new", lambda spec: setattr(spec.config, "add_source_eos", True))
    shutil.copytree(folder, tmp_path / "old")
    shared = {"num_heads": np.int8(4), "pre_norm": np.int8(1), "with_source_eos": np.int8(1), "activation": np.int8(0)}
    variables = {name: array for name, array in collect_variables(folder).items() if name.split("/")[-1] not in shared}
    arrays = variables | {name: np.array(value) for name, value in shared.items()}
    write_binary(tmp_path / "old" / "model.bin", 5, 4, arrays)
    (tmp_path / "old" / "config.json").unlink()
    for side in ("source", "target"):
        path = tmp_path / "old" / f"{side}_vocabulary.json"
        path.with_suffix(".txt").write_text("".join(f"{token}\n" for token in json.loads(path.read_text())))
        path.unlink()
    for name in ("new", "old"):
        dragoman.convert(tmp_path / name, tmp_path / f"{name}-bundle")
    weights = [(tmp_path / f"{name}-bundle" / "weights.safetensors").read_bytes() for name in ("new", "old")]
    assert weights[0] == weights[1]
    recipes = [load_bundle(tmp_path / f"{name}-bundle").recipe for name in ("new", "old")]
    assert recipes[0].model == recipes[1].model


# Tokenizers and languages


def name_tokens(spec: Any, names: list[str], *, start: str = "</s>") -> None:
    """Replace both vocabularies by one of pieces and names, with one matrix."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=train_model(SOURCE_LETTERS))
    tokens = [*OPENNMT_SPECIAL, *(processor.id_to_piece(index) for index in range(3, len(processor))), *names]
    spec._vocabularies = {"source": [tokens], "target": [tokens]}
    matrix = np.random.default_rng(1).standard_normal((len(tokens), 32)).astype(np.float32)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = matrix
    spec.decoder.projection.bias = np.zeros(len(tokens), np.float32)
    spec.config.decoder_start_token = start


def test_languages_of_opus_mt_are_source_tokens(tmp_path: Path) -> None:
    names = [">>deu<<", ">>fra<<"]
    folder = write_opennmt(tmp_path / "model", lambda spec: name_tokens(spec, names))
    (folder / "spm.model").write_bytes(train_model(SOURCE_LETTERS))
    result = dragoman.convert(tmp_path / "model", tmp_path / "bundle", target_language="fra")
    assert result.origin.target_languages == ["deu", "fra"]
    assert any("</s>" in note for note in result.notes)
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert list_tokens(tokenizer.source)[tokenizer.encode_source("abc d")[0]] == ">>fra<<"
    assert tokenizer.encode_source("abc d")[-1] == END_ID
    with raises_code("conversion-unsupported", "xyz", "deu, fra"):
        dragoman.convert(tmp_path / "model", tmp_path / "other", target_language="xyz")


def test_languages_of_m2m100_are_on_both_sides(tmp_path: Path) -> None:
    names = [f"__{language}__" for language in M2M100_LANGUAGES]
    folder = write_opennmt(tmp_path / "model", lambda spec: name_tokens(spec, names))
    (folder / "sentencepiece.bpe.model").write_bytes(train_model(SOURCE_LETTERS))
    dragoman.convert(tmp_path / "model", tmp_path / "bundle", source_language="en", target_language="de")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert list_tokens(tokenizer.source)[tokenizer.encode_source("abc")[0]] == "__en__"
    assert [list_tokens(tokenizer.target)[index] for index in tokenizer.decoder_prompt] == ["__de__"]


def test_export_converts_back(bundle: Path, corpus: Path, tmp_path: Path) -> None:
    """The export has CTranslate2's search options, so the same ones are given to both."""
    export_ctranslate2(load_bundle(bundle), tmp_path / "exported")
    result = dragoman.convert(tmp_path / "exported", tmp_path / "again")
    assert (result.origin.source_languages, result.origin.target_languages) == (["en"], ["de"])
    lines = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    options: Any = {
        "beam_size": 4,
        "alpha": 1.0,
        "early_stopping": "beam_full",
        "length_penalty": "power",
        "max_extra_tokens": 9,
    }
    first, second = (
        dragoman.load(path, task="translation", device="cpu", precision="float32").translate(lines, **options, min_length=0)
        for path in (bundle, tmp_path / "again")
    )
    assert [translation.text for translation in first] == [translation.text for translation in second]


# Refusals


def add_attribute(spec: Any, path: str, value: Any) -> None:
    """Set an attribute that CTranslate2's specification does not have in this architecture."""
    spec = spec.decoder if path.startswith("decoder") else spec.encoder
    object.__setattr__(spec, path.split("/")[1], value)


@pytest.mark.parametrize(
    ("change", "config", "name"),
    [
        (lambda spec: None, {"activation": 1}, "gelu-tanh"),
        (lambda spec: add_attribute(spec, "decoder/alibi", True), {}, "decoder/alibi"),
        (lambda spec: add_attribute(spec, "decoder/scale_outputs", np.float32(2)), {}, "decoder/scale_outputs"),
        (lambda spec: add_attribute(spec, "decoder/sliding_window", np.int32(7)), {}, "decoder/sliding_window"),
        (lambda spec: add_attribute(spec, "encoder/multi_query_attention", True), {}, "multi_query_attention"),
        (lambda spec: add_attribute(spec, "encoder/scale_embeddings", np.float32(3)), {}, "encoder/scale_embeddings"),
        (lambda spec: add_attribute(spec, "decoder/num_heads", np.int16(2)), {}, "decoder/num_heads"),
        (lambda spec: setattr(spec.config, "decoder_start_token", None), {}, "decoder_start_token"),
        (lambda spec: setattr(spec.config, "decoder_start_token", "<unk>"), {}, "decoder_start_token"),
        (lambda spec: setattr(spec.config, "add_source_bos", True), {}, "add_source_bos"),
        (lambda spec: spec.config.add_attribute("quantization_type", 1), {}, "quantization_type"),
        (lambda spec: setattr(spec.encoder.position_encodings, "encodings", "__optional"), {}, "position_encodings"),
    ],
)
def test_unsupported_feature_raises(change: Callable[[Any], object], config: dict[str, Any], name: str, tmp_path: Path) -> None:
    write_opennmt(tmp_path / "model", change, **config)
    check_refusal(tmp_path / "model", "conversion-unsupported", name)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_opennmt(tmp_path_factory.mktemp("small") / "model")


@pytest.fixture
def folder(small_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_folder, tmp_path / "model"))


@pytest.mark.parametrize(
    "variable",
    [
        "encoder/layer_0/self_attention/relative_position_keys",
        "decoder/layer_0/ffn/linear_0_noact/weight",
        "decoder/project_in/weight",
        "decoder/layer_0/self_attention/rotary_dim",
        "decoder/layer_0/self_attention/num_heads_kv",
        "encoder/embeddings_1/weight",
        "decoder/layer_0/ffn/linear_0/weight_zero",
    ],
)
def test_unknown_variable_raises(variable: str, folder: Path) -> None:
    write_binary(folder / "model.bin", 6, 7, collect_variables(folder) | {variable: np.ones((1, 1), np.float32)})
    check_refusal(folder, "conversion-unsupported", variable)


def test_root_mean_square_normalization_raises(folder: Path) -> None:
    variables = collect_variables(folder)
    del variables["decoder/layer_norm/beta"]
    write_binary(folder / "model.bin", 6, 7, variables)
    check_refusal(folder, "conversion-unsupported", "decoder/layer_norm/beta")


@pytest.mark.parametrize(
    ("version", "revision", "name", "expected"),
    [
        (3, 7, "TransformerSpec", "version 3"),
        (7, 7, "TransformerSpec", "version 7"),
        (6, 8, "TransformerSpec", "revision 8"),
        (6, 3, "WhisperSpec", "WhisperSpec"),
        (6, 1, "TransformerBase", "TransformerBase"),
    ],
)
def test_unknown_version_raises(version: int, revision: int, name: str, expected: str, folder: Path) -> None:
    write_binary(folder / "model.bin", version, revision, {}, name)
    check_refusal(folder, "conversion-unsupported", expected)


@pytest.mark.parametrize(
    ("file_name", "content", "code", "expected"),
    [
        ("model.bin", b"", "source-damaged", "empty"),
        ("model.bin", b"\6\0\0\0", "source-damaged", "cut short"),
        ("target_vocabulary.json", None, "source-damaged", "target_vocabulary.json"),
        ("target_vocabulary.json", b"{}", "source-damaged", "not a list"),
        ("target_vocabulary.json", b"[1]", "source-damaged", "not a list"),
        ("target_vocabulary.json", b"[" * 100_000, "source-damaged", "JSON"),
        ("target_vocabulary.json", b'["<unk>", "<s>", "</s>"]', "source-damaged", "3 tokens"),
        ("target_vocabulary.json", b'["a"]', "source-damaged", "unk_token"),
        ("source_vocabulary.json", b'["<unk>", "<s>", "</s>", "a"]', "source-damaged", "4 tokens"),
        ("source_1_vocabulary.json", b"[]", "conversion-unsupported", "word features"),
        ("config.json", b'{"eos_token": 5}', "source-damaged", "eos_token"),
        ("config.json", b'{"layer_norm_epsilon": "x"}', "source-damaged", "layer_norm_epsilon"),
        ("config.json", b'{"bos_token": "<unk>"}', "source-damaged", "special tokens"),
        ("source.spm", b"no model", "source-damaged", "target.spm"),
        ("spm.model", b"no model", "tokenizer-damaged", "spm.model"),
    ],
)
def test_false_file_raises(file_name: str, content: bytes | None, code: str, expected: str, folder: Path) -> None:
    (folder / file_name).unlink(missing_ok=True)
    if content is not None:
        (folder / file_name).write_bytes(content)
    check_refusal(folder, code, expected)


def test_pieces_without_their_model_raise(tmp_path: Path) -> None:
    write_opennmt(tmp_path / "model", lambda spec: name_tokens(spec, ["▁a", "▁b"]))
    check_refusal(tmp_path / "model", "source-damaged", "no SentencePiece model")


def set_variable(name: str, array: Any) -> Callable[[dict[str, Any]], object]:
    """Return a change that replaces a variable."""
    return lambda variables: variables.update({name: array})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda variables: variables.pop("decoder/layer_0/ffn/linear_1/weight"), "decoder/layer_0/ffn/linear_1/weight"),
        (set_variable("decoder/layer_0/ffn/linear_1/bias", np.ones(7, np.float32)), "decoder/layer_0/ffn/linear_1/bias"),
        (set_variable("encoder/layer_0/self_attention/linear_0/weight", np.ones((95, 32), np.float32)), "3 equal parts"),
        (set_variable("decoder/embeddings/weight", np.ones((9, 32), np.float32)), "9 rows"),
        (set_variable("decoder/embeddings/weight", np.ones(9, np.float32)), "is a matrix"),
        (set_variable("decoder/projection/bias", np.ones(9, np.float32)), "9 values"),
        (lambda variables: [variables.pop(f"{stack}/num_heads") for stack in ("encoder", "decoder")], "encoder/num_heads"),
        (set_variable("encoder/num_heads", np.ones(3, np.int16)), "encoder/num_heads"),
        (set_variable("decoder/start_from_zero_embedding", np.array(7, np.int8)), "start_from_zero_embedding"),
        (set_variable("decoder/layer_0/ffn/linear_0/weight", np.ones((48, 32), np.int8)), "no scale"),
        (set_variable("decoder/layer_0/ffn/linear_0/weight", np.ones((48, 32), np.int32)), "int32"),
        (set_variable("decoder/layer_0/ffn/linear_0/weight", np.full((48, 32), np.nan, np.float32)), "feed_forward.inner"),
        (set_variable("encoder/layer_9999/x", np.ones(1, np.float32)), "encoder/layer_2/"),
        (set_variable("encoder/position_encodings/encodings", np.ones((64, 30), np.float32)), "32 wide"),
    ],
)
def test_false_variables_raise(change: Callable[[dict[str, Any]], object], expected: str, folder: Path) -> None:
    variables = collect_variables(folder)
    change(variables)
    write_binary(folder / "model.bin", 6, 7, variables)
    check_refusal(folder, "source-damaged", expected)
