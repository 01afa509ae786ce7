"""Tests of bundles: writing and reading, damaged and hostile files, weights, and write errors."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import pickle
import re
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

import dragoman
import dragoman.bundle
import dragoman.io.storage
from conftest import MakeRecipe, edit_config, reseal
from dragoman import Translator
from dragoman.adapter import Adapter, save_adapter
from dragoman.bundle import Bundle, BundleMetadata, compute_bundle_digest, load_bundle, read_config, save_bundle
from dragoman.config import LoraConfig, Recipe, make_recipe
from dragoman.config.section_validation import FieldError
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, train_tokenizer
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.errors import BundleError
from dragoman.io.safetensors import DTYPE_CODES, save_tensors
from dragoman.model.factory import build_model
from dragoman.model.weights import average_weights, collect_weights, to_arrays
from dragoman.tasks.attention_alignment import AlignmentHead
from expected_errors import raises_code
from tiny_runs import WORDS
from torch_models import bundle_model

pytestmark = pytest.mark.usefixtures("one_core")

LINES = ["one two three", "red", "", "nine big green small"]
FILES = ["config.json", "manifest.json", "source.model", "target.model", "weights.safetensors"]


def load_error(folder: Path, *, names: str) -> str:
    """Return the message with which `load_bundle` rejects a bundle; it must contain `names`."""
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert names in message
    assert "\n" not in message
    return message


def make_bundle(recipe: Recipe, *, seed: int = 1) -> Bundle:
    """Return an untrained bundle with its own tokenizers."""
    tokenizer = train_tokenizer(
        WORDS, WORDS.values(), recipe.tokenizer, append_source_eos=recipe.model.append_source_eos, seed=recipe.training.seed
    )
    torch.manual_seed(seed)
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target)).eval()
    return bundle_model(recipe, tokenizer, model, METADATA)


def save(bundle: Bundle, path: Path, *, overwrite: bool = False) -> None:
    save_bundle(
        path,
        recipe=bundle.recipe,
        tokenizer=bundle.tokenizer,
        weights=collect_weights(bundle.model),
        metadata=bundle.metadata,
        overwrite=overwrite,
    )


METADATA = BundleMetadata(
    training_files=["ü.tsv"],
    pairs=3,
    dropped_pairs={"empty": 1},
    epochs=0.5,
    machine="cpu",
    alignment=AlignmentHead(layer=0, head=1, error_rate=0.25),
)
SEPARATE = ("tokenizer.joint=false", "tokenizer.vocab_size=40", "tokenizer.target_vocab_size=44")
SHAPES = {
    "all": ("model.tie_embeddings='all'", "tokenizer.vocab_size=50"),
    "decoder": ("model.tie_embeddings='decoder'", "tokenizer.vocab_size=50"),
    "none": ("model.tie_embeddings='none'", "tokenizer.vocab_size=50"),
    "separate decoder": ("model.tie_embeddings='decoder'", *SEPARATE),
    "separate none": ("model.tie_embeddings='none'", *SEPARATE),
    "rotary": ("model.position_encoding='rotary'", "model.num_key_value_heads=1", "tokenizer.vocab_size=50"),
    "everything else": (
        "tokenizer.vocab_size=50",
        "model.norm='post'",
        "model.position_encoding='learned'",
        "model.max_positions=40",
        "model.attention_bias=true",
        "model.target_space_embedding=true",
        "model.attention_window=3",
        "model.decoder_start_token='zero'",
        "model.append_source_eos=false",
        "model.d_k=6",
        "model.d_v=5",
    ),
}
# Matrices outside the layers: source and target embedding and output, some of which are tied.
VOCABULARY_MATRICES = {"all": 1, "decoder": 2, "none": 3, "separate decoder": 2, "separate none": 3}


def test_saved_bundle_loads_unchanged(
    subtests: pytest.Subtests, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for shape in SHAPES:
        with subtests.test(shape=shape):
            tmp_path = tmp_path_factory.mktemp("case")
            before = make_bundle(tiny(tmp_path, *SHAPES[shape]))
            save(before, tmp_path / "bundle")
            after = load_bundle(tmp_path / "bundle")
            assert after.recipe == before.recipe
            assert after.metadata == METADATA
            assert after.tokenizer.is_joint == before.tokenizer.is_joint
            assert after.tokenizer.append_source_eos == before.recipe.model.append_source_eos
            weights_before, weights_after = dict(before.model.named_parameters()), dict(after.model.named_parameters())
            assert weights_before.keys() == weights_after.keys()
            for name, weight in weights_before.items():
                assert torch.equal(weight, weights_after[name]), name
            assert after.model.num_parameters() == before.model.num_parameters()
            expected = Translator.from_bundles([before], device="cpu").translate(LINES)
            assert Translator.from_bundles([after], device="cpu").translate(LINES) == expected
            assert any(translation.tokens for translation in expected)


def test_tied_matrix_is_stored_once(
    subtests: pytest.Subtests, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for shape, matrices in VOCABULARY_MATRICES.items():
        with subtests.test(shape=shape, matrices=matrices):
            tmp_path = tmp_path_factory.mktemp("case")
            save(make_bundle(tiny(tmp_path, *SHAPES[shape])), tmp_path / "bundle")
            stored = load_file(tmp_path / "bundle" / "weights.safetensors")
            assert sum(len(weight) in (40, 44, 50) for weight in stored.values()) == matrices
            model = load_bundle(tmp_path / "bundle").model
            source, target = model.encoder.embedding.weight, model.decoder.embedding.weight
            assert len({id(weight) for weight in (source, target, model.output)}) == matrices
            assert (target is model.output) == (model.output.data_ptr() == target.data_ptr()) == (matrices < 3)


# Damage


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_detected(name: str, bundle_copy: Path) -> None:
    """Each file has a reader of its own, which may raise before the checksums are compared."""
    path = bundle_copy / name
    content = path.read_bytes()
    middle = len(content) // 2
    # A changed checksum looks like a changed file; the message names the folder in both cases.
    problem = "bundle/" if name == "manifest.json" else f"{name}: was changed or cut short"
    for flipped in (0, middle, len(content) - 1):
        damaged = bytearray(content)
        damaged[flipped] ^= 0x10
        path.write_bytes(damaged)
        load_error(bundle_copy, names=problem)
    for size in (0, middle):
        path.write_bytes(content[:size])
        load_error(bundle_copy, names=problem)
    path.unlink()
    load_error(bundle_copy, names=name)


@pytest.mark.parametrize("name", ["config.json", "source.model", "weights.safetensors"])
def test_missing_unlisted_file_is_named(name: str, bundle_copy: Path) -> None:
    (bundle_copy / name).unlink()
    reseal(bundle_copy)
    load_error(bundle_copy, names=name)


def test_other_paths_are_no_bundle(tmp_path: Path) -> None:
    load_error(tmp_path / "nowhere", names="nowhere: there is no such folder")
    (tmp_path / "empty").mkdir()
    load_error(tmp_path / "empty", names="empty: holds no manifest.json")
    (tmp_path / "file").write_text("text")
    load_error(tmp_path / "file", names="file")
    with raises_code("bundle-not-found", "nowhere: there is no such folder; give a folder that dragoman wrote"):
        read_config(tmp_path / "nowhere")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for path in (tmp_path / "run", tmp_path / "run" / "bundle"):
        with raises_code("bundle-unfinished", f"the training in {tmp_path / 'run'} has not finished"):
            read_config(path)


# Hostile configs with a valid manifest


def set_key(section: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["recipe"][section][key] = value

    return change


def test_false_config_raises_before_allocation(
    subtests: pytest.Subtests, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for change, message_part in [
        (lambda d: d["recipe"].update(evil=1), "evil is not a key"),
        (set_key("model", "d_modle", 16), "did you mean d_model"),
        (set_key("model", "d_model", "wide"), "model.d_model = 'wide'"),
        (set_key("model", "d_model", 32), "output matrix of (80, 32)"),
        (set_key("model", "d_model", 10**9), "model.d_model = 1000000000"),
        (set_key("model", "d_model", 10**30), "model.d_model"),
        (set_key("model", "d_ff", 10**9), "model.d_ff = 1000000000"),
        (set_key("model", "d_k", 10**9), "model.d_k = 1000000000"),
        (set_key("model", "d_k", 10**6), "attention.query.weight has shape (16, 16)"),
        (set_key("model", "d_ff", 10**6), "feed_forward.inner.weight has shape (32, 16)"),
        (set_key("model", "encoder_layers", 10**9), "model.encoder_layers = 1000000000"),
        (set_key("model", "encoder_layers", 1000), "1001 layers"),
        (set_key("model", "encoder_layers", 2), "encoder.layers.1"),
        (set_key("model", "tie_embeddings", "none"), "is missing"),
        (set_key("model", "attention_bias", True), "attention.key.bias of the model in the config is missing"),
        (set_key("model", "position_encoding", "learned"), "positions.weight of the model in the config is missing"),
        (lambda d: d["recipe"]["model"].update(num_heads=2**20, d_k=2**20, d_v=1), "attention.query.weight has shape"),
        (lambda d: d["vocabulary"].update(source=10**9, target=10**9), "names (1000000000, 1000000000) pieces"),
        (lambda d: d["vocabulary"].update(target=79), "names (80, 79) pieces"),
        (lambda d: d["vocabulary"].update(source=float("inf")), "OverflowError"),
        (lambda d: d.update(vocabulary=[80, 80]), "TypeError"),
        (lambda d: d.update(metadata="long"), "config.json: metadata = 'long': needs a section"),
        (lambda d: d["metadata"].update(steps="many"), "config.json: metadata.steps = 'many': needs a whole number"),
        (lambda d: d.pop("metadata"), "KeyError: 'metadata'"),
        (lambda d: d.update(recipe=[]), "config.json"),
        (lambda d: d["recipe"]["tokenizer"].update(joint=False), "all"),
        (
            lambda d: (d["recipe"]["tokenizer"].update(joint=False), d["recipe"]["model"].update(tie_embeddings="none")),
            "decoder.embedding.weight",
        ),
    ]:
        with subtests.test(change=change, message_part=message_part):
            bundle_copy = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("case") / "bundle"))
            edit_config(bundle_copy, change)
            before = _peak_memory_mib()
            message = load_error(bundle_copy, names=message_part)
            assert str(bundle_copy) in message
            assert _peak_memory_mib() - before < 64


def _peak_memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_malformed_config_raises(subtests: pytest.Subtests, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text in ["", "{", "[]", "null", "[" * 100_000, '{"recipe": {}}', "\ud800"]:
        with subtests.test(text=text):
            bundle_copy = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("case") / "bundle"))
            (bundle_copy / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
            reseal(bundle_copy)
            load_error(bundle_copy, names="config.json")


class PayloadExecuted(Exception):
    """Sign of an executed payload."""


class Payload:
    """Object that raises PayloadExecuted when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _explode, ("a payload was run",)


