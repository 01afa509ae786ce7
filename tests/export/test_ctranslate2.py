"""Exports to other engines, checked with those engines."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import dragoman
from conftest import MakeRecipe
from dragoman.bundle import Bundle, load_bundle
from dragoman.cli.main import cli
from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.errors import BundleError, DragomanError
from dragoman.export.ctranslate2 import convert_decoding_options, export_ctranslate2
from dragoman.io.storage import verify_checksums
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.run import train
from expected_errors import raises_code
from marian_folders import SOURCE_LETTERS, list_pieces, make_lines, write_folder
from noisy_bundles import make_noisy_bundle, write_bundle
from tiny_runs import NO_DROPOUT, WORDS

ctranslate2 = pytest.importorskip("ctranslate2", reason="compares with CTranslate2, which is not installed")

pytestmark = pytest.mark.usefixtures("one_core")

SMALL = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}
T5 = {"norm_type": "rms", "position_encoding": "relative", "feed_forward_bias": False, "scale_embeddings": False}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
MODEL_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("paper", {}),
    "t2t-2017": ("t2t-2017", {}),
    "modern": ("modern", {}),
    "narrow keys": ("paper", {"d_k": 3}),
    "narrow values, biased": ("t2t-2017", {"d_k": 11, "d_v": 5}),
    "grouped heads": ("t2t-2017", {"num_heads": 4, "num_key_value_heads": 2, "d_k": 5, "d_v": 3}),
    "wide heads": ("modern", {"d_k": 20, "d_v": 20}),
    "learned positions": ("modern", {"position_encoding": "learned", "max_positions": 40}),
    "target space embedding": ("t2t-2017", {"target_space_embedding": True}),
    "post-norm with final norm": ("paper", {"final_norm": True}),
    "pre-norm without final norm": ("modern", {"final_norm": False}),
    "starts with the end token": ("t2t-2017", {"decoder_start_token": "eos", "append_source_eos": False}),
    "mBART": ("modern", {"position_encoding": "learned", "max_positions": 40, "embedding_norm": True}),
    "MarianMT": ("t2t-2017", {"activation": "silu", "output_bias": True, "position_encoding": "halves"}),
    "fairseq with GELU": ("t2t-2017", {"activation": "gelu", "position_offset": 2}),
    "RMSNorm, swiglu": ("paper", {"norm_type": "rms", "activation": "swiglu", "d_v": 5}),
    "T5": ("modern", T5 | {"activation": "relu", "tie_embeddings": "all"}),
    "T5 v1.1": ("modern", T5 | {"activation": "geglu", "tie_embeddings": "inputs"}),
    "untied and unscaled": ("modern", {"tie_embeddings": "none", "scale_embeddings": False, "norm_epsilon": 0.01}),
}
TWO_VOCABULARIES = "untied and unscaled"


def random_bundle(base: Bundle, variant: str) -> Bundle:
    """Return a model of this variant with random weights."""
    preset, model_settings = MODEL_VARIANTS[variant]
    document = {
        "preset": preset,
        "model": SMALL | model_settings,
        "data": {"max_length": 30},
        "tokenizer": {"joint": variant != TWO_VOCABULARIES},
        "decoding": {"max_extra_tokens": 12},
    }
    return make_noisy_bundle(
        base.tokenizer, document, get_scale=lambda name: 1.0 if "norm" in name or name == "output" else 0.4
    )


def random_sources(bundle: Bundle, count: int) -> list[list[int]]:
    """Return source ids of several lengths."""
    rng = torch.Generator().manual_seed(7)
    end = [END_ID] if bundle.recipe.model.append_source_eos else []
    size = len(bundle.tokenizer.source)
    lengths = torch.randint(1, 9, (count,), generator=rng).tolist()
    return [torch.randint(len(SPECIAL_IDS), size, (length,), generator=rng).tolist() + end for length in lengths]


def as_pieces(bundle: Bundle, sources: Sequence[Sequence[int]]) -> list[list[str]]:
    """Return source pieces without the end token, which CTranslate2 adds."""
    last = -1 if bundle.recipe.model.append_source_eos else None
    return [bundle.tokenizer.source.ids_to_pieces(source[:last]) for source in sources]


def ids_of(bundle: Bundle, pieces: Sequence[str]) -> tuple[int, ...]:
    id_by_piece = {
        piece: index for index, piece in enumerate(bundle.tokenizer.target.ids_to_pieces(range(len(bundle.tokenizer.target))))
    }
    return tuple(id_by_piece[piece] for piece in pieces if id_by_piece[piece] != END_ID)


def masked_log_probs(bundle: Bundle, source: list[int], target: list[int]) -> list[float]:
    """Return log p of each target token and the end token from the PyTorch model, without padding and begin tokens."""
    inputs = torch.tensor([[get_decoder_start_id(bundle.recipe.model), *target]])
    with torch.no_grad():
        logits_TV: Tensor = bundle.model(torch.tensor([source]), inputs)[0]
    logits_TV[:, [PADDING_ID, BEGIN_ID]] = float("-inf")
    target_T1 = torch.tensor([*target, END_ID])[:, None]
    log_probs: list[float] = logits_TV.log_softmax(-1).gather(1, target_T1)[:, 0].tolist()
    return log_probs


def test_forced_scores_agree(
    subtests: pytest.Subtests, trained_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Forced scoring needs no search: each log-probability equals the PyTorch model's."""
    for variant in MODEL_VARIANTS:
        with subtests.test(variant=variant):
            tmp_path = tmp_path_factory.mktemp("case")
            bundle = random_bundle(trained_bundle, variant)
            export_ctranslate2(bundle, tmp_path / "out")
            sources, targets = random_sources(bundle, 6), [source[:5] for source in random_sources(bundle, 6)[::-1]]
            targets = [[index for index in target if index != END_ID] for target in targets]
            translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
            pieces = [bundle.tokenizer.target.ids_to_pieces(target) for target in targets]
            results = translator.score_batch(as_pieces(bundle, sources), pieces)
            for source, target, result in zip(sources, targets, results, strict=True):
                assert result.log_probs == pytest.approx(masked_log_probs(bundle, source, target), abs=2e-4, rel=1e-5)


