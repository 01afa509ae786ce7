"""Reference of all recipe keys, as Markdown: `python scripts/recipe_reference.py`.

Each key is listed with its type, default, limits and the sentence under it in the source.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from dragoman.config.data_config import FileNames
from dragoman.config.extension import ExtensibleSection, iter_extension_types
from dragoman.config.presets import PRESETS, SIZES, SectionValues
from dragoman.config.recipe import Recipe
from dragoman.config.recipe_schema import read_sentences
from dragoman.config.section import Limits, RecipeSection, SectionField

_TYPE_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True)
class RecipeKey:
    """One key of a recipe, as the reference shows it.

    section: dotted key of the section that holds it, such as `data.cleaning`; empty for the top level
    default: value as TOML writes it; empty if the key has no default
    limits: range of the value, such as `1 ≤ value ≤ 1,000`; empty if its type is the only limit
    """

    section: str
    name: str
    type_name: str
    default: str
    limits: str
    sentence: str

    @property
    def key(self) -> str:
        """Return the dotted key, such as `data.cleaning.max_words`."""
        return f"{self.section}.{self.name}".removeprefix(".")


def iter_recipe_keys(section: type[RecipeSection] = Recipe, path: str = "") -> Iterator[RecipeKey]:
    """Yield every key of a section and of the sections in it, in the order of the source.

    A section in a list is named `[N]`, and a section that the user names is `NAME`, such as `data.corpora.NAME.weight`.
    """
    sentences = dict(read_sentences(section))
    fields = dict(section.model_fields)
    for extension_type in iter_extension_types(section.hook) if issubclass(section, ExtensibleSection) else ():
        sentences |= read_sentences(extension_type)
        fields |= extension_type.model_fields
    inner_sections = []
    for name, field in fields.items():
        inner_section, suffix = _find_section(field.annotation)
        if inner_section is not None:
            inner_sections.append((inner_section, f"{path}.{name}".removeprefix(".") + suffix))
        if inner_section is None or name in sentences:
            type_name, limits = _describe_type(field)
            yield RecipeKey(path, name, type_name, _format_default(field), limits, sentences.get(name, ""))
    for inner_section, inner_path in inner_sections:
        yield from iter_recipe_keys(inner_section, inner_path)


def render_reference() -> str:
    """Return the reference as Markdown, with one table for each section. Sections of one type share a table."""
    paths_by_names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    keys_by_section: dict[str, list[RecipeKey]] = {}
    for key in iter_recipe_keys():
        keys_by_section.setdefault(key.section, []).append(key)
    for path, keys in keys_by_section.items():
        paths_by_names.setdefault(tuple((key.name, key.sentence) for key in keys), []).append(path)
    tables = [_render_table(paths, keys_by_section[paths[0]]) for paths in paths_by_names.values()]
    introduction = (
        "# Recipe keys\n\nA recipe is a TOML file. A key of a section is set in its table, or on the command line as "
        "`section.key=value`. A dash stands for a key without a default value. The keys `preset` and `size` replace some "
        "defaults, as the last two tables show.\n"
    )
    return "\n".join([introduction, *tables, _render_variants("preset", PRESETS), _render_variants("size", SIZES)])


def _render_variants(option: str, variants: Mapping[str, SectionValues]) -> str:
    """Return the table of the values that each preset or size sets, with the longer of keys and variants as rows."""
    values_by_variant = {
        variant: {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
        for variant, sections in variants.items()
    }
    keys = dict.fromkeys(key for values in values_by_variant.values() for key in values)
    cells = {
        (variant, key): _format_value(values.get(key)) or "–" for variant, values in values_by_variant.items() for key in keys
    }
    if len(variants) > len(keys):
        rows = [" | ".join([f"| `{variant}`", *(cells[variant, key] for key in keys)]) + " |" for variant in variants]
        return _join_table(f"Values of `{option}`", [option, *(f"`{key}`" for key in keys)], rows)
    rows = [" | ".join([f"| `{key}`", *(cells[variant, key] for variant in variants)]) + " |" for key in keys]
    return _join_table(f"Values of `{option}`", ["key", *(f"`{variant}`" for variant in variants)], rows)


def _render_table(paths: Sequence[str], keys: Sequence[RecipeKey]) -> str:
    title = ", ".join(f"`{path}`" for path in paths) if paths[0] else "Top level"
    rows = [
        f"| `{key.name}` | {_escape_cell(key.type_name)} | {f'`{key.default}`' if key.default else '–'} "
        f"| {_escape_cell(key.limits) or '–'} | {_escape_cell(key.sentence)} |"
        for key in keys
    ]
    return _join_table(title, ("key", "type", "default", "limits", "meaning"), rows)


def _join_table(title: str, header: Sequence[str], rows: Sequence[str]) -> str:
    return "\n".join([f"## {title}\n", f"| {' | '.join(header)} |", "| --- " * len(header) + "|", *rows, ""])


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _find_section(annotation: Any) -> tuple[type[RecipeSection] | None, str]:
    """Return the section that a value holds, and the suffix of its key: `[N]` in a list, `.NAME` in a table."""
    for part in _split_union(annotation):
        plain = _split_annotated(part)[0]
        if isinstance(plain, type) and issubclass(plain, RecipeSection):
            return plain, ""
        item = _split_annotated(typing.get_args(plain)[-1])[0] if typing.get_origin(plain) in (list, dict) else None
        if isinstance(item, type) and issubclass(item, RecipeSection):
            return item, "[N]" if typing.get_origin(plain) is list else ".NAME"
    return None, ""


def _describe_type(field: SectionField) -> tuple[str, str]:
    """Return the name of a key's type and its limits."""
    names, limits = [], ""
    if set(_split_union(FileNames)) <= set(_split_union(field.annotation)):
        return "file name or list of file names", ""
    for part in _split_union(field.annotation):
        plain, metadata = _split_annotated(part)
        if plain is NoneType:
            continue
        names.append(_name_type(plain))
        limits = limits or _describe_limits(metadata)
    return " or ".join(dict.fromkeys(names)), limits