def _explode(text: str) -> None:
    raise PayloadExecuted(text)


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload()))


def write_pt(path: Path) -> None:
    torch.save({"output": torch.zeros(80, 16), "payload": Payload()}, path)


def write_old_pt(path: Path) -> None:
    torch.save({"output": torch.zeros(80, 16), "payload": Payload()}, path, _use_new_zipfile_serialization=False)


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload()))


def write_python(path: Path) -> None:
    path.write_text("raise SystemExit('run')\n")


FORGERIES: list[Callable[[Path], object]] = [
    write_pickle,
    write_pt,
    write_old_pt,
    write_zip,
    write_python,
    lambda path: path.write_bytes(b""),
]


def test_foreign_file_is_never_executed(
    subtests: pytest.Subtests, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for forge in FORGERIES:
        for name in ["weights.safetensors", "source.model", "config.json"]:
            with subtests.test(forge=forge, name=name):
                bundle_copy = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("case") / "bundle"))
                forge(bundle_copy / name)
                reseal(bundle_copy)
                load_error(bundle_copy, names=name)


# Functions and modules that no source file may use, because they can execute code.
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "numpy.load", "np.load"}
NEVER_IMPORTED = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
# Attributes of PyYAML that build no objects of classes that a file names.
SAFE_YAML = {
    "AliasEvent", "CollectionEndEvent", "CollectionStartEvent", "SafeLoader", "YAMLError", "compose", "error", "nodes", "parse",
    "safe_load", "scan",
}  # fmt: skip