def searched(bundle: Bundle, sources: list[list[int]], decoding: DecodingConfig) -> list[Hypothesis]:
    results = generate(
        BatchSearch(as_inference_model([bundle.model]), decoding, start_id=get_decoder_start_id(bundle.recipe.model)), sources
    )
    return [hypotheses[0] for hypotheses in results]


GREEDY = DecodingConfig(method="greedy", length_penalty="none")
BEAMS = {
    "beam 4": DecodingConfig(beam_size=4, length_penalty="power", alpha=1.0),
    "beam 3, 2-best": DecodingConfig(beam_size=3, length_penalty="power", alpha=0.6, nbest=2),
}


def translated(bundle: Bundle, folder: Path, sources: list[list[int]], decoding: DecodingConfig) -> list[tuple[int, ...]]:
    """Return the outputs of CTranslate2 with the exported options, after comparing each score with the PyTorch model."""
    options, _ = convert_decoding_options(decoding, num_positions=100)
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    results = translator.translate_batch(as_pieces(bundle, sources), return_scores=True, **options)
    outputs = [ids_of(bundle, result.hypotheses[0]) for result in results]
    end = bundle.tokenizer.target.ids_to_pieces([END_ID])
    for source, tokens, result in zip(sources, outputs, results, strict=True):
        if result.hypotheses[0][-1:] == end:
            assert result.scores[0] == pytest.approx(masked_score(bundle, source, tokens, decoding), abs=1e-4)
    return outputs


def masked_score(bundle: Bundle, source: list[int], tokens: Sequence[int], decoding: DecodingConfig) -> float:
    log_probs = masked_log_probs(bundle, source, list(tokens))
    return sum(log_probs) / LengthPenalty(decoding.length_penalty, decoding.alpha)(float(len(log_probs)))


def encoded(bundle: Bundle, path: Path) -> list[list[int]]:
    return [bundle.tokenizer.encode_source(text) for text in path.read_text(encoding="utf-8").splitlines()]


def test_greedy_search_of_trained_model_agrees(trained_bundle: Bundle, corpus: Path, tmp_path: Path) -> None:
    export_ctranslate2(trained_bundle, tmp_path / "out")
    sources = encoded(trained_bundle, corpus / "valid.en")
    hypotheses = searched(trained_bundle, sources, GREEDY)
    assert all(hypothesis.finished for hypothesis in hypotheses)
    assert translated(trained_bundle, tmp_path / "out", sources, GREEDY) == [hypothesis.tokens for hypothesis in hypotheses]


def agreement(bundle: Bundle, folder: Path, sources: list[list[int]], decoding: DecodingConfig) -> float:
    """Return the share of equal outputs."""
    hypotheses, outputs = searched(bundle, sources, decoding), translated(bundle, folder, sources, decoding)
    return sum(hypothesis.tokens == ids for hypothesis, ids in zip(hypotheses, outputs, strict=True)) / len(sources)


