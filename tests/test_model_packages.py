"""Models by name, in distributions of their own and in the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import dragoman
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.model_packages import find_model, list_models, resolve_model

CHECKOUT_MODELS = Path(__file__).resolve().parents[1] / "models"


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the bundle of an installed distribution whose package raises an error when it is imported."""
    info, bundle = tmp_path / "dragoman_xx_yy-1.0.dist-info", tmp_path / "dragoman_xx_yy" / "xx-yy"
    info.mkdir()
    bundle.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dragoman-xx-yy\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dragoman.models]\nxx-yy = dragoman_xx_yy\n", encoding="utf-8")
    (bundle.parent / "__init__.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    (bundle / "manifest.json").write_text("{}", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return bundle


def test_distribution_is_found_and_never_imported(distribution: Path) -> None:
    assert find_model("xx-yy") == distribution
    assert {"en-de", "xx-yy"} <= set(list_models())
    assert "dragoman_xx_yy" not in sys.modules


def test_other_names_are_paths(subtests: pytest.Subtests, distribution: Path) -> None:
    for name in ["", "xx", ".", "..", "../xx-yy", "/xx-yy", "xx-yy/", "XX-YY", "s3://xx-yy", "xx-yy\n", "x" * 10_000]:
        with subtests.test(name=name):
            assert find_model(name) is None
            assert resolve_model(name) == Path(name)


def test_existing_path_takes_precedence(distribution: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here" / "xx-yy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert resolve_model("xx-yy") == Path("xx-yy")


def test_unknown_model_lists_the_known_ones() -> None:
    result = CliRunner().invoke(cli, ["translate", "en-xx"], input="Hello\n")
    assert "en-xx: there is no such folder" in str(result.exception)
    assert "en-de" in str(result.exception)


def test_shipped_model_is_small_and_translates() -> None:
    folder = find_model("en-de")
    assert folder is not None
    assert folder.is_relative_to(CHECKOUT_MODELS)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 15 * 2**20
    bundle = load_bundle(folder)
    assert (bundle.recipe.task.source_language, bundle.recipe.task.target_language) == ("en", "de")
    translator = dragoman.load("en-de", task="translation", device="cpu", precision="float32")
    texts = [translation.text for translation in translator.translate(["Open the file.", "Where do you live?"])]
    assert texts == ["Öffnen Sie die Datei.", "Wo wohnen Sie?"]


def test_line_that_lost_a_sign_is_translated_again() -> None:
    lines = ["Open the file.", "Where do you live?", "Pay £15 now."]
    plain, again = (
        CliRunner().invoke(cli, ["translate", "en-de", *options], input="\n".join(lines) + "\n", catch_exceptions=False)
        for options in (["--no-split-sentences"], [])
    )
    assert plain.stdout.splitlines() == [item.text for item in dragoman.load("en-de", task="translation").translate(lines)]
    assert "lines lost a sign, such as that of a currency, which --split-sentences keeps: 1 (3)" in plain.stderr
    assert again.stdout.splitlines()[:2] == plain.stdout.splitlines()[:2]
    assert "£15" in again.stdout.splitlines()[2]
    assert not again.stderr
