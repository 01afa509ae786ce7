"""Shortlists, built from attention: a restricted output vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dragoman
from dragoman.bundle import WEIGHTS_FILE, Bundle, load_bundle
from dragoman.cli.main import cli
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.errors import BundleError, DataError
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.inference.forced_decoder import build_forced_decoder
from dragoman.inference.lexical_shortlist import build_shortlist
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.io.safetensors import save_tensors
from dragoman.io.storage import atomic_dir
from dragoman.shortlist import NUM_SPECIAL_TOKENS, SHORTLIST_FILE, Shortlist, read_shortlist
from dragoman.tasks.forced_decoding import ForcedDecoder
from expected_errors import raises_code
from tiny_runs import WORDS

pytestmark = pytest.mark.usefixtures("one_core")

SOURCES = [f"{first} {second}" for first in list(WORDS)[:8] for second in list(WORDS)[8:14]]
TARGETS = [" ".join(WORDS[word] for word in source.split()) for source in SOURCES]


def make_decoder(loaded: Bundle) -> ForcedDecoder:
    return build_forced_decoder(TrainedModel.from_bundle(loaded))


@pytest.fixture(scope="module")
def shortlist(bundle: Path, one_core: None) -> Shortlist:
    loaded = load_bundle(bundle)
    result, num_skipped = build_shortlist(loaded, make_decoder(loaded), SOURCES, TARGETS, per_token=6, num_frequent=5)
    assert num_skipped == 0
    return result


def test_build_shortlist_counts_candidates_and_frequent_tokens(shortlist: Shortlist, bundle: Path) -> None:
    loaded = load_bundle(bundle)
    source, target = loaded.tokenizer.source, loaded.tokenizer.target
    assert shortlist.candidates_VK.shape == (len(source), 6)
    assert int(shortlist.candidates_VK.max()) < len(target)
    # Count the most frequent target tokens again; tokens with equal counts may differ.
    counts = np.zeros(len(target))
    for text in TARGETS:
        for token in target.encode(text):
            counts[token] += 1
    assert counts[shortlist.frequent_F].tolist() == sorted(counts, reverse=True)[:5]
    assert END_ID not in shortlist.candidates_VK


def test_select_tokens_covers_the_whole_batch(shortlist: Shortlist) -> None:
    token_ids = shortlist.select_tokens(np.array([[7, 9, 0], [7, 3, 0]]))
    assert token_ids[:NUM_SPECIAL_TOKENS].tolist() == [0, 1, 2, 3]
    assert token_ids.tolist() == sorted(set(token_ids.tolist()))
    expected = {0, 1, 2, 3, *shortlist.frequent_F.tolist(), *shortlist.candidates_VK[[0, 3, 7, 9]].flatten().tolist()}
    assert set(token_ids.tolist()) == (expected | {7, 9} if shortlist.is_joint else expected)


def test_shortlist_of_all_tokens_changes_nothing(bundle: Path, shortlist: Shortlist, tmp_path: Path) -> None:
    size = len(load_bundle(bundle).tokenizer.target)
    replace(shortlist, frequent_F=np.arange(size)).save(tmp_path / "all")
    plain = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    short = dragoman.load(bundle, task="translation", device="cpu", precision="float32", shortlist=tmp_path / "all")
    for decoding in ({}, {"method": "greedy"}, {"nbest": 3}):
        actual, expected = short.translate(SOURCES[:12], **decoding), plain.translate(SOURCES[:12], **decoding)
        assert [translation.tokens for translation in actual] == [translation.tokens for translation in expected]
        assert [translation.score for translation in actual] == pytest.approx(
            [translation.score for translation in expected], abs=1e-5
        )


def test_outputs_have_only_shortlisted_tokens(bundle: Path, shortlist: Shortlist, tmp_path: Path) -> None:
    shortlist.save(tmp_path / "short")
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32", shortlist=tmp_path / "short")
    tokenizer = translator.bundle.tokenizer
    for line, translation in zip(SOURCES[:10], translator.translate(SOURCES[:10], batch_tokens=1), strict=True):
        allowed = set(shortlist.select_tokens(np.array([tokenizer.encode_source(line)])).tolist())
        assert {tokenizer.target.piece_to_id(token) for token in translation.tokens} <= allowed
    twice = dragoman.load(bundle, bundle, task="translation", device="cpu", precision="float32", shortlist=tmp_path / "short")
    assert [translation.text for translation in twice.translate(SOURCES[:5])] == [
        translation.text for translation in translator.translate(SOURCES[:5])
    ]


def test_constraints_are_always_in_the_shortlist(bundle: Path, shortlist: Shortlist, tmp_path: Path) -> None:
    loaded = load_bundle(bundle)
    rows = len(loaded.tokenizer.source)
    nothing = replace(shortlist, candidates_VK=np.zeros((rows, 1), dtype=np.int64), frequent_F=np.array([4]))
    nothing.save(tmp_path / "none")
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32", shortlist=tmp_path / "none")
    (translation,) = translator.translate(["one"], constraints=[TranslationConstraints(prefix="grün", include=("zwei",))])
    assert translation.text.startswith("grün")
    assert "zwei" in translation.text or translation.unmet_constraints == ("zwei",)
    assert len(translator.list_alternatives("one", count=20)) == 20  # from the whole vocabulary


def test_long_pairs_are_skipped_and_counted(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    long = " ".join(["one"] * loaded.recipe.data.max_length)
    _, num_skipped = build_shortlist(
        loaded, make_decoder(loaded), [*SOURCES, long], [*TARGETS, "eins"], per_token=6, num_frequent=5
    )
    assert num_skipped == 1


def test_read_shortlist_checks_vocabulary_and_checksums(bundle: Path, shortlist: Shortlist, tmp_path: Path) -> None:
    loaded = load_bundle(bundle)
    replace(shortlist, vocabulary_digest=bytes(32)).save(tmp_path / "other")
    with pytest.raises(BundleError, match="other: was built with other tokenizers"):
        read_shortlist(tmp_path / "other", loaded.tokenizer)
    shortlist.save(tmp_path / "cut")
    with raises_code("output-exists", "cut"):
        shortlist.save(tmp_path / "cut")
    with (tmp_path / "cut" / "shortlist.safetensors").open("r+b") as file:
        file.truncate(50)
    with raises_code("bundle-damaged", "cut"):
        read_shortlist(tmp_path / "cut", loaded.tokenizer)
    with raises_code("bundle-not-found", "nowhere"):
        read_shortlist(tmp_path / "nowhere", loaded.tokenizer)
    with pytest.raises(DataError, match="there are no sentence pairs"):
        build_shortlist(loaded, make_decoder(loaded), [], [], per_token=1, num_frequent=1)


def test_shortlist_with_other_shapes_or_ids_is_refused(bundle: Path, shortlist: Shortlist, tmp_path: Path) -> None:
    tokenizer = load_bundle(bundle).tokenizer
    tables = {
        "rows": {"candidates_VK": shortlist.candidates_VK[:-1]},
        "dimensions": {"candidates_VK": shortlist.candidates_VK[0]},
        "negative": {"frequent_F": np.array([-1])},
        "large": {"frequent_F": np.array([len(tokenizer.target)])},
        "joint": {"is_joint": [True, False]},
    }
    for name, changes in tables.items():
        replace(shortlist, **changes).save(tmp_path / name)
        with pytest.raises(BundleError, match=f"{name}: is not a .*dragoman model shortlist"):
            read_shortlist(tmp_path / name, tokenizer)


def test_shortlist_of_a_bundle_is_read_without_the_weights(bundle: Path, shortlist: Shortlist, tmp_path: Path) -> None:
    """A damaged file of weights shows whether it is read."""
    with atomic_dir(tmp_path / "both") as folder:
        save_tensors(folder / SHORTLIST_FILE, shortlist.tables)
        save_tensors(folder / WEIGHTS_FILE, {"weight": np.zeros(4)})
    (tmp_path / "both" / WEIGHTS_FILE).write_bytes(b"")
    read_shortlist(tmp_path / "both", load_bundle(bundle).tokenizer)


def test_shortlist_command_writes_a_usable_shortlist(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "en").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    (tmp_path / "de").write_text("".join(f"{line}\n" for line in TARGETS), encoding="utf-8")
    arguments = ["model", "shortlist", str(bundle), str(tmp_path / "en"), str(tmp_path / "de"), "-o", str(tmp_path / "short")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0
    assert f"from {len(SOURCES)} pairs" in result.output
    translated = CliRunner().invoke(
        cli, ["translate", str(bundle), str(tmp_path / "en"), "--shortlist", str(tmp_path / "short")]
    )
    assert len(translated.stdout.splitlines()) == len(SOURCES)
    assert CliRunner().invoke(cli, [*arguments, "--per-token", "0"]).exit_code == 2
