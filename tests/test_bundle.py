"""A bundle comes back as it was written, or is refused in one line that names the file; nothing in it is ever executed."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import os
import pickle
import resource
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import dragoman
import dragoman.bundle
import dragoman.io.storage
from conftest import WORDS, MakeRecipe, edit_config, reseal
from dragoman import Translator
from dragoman.bundle import Bundle, average_weights, collect_weights, load_bundle, save_bundle
from dragoman.config import Recipe
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.tokenizer import PairTokenizer, train_tokenizer
from dragoman.errors import BundleError, OutputError
from dragoman.io.safetensors import DTYPE_CODES, save_tensors
from dragoman.model.factory import build_model

pytestmark = pytest.mark.usefixtures("one_core")

LINES = ["one two three", "red", "", "nine big green small"]
FILES = ["config.json", "manifest.json", "source.model", "weights.safetensors"]


def refused(folder: Path, *, names: str) -> str:
    """The one line that loading this bundle is answered with; it must name `names`."""
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert names in message
    assert "\n" not in message
    return message


def fresh(recipe: Recipe, *, seed: int = 1) -> Bundle:
    """An untrained model with subword models of its own."""
    tokeniser = train_tokenizer(
        WORDS, WORDS.values(), recipe.tokenizer, append_source_eos=recipe.model.append_source_eos, seed=recipe.training.seed
    )
    torch.manual_seed(seed)
    model = build_model(recipe.model, source_vocab_size=len(tokeniser.source), target_vocab_size=len(tokeniser.target)).eval()
    return Bundle(recipe, tokeniser, model, {"told": "ü"})


def save(bundle: Bundle, path: Path, *, overwrite: bool = False) -> None:
    save_bundle(
        path,
        recipe=bundle.recipe,
        tokenizer=bundle.tokenizer,
        weights=collect_weights(bundle.model),
        metadata=bundle.metadata,
        overwrite=overwrite,
    )


SEPARATE = ("tokenizer.joint=false", "tokenizer.vocab_size=40", "tokenizer.target_vocab_size=44")
SHAPES = {
    "all": ("model.tie_embeddings='all'", "tokenizer.vocab_size=50"),
    "decoder": ("model.tie_embeddings='decoder'", "tokenizer.vocab_size=50"),
    "none": ("model.tie_embeddings='none'", "tokenizer.vocab_size=50"),
    "separate decoder": ("model.tie_embeddings='decoder'", *SEPARATE),
    "separate none": ("model.tie_embeddings='none'", *SEPARATE),
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
# Matrices of 16 columns that stand outside the layers: source, target, output, of which tying makes one of several.
VOCABULARY_MATRICES = {"all": 1, "decoder": 2, "none": 3, "separate decoder": 2, "separate none": 3}


@pytest.mark.parametrize("shape", SHAPES)
def test_comes_back_as_it_was_written(shape: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    before = fresh(tiny(tmp_path, *SHAPES[shape]))
    save(before, tmp_path / "bundle")
    after = load_bundle(tmp_path / "bundle")
    assert after.recipe == before.recipe
    assert after.metadata == {"told": "ü"}
    assert after.tokenizer.is_joint == before.tokenizer.is_joint
    assert after.tokenizer.append_source_eos == before.recipe.model.append_source_eos
    mine, theirs = dict(before.model.named_parameters()), dict(after.model.named_parameters())
    assert mine.keys() == theirs.keys()
    for name, weight in mine.items():
        assert torch.equal(weight, theirs[name]), name
    assert after.model.num_parameters() == before.model.num_parameters()
    expected = Translator([before], device="cpu").translate(LINES)
    assert Translator([after], device="cpu").translate(LINES) == expected
    assert any(one.tokens for one in expected)


@pytest.mark.parametrize(("shape", "matrices"), VOCABULARY_MATRICES.items())
def test_a_shared_matrix_is_stored_once_and_shared_again(shape: str, matrices: int, tiny: MakeRecipe, tmp_path: Path) -> None:
    save(fresh(tiny(tmp_path, *SHAPES[shape])), tmp_path / "bundle")
    stored = load_file(tmp_path / "bundle" / "weights.safetensors")
    assert sum(len(weight) in (40, 44, 50) for weight in stored.values()) == matrices
    model = load_bundle(tmp_path / "bundle").model
    source, target = model.encoder.embedding.weight, model.decoder.embedding.weight
    assert len({id(weight) for weight in (source, target, model.output)}) == matrices
    assert (target is model.output) == (model.output.data_ptr() == target.data_ptr()) == (matrices < 3)


def test_a_trained_bundle_translates_alike_wherever_it_lies(bundle: Path, bundle_copy: Path) -> None:
    here, there = (dragoman.load(path).translate(LINES, nbest=3) for path in (bundle, bundle_copy))
    assert here == there
    assert [one.status for one in here] == ["ok", "ok", "empty", "ok"]


# Damage


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_flipped_bit_is_noticed(name: str, place: float, bundle_copy: Path) -> None:
    content = bytearray((bundle_copy / name).read_bytes())
    content[int(place * len(content))] ^= 0x10
    (bundle_copy / name).write_bytes(content)
    # A digest that was changed and a file that was changed look alike; either way the folder is named.
    refused(bundle_copy, names="bundle/" if name == "manifest.json" else name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_noticed(name: str, share: float, bundle_copy: Path) -> None:
    content = (bundle_copy / name).read_bytes()
    (bundle_copy / name).write_bytes(content[: int(share * len(content))])
    refused(bundle_copy, names=name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, bundle_copy: Path) -> None:
    (bundle_copy / name).unlink()
    refused(bundle_copy, names=name)


@pytest.mark.parametrize("name", FILES[:1] + FILES[2:])
def test_a_missing_file_that_the_manifest_leaves_out_is_named(name: str, bundle_copy: Path) -> None:
    (bundle_copy / name).unlink()
    reseal(bundle_copy)
    refused(bundle_copy, names=name)


def test_what_is_not_a_bundle_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", names="nowhere: there is no such folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", names="empty: holds no manifest.json")
    (tmp_path / "file").write_text("text")
    refused(tmp_path / "file", names="file")


# A config with a good manifest, written by someone who means harm


def set_knob(section: str, knob: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["recipe"][section][knob] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["recipe"].update(evil=1), "evil is not a key"),
        (set_knob("model", "d_modle", 16), "did you mean d_model"),
        (set_knob("model", "d_model", "wide"), "model.d_model = 'wide'"),
        (set_knob("model", "d_model", 32), "output matrix of (80, 32)"),
        (set_knob("model", "d_model", 10**9), "model.d_model = 1000000000"),
        (set_knob("model", "d_model", 10**30), "model.d_model"),
        (set_knob("model", "d_ff", 10**9), "model.d_ff = 1000000000"),
        (set_knob("model", "d_k", 10**9), "model.d_k = 1000000000"),
        (set_knob("model", "d_k", 10**6), "attention.query.weight has shape (16, 16)"),
        (set_knob("model", "d_ff", 10**6), "feed_forward.inner.weight has shape (32, 16)"),
        (set_knob("model", "encoder_layers", 10**9), "model.encoder_layers = 1000000000"),
        (set_knob("model", "encoder_layers", 1000), "1001 layers"),
        (set_knob("model", "encoder_layers", 2), "encoder.layers.1"),
        (set_knob("model", "tying", "none"), "is missing"),
        (set_knob("model", "attention_bias", True), "attention.key.bias of the model that the config describes is missing"),
        (set_knob("model", "positions", "learned"), "positions.weight of the model that the config describes is missing"),
        (lambda d: d["recipe"]["model"].update(num_heads=2**20, d_k=2**20, d_v=1), "attention.query.weight has shape"),
        (lambda d: d["vocabulary"].update(source=10**9, target=10**9), "names (1000000000, 1000000000) pieces"),
        (lambda d: d["vocabulary"].update(target=79), "names (80, 79) pieces"),
        (lambda d: d["vocabulary"].update(source=float("inf")), "OverflowError"),
        (lambda d: d.update(vocabulary=[80, 80]), "TypeError"),
        (lambda d: d.update(story="long"), "ValueError"),
        (lambda d: d.pop("story"), "KeyError: 'story'"),
        (lambda d: d.update(recipe=[]), "config.json"),
        (lambda d: d["recipe"]["tokenizer"].update(joint=False), "all"),
        (
            lambda d: (d["recipe"]["tokenizer"].update(joint=False), d["recipe"]["model"].update(tie_embeddings="none")),
            "target.model",
        ),
    ],
)
def test_a_config_that_lies_is_refused_before_anything_is_made(
    change: Callable[[dict[str, Any]], object], says: str, bundle_copy: Path
) -> None:
    edit_config(bundle_copy, change)
    before = _peak_memory_mib()
    message = refused(bundle_copy, names=says)
    assert str(bundle_copy) in message
    assert _peak_memory_mib() - before < 64


def _peak_memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"recipe": {}}', "\ud800"])
def test_a_config_that_is_no_config_is_refused(text: str, bundle_copy: Path) -> None:
    (bundle_copy / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    reseal(bundle_copy)
    refused(bundle_copy, names="config.json")


class Executed(Exception):
    """Raised by a payload that was run."""


class Payload:
    """Unpickled, it says so."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _explode, ("a payload was run",)


