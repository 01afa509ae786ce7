"""COMET: the library itself on a tiny random model, and the contract of the adapter with a regressor of the same interface."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import dragoman
from dragoman.cli.main import cli
from dragoman.config import make_recipe
from dragoman.errors import MissingDependencyError
from dragoman.evaluation.metrics import sentence_chrf
from dragoman.inference import comet as comet_module
from dragoman.inference.comet import CometScorer, load_comet
from expected_errors import raises_code
from tiny_runs import WORDS

needs_comet = pytest.mark.skipif(find_spec("comet") is None, reason="unbabel-comet is not installed")
pytestmark = pytest.mark.usefixtures("one_core")


class ChrfRegressor:
    """Regressor with COMET's interface whose score is sentence chrF, divided by 100."""

    def __init__(self, *, needs_references: bool = True) -> None:
        self.needs_references = needs_references
        self.batches: list[list[dict[str, str]]] = []

    def requires_references(self) -> bool:
        return self.needs_references

    def prepare_for_inference(self, samples: Sequence[dict[str, str]]) -> dict[str, Any]:
        self.batches.append(list(samples))
        other = "ref" if self.needs_references else "src"
        scores = sentence_chrf([sample["mt"] for sample in samples], [sample[other] for sample in samples])
        return {"scores": torch.tensor(scores) / 100}

    def predict_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


@pytest.fixture
def scorer() -> CometScorer:
    return CometScorer("chrf", ChrfRegressor(), torch.device("cpu"))


def test_scores_are_in_order_of_hypotheses(scorer: CometScorer) -> None:
    sources = ["word " * (40 - length) for length in range(40)]
    hypotheses = [f"output {number}" for number in range(40)]
    references = [f"output {number % 7}" for number in range(40)]
    scores = scorer.score(sources, hypotheses, references)
    assert scores == pytest.approx([score / 100 for score in sentence_chrf(hypotheses, references)], abs=1e-6)
    assert [len(batch) for batch in scorer.model.batches] == [16, 16, 8]
    assert scorer.model.batches[0][0]["src"] == sources[-1]  # the shortest sources come first


def test_reference_sets_are_averaged(scorer: CometScorer) -> None:
    first, second = sentence_chrf(["a b c"], ["a b c"])[0], sentence_chrf(["a b c"], ["a x"])[0]
    scores = scorer.score_reference_sets(["s"], ["a b c"], [["a b c"], ["a x"]])
    assert scores == pytest.approx([(first + second) / 200], abs=1e-6)
    free = CometScorer("qe", ChrfRegressor(needs_references=False), torch.device("cpu"))
    assert free.score_reference_sets(["a b c"], ["a b c"], [["other"]]) == pytest.approx([1.0])


def test_system_score_is_mean_in_percent(scorer: CometScorer) -> None:
    score = scorer.summarize([0.5, 0.75])
    assert score.name == "COMET"
    assert score.value == pytest.approx(62.5)
    assert score.signature.startswith("model:chrf|scale:100|comet:")


def test_wrong_lists_are_an_error(scorer: CometScorer) -> None:
    with raises_code("length-mismatch"):
        scorer.score(["a"], ["b", "c"], ["d"])
    with raises_code("invalid-argument"):
        scorer.score(["a"], ["b"])
    with raises_code("invalid-argument"):
        CometScorer("qe", ChrfRegressor(needs_references=False), torch.device("cpu")).pairwise("a", ["b", "c"])


def test_minimum_bayes_risk_by_comet(bundle: Path, monkeypatch: pytest.MonkeyPatch, scorer: CometScorer) -> None:
    monkeypatch.setattr(comet_module, "load_comet", lambda path, device: scorer)
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    lines = ["red one ten", "big blue four"]
    by_chrf = translator.translate(lines, mbr="chrf", beam_size=4)
    by_comet = translator.translate(lines, mbr="comet", mbr_model="model", beam_size=4)
    assert [item.text for item in by_comet] == [item.text for item in by_chrf]
    assert [item.mbr_score for item in by_comet] == pytest.approx([item.mbr_score for item in by_chrf], abs=1e-3)
    assert {sample["src"] for batch in scorer.model.batches for sample in batch} == set(lines)


@pytest.mark.parametrize("options", [{"mbr": "comet"}, {"mbr": "chrf", "mbr_model": "model"}, {"mbr_model": "model"}])
def test_comet_and_its_model_go_together(bundle: Path, options: dict[str, Any]) -> None:
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    with raises_code("invalid-recipe"):
        translator.translate(["red"], beam_size=4, **options)


def test_recipe_cannot_name_comet(tmp_path: Path) -> None:
    document = {"name": "n", "run": str(tmp_path), "decoding": {"mbr": "comet", "mbr_model": "model"}}
    with raises_code("invalid-recipe"):
        make_recipe(document, [])


