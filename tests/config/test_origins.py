"""Command `recipe`: the recipes of the package, and the origin of each value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.cli.recipe import recipe as recipe_command
from dragoman.config import make_recipe
from dragoman.config.origins import trace_values
from dragoman.config.recipe import list_builtin_recipes, parse_toml
from dragoman.data import data_defaults

OWN = """
preset = "modern"
data.train = { source = "train.en", target = "train.de" }
data.valid = { source = "train.en", target = "train.de" }
training.seed = 7
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipe of a corpus of 100 pairs, whose values follow from them."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.de"):
        Path(name).write_text("".join(f"word {number}\n" for number in range(100)), encoding="utf-8")
    Path("own.toml").write_text(OWN, encoding="utf-8")
    return Path("own.toml")


def resolve(*arguments: str) -> dict[str, tuple[Any, str]]:
    result = CliRunner().invoke(recipe_command, [*arguments, "--resolve", "--json"], catch_exceptions=False)
    return {item["key"]: (item["value"], item["origin"]) for item in json.loads(result.stdout)}


def test_each_value_has_its_origin(own: Path) -> None:
    values = resolve(str(own), "training.max_steps=30")
    assert values["training.max_steps"] == (30, "command line")
    assert values["training.seed"] == (7, "recipe")
    assert values["training.batch_tokens"] == (2048, "corpora")
    assert values["size"] == ("tiny", "corpora")
    assert values["model.d_model"] == (128, "size tiny")
    assert values["model.norm"] == ("pre", "preset modern")
    assert values["data.max_length"] == (256, "default")


def test_dropout_is_of_the_corpora_if_it_is_that_of_the_size(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_defaults, "MAX_EPOCHS", 50)  # times 0.002
    for size in ("tiny", "small"):
        assert resolve(str(own), f"size={size}")["model.residual_dropout"] == (0.1, "corpora")


def test_section_on_the_command_line_replaces_that_of_the_recipe(own: Path) -> None:
    own.write_text(OWN + "data.cleaning = { max_ratio = 4.0 }\n", encoding="utf-8")
    values = resolve(str(own), "data.cleaning={max_words=50}")
    assert values["data.cleaning.max_words"] == (50, "command line")
    assert values["data.cleaning.max_ratio"] == (None, "default")


def test_values_are_those_of_the_recipe() -> None:
    for name, path in list_builtin_recipes().items():
        if name == "cleaning":  # which needs languages
            continue
        document = parse_toml(path.read_text(encoding="utf-8"), where=name)
        recipe = make_recipe(document)
        values = trace_values(recipe, document, [], chosen={})
        origins = {"recipe", "default", f"size {recipe.size}", f"preset {recipe.preset}"}
        assert {item.origin for item in values} <= origins, name
        assert {item.key: item.value for item in values}["model.d_model"] == recipe.model.d_model


def test_list_names_every_recipe_of_the_package() -> None:
    result = CliRunner().invoke(recipe_command, ["--json"], catch_exceptions=False)
    assert json.loads(result.stdout).keys() == list_builtin_recipes().keys()