def test_no_source_file_executes_data() -> None:
    files = sorted(Path(dragoman.__file__).parent.rglob("*.py"))
    assert len(files) > 40
    violations = []
    names = [name.rpartition(".")[2] for name in (*NEVER_CALLED, *NEVER_IMPORTED, "yaml")]
    suspects = re.compile(rf"\b(?<!\bre\.)({'|'.join(names)})\b")
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    for path in (path for path, text in texts.items() if suspects.search(text)):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in NEVER_CALLED:
                violations.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}")
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "yaml" and node.attr not in SAFE_YAML:
                violations.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            violations += [f"{path}: from yaml" for name in imported if isinstance(node, ast.ImportFrom) and name == "yaml"]
            violations += [f"{path}: {name}" for name in imported if name.split(".")[0] in NEVER_IMPORTED]
    assert violations == []


# Weights


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = {name: weight.clone() for name, weight in load_file(folder / "weights.safetensors").items()}
    change(weights)
    save_file(weights, folder / "weights.safetensors")
    reseal(folder)


def test_unfit_weights_raise(subtests: pytest.Subtests, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for change, message_part in [
        (lambda w: w.pop("encoder.layers.0.attention.key.weight"), "encoder.layers.0.attention.key.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "'extra' does not belong"),
        (lambda w: w.update({"output": torch.zeros(81, 16)}), "(81, 16)"),
        (lambda w: w.update({"encoder.layers.0.attention.key.weight": torch.zeros(16)}), "has shape (16,)"),
        (lambda w: w["output"].view(-1)[7:8].fill_(float("nan")), "output holds values that are not finite"),
        (lambda w: w["output"].view(-1)[7:8].fill_(float("inf")), "output holds values that are not finite"),
        (lambda w: w.update({"output": torch.zeros(80, 16, dtype=torch.int64)}), "output holds values"),
    ]:
        with subtests.test(change=change, message_part=message_part):
            bundle_copy = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("case") / "bundle"))
            change_weights(bundle_copy, change)
            assert "weights.safetensors" in load_error(bundle_copy, names=message_part)


