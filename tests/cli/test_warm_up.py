"""Tests of `dragoman warm-up`: the kernels are compiled and kept, or the reason why there are none is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.inference.backends.compiled import background
from dragoman.inference.backends.compiled.backend import CompiledBackend
from dragoman.inference.backends.protocol import fall_back
from expected_errors import raises_code


def run_json(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["warm-up", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def compiled() -> None:
    if not CompiledBackend().check_machine("int8").is_supported:
        pytest.skip("the compiled back end does not run here")


@pytest.mark.usefixtures("compiled")
def test_kernels_are_cached_after_warm_up(bundle: Path) -> None:
    first, second = run_json(), run_json(str(bundle))
    assert first["backend"] == second["backend"] == "compiled"
    assert first["precision"] is None
    assert second["precision"] == "int8"
    names = {path.name for path in Path(second["cache_folder"]).iterdir()}
    assert {kernel["name"] for kernel in second["kernels"]} <= names
    assert [kernel["seconds"] for kernel in second["kernels"]] == [0.0] * 7
    assert all(kernel["bytes"] > 0 for kernel in second["kernels"])


def test_reason_is_shown_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompiledBackend, "check_machine", lambda self, precision: fall_back("Numba is not installed"))
    document = run_json()
    assert document["backend"] == "packed"
    assert document["reason"] == "Numba is not installed"
    assert document["kernels"] == []
    text = CliRunner().invoke(cli, ["warm-up"], catch_exceptions=False).stdout
    assert "Numba is not installed" in text


@pytest.mark.usefixtures("compiled")
def test_failed_compilation_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(names: object) -> Any:
        raise background.CompilationError("encode: LoweringError: no such type")

    monkeypatch.setattr(background, "compile_in_child", fail)
    with raises_code("compilation-failed", "encode: LoweringError: no such type", "dragoman doctor"):
        CliRunner().invoke(cli, ["warm-up"], catch_exceptions=False)