def _explode(text: str) -> None:
    raise Executed(text)


def as_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload()))


def as_pt(path: Path) -> None:
    torch.save({"output": torch.zeros(80, 16), "payload": Payload()}, path)


def as_old_pt(path: Path) -> None:
    torch.save({"output": torch.zeros(80, 16), "payload": Payload()}, path, _use_new_zipfile_serialization=False)


def as_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload()))


def as_python(path: Path) -> None:
    path.write_text("raise SystemExit('run')\n")


FORGERIES: list[Callable[[Path], object]] = [as_pickle, as_pt, as_old_pt, as_zip, as_python, lambda path: path.write_bytes(b"")]


def test_the_payload_would_be_noticed(tmp_path: Path) -> None:
    as_pickle(tmp_path / "weights")
    with pytest.raises(Executed):
        pickle.loads((tmp_path / "weights").read_bytes())


@pytest.mark.parametrize("forge", FORGERIES)
@pytest.mark.parametrize("name", ["weights.safetensors", "source.model", "config.json"])
def test_a_file_of_another_kind_is_refused_and_not_run(name: str, forge: Callable[[Path], object], bundle_copy: Path) -> None:
    forge(bundle_copy / name)
    reseal(bundle_copy)
    refused(bundle_copy, names=name)


# What a load path must never call, and the modules that hold nothing else.
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "numpy.load", "np.load"}
NEVER_IMPORTED = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "yaml", "cloudpickle"}


