"""`dragoman.load`: the class of the result, and the types that a checker sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import pytest

import dragoman
from dragoman import Parser, Translator
from dragoman.errors import BundleError, DeviceError
from random_parsers import parser_bundle

pytestmark = pytest.mark.usefixtures("one_core")


def test_load_returns_the_class_of_the_task(bundle: Path, tmp_path: Path) -> None:
    parser_path = parser_bundle(tmp_path / "parser")
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32")
    parser = dragoman.load(parser_path, task="parsing", device="cpu", precision="float32")
    either = dragoman.load(bundle, device="cpu", precision="float32")
    assert_type(translator, Translator)
    assert_type(parser, Parser)
    assert_type(either, Translator | Any)
    assert isinstance(translator, Translator)
    assert isinstance(parser, Parser)
    assert isinstance(either, Translator)
    assert max(len(repr(value)) for value in (either, either.bundle, either.recipe, either.translate_text("a b"))) < 120


def test_load_checks_the_task(bundle: Path, tmp_path: Path) -> None:
    parser_path = parser_bundle(tmp_path / "parser")
    with pytest.raises(BundleError, match="is a translator, not a parser"):
        dragoman.load(bundle, task="parsing", device="cpu")
    with pytest.raises(BundleError, match="is a parser, not a translator"):
        dragoman.load(parser_path, task="translation", device="cpu")
    with pytest.raises(DeviceError, match="shortlist"):
        dragoman.load(parser_path, device="cpu", shortlist=tmp_path / "shortlist")