def _name_type(plain: Any) -> str:
    arguments = typing.get_args(plain)
    origin = typing.get_origin(plain)
    if origin is Literal:
        quoted = [f'`"{choice}"`' for choice in arguments]
        return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
    if origin is list:
        return f"list: {_name_type(_split_annotated(arguments[0])[0])}"
    if origin is dict:
        return f"table by corpus name: {_name_type(_split_annotated(arguments[1])[0])}"
    if isinstance(plain, type) and issubclass(plain, RecipeSection):
        return "section"
    return _TYPE_NAMES[plain]


def _describe_limits(metadata: Sequence[Any]) -> str:
    """Return the range of numbers, or the number of items of a list. Later limits replace earlier ones."""
    limits = Limits()
    for item in metadata:
        limits = limits.merge(item) if isinstance(item, Limits) else limits
    lower = (limits.ge, "≤") if limits.gt is None else (limits.gt, "<")
    upper = (limits.le, "≤") if limits.lt is None else (limits.lt, "<")
    if lower[0] is not None or upper[0] is not None:
        start = "" if lower[0] is None else f"{_format_limit(lower[0])} {lower[1]} "
        return start + "value" + ("" if upper[0] is None else f" {upper[1]} {_format_limit(upper[0])}")
    items = limits.min_length
    return f"{items} items" if items is not None and items == limits.max_length else ""


def _format_limit(limit: Any) -> str:
    """Return a limit; powers of two beyond a million are written as powers."""
    number = float(limit)
    if number >= 2**20 and math.log2(number).is_integer():
        return f"2^{math.log2(number):.0f}"
    return f"{int(number):,}" if number.is_integer() else f"{number:g}"


def _format_default(field: SectionField) -> str:
    return "" if isinstance(field.default, RecipeSection) else _format_value(field.default)


def _format_value(value: Any) -> str:
    """Return a value as TOML writes it; empty for None."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case float():
            return repr(value).replace("e-0", "e-")
    return str(value)


def _split_union(annotation: Any) -> Sequence[Any]:
    return typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, UnionType) else (annotation,)


def _split_annotated(annotation: Any) -> tuple[Any, list[Any]]:
    """Return a type without its annotations, and the annotations."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, []
    plain, *annotations = typing.get_args(annotation)
    return plain, annotations


if __name__ == "__main__":
    print(render_reference(), end="")