def test_no_source_file_can_execute_what_it_reads() -> None:
    files = sorted(Path(dragoman.__file__).parent.rglob("*.py"))
    assert len(files) > 40
    found = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in NEVER_CALLED:
                found.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}")
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path}: {name}" for name in imported if name.split(".")[0] in NEVER_IMPORTED]
    assert found == []


# Weights


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = {name: weight.clone() for name, weight in load_file(folder / "weights.safetensors").items()}
    change(weights)
    save_file(weights, folder / "weights.safetensors")
    reseal(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.pop("encoder.layers.0.attention.key.weight"), "encoder.layers.0.attention.key.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "'extra' does not belong"),
        (lambda w: w.update({"output": torch.zeros(81, 16)}), "(81, 16)"),
        (lambda w: w.update({"encoder.layers.0.attention.key.weight": torch.zeros(16)}), "has shape (16,)"),
        (lambda w: w["output"].view(-1)[7:8].fill_(float("nan")), "output holds values that are not finite"),
        (lambda w: w["output"].view(-1)[7:8].fill_(float("inf")), "output holds values that are not finite"),
        (lambda w: w.update({"output": torch.zeros(80, 16, dtype=torch.int64)}), "output holds values"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Tensor]], object], says: str, bundle_copy: Path
) -> None:
    change_weights(bundle_copy, change)
    assert "weights.safetensors" in refused(bundle_copy, names=says)


def test_half_precision_weights_are_read_as_float32(bundle: Path, bundle_copy: Path) -> None:
    change_weights(bundle_copy, lambda weights: weights.update({name: value.half() for name, value in weights.items()}))
    whole, halved = (collect_weights(load_bundle(path).model) for path in (bundle, bundle_copy))
    for name, weight in whole.items():
        assert halved[name].dtype == torch.float32
        assert torch.equal(halved[name], weight.half().float())


