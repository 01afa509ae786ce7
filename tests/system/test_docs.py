"""Tests that the documentation names only commands, options, recipes, keys, files and pages that exist."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import click
import pytest

from dragoman.cli.main import COMMANDS, CommandTable, cli
from dragoman.config import Recipe, RecipeSection, make_recipe, read_recipe
from dragoman.config.extension import ExtensibleSection, iter_extension_types
from dragoman.config.section import SectionField
from dragoman.errors import RecipeError

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
)
BUILTIN_RECIPES = {path.stem for path in (ROOT / "src" / "dragoman" / "recipes").glob("*.toml")}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
README_MAX_WORDS = 700
CHINESE_PAGES = [ROOT / "README.zh.md", *(ROOT / "docs").rglob("*-zh.md"), ROOT / "src/dragoman/serving/static/words.js"]
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff][,;:!?()A-Za-z0-9]|[,;:!?(A-Za-z0-9%][\u4e00-\u9fff]")
"""Punctuation of Latin text beside a Chinese character, or a missing space between Chinese and Latin."""


sys.path.append(str(ROOT / "scripts"))


def load_script(name: str) -> ModuleType:
    """Import a file of scripts/."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


make_reference = load_script("make_reference")


def page_id(page: Path) -> str:
    """Return the path of a page below the repository."""
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of the fenced code blocks of a page."""
    yield from BLOCK.findall(page.read_text(encoding="utf-8"))


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words after `dragoman` of each command line in a text; YAML lists count."""
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"command: \[(.*?)\]", lambda match: re.sub(r",\s*", " ", match[1]), text, flags=re.DOTALL)
    for line in text.splitlines():
        match = re.search(r"(?:^|[\s/])dragoman (?!\()(?=[a-z])(.*)", line.split(" #")[0])
        if match:
            words = re.split(r" [|<>]+ ", match[1].split("`")[0])[0]
            yield shlex.split(re.sub(r"\s*&$", "", words))


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the commands of a page, in code blocks and in text."""
    for language, text in code_blocks(page):
        if language in ("", "bash", "sh", "yaml"):
            yield from commands_in(text)
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for code in re.findall(r"`([^`\n]+)`", prose):
        yield from commands_in(code)


COMMAND_LINES = [(page_id(page), words) for page in PAGES for words in commands_of(page)]


def is_placeholder(word: str) -> bool:
    """Return whether a word stands for a value of the reader, such as RECIPE or …."""
    return not word or any(mark in word for mark in "…$[]<>") or word.isupper()


def test_commands_options_and_recipes_exist(subtests: pytest.Subtests) -> None:
    for page, words in COMMAND_LINES:
        with subtests.test(page=page, words=words):
            name, *rest = words
            assert name in COMMANDS
            command = cli.get_command(click.Context(cli), name)
            if isinstance(command, CommandTable):
                name, *rest = rest
                command = command.get_command(click.Context(cli), name)
            assert command is not None
            if rest and "--help" not in rest and not any(mark in word for word in rest for mark in "…[]"):
                arguments = ["1" if word == "N" else word for word in rest]
                command.make_context(name, arguments)  # raises if an option or argument is unknown or missing
            if name not in ("train", "prepare", "clean") or not rest:
                continue
            settings = [word for word in rest[1:] if "=" in word and not word.startswith(("-", "["))]
            settings = [word for word in settings if not is_placeholder(word.partition("=")[2])]
            if rest[0] in BUILTIN_RECIPES:
                read_recipe(Path(rest[0]), settings)
            else:
                assert is_placeholder(rest[0]) or rest[0].endswith(".toml")
                for setting in settings:
                    assert has_key(setting.partition("=")[0])


def has_key(key: str) -> bool:
    """Return whether a recipe has this key."""
    section_types: set[type[RecipeSection]] = {Recipe}
    accepts_any_name = False
    for name in key.split("."):
        annotations = [fields[name].annotation for fields in map(list_fields, section_types) if name in fields]
        if annotations:
            section_types = {section for annotation in annotations for section in list_sections(annotation)}
        elif not accepts_any_name:
            return False
        accepts_any_name = any(str(annotation).startswith("dict") for annotation in annotations)
    return True


def list_fields(section: type[RecipeSection]) -> dict[str, SectionField]:
    """Return the fields of a section by name, with those that the entries of a hook add."""
    fields = dict(section.model_fields)
    for extension_type in iter_extension_types(section.hook) if issubclass(section, ExtensibleSection) else ():
        fields |= extension_type.model_fields
    return fields


def list_sections(annotation: Any) -> Iterator[type[RecipeSection]]:
    """Yield the sections of a recipe that a field can hold, also in unions, lists and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, RecipeSection):
        yield annotation
    for part in get_args(annotation):
        yield from list_sections(part)