def test_commands_score_by_comet(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scorer: CometScorer) -> None:
    monkeypatch.setattr(comet_module, "load_comet", lambda path, device="cpu": scorer)
    sources = ["red one ten", "big blue four", "seven"]
    references = [" ".join(WORDS[word] for word in line.split()) for line in sources]
    for name, lines in {"src": sources, "ref": references, "a": references, "b": ["x", "y", "z"]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ["--src", str(tmp_path / "src"), "--ref", str(tmp_path / "ref"), "--comet", "model", "--json"]
    result = CliRunner().invoke(cli, ["evaluate", str(bundle), *files, "--device", "cpu"], catch_exceptions=False)
    scores = {score["name"]: score["value"] for score in json.loads(result.stdout)["scores"]}
    assert 0 < scores["COMET"] <= 100
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), *files]
    compared = json.loads(CliRunner().invoke(cli, [*arguments, "--metric", "comet"], catch_exceptions=False).stdout)
    assert compared["a"]["value"] == pytest.approx(100.0)
    assert CliRunner().invoke(cli, arguments).exit_code == 2  # --metric comet is missing


def write_model(folder: Path, hparams: str, checkpoint: bytes = b"") -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "hparams.yaml").write_text(hparams, encoding="utf-8")
    (folder / "checkpoints" / "model.ckpt").write_bytes(checkpoint)
    return folder


@pytest.mark.parametrize(
    ("hparams", "code"),
    [
        ("class_identifier: unknown_metric", "unknown-format"),
        ("- 1", "unknown-format"),
        ("class_identifier: !!python/object/apply:os.system ['true']", "invalid-format"),
        ("a: [", "invalid-format"),
    ],
)
def test_wrong_settings_are_an_error(tmp_path: Path, hparams: str, code: str) -> None:
    pytest.importorskip("yaml")
    with raises_code(code):
        load_comet(write_model(tmp_path / "model", hparams))


def test_missing_model_is_never_downloaded(tmp_path: Path) -> None:
    with raises_code("file-not-found"):
        load_comet(tmp_path / "Unbabel" / "wmt22-comet-da")


@pytest.mark.skipif(find_spec("comet") is not None, reason="unbabel-comet is installed")
def test_missing_library_names_its_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"dragoman\[comet\]"):
        load_comet(write_model(tmp_path / "model", "class_identifier: regression_metric"))


HPARAMS: dict[str, Any] = {
    "class_identifier": "regression_metric",
    "encoder_model": "XLM-RoBERTa",
    "pretrained_model": "tiny-encoder",
    "hidden_sizes": [8],
    "layer": "mix",
    "layer_norm": False,
    "layer_transformation": "softmax",
    "pool": "avg",
    "batch_size": 4,
    "train_data": ["train.csv"],
}


@pytest.fixture(scope="module")
def tiny_comet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random COMET model, written by COMET's own classes and `torch.save` in Lightning's layout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comet, tokenizers, transformers = map(import_module, ("comet.models", "tokenizers", "transformers"))
    folder = tmp_path_factory.mktemp("comet") / "tiny"
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = special + [(piece, -2.0) for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz"]] + [("<mask>", 0.0)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    transformers.XLMRobertaTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "encoder")
    transformers.XLMRobertaConfig(
        vocab_size=len(pieces),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=66,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    ).save_pretrained(folder / "encoder")
    write_model(folder, json.dumps(HPARAMS))  # JSON is YAML
    torch.manual_seed(1)
    arguments = {name: value for name, value in HPARAMS.items() if name != "class_identifier"}
    arguments["pretrained_model"] = str(folder / "encoder")
    model = comet.str2model["regression_metric"](**arguments, load_pretrained_weights=False, local_files_only=True)
    checkpoint = {
        "epoch": 1,
        "global_step": 1,
        "pytorch-lightning_version": version("pytorch-lightning"),
        "state_dict": model.state_dict(),
        "hparams_name": "kwargs",
        "hyper_parameters": arguments,
    }
    torch.save(checkpoint, folder / "checkpoints" / "model.ckpt")
    return folder


@needs_comet
@pytest.mark.filterwarnings("ignore")
def test_scores_equal_those_of_comet(tiny_comet: Path) -> None:
    sources = ["a" * length + " b" for length in range(1, 41)]
    hypotheses = [" ".join("abcdefg"[: number % 6 + 1]) for number in range(40)]
    references = [" ".join("gfedcba"[: number % 4 + 1]) for number in range(40)]
    ours = load_comet(tiny_comet).score(sources, hypotheses, references)
    original = import_module("comet").load_from_checkpoint(str(tiny_comet / "checkpoints/model.ckpt"), local_files_only=True)
    samples = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    theirs = original.predict(samples, batch_size=16, gpus=0, progress_bar=False)["scores"]
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert len({round(score, 6) for score in ours}) > 10


@needs_comet
@pytest.mark.filterwarnings("ignore")
def test_checkpoint_with_code_is_refused(tiny_comet: Path, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    folder = tmp_path / "model"
    write_model(folder, (tiny_comet / "hparams.yaml").read_text(encoding="utf-8"))
    (folder / "encoder").symlink_to(tiny_comet / "encoder")
    torch.save({"state_dict": {}, "callbacks": Attack()}, folder / "checkpoints" / "model.ckpt")
    with raises_code("checkpoint-unsafe"):
        load_comet(folder)
    assert not (tmp_path / "executed").exists()