def test_half_precision_weights_become_float32(bundle: Path, bundle_copy: Path) -> None:
    change_weights(bundle_copy, lambda weights: weights.update({name: value.half() for name, value in weights.items()}))
    whole, halved = (collect_weights(load_bundle(path).model) for path in (bundle, bundle_copy))
    for name, weight in whole.items():
        assert halved[name].dtype == torch.float32
        assert torch.equal(halved[name], weight.half().float())


def test_average_weights_sums_in_float64() -> None:
    # 2²⁵ + 1 is 2²⁵ in float32, so a sum in float32 would give a mean of 0.
    weight_sets = [{"a": torch.tensor([value])} for value in (2.0**25, 1.0, -(2.0**25), 1.0)]
    assert average_weights(weight_sets)["a"].item() == 0.5


# Writing


def test_overwrite_replaces_the_whole_bundle(tiny: MakeRecipe, bundle_copy: Path, tmp_path: Path) -> None:
    new = make_bundle(tiny(tmp_path, "model.tie_embeddings='none'", *SEPARATE))
    save(new, bundle_copy, overwrite=True)
    assert load_bundle(bundle_copy).recipe == new.recipe
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_too_large_file_raises_os_error(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_tensors(tmp_path / "weights", {"a": torch.zeros(1_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


TENSORS = {
    "w.2": torch.arange(6, dtype=torch.float32).view(2, 3),
    "w.10": torch.arange(6, dtype=torch.float32).view(2, 3).T,
    "part": torch.arange(9, dtype=torch.float32)[2:7:2],
    "step": torch.tensor(3.0),
    "empty": torch.zeros(0, 4),
    "half": torch.randn(3, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "n": torch.tensor([2**62, -1]),
    **{dtype: torch.tensor([0, 1, 1]).to(getattr(torch, dtype)) for dtype in DTYPE_CODES},
    'ä"\n\u2028': torch.ones(1),
}


def test_tensor_bytes_equal_the_safetensors_library(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for names in [list(TENSORS), ["w.2", "w.10"], ["half"], ["empty"], []]:
        with subtests.test(names=names):
            tmp_path = tmp_path_factory.mktemp("case")
            tensors = {name: TENSORS[name].detach() for name in names}
            digest = save_tensors(tmp_path / "weights", {name: TENSORS[name] for name in names})
            written = (tmp_path / "weights").read_bytes()
            assert written == safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
            assert digest == hashlib.sha256(written).hexdigest()
            loaded = load_file(tmp_path / "weights")
            assert loaded.keys() == tensors.keys()
            for name, tensor in tensors.items():
                assert loaded[name].dtype == tensor.dtype
                assert torch.equal(loaded[name], tensor)


def test_bundle_with_retired_keys_opens(bundle: Path, bundle_copy: Path) -> None:
    def add_retired_keys(document: dict[str, Any]) -> None:
        document["recipe"]["decoding"] |= {"speculative": "auto", "typical_threshold": 0.3}
        document["recipe"]["training"]["r_drop_alpha"] = 0.0
        training = {"lines": 1, "target_tokens": 2, "steps": 3, "seconds": 4.0, "tokens_per_step": {"2": 1.5}}
        document["metadata"] |= {"heads": training, "draft": training}

    edit_config(bundle_copy, add_retired_keys)
    opened, original = load_bundle(bundle_copy), load_bundle(bundle)
    assert (opened.recipe, opened.metadata) == (original.recipe, original.metadata)
    tuned, expected = (make_recipe({"training": {"init_from": str(path)}}, where="a") for path in (bundle_copy, bundle))
    assert (tuned.model, tuned.decoding) == (expected.model, expected.decoding)


def test_lowercase_setting_is_restored(tiny: MakeRecipe, tmp_path: Path) -> None:
    new = make_bundle(tiny(tmp_path, "tokenizer.lowercase=true", "tokenizer.vocab_size=50"))
    save(new, tmp_path / "bundle")
    tokenizer = load_bundle(tmp_path / "bundle").tokenizer
    assert tokenizer.encode_source("ONE Two") == tokenizer.encode_source("one two")
    cased = PairTokenizer(
        SentencePieceTokenizer(tokenizer.source.serialized_model),
        SentencePieceTokenizer(tokenizer.target.serialized_model),
        append_source_eos=True,
    )
    assert cased.encode_source("ONE Two") != cased.encode_source("one two")


def test_run_folder_error_names_its_bundle(trained: Path) -> None:
    with raises_code("bundle-not-found", str(trained / "bundle")):
        load_bundle(trained)


def test_stored_metadata_matches_its_schema(bundle: Path) -> None:
    document = json.loads((bundle / "config.json").read_bytes())["metadata"]
    metadata = BundleMetadata.from_dict(document)
    assert metadata == load_bundle(bundle).metadata
    assert metadata.to_dict() == document
    assert metadata.steps == 200
    assert metadata.training_files
    schema = TypeAdapter(BundleMetadata).json_schema()
    assert document.keys() <= schema["properties"].keys()
    assert schema["additionalProperties"] is False
    with pytest.raises(FieldError, match="trained_on is not a key"):
        BundleMetadata.from_dict({**document, "trained_on": []})


def test_adapter_overwritten_after_loading_changes_nothing(bundle_copy: Path, tmp_path: Path) -> None:
    weights = collect_weights(load_bundle(bundle_copy).model)
    layer = next(
        name.removesuffix(".weight")
        for name in weights
        if name.startswith("encoder.layers.0.feed_forward") and weights[name].dim() == 2
    )
    generator = torch.Generator().manual_seed(1)
    rows, columns = weights[f"{layer}.weight"].shape
    matrices = {f"{layer}.lora_a": torch.randn(2, columns, generator=generator)}
    matrices[f"{layer}.lora_b"] = torch.randn(rows, 2, generator=generator)
    adapter = Adapter("a", compute_bundle_digest(bundle_copy), LoraConfig(rank=2), to_arrays(matrices))
    save_adapter(tmp_path / "adapter", adapter)
    translator = dragoman.load(bundle_copy, task="translation", adapters={"a": tmp_path / "adapter"}, device="cpu")
    scores = [hypothesis.score for hypothesis in translator.translate(["one two", "red"], adapter="a")]
    for path in (tmp_path / "adapter" / "adapter.safetensors", bundle_copy / "weights.safetensors"):
        with path.open("r+b") as file:
            file.write(b"\7" * path.stat().st_size)
        path.open("wb").close()
    assert [hypothesis.score for hypothesis in translator.translate(["one two", "red"], adapter="a")] == scores


def test_tied_embeddings_of_two_vocabulary_sizes_are_refused(tmp_path: Path) -> None:
    """Ids beyond the matrix would be read from memory behind it."""
    recipe = make_recipe({"model": {"tie_embeddings": "all"}})
    weights = {"output": np.zeros((9, recipe.model.d_model), dtype=np.float32)} | {
        f"{index}": np.zeros(1) for index in range(99)
    }
    with pytest.raises(BundleError, match="vocabularies of 11 and 9 pieces"):
        dragoman.bundle._list_shapes(recipe.model, recipe.task, (11, 9), weights, location=tmp_path)