@pytest.mark.slow
def test_thousand_outputs_of_good_model_agree(tiny: MakeRecipe, tmp_path: Path) -> None:
    """CTranslate2 skips fewer end tokens of a more confident model."""
    rng = random.Random(3)
    lines = [rng.choices(list(WORDS), k=rng.randint(1, 5)) for _ in range(4000)]
    for name, split in {"train": lines[:3000], "valid": lines[:10], "test": lines[3000:]}.items():
        (tmp_path / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in split), encoding="utf-8")
        targets = "".join(" ".join(WORDS[word] for word in line) + "\n" for line in split)
        (tmp_path / f"{name}.de").write_text(targets, encoding="utf-8")
    settings = ["model.d_model=32", "model.d_ff=64", "training.max_steps=800", "training.batch_tokens=800"]
    train(tiny(tmp_path / "run", *NO_DROPOUT, *settings, f"data.root={tmp_path}"))
    bundle = load_bundle(tmp_path / "run" / "bundle")
    export_ctranslate2(bundle, tmp_path / "out")
    sources = encoded(bundle, tmp_path / "test.en")
    for decoding in (GREEDY, *BEAMS.values()):
        assert agreement(bundle, tmp_path / "out", sources, decoding) >= 0.99


def test_padding_and_begin_are_suppressed(trained_bundle: Bundle, tmp_path: Path) -> None:
    """These tokens have the highest logits, and the export suppresses them."""
    bundle = random_bundle(trained_bundle, "untied and unscaled")
    with torch.no_grad():
        for index in (PADDING_ID, BEGIN_ID):
            bundle.model.output[index] = bundle.model.output.sum(0) * 10
            bundle.model.output[index] *= 1 if index else -1
    export_ctranslate2(bundle, tmp_path / "out")
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    results = translator.translate_batch(as_pieces(bundle, random_sources(bundle, 8)), beam_size=2, max_decoding_length=10)
    forbidden = set(bundle.tokenizer.target.ids_to_pieces([PADDING_ID, BEGIN_ID]))
    assert not forbidden & {piece for result in results for piece in result.hypotheses[0]}


def test_too_many_positions_raise_error(trained_bundle: Bundle, tmp_path: Path) -> None:
    bundle = random_bundle(trained_bundle, "learned positions")
    exported = export_ctranslate2(bundle, tmp_path / "out")
    assert exported.max_positions == 40
    assert exported.decoding_options["max_decoding_length"] == 40
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    piece = bundle.tokenizer.source.ids_to_pieces([10])
    assert translator.translate_batch([piece * 39], beam_size=1, max_input_length=0, max_decoding_length=2)
    with pytest.raises(RuntimeError, match="positions >= 40"):
        translator.translate_batch([piece * 40], beam_size=1, max_input_length=0, max_decoding_length=2)


def test_notes_name_differences_of_the_search() -> None:
    def notes(**options: Any) -> str:
        return " ".join(convert_decoding_options(DecodingConfig(**options), num_positions=2000)[1])

    assert "((5+|Y|)/6)^α" in notes()
    assert "|Y|" not in notes(length_penalty="power")
    assert "very short" in notes(length_penalty="none")
    assert "seed" in notes(method="sample")


@pytest.mark.parametrize(
    ("settings", "feature"),
    [
        ({"attention_window": 3}, "model.attention_window = 3"),
        ({"decoder_autoregression": "ssru"}, "model.decoder_autoregression = 'ssru'"),
        ({"position_encoding": "rotary"}, "model.position_encoding = 'rotary'"),
        ({"position_encoding": "relative", "target_space_embedding": True}, "model.target_space_embedding = True"),
    ],
)
def test_unsupported_layers_are_named(settings: dict[str, Any], feature: str, trained_bundle: Bundle, tmp_path: Path) -> None:
    recipe = trained_bundle.recipe.model_copy(update={"model": trained_bundle.recipe.model.model_copy(update=settings)})
    with raises_code("export-unsupported", feature):
        export_ctranslate2(replace(trained_bundle, recipe=recipe), tmp_path / "out")
    assert not (tmp_path / "out").exists()


LANGUAGE_PIECES = (">>deu<<", ">>fra<<", ">>cmn_Hans<<")


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two bundles of one MarianMT model of three languages, with each placement of the tokens."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.shared.weight"] *= 0.5
        tensors["final_logits_bias"][0, 0] = 1.3  # the end token; most beams end, and few greedy outputs

    folder = tmp_path_factory.mktemp("multilingual")
    write_folder(folder / "marian", pieces=list_pieces(LANGUAGE_PIECES), change_tensors=change)
    dragoman.convert(folder / "marian", folder / "source", target_language="fra")
    bundle = load_bundle(folder / "source")
    tokenizer = bundle.recipe.tokenizer.model_copy(update={"language_token_placement": "both"})
    recipe = bundle.recipe.model_copy(update={"tokenizer": tokenizer})
    write_bundle(replace(bundle, recipe=recipe), folder / "both")
    return {name: folder / name for name in ("source", "both")}


