"""Copy the documentation into a build folder and add the reference pages that are generated from the code.

Run by `make docs`:  python scripts/make_reference.py [FOLDER]

The folder (`build/docs` by default) is replaced. The generated pages are `GENERATED_PAGES`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from dragoman.cli.main import COMMANDS, cli
from dragoman.config import Recipe, RecipeSection

ROOT = Path(__file__).resolve().parents[1]
GENERATED_PAGES = (
    "reference/cli.md",
    "reference/recipe.md",
    "reference/schemas.md",
    "reference/errors.md",
    "reference/backends.md",
)
# Modules that print one of the pages as Markdown, by `python -m MODULE`.
PAGE_MODULES = {
    "reference/recipe.md": "dragoman.config.reference",
    "reference/errors.md": "dragoman.errors",
    "reference/backends.md": "dragoman.inference.backends.support_table",
}
EXIT_STATUSES = """\
| status | meaning |
| --- | --- |
| 0 | The command has finished. |
| 1 | Something failed. One line on standard error names the problem, the place and the remedy. |
| 2 | The recipe, an option or an argument asks for something impossible. |
| 3 | Some lines are incomplete: truncated, repetitive, too long or without output. The output has all lines. |
| 130 | The user stopped the command. A run is resumed by the same command. |
"""
TITLES = {
    "reference/cli.md": "# Command line",
    "reference/recipe.md": "# Recipe keys",
    "reference/schemas.md": "# JSON schemas",
    "reference/errors.md": "# Exit statuses and error codes",
    "reference/backends.md": "# Features and back ends",
}
INTRODUCTIONS = {
    "reference/cli.md": "This page is generated from the commands. `dragoman COMMAND --help` prints the same text.",
    "reference/recipe.md": (
        "This page is generated from `dragoman.config`. Each key can stand in a recipe file or on the command line, as "
        "`section.key=value`. Unknown keys and values outside the limits are errors."
    ),
    "reference/schemas.md": "This page is generated from the code. Each schema describes one file or one kind of JSON output.",
    "reference/errors.md": f"## Exit statuses\n\n{EXIT_STATUSES}\n## Error codes\n\nEach error has a stable code, for programs.",
    "reference/backends.md": (
        "This page is generated from the code that chooses a back end. A request that a back end does not support falls back to "
        "another one or is refused."
    ),
}


def has_module(name: str) -> bool:
    """Return whether a module with this name exists."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def run_module(name: str) -> str:
    """Return the Markdown that a module prints, without its own title."""
    result = subprocess.run([sys.executable, "-m", name], capture_output=True, text=True, check=True, cwd=ROOT)
    lines = result.stdout.strip().splitlines()
    return "\n".join(lines[1:] if lines and lines[0].startswith("# ") else lines)


# --- Command line ----------------------------------------------------------------------------------------------------------


def format_option(parameter: click.Parameter, context: click.Context) -> str:
    """Return the row of one option in a table."""
    names, text = parameter.get_help_record(context) or (parameter.human_readable_name, "")
    # A link would begin at a square bracket, as in the range [x>=1].
    return f"| `{escape_cell(names)}` | {escape_cell(text).replace('[', '&#91;')} |"


def escape_cell(text: str) -> str:
    """Return text that can stand in a cell of a Markdown table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def format_help(text: str) -> str:
    """Return the help text of a command as Markdown, with its examples as code."""
    blocks = []
    for block in inspect.cleandoc(text.replace("\b", "")).split("\n\n"):
        if re.match(r"\s*Examples?:", block):
            code = re.sub(r"^\s*Examples?:\s*", "", block)
            blocks.append("```sh\n" + "\n".join(line.strip() for line in code.splitlines()) + "\n```")
        elif block.strip():
            blocks.append(" ".join(block.split()).replace("<", "&lt;").replace("[", "&#91;"))
    return "\n\n".join(blocks)


def format_command(name: str, command: click.Command, parent: click.Context, level: int = 2) -> Iterator[str]:
    """Yield the section of a command, and those of its subcommands."""
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path}\n"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    yield format_help(command.help or "") + "\n"
    options = [option for option in command.get_params(context) if isinstance(option, click.Option) and not option.hidden]
    rows = [format_option(option, context) for option in options if "--help" not in option.opts]
    if rows:
        yield "\n".join(["| option | meaning |", "| --- | --- |", *rows]) + "\n"
    if isinstance(command, click.Group):
        for subcommand_name in command.list_commands(context):
            subcommand = command.get_command(context, subcommand_name)
            if subcommand is not None:
                yield from format_command(subcommand_name, subcommand, context, level + 1)


def make_cli_page() -> str:
    """Return the page of all commands with their options."""
    context = click.Context(cli, info_name="dragoman")
    sections = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if command is not None:
            sections.extend(format_command(name, command, context))
    return "\n".join(sections)


# --- JSON schemas ----------------------------------------------------------------------------------------------------------


def list_schema_types() -> dict[str, Any]:
    """Return the types whose JSON schema is published, by the file or the command that writes them."""
    return {
        "recipe.json": Recipe,
        "report.json": TrainingReport,
        "metrics.jsonl, type run": RunInfo,
        "metrics.jsonl, type train": StepReport,
        "metrics.jsonl, type valid": ValidationReport,
        "metrics.jsonl, type event": RunEvent,
        "config.json of a bundle, metadata": BundleMetadata,
        "dragoman dashboard --json": RunStatus,
        **{f"dragoman {command} --json": kind for command, kind in JSON_OUTPUTS.items()},
    }


def make_schemas_page() -> str:
    """Return the page of the JSON schemas."""
    sections = []
    for title, kind in list_schema_types().items():
        document = json.dumps(TypeAdapter(kind).json_schema(), indent=2, ensure_ascii=False)
        code = textwrap.indent(f"```json\n{document}\n```", "    ")
        sections.append(f'## {title}\n\n??? note "Schema"\n\n{code}\n')
    return "\n".join(sections)


# --- Pages -----------------------------------------------------------------------------------------------------------------


def make_page(path: str) -> str:
    """Return the Markdown of a generated page."""
    module = PAGE_MODULES.get(path, "")
    if module and has_module(module):
        body = run_module(module)
    else:
        makers = {
            "reference/cli.md": make_cli_page,
            "reference/recipe.md": make_recipe_page,
            "reference/schemas.md": make_schemas_page,
        }
        body = makers[path]() if path in makers else "The table is not available in this version.\n"
    return f"{TITLES[path]}\n\n{INTRODUCTIONS[path]}\n\n{body}\n"


def main(arguments: list[str]) -> None:
    """Write the documentation with its generated pages into the folder."""
    folder = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(ROOT / "docs", folder)
    for path in GENERATED_PAGES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(make_page(path), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
