"""Bundles in the form of other engines, read back by those engines themselves."""

from __future__ import annotations

import json
import random
import re
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

from conftest import NO_DROPOUT, WORDS, MakeRecipe, edit_config
from dragoman.bundle import Bundle, load_bundle
from dragoman.cli.main import cli
from dragoman.config import DecodingConfig, make_recipe
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.errors import BundleError, DragomanError, MissingDependencyError, OutputError
from dragoman.export.ctranslate2 import convert_decoding_options, export_ctranslate2
from dragoman.io.storage import verify_checksums
from dragoman.model.factory import build_model
from dragoman.tasks.generation import generate
from dragoman.tasks.inference_model import as_inference_model, get_decoder_start_id
from dragoman.training.run import train

ctranslate2 = pytest.importorskip("ctranslate2", reason="compares with CTranslate2, which is not installed")

pytestmark = pytest.mark.usefixtures("one_core")

SMALL = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2}
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("paper", {}),
    "t2t-2017": ("t2t-2017", {}),
    "modern": ("modern", {}),
    "narrow keys": ("paper", {"d_k": 3}),
    "narrow values, biased": ("t2t-2017", {"d_k": 11, "d_v": 5}),
    "wide heads": ("modern", {"d_k": 20, "d_v": 20}),
    "learned positions": ("modern", {"position_encoding": "learned", "max_positions": 40}),
    "one vector in all places": ("t2t-2017", {"target_space_embedding": True}),
    "post-norm and a last norm": ("paper", {"final_norm": True}),
    "pre-norm and no last norm": ("modern", {"final_norm": False}),
    "starts with the end": ("t2t-2017", {"decoder_start_token": "eos", "append_source_eos": False}),
    "nothing tied or scaled": ("modern", {"tie_embeddings": "none", "scale_embeddings": False, "norm_epsilon": 0.01}),
}
TWO_VOCABULARIES = "nothing tied or scaled"


def drawn_bundle(trained: Bundle, reading: str) -> Bundle:
    """A model of this reading whose every weight is drawn by chance: none is zero or one, where a mistake would not show."""
    preset, knobs = READINGS[reading]
    two = reading == TWO_VOCABULARIES
    recipe = make_recipe(
        {
            "preset": preset,
            "model": SMALL | knobs,
            "data": {"max_length": 30},
            "tokenizer": {"joint": not two},
            "decoding": {"max_extra_tokens": 12},
        },
        (),
    )
    tokeniser = trained.tokenizer
    model = build_model(recipe.model, source_vocab_size=len(tokeniser.source), target_vocab_size=len(tokeniser.target))
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=chance)
            scale = 1.0 if "norm" in name or weight is model.output else 0.4
            weight.copy_(drawn * scale + (1.0 if name.endswith("norm.weight") else 0.0))
    return Bundle(
        recipe,
        PairTokenizer(tokeniser.source, tokeniser.target, append_source_eos=recipe.model.append_source_eos),
        model.eval(),
        {},
    )


@pytest.fixture(scope="module")
def learnt(bundle: Path) -> Bundle:
    return load_bundle(bundle)


def drawn_sources(bundle: Bundle, count: int) -> list[list[int]]:
    """Ids as the encoder reads them, of several lengths."""
    chance = torch.Generator().manual_seed(7)
    end = [END_ID] if bundle.recipe.model.append_source_eos else []
    size = len(bundle.tokenizer.source)
    lengths = torch.randint(1, 9, (count,), generator=chance).tolist()
    return [torch.randint(len(SPECIAL_IDS), size, (length,), generator=chance).tolist() + end for length in lengths]


def as_pieces(bundle: Bundle, sources: Sequence[Sequence[int]]) -> list[list[str]]:
    """What CTranslate2 is given: it adds the end token itself."""
    last = -1 if bundle.recipe.model.append_source_eos else None
    return [bundle.tokenizer.source.ids_to_pieces(source[:last]) for source in sources]


def ids_of(bundle: Bundle, pieces: Sequence[str]) -> tuple[int, ...]:
    known = {
        piece: index for index, piece in enumerate(bundle.tokenizer.target.ids_to_pieces(range(len(bundle.tokenizer.target))))
    }
    return tuple(known[piece] for piece in pieces if known[piece] != END_ID)


