"""Command `recipe`: list the recipes of the package, print one, and say where each of its values comes from."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dragoman.console.options import PATH_TYPE, json_option, overrides_argument, usage_error


@click.command()
@click.argument("recipe", required=False, type=PATH_TYPE)
@overrides_argument
@click.option("--resolve", is_flag=True, help="List every value that training would use, with its origin.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of recipes, by which editors complete and check keys.")
@json_option()
def recipe(recipe: Path | None, overrides: tuple[str, ...], resolve: bool, schema: bool, as_json: bool) -> None:
    """Print RECIPE, or list the recipes of the package.

    With --resolve, each value stands beside its origin: command line, recipe, corpora, initial bundle, size, preset or
    default.

    An editor with TOML support completes the keys of a recipe whose first line is `#:schema FILE`, the file of --schema.

    \b
    Example:  dragoman recipe
              dragoman recipe multi30k-ende > own.toml
              dragoman recipe multi30k-ende training.max_steps=1000 --resolve
              dragoman recipe --schema
    """
    if schema:
        from dragoman.config.recipe_schema import make_recipe_schema

        click.echo(json.dumps(make_recipe_schema(), indent=1, ensure_ascii=False))
        return
    from dragoman.config.origins import trace_values
    from dragoman.config.recipe import list_builtin_recipes, parse_toml, read_recipe_text
    from dragoman.console.terminal import print_facts, print_json, print_table

    if recipe is None:
        first_lines = {
            name: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            for name, path in list_builtin_recipes().items()
        }
        if as_json:
            print_json(first_lines)
        else:
            print_facts("Recipes of the package", first_lines)
        return
    text = read_recipe_text(recipe)
    if not resolve:
        if overrides or as_json:
            raise usage_error("KEY=VALUE and --json go with --resolve")
        click.echo(text, nl=False)
        return
    from dragoman.data.data_defaults import read_training_recipe  # needs the extra train

    settings, _, chosen = read_training_recipe(recipe, overrides)
    values = trace_values(settings, parse_toml(text, where=str(recipe)), overrides, chosen=chosen)
    if as_json:
        print_json(values)
        return
    rows = [(item.key, json.dumps(item.value, ensure_ascii=False), item.origin) for item in values]
    print_table(str(recipe), ["key", "value", "origin"], rows)