def test_the_mean_of_weights_is_the_mean() -> None:
    many = [{"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}, {"a": torch.tensor([2.0, 6.0]), "b": torch.tensor(0.0)}]
    mean = average_weights(many)
    assert torch.equal(mean["a"], torch.tensor([1.5, 4.0]))
    assert torch.equal(mean["b"], torch.tensor(1.5))
    assert mean["a"].dtype == torch.float32


def test_the_mean_of_weights_is_summed_in_double() -> None:
    # 2²⁵ swallows 1 in float32: a sum in float32 would give 0 and so a mean of 0.
    many = [{"a": torch.tensor([value])} for value in (2.0**25, 1.0, -(2.0**25), 1.0)]
    assert average_weights(many)["a"].item() == 0.5


# Writing


def test_an_existing_path_is_refused_and_untouched(tiny: MakeRecipe, bundle_copy: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in bundle_copy.iterdir()}
    with pytest.raises(OutputError, match="exists already"):
        save(fresh(tiny(tmp_path)), bundle_copy)
    assert {path.name: path.read_bytes() for path in bundle_copy.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_overwrite_replaces_a_bundle_whole(tiny: MakeRecipe, bundle_copy: Path, tmp_path: Path) -> None:
    new = fresh(tiny(tmp_path, "model.tie_embeddings='none'", *SEPARATE))
    save(new, bundle_copy, overwrite=True)
    assert load_bundle(bundle_copy).recipe == new.recipe
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("full_at", ["weights", "manifest"])
def test_a_full_disk_leaves_what_was_there(
    overwrite: bool, full_at: str, tiny: MakeRecipe, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle"
    if overwrite:
        shutil.copytree(bundle, path)
    new = fresh(tiny(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if full_at == "weights":
        monkeypatch.setattr(dragoman.bundle, "save_tensors", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"bundle: the disk is full \(.* MiB free in .*\); make room") as caught:
        save(new, path, overwrite=overwrite)
    assert "\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == (["bundle"] if overwrite else [])
    if overwrite:
        assert load_bundle(path).recipe == load_bundle(bundle).recipe


def test_what_the_system_says_of_a_file_too_large_is_an_os_error(tmp_path: Path) -> None:
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
    **{str(dtype): torch.tensor([0, 1, 1]).to(dtype) for dtype in DTYPE_CODES},
    'ä"\n\u2028': torch.ones(1),
}


@pytest.mark.parametrize("names", [list(TENSORS), ["w.2", "w.10"], ["half"], ["empty"], []], ids=len)
def test_tensors_are_written_as_their_library_writes_them(names: list[str], tmp_path: Path) -> None:
    tensors = {name: TENSORS[name].detach() for name in names}
    digest = save_tensors(tmp_path / "weights", {name: TENSORS[name] for name in names})
    written = (tmp_path / "weights").read_bytes()
    assert written == safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    assert digest == hashlib.sha256(written).hexdigest()
    found = load_file(tmp_path / "weights")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_get_the_mode_that_the_umask_says(mask: int, tiny: MakeRecipe, tmp_path: Path) -> None:
    new = fresh(tiny(tmp_path))
    before = os.umask(mask)
    try:
        save(new, tmp_path / "bundle")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "bundle").iterdir()}
    assert modes == dict.fromkeys(FILES, 0o666 & ~mask)


def test_config_is_plain_json_with_the_whole_recipe(bundle: Path) -> None:
    document = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    assert set(document) == {"recipe", "vocabulary", "story"}
    assert document["vocabulary"] == {"source": 80, "target": 80}
    assert Recipe.model_validate(document["recipe"]) == load_bundle(bundle).recipe


def test_lowercase_is_kept(tiny: MakeRecipe, tmp_path: Path) -> None:
    new = fresh(tiny(tmp_path, "tokenizer.lowercase=true", "tokenizer.vocab_size=50"))
    save(new, tmp_path / "bundle")
    tokeniser = load_bundle(tmp_path / "bundle").tokenizer
    assert tokeniser.encode_source("ONE Two") == tokeniser.encode_source("one two")
    plain = PairTokenizer(
        SentencePieceTokenizer(tokeniser.source.serialized_model),
        SentencePieceTokenizer(tokeniser.target.serialized_model),
        append_source_eos=True,
    )
    assert plain.encode_source("ONE Two") != plain.encode_source("one two")


def test_a_run_folder_leads_to_its_bundle(trained: Path) -> None:
    with pytest.raises(BundleError, match=r"is a run folder; its model is .*bundle$"):
        load_bundle(trained)
