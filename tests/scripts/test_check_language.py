"""Checker of names and prose: each rule finds its violation and passes correct text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from check_language import MAX_WORDS, check, main

LONG = " ".join(["word"] * (MAX_WORDS + 1))


def codes(path: Path) -> list[str]:
    return sorted(finding.code for finding in check([path]))


def test_python_rules_find_names_and_fragments(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for source, expected in [
        ("found = 1", ["banned-name"]),
        ("def f(given: int) -> None: ...", ["banned-name"]),
        ("values = [one for one in ()]", ["banned-name"]),
        ("class Speaker: ...", ["private-word"]),
        ("def read_story() -> None: ...", ["private-word"]),
        ("tokeniser = None", ["british-spelling"]),
        ("class ColourTable: ...", ["british-spelling"]),
        ('def f() -> None:\n    """What the caller gets."""', ["fragment"]),
        ('def f() -> None:\n    """As read from disk."""', ["fragment"]),
        (f'def f() -> None:\n    """Return {LONG}."""', ["long-sentence"]),
        ('"""Module with a knob."""', ["private-word"]),
        ('def f() -> None:\n    """Return the number of tokens."""', []),
        ("results = [value for value in ()]", []),
        ("noise = tokenizer = label_smoothing = 1", []),
        ("raised = precision = promise = 1", []),
    ]:
        with subtests.test(source=source, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "module.py"
            path.write_text(source, encoding="utf-8")
            assert codes(path) == expected


def test_markdown_rules_find_long_sentences(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, expected in [
        (f"{LONG}.", ["long-sentence"]),
        ("This option is a knob.", ["private-word"]),
        (f"A short sentence. Another one.\n\n```\n{LONG}\n```\n", []),
        (f"| {LONG} | cell |\n", []),
        (f"`{LONG}` is code.\n", []),
        (f"- {' '.join(['word'] * 20)}\n- {' '.join(['word'] * 20)}\n", []),
    ]:
        with subtests.test(text=text, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "page.md"
            path.write_text(text, encoding="utf-8")
            assert codes(path) == expected


def test_repeated_class_names_are_found(tmp_path: Path) -> None:
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text("class Batch: ...\n", encoding="utf-8")
    assert codes(tmp_path) == ["repeated-class"]


def test_exit_status_is_1_for_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module.py"
    path.write_text("told = 1\n", encoding="utf-8")
    assert main([str(path)]) == 1
    assert "banned-name: told" in capsys.readouterr().out
    path.write_text("message = 1\n", encoding="utf-8")
    assert main([str(path)]) == 0
