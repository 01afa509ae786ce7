"""Command `models`: what this machine has, and what can be fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

import click

from dragoman.catalog.by_name import fetch_with_progress
from dragoman.catalog.entries import RUNTIME_BYTES, CatalogModel
from dragoman.console.options import json_option, language_option, print_note, usage_error
from dragoman.errors import DragomanError
from dragoman.languages import is_same_language
from dragoman.runtime.counts import format_count

Place: TypeAlias = Literal["machine", "firefox", "opus-mt", "argos"]
"""Where a model is: on this machine, or in an index."""


@dataclass(frozen=True)
class ListedModel:
    """Model in the output of `dragoman models --json`.

    source_language, target_language: None for a model of many languages
    bundle: folder of its bundle on this machine; None if it is to be fetched
    weight_bytes, memory_bytes: bytes of its weights in int8, and about the memory of a process; None if they are not known
    """

    name: str
    source_language: str | None
    target_language: str | None
    place: Place
    license: str | None
    weight_bytes: int | None
    memory_bytes: int | None
    score: str | None
    bundle: str | None


@click.command()
@language_option("--from", "source_language", "Models of this source language, such as en.")
@language_option("--to", "target_language", "Models of this target language.")
@click.option("--all", "show_all", is_flag=True, help="List all models.")
@click.option("--refresh", "do_refresh", is_flag=True, help="Read the indexes of the projects first. Needs a network.")
@click.option("--fetch", "name", metavar="NAME", help="Fetch and convert this model, and list it alone.")
@json_option()
def models(
    source_language: str | None,
    target_language: str | None,
    show_all: bool,
    do_refresh: bool,
    name: str | None,
    as_json: bool,
) -> None:
    """List models: of this machine, and of Firefox, OPUS-MT and Argos Translate.

    The commands translate, translate-file and serve take a NAME of the list, or a pair such as en-pt. They fetch the model
    once, convert it, and never go online for it again. The list comes with dragoman.

    \b
    Example:  dragoman models --from en --to pt
              dragoman translate firefox-en-pt letter.txt
    """
    from dragoman.catalog.indexes import INDEXES
    from dragoman.catalog.listing import find_model, list_models, refresh
    from dragoman.console.terminal import print_json

    if do_refresh:
        for index in INDEXES:
            refresh(index)
    if name is not None:
        model = find_model(name)
        if model is None:
            raise usage_error(f"--fetch {name}: no model of the list has this name; see dragoman models --all")
        listed = [_describe_bundle(model.name, fetch_with_progress(model), model)]
    else:
        published = list(list_models())
        local = list(_iter_local(published))
        known = {entry.name for entry in local}
        listed = local + [_describe(model) for model in published if model.name not in known]
    chosen = [
        entry
        for entry in listed
        if _has_language(entry.source_language, source_language) and _has_language(entry.target_language, target_language)
    ]
    if as_json:
        print_json({"models": chosen})
        return
    is_filtered = show_all or name or source_language or target_language
    _print_table(chosen if is_filtered else [entry for entry in chosen if entry.place == "machine"])
    if not is_filtered:
        for index in INDEXES:
            pairs = len({(e.source_language, e.target_language) for e in chosen if e.place == index})
            click.echo(f"{index:8} {format_count(pairs, 'direction')} to fetch")
        click.echo("Choose some: dragoman models --from en --to pt. All: --all.")


def _iter_local(published: Iterable[CatalogModel]) -> Iterator[ListedModel]:
    """Yield the models of this machine by name. The second name of a fetched model, its pair, is left out.

    A damaged bundle is left out too, after a line on standard error.
    """
    from dragoman.model_packages import list_models, resolve_model

    by_name = {model.name: model for model in published}
    for name in list_models():
        folder = resolve_model(name)
        if folder.name != name:
            continue
        try:
            yield _describe_bundle(name, folder, by_name.get(name))
        except (DragomanError, OSError) as error:
            print_note(f"{name} is left out: {error}")


def _describe_bundle(name: str, folder: Path, model: CatalogModel | None) -> ListedModel:
    """Return the row of a model of this machine. What the bundle says of itself takes precedence over what the index says."""
    from dragoman.bundle import WEIGHTS_FILE, get_license, list_language_pairs, read_config

    recipe, _, metadata = read_config(folder)
    pairs = list_language_pairs(recipe.task, recipe.tokenizer, metadata)
    source, target = pairs[0] if len(pairs) == 1 else (None, None)
    weight_bytes = (folder / WEIGHTS_FILE).stat().st_size
    return ListedModel(
        name,
        source,
        target,
        "machine",
        get_license(recipe.card.license, metadata) or (model.license if model else None),
        weight_bytes,
        weight_bytes + RUNTIME_BYTES,
        recipe.card.score or (model.score if model else None),
        str(folder),
    )


def _describe(model: CatalogModel) -> ListedModel:
    """Return the row of a model that is to be fetched."""
    return ListedModel(
        model.name,
        model.source_language,
        model.target_language,
        cast(Place, model.index),
        model.license,
        model.weight_bytes,
        model.memory_bytes,
        model.score,
        None,
    )


def _has_language(code: str | None, language: str | None) -> bool:
    """Return whether a model has this language. A model of many languages has each."""
    return language is None or code is None or is_same_language(code, language)


def _print_table(listed: Sequence[ListedModel]) -> None:
    from dragoman.console.terminal import print_table

    print_table(
        "models" if listed else "models: none",
        ["name", "languages", "weights", "memory", "license", "score", "where"],
        [
            (
                entry.name,
                f"{entry.source_language or '*'} → {entry.target_language or '*'}",
                _format_megabytes(entry.weight_bytes),
                _format_megabytes(entry.memory_bytes),
                entry.license or "",
                entry.score or "",
                "this machine" if entry.place == "machine" else entry.place,
            )
            for entry in listed
        ],
    )


def _format_megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.0f} MB"