TRAINING_COMMANDS = {
    *("adapt", "augment", "average", "compare", "evaluate", "explain", "export", "paper", "prepare", "quickstart", "train")
}


def test_pages_name_the_extra_of_training(subtests: pytest.Subtests) -> None:
    """A page with a command of training names an extra that installs PyTorch."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    with_pytorch = {"train"} | {extra for extra, lines in extras.items() if re.search(r"dragoman\[.*train", " ".join(lines))}
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            text = page.read_text(encoding="utf-8")
            blocks = "\n".join(block for language, block in code_blocks(page) if language in ("sh", "bash"))
            commands = TRAINING_COMMANDS & set(
                re.findall(r"^dragoman (?:-v )?(?:model |tree )?([a-z-]+)", blocks, re.MULTILINE)
            )
            named = {extra for group in re.findall(r"(?:dragoman|\.)\[([a-z0-9,]+)\]", text) for extra in group.split(",")}
            assert not commands or named & with_pytorch, f"{sorted(commands)} need PyTorch: name dragoman[train]"


def test_recipe_keys_exist(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
            names = "|".join(Recipe.model_fields)
            for key in re.findall(rf"`((?:{names})(?:\.[a-z_0-9A-Z]+)+)(?==| =|`)", prose):
                if not key.endswith((".safetensors", ".json", ".model", ".pt", ".py", ".html", ".arrow", ".bin", ".npz")):
                    assert has_key(key), key


def test_toml_blocks_are_recipes(subtests: pytest.Subtests, bundle: Path) -> None:
    """Each block is a recipe, alone, after the blocks before it, or as the corpora of a parser."""
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            parser_recipe = tomllib.loads(
                (ROOT / "src" / "dragoman" / "recipes" / "parsing-craft.toml").read_text(encoding="utf-8")
            )
            previous_text = ""
            for language, text in code_blocks(page):
                if language == "toml":
                    text = text.replace("runs/general/bundle", str(bundle))
                    document = tomllib.loads(text)
                    if "brackets" in text:
                        document = {**parser_recipe, **document}
                    assert is_recipe(document) or is_recipe(tomllib.loads(previous_text + text)), text
                    previous_text += text


def is_recipe(document: dict[str, Any]) -> bool:
    try:
        make_recipe(document)
    except RecipeError:
        return False
    return True


def test_links_lead_to_files_and_headings(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            generated = {(ROOT / "docs" / name).resolve() for name in make_reference.GENERATED_PAGES}
            for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                if target in generated:
                    continue
                assert target.exists(), link
                if anchor:
                    assert anchor in headings(target), link


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_navigation_names_every_page_once() -> None:
    navigation = re.findall(r'"([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
    written = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(navigation) == sorted([*written, *make_reference.GENERATED_PAGES])


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_shell_can_read_bash_blocks(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            for language, text in code_blocks(page):
                if language in ("bash", "sh"):
                    result = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
                    assert result.returncode == 0, result.stderr


def test_python_blocks_compile(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            for language, text in code_blocks(page):
                if language == "python":
                    assert ast.parse(text, page_id(page)).body, text


@pytest.mark.slow
def test_example_of_the_readme_has_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    example = tmp_path / "example.py"
    example.write_text("".join(text for language, text in code_blocks(ROOT / "README.md") if language == "python"))
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(example)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_named_files_and_tests_exist(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page_id(page)):
            text = page.read_text(encoding="utf-8")
            for path in re.findall(r"`((?:src/dragoman|scripts|benchmarks|tests)/[\w/.-]+)`", text):
                assert (ROOT / path).exists(), path
            for file, name in re.findall(r"`([\w/]*test_\w+\.py)(?:::(test_\w+))?`", text):
                path = ROOT / "tests" / file.removeprefix("tests/")
                assert path.exists(), file
                if name:
                    assert f"def {name}(" in path.read_text(encoding="utf-8"), f"{file}::{name}"


def test_architecture_names_existing_files_and_functions() -> None:
    page = ROOT / "docs" / "explanation" / "architecture.md"
    source = ROOT / "src" / "dragoman"
    folders = [source, source / "inference", source / "training"]
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", page.read_text(encoding="utf-8")):
        assert path.startswith(("src/", "tests/")) or any((folder / path).exists() for folder in folders), path


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= README_MAX_WORDS


def test_chinese_text_has_full_width_punctuation() -> None:
    for page in CHINESE_PAGES:
        prose = re.sub(r"`[^`\n]*`", "`", BLOCK.sub("", page.read_text(encoding="utf-8")))
        prose = re.sub(r"!?\[([^]\n]*)\]\([^)]*\)", r"\1", prose)
        assert [match.group() for match in HALF_WIDTH.finditer(prose)] == [], page.name