def masked_log_probs(bundle: Bundle, source: list[int], target: list[int]) -> list[float]:
    """log p of each target token and the end, from the training-side model, with padding and begin left out of the softmax."""
    inputs = torch.tensor([[get_decoder_start_id(bundle.recipe.model), *target]])
    with torch.no_grad():
        logits_TV: Tensor = bundle.model(torch.tensor([source]), inputs)[0]
    logits_TV[:, [PADDING_ID, BEGIN_ID]] = float("-inf")
    wanted_T1 = torch.tensor([*target, END_ID])[:, None]
    found: list[float] = logits_TV.log_softmax(-1).gather(1, wanted_T1)[:, 0].tolist()
    return found


@pytest.mark.parametrize("reading", READINGS)
def test_every_reading_scores_alike(reading: str, learnt: Bundle, tmp_path: Path) -> None:
    """Forced scoring has no search in it: each token's log-probability is that of the training-side model."""
    bundle = drawn_bundle(learnt, reading)
    export_ctranslate2(bundle, tmp_path / "out")
    sources, targets = drawn_sources(bundle, 6), [source[:5] for source in drawn_sources(bundle, 6)[::-1]]
    targets = [[index for index in target if index != END_ID] for target in targets]
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    pieces = [bundle.tokenizer.target.ids_to_pieces(target) for target in targets]
    told = translator.score_batch(as_pieces(bundle, sources), pieces)
    for source, target, one in zip(sources, targets, told, strict=True):
        assert one.log_probs == pytest.approx(masked_log_probs(bundle, source, target), abs=2e-4, rel=1e-5)


@pytest.mark.parametrize("reading", ["paper", "t2t-2017", "modern", "narrow keys"])
def test_greedy_search_says_the_same(reading: str, learnt: Bundle, tmp_path: Path) -> None:
    bundle = drawn_bundle(learnt, reading)
    export_ctranslate2(bundle, tmp_path / "out")
    sources = drawn_sources(bundle, 12)
    ours = searched(bundle, sources, DecodingConfig(method="greedy", max_extra_tokens=0))
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    for source, pieces, one in zip(sources, as_pieces(bundle, sources), ours, strict=True):
        (told,) = translator.translate_batch([pieces], beam_size=1, max_decoding_length=len(source))
        assert ids_of(bundle, told.hypotheses[0]) == one.tokens


def searched(bundle: Bundle, sources: list[list[int]], decoding: DecodingConfig) -> list[Hypothesis]:
    found = generate(as_inference_model([bundle.model]), sources, decoding, start_id=get_decoder_start_id(bundle.recipe.model))
    return [hypotheses[0] for hypotheses in found]


GREEDY = DecodingConfig(method="greedy", length_penalty="none")
BEAMS = {
    "beam 4": DecodingConfig(beam_size=4, length_penalty="power", alpha=1.0),
    "beam 3, two of them": DecodingConfig(beam_size=3, length_penalty="power", alpha=0.6, nbest=2),
}


def translated(bundle: Bundle, folder: Path, sources: list[list[int]], decoding: DecodingConfig) -> list[tuple[int, ...]]:
    """What CTranslate2 says, with the search that the export names; each score is checked against the training-side model."""
    search, _ = convert_decoding_options(decoding, num_positions=100)
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    told = translator.translate_batch(as_pieces(bundle, sources), return_scores=True, **search)
    said = [ids_of(bundle, one.hypotheses[0]) for one in told]
    end = bundle.tokenizer.target.ids_to_pieces([END_ID])
    for source, tokens, one in zip(sources, said, told, strict=True):
        if one.hypotheses[0][-1:] == end:
            assert one.scores[0] == pytest.approx(masked_score(bundle, source, tokens, decoding), abs=1e-4)
    return said


def masked_score(bundle: Bundle, source: list[int], tokens: Sequence[int], decoding: DecodingConfig) -> float:
    found = masked_log_probs(bundle, source, list(tokens))
    return sum(found) / LengthPenalty(decoding.length_penalty, decoding.alpha)(float(len(found)))


