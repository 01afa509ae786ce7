"""A package of a stranger adds an architecture, a loss, a search and a command; it is the package of the how-to page."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import dragoman
from conftest import MakeRecipe
from dragoman import hooks
from dragoman.bundle import load_bundle
from dragoman.cli.main import cli
from dragoman.config import ModelConfig, TrainingConfig, make_recipe
from dragoman.data.collate import collate
from dragoman.errors import HookError, RecipeError
from dragoman.hooks import HOOKS, list_entries, list_own_entries, load_entry
from dragoman.inference.translator import Translator
from dragoman.model.factory import build_model
from dragoman.model.layers import FeedForward
from dragoman.training import compute_plan
from expected_errors import raises_code

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")


def install(folder: Path, name: str, tables: dict[str, dict[str, str]], modules: dict[str, str]) -> None:
    """Write a package and its metadata into a folder, as pip does."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [line for group, entries in tables.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of installed packages, which starts empty."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(compute_plan, "bf16_is_faster", lambda device: False)  # `doctor` would measure
    modules = set(sys.modules)
    hooks.list_other_entries.cache_clear()
    yield folder
    hooks.list_other_entries.cache_clear()
    for module in set(sys.modules) - modules:
        if not module.startswith(("dragoman", "torch")):
            del sys.modules[module]


@pytest.fixture
def installed(site: Path) -> Path:
    """Folder with the package of the page."""
    tables = tomllib.loads(re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)[0])["project"]["entry-points"]
    install(site, "my-ideas", tables, {"my_ideas": re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]})
    return site


def page_settings() -> list[str]:
    """Return the settings of the page's recipe as `section.key=value`."""
    recipe = tomllib.loads(re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)[1])
    return [f"{section}.{key}={str(value).lower()}" for section, values in recipe.items() for key, value in values.items()]


@pytest.mark.slow
def test_installed_package_trains_and_translates(installed: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *page_settings())
    dragoman.train(recipe)
    bundle = load_bundle(tmp_path / "run" / "bundle")
    assert bundle.recipe == recipe
    network = bundle.model.encoder.get_submodule("layers.0.feed_forward")
    assert isinstance(network, FeedForward)
    assert type(network).__name__ == "SquaredReluNetwork"
    x = torch.randn(1, 3, 16)
    torch.testing.assert_close(network.eval()(x), network.outer(network.inner(x).clamp(min=0.0) ** 2))
    translator = dragoman.load(tmp_path / "run" / "bundle")
    assert isinstance(translator, Translator)
    translations = translator.translate(["one red two"], nbest=4)
    assert translations[0].text == min((other.text for other in (translations[0], *translations[0].alternatives)), key=len)


def test_loss_of_a_package_is_added(installed: Path) -> None:
    training = TrainingConfig.model_validate({"output_penalty": 0.5})
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2, "residual_dropout": 0.0}
    model = build_model(ModelConfig.model_validate(sizes), source_vocab_size=12, target_vocab_size=12).eval()
    batch = collate([[5, 6, 7]], [[4, 5]], start_id=2)

    def loss(model: object, batch: object) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(1.0), torch.tensor(2.0)

    value, likelihood = training.loss_extensions[0].change_loss(loss, None)(model, batch)
    expected = 1.0 + 0.5 * 3 * float(model.output.detach().square().mean())  # two tokens and the end
    assert float(value.detach()) == pytest.approx(expected)
    assert float(likelihood) == 2.0


def test_command_of_a_package_runs(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two three", encoding="utf-8")
    assert CliRunner().invoke(cli, ["count-words", str(tmp_path / "text")]).output == "3\n"
    assert "count-words" in CliRunner().invoke(cli, ["--all"]).output
    assert "count-words" not in CliRunner().invoke(cli, []).output


def test_doctor_lists_entries_with_their_packages(installed: Path) -> None:
    attached = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).output)["hooks"]
    assert {"ctc", "squared_relu (my-ideas)"} <= set(attached["architectures"])
    assert attached["commands"] == ["count-words (my-ideas)"]


def test_default_keys_load_no_entry(installed: Path) -> None:
    recipe = make_recipe({"size": "tiny"})
    assert (recipe.model.extensions, recipe.training.extensions, recipe.decoding.extensions) == ((), (), ())
    assert "my_ideas" not in sys.modules
    off = make_recipe({"size": "tiny"}, ["model.squared_relu=false"])
    assert off == recipe


def test_key_of_a_package_is_checked_like_others(installed: Path) -> None:
    with raises_code("invalid-recipe", "training.output_penalty = -1"):
        make_recipe({}, ["training.output_penalty=-1"])
    with raises_code("unknown-key", "model.squared_rely is not a key", "squared_relu"):
        make_recipe({}, ["model.squared_rely=true"])


def test_broken_entry_is_named_in_one_line(site: Path) -> None:
    tables = {"dragoman.architectures": {"broken": "broken_ideas:Nothing"}, "dragoman.commands": {"fail": "broken_ideas:fail"}}
    install(site, "broken-ideas", tables, {"broken_ideas": "raise RuntimeError('no\\nsuch thing')\n"})
    assert make_recipe({}, ["model.feed_forward=moe"]).model.extensions  # a recipe of ours does not need it
    with pytest.raises(RecipeError, match=r"broken-ideas: its entry broken = .* cannot be imported: no such thing") as raised:
        make_recipe({}, ["model.new_idea=true"])
    assert "\n" not in str(raised.value)
    assert "its entry broken" in CliRunner().invoke(cli, ["doctor"]).output
    result = CliRunner().invoke(cli, ["fail"])
    assert isinstance(result.exception, HookError)
    assert CliRunner().invoke(cli, ["--all"]).exit_code == 0


def test_own_entries_have_distinct_keys_and_load() -> None:
    for hook, section in (("architectures", ModelConfig), ("losses", TrainingConfig)):
        keys = [key for entry in list_own_entries(hook) for key in load_entry(entry).model_fields]
        assert len(keys) == len(set(keys))
        assert not set(keys) & set(section.model_fields)
    assert len(HOOKS) < 10


def test_source_tree_and_metadata_name_the_same_entries() -> None:
    """An editable installation may be older than the tree, but not a fresh one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for hook in HOOKS:
        assert {entry.name: entry.value for entry in list_own_entries(hook)} == project.get(f"dragoman.{hook}", {})
        others = [
            entry.name for entry in entry_points(group=f"dragoman.{hook}") if entry.dist and entry.dist.name != "dragoman"
        ]
        assert len(list_entries(hook)) == len(list_own_entries(hook)) + len(others)
