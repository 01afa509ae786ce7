"""Command `card`: show or change what a bundle says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from dragoman.console.options import bundle_argument, json_option


@dataclass(frozen=True)
class CardOutput:
    """Output of `dragoman model card --json`: the keys of the recipe's section `card`."""

    purpose: str
    license: str
    score: str
    examples: list[str]


@click.command()
@bundle_argument
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@json_option()
def card(bundle: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Show what BUNDLE says about itself, or change it with KEY=VALUE.

    The keys are those of the recipe's section [card]: purpose, license, score and examples. `info`, `models`, `translate` on a
    terminal and the page of the server show them. The weights stay as they are.

    \b
    Example:  dragoman model card runs/multi30k-ende/bundle purpose="Captions of pictures" license=CC-BY-4.0
              dragoman model card runs/multi30k-ende/bundle 'examples=["Add the flour."]'
    """
    from dragoman.bundle import read_config, replace_config
    from dragoman.config import parse_setting
    from dragoman.config.recipe import update_section
    from dragoman.console.terminal import print_facts, print_json

    recipe, _, _ = read_config(bundle)
    if settings:
        changed = update_section(recipe.card, dict(map(parse_setting, settings)), where="card")
        recipe = recipe.model_copy(update={"card": changed})
        replace_config(bundle, recipe=recipe)
    output = CardOutput(**recipe.card.model_dump())
    if as_json:
        print_json(output)
        return
    facts = {"purpose": output.purpose, "license": output.license, "score": output.score}
    facts |= {f"example {number}": text for number, text in enumerate(output.examples, start=1)}
    print_facts(str(bundle), {name: value or "not stated" for name, value in facts.items()})