def encoded(bundle: Bundle, path: Path) -> list[list[int]]:
    return [bundle.tokenizer.encode_source(text) for text in path.read_text(encoding="utf-8").splitlines()]


def test_a_trained_model_searches_greedily_the_same(learnt: Bundle, corpus: Path, tmp_path: Path) -> None:
    export_ctranslate2(learnt, tmp_path / "out")
    sources = encoded(learnt, corpus / "valid.en")
    ours = searched(learnt, sources, GREEDY)
    assert all(one.finished for one in ours)
    assert translated(learnt, tmp_path / "out", sources, GREEDY) == [one.tokens for one in ours]


@pytest.mark.parametrize("name", BEAMS)
def test_a_beam_says_nearly_the_same(name: str, learnt: Bundle, corpus: Path, tmp_path: Path) -> None:
    """Nearly: CTranslate2 passes over ends that are not among the best R, of which so little training leaves many."""
    export_ctranslate2(learnt, tmp_path / "out")
    assert agreement(learnt, tmp_path / "out", encoded(learnt, corpus / "train.en"), BEAMS[name]) >= 0.8


def agreement(bundle: Bundle, folder: Path, sources: list[list[int]], decoding: DecodingConfig) -> float:
    """The share of outputs that are the same."""
    ours, theirs = searched(bundle, sources, decoding), translated(bundle, folder, sources, decoding)
    return sum(one.tokens == other for one, other in zip(ours, theirs, strict=True)) / len(sources)


@pytest.mark.slow
def test_a_good_model_says_the_same_of_a_thousand(tiny: MakeRecipe, tmp_path: Path) -> None:
    """The surer a model, the fewer ends are passed over."""
    chance = random.Random(3)
    lines = [chance.choices(list(WORDS), k=chance.randint(1, 5)) for _ in range(4000)]
    for name, part in {"train": lines[:3000], "valid": lines[:10], "test": lines[3000:]}.items():
        (tmp_path / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in part), encoding="utf-8")
        said = "".join(" ".join(WORDS[word] for word in line) + "\n" for line in part)
        (tmp_path / f"{name}.de").write_text(said, encoding="utf-8")
    settings = ["model.d_model=32", "model.d_ff=64", "training.max_steps=800", "training.batch_tokens=800"]
    train(tiny(tmp_path / "run", *NO_DROPOUT, *settings, f"data.root={tmp_path}"))
    bundle = load_bundle(tmp_path / "run" / "bundle")
    export_ctranslate2(bundle, tmp_path / "out")
    sources = encoded(bundle, tmp_path / "test.en")
    for decoding in (GREEDY, *BEAMS.values()):
        assert agreement(bundle, tmp_path / "out", sources, decoding) >= 0.99


def test_a_padded_batch_is_its_sentences(learnt: Bundle, tmp_path: Path) -> None:
    """Weights that read padding would tell the sentences of a batch from the same alone."""
    bundle = drawn_bundle(learnt, "one vector in all places")
    export_ctranslate2(bundle, tmp_path / "out")
    pieces = as_pieces(bundle, drawn_sources(bundle, 8))
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    together = translator.translate_batch(pieces, beam_size=1, max_decoding_length=6)
    alone = [translator.translate_batch([one], beam_size=1, max_decoding_length=6)[0] for one in pieces]
    assert [one.hypotheses for one in together] == [one.hypotheses for one in alone]


def test_padding_and_begin_are_never_said(learnt: Bundle, tmp_path: Path) -> None:
    """The likeliest by far, were they let."""
    bundle = drawn_bundle(learnt, "nothing tied or scaled")
    with torch.no_grad():
        for index in (PADDING_ID, BEGIN_ID):
            bundle.model.output[index] = bundle.model.output.sum(0) * 10
            bundle.model.output[index] *= 1 if index else -1
    export_ctranslate2(bundle, tmp_path / "out")
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    told = translator.translate_batch(as_pieces(bundle, drawn_sources(bundle, 8)), beam_size=2, max_decoding_length=10)
    forbidden = set(bundle.tokenizer.target.ids_to_pieces([PADDING_ID, BEGIN_ID]))
    assert not forbidden & {piece for one in told for piece in one.hypotheses[0]}


