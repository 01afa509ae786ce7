"""What the documentation tells people to type exists: commands, their options, recipes and knobs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from dragoman.cli.main import COMMANDS, cli
from dragoman.config import Recipe, RecipeSection, read_recipe

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SHIPPED = {path.stem for path in (ROOT / "src" / "dragoman" / "recipes").glob("*.toml")}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    yield from BLOCK.findall(page.read_text(encoding="utf-8"))


def spoken(text: str) -> Iterator[list[str]]:
    """The words after `dragoman` in every command line of a text, those of YAML lists among them."""
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"command: \[(.*?)\]", lambda found: re.sub(r",\s*", " ", found[1]), text, flags=re.DOTALL)
    for line in text.splitlines():
        found = re.search(r"(?:^|[\s/])dragoman (?!\()(?=[a-z])(.*)", line.split(" #")[0])
        if found:
            words = found[1].split("`")[0].split(" | ")[0]
            yield shlex.split(re.sub(r"\s*&$", "", words))


def commands(page: Path) -> Iterator[list[str]]:
    for language, text in blocks(page):
        if language in ("", "bash", "sh", "yaml"):
            yield from spoken(text)
    outside = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for piece in re.findall(r"`([^`\n]+)`", outside):
        yield from spoken(piece)


FOUND = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
    for page in PAGES
    for words in commands(page)
    if words[0] in COMMANDS or page.parent.name == "docs"
]


def is_placeholder(word: str) -> bool:
    return not word or any(mark in word for mark in "…$[]<>") or word.isupper()


@pytest.mark.parametrize("words", FOUND)
def test_commands_options_and_recipes_exist(words: list[str]) -> None:
    name, *rest = words
    assert name in COMMANDS
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    if rest and "--help" not in rest and not any(mark in word for word in rest for mark in "…[]"):
        typed = ["1" if word == "N" else word for word in rest]
        command.make_context(name, typed)  # raises where an option or argument is not known, or is missing
    if name not in ("train", "prepare", "clean") or not rest:
        return
    changes = [word for word in rest[1:] if "=" in word and not word.startswith(("-", "["))]
    changes = [word for word in changes if not is_placeholder(word.partition("=")[2])]
    if rest[0] in SHIPPED:
        read_recipe(Path(rest[0]), changes)
    else:
        assert is_placeholder(rest[0]) or rest[0].endswith(".toml")
        for change in changes:
            assert knob(change.partition("=")[0])


def test_commands_are_found() -> None:
    """A page whose commands nobody finds would pass every other test."""
    found = {page.name: len(list(commands(page))) for page in PAGES}
    for name in ("README.md", "corpora.md", "training.md", "devices.md", "slurm.md", "kubernetes.md"):
        assert found[name] >= 2


def knob(key: str) -> bool:
    """Whether a recipe has this knob."""
    kinds: set[type[RecipeSection]] = {Recipe}
    named_freely = False
    for name in key.split("."):
        found = [kind.model_fields[name].annotation for kind in kinds if name in kind.model_fields]
        if found:
            kinds = {kind for one in found for kind in sections(one)}
        elif not named_freely:
            return False
        named_freely = any(is_mapping(one) for one in found)
    return True


def sections(annotation: Any) -> Iterator[type[RecipeSection]]:
    """The recipe's sections that a field may hold, within unions, lists and mappings as well."""
    if isinstance(annotation, type) and issubclass(annotation, RecipeSection):
        yield annotation
    for part in get_args(annotation):
        yield from sections(part)


def is_mapping(annotation: Any) -> bool:
    return str(annotation).startswith("dict")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_knobs_exist(page: Path) -> None:
    outside = BLOCK.sub("", page.read_text(encoding="utf-8"))
    names = "|".join(Recipe.model_fields)
    for key in re.findall(rf"`((?:{names})(?:\.[a-z_A-Z]+)+)(?==| =|`)", outside):
        if not key.endswith((".safetensors", ".json", ".model", ".py", ".html", ".arrow")):
            assert knob(key), key


def test_knobs_that_are_not_there_are_noticed() -> None:
    assert knob("training.max_steps")
    assert knob("data.cleaning.urls")
    assert knob("data.corpora.NAME.skip_filters")
    assert knob("data.train.file")
    assert not knob("training.no_such_knob")
    assert not knob("data.cleaning.no_such_rule")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_can_be_read_by_the_shell(page: Path) -> None:
    for language, text in blocks(page):
        if language == "bash":
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_are_named_are_there(page: Path) -> None:
    for file, name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page.read_text(encoding="utf-8")):
        written = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in written, f"{file}::{name}"