@pytest.mark.parametrize("placement", ["source", "both"])
@pytest.mark.parametrize(
    ("search", "num_sentences"),
    [("greedy", 10), pytest.param("greedy", 200, marks=pytest.mark.slow), pytest.param("beam", 200, marks=pytest.mark.slow)],
)
def test_language_tokens_give_equal_outputs(
    placement: str, search: str, num_sentences: int, multilingual: dict[str, Path], tmp_path: Path
) -> None:
    """CTranslate2 reads the language token before the source, and that of the target as `target_prefix`."""
    bundle = load_bundle(multilingual[placement])
    exported = export_ctranslate2(bundle, tmp_path / "out")
    info = json.loads((tmp_path / "out" / "dragoman.json").read_bytes())["language_tokens"]
    assert info == {"pattern": ">>{}<<", "placement": placement, "languages": ["deu", "fra", "cmn_Hans"]}
    assert ("target_prefix" in " ".join(exported.notes)) is (placement == "both")
    lines = make_lines(SOURCE_LETTERS, num_sentences, 2)
    first = ">>deu<<" if placement == "source" else ">>cmn_Hans<<"
    languages: dict[str, Any] = {"target_language": "deu"} | ({} if placement == "source" else {"source_language": "cmn_Hans"})
    sources = [[first, *bundle.tokenizer.source.ids_to_pieces(bundle.tokenizer.source.encode(line))] for line in lines]
    options: dict[str, Any] = exported.decoding_options | {"max_decoding_length": 40, "beam_size": 1, "patience": 1}
    decoding: dict[str, Any] = {"method": "greedy"}
    if search == "beam":
        options |= {"beam_size": 4}
        decoding = {"method": "beam", "beam_size": 4, "early_stopping": "beam_full", "length_penalty": "power", "alpha": 1.0}
    prefix = {} if placement == "source" else {"target_prefix": [[">>deu<<"]] * len(lines)}
    engine = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    results = engine.translate_batch(sources, **options, **prefix)
    translator = dragoman.load(multilingual[placement], task="translation", device="cpu", precision="float32")
    translations = translator.translate(lines, max_extra_tokens=40, repetition_window=0, **decoding, **languages)
    num_compared = num_equal = 0
    for translation, result in zip(translations, results, strict=True):
        pieces = result.hypotheses[0]
        if placement == "both":
            assert pieces.pop(0) == ">>deu<<"
        if pieces[-1] == "</s>" or search == "greedy":  # at the length limit, the rules of a beam differ
            num_compared += 1
            num_equal += list(translation.tokens)[: len(pieces)] == [piece for piece in pieces if piece != "</s>"]
    assert num_compared >= 0.9 * num_sentences
    assert num_equal >= (0.95 if search == "beam" else 1.0) * num_compared


def test_missing_library_names_the_extra(trained_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with raises_code("missing-dependency", "dragoman[ctranslate2]"):
        export_ctranslate2(trained_bundle, tmp_path / "out")


def test_export_is_checksummed_and_not_overwritten(trained_bundle: Bundle, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_ctranslate2(trained_bundle, out)
    verify_checksums(out, BundleError)
    before = (out / "model.bin").stat().st_mtime_ns
    with raises_code("output-exists"):
        export_ctranslate2(trained_bundle, out)
    assert (out / "model.bin").stat().st_mtime_ns == before
    export_ctranslate2(trained_bundle, out, overwrite=True)
    (out / "mine.txt").write_text("kept")
    with raises_code("not-replaceable", "mine.txt"):
        export_ctranslate2(trained_bundle, out, overwrite=True)
    assert (out / "mine.txt").read_text() == "kept"


def test_command_export_prints_its_result(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    output = CliRunner().invoke(cli, ["export", str(bundle), "--to", "ctranslate2", str(out), "--json"])
    assert output.exit_code == 0
    result = json.loads(output.stdout)
    assert result["format"] == "ctranslate2"
    assert result["num_bytes"] == sum(path.stat().st_size for path in out.iterdir())
    document = json.loads((out / "dragoman.json").read_text(encoding="utf-8"))
    assert result["decoding_options"] == document["decoding_options"]


def test_export_errors_are_one_line(bundle: Path, tmp_path: Path) -> None:
    existing = tmp_path / "existing"
    existing.mkdir()
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "recipe.json").write_text("{}")
    for source, target, target_format, message in (
        (bundle, existing, "ctranslate2", "exists already"),
        (tmp_path / "none", tmp_path / "out", "ctranslate2", "there is no such folder"),
        (unfinished, tmp_path / "out", "ctranslate2", "run: is a run that has no bundle yet; finish it with dragoman train"),
        (bundle, tmp_path / "out", "tflite", "'tflite' is not one of 'ctranslate2'"),
    ):
        result = CliRunner().invoke(cli, ["export", str(source), "--to", target_format, str(target)], standalone_mode=False)
        assert isinstance(result.exception, DragomanError | click.ClickException)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["existing", "run"]