def test_positions_end_in_an_error_not_in_silence(learnt: Bundle, tmp_path: Path) -> None:
    bundle = drawn_bundle(learnt, "learned positions")
    done = export_ctranslate2(bundle, tmp_path / "out")
    assert done.max_positions == 40
    assert done.decoding_options["max_decoding_length"] == 40
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    piece = bundle.tokenizer.source.ids_to_pieces([10])
    assert translator.translate_batch([piece * 39], beam_size=1, max_input_length=0, max_decoding_length=2)
    with pytest.raises(RuntimeError, match="positions >= 40"):
        translator.translate_batch([piece * 40], beam_size=1, max_input_length=0, max_decoding_length=2)


def test_searches_that_differ_are_told() -> None:
    def told(**knobs: Any) -> str:
        return " ".join(convert_decoding_options(DecodingConfig(**knobs), num_positions=2000)[1])

    assert "((5+|Y|)/6)^α" in told()
    assert "|Y|" not in told(length_penalty="power")
    assert "very short" in told(length_penalty="none")
    assert "seed" in told(method="sample")


def test_a_window_is_refused(learnt: Bundle, tmp_path: Path) -> None:
    recipe = learnt.recipe.model_copy(update={"model": learnt.recipe.model.model_copy(update={"attention_window": 3})})
    with pytest.raises(BundleError, match=r"^model.attention_window = 3: [^\n]*$"):
        export_ctranslate2(replace(learnt, recipe=recipe), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_the_library_the_extra_is_named(learnt: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dragoman\[ctranslate2\]'"):
        export_ctranslate2(learnt, tmp_path / "out")


def test_the_folder_is_sealed_and_stays_unless_told(learnt: Bundle, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_ctranslate2(learnt, out)
    verify_checksums(out, BundleError)
    before = (out / "model.bin").stat().st_mtime_ns
    with pytest.raises(OutputError, match="exists already"):
        export_ctranslate2(learnt, out)
    assert (out / "model.bin").stat().st_mtime_ns == before
    export_ctranslate2(learnt, out, overwrite=True)
    (out / "mine.txt").write_text("kept")
    with pytest.raises(OutputError, match=r"mine\.txt"):
        export_ctranslate2(learnt, out, overwrite=True)
    assert (out / "mine.txt").read_text() == "kept"


def test_the_command_writes_what_the_page_reads(
    bundle_copy: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/how-to/export.md's Python, run as it stands in the folder where the command ran, beside the training-side search."""
    monkeypatch.chdir(tmp_path)
    edit_config(bundle_copy, lambda document: document["recipe"]["decoding"].update(method="greedy"))
    told = CliRunner().invoke(cli, ["export", str(bundle_copy), "--to", "ctranslate2", "exported", "--json"])
    assert told.exit_code == 0
    result = json.loads(told.stdout)
    assert result["form"] == "ctranslate2"
    assert result["bytes"] == sum(path.stat().st_size for path in Path("exported").iterdir())
    assert result["search"] == json.loads(Path("exported/dragoman.json").read_text(encoding="utf-8"))["search"]
    texts = (corpus / "test.en").read_text(encoding="utf-8")
    Path("test.en").write_text(texts, encoding="utf-8")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "export.md", "exec"), names)
    copied = load_bundle(bundle_copy)
    sources = [copied.tokenizer.encode_source(text) for text in texts.splitlines()]
    ours = searched(copied, sources, copied.recipe.decoding)
    assert names["translations"] == [copied.tokenizer.target.decode(one.tokens) for one in ours]


def test_mistakes_are_told_in_one_line(bundle: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for source, target, form, message in (
        (bundle, there, "ctranslate2", "exists already"),
        (tmp_path / "none", tmp_path / "out", "ctranslate2", "there is no such folder"),
        (bundle.parent, tmp_path / "out", "ctranslate2", "is a run folder"),
        (bundle, tmp_path / "out", "onnx", "'onnx' is not 'ctranslate2'"),
    ):
        told = CliRunner().invoke(cli, ["export", str(source), "--to", form, str(target)], standalone_mode=False)
        assert isinstance(told.exception, DragomanError | click.ClickException)
        assert message in str(told.exception)
        assert "\n" not in str(told.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
