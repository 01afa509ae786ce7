"""Copy the documentation into a build folder and add the reference pages that are generated from the code.

Run by `make docs`:  python scripts/make_reference.py [FOLDER]

The folder (`build/docs` by default) is replaced. The generated pages are `GENERATED_PAGES`. Each section of `SPLIT_PAGES`
becomes a page of its own, and so the navigation of `zensical.toml` in the file `zensical.toml` beside the folder.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter

from dragoman.bundle import BundleMetadata
from dragoman.cli import translation_output
from dragoman.cli.main import COMMAND_MODULES, COMMANDS, cli
from dragoman.config import Recipe, RecipeSection
from dragoman.config.recipe_schema import make_recipe_schema, read_sentences
from dragoman.parsing.parse_result import Parse
from dragoman.training.monitoring.events import RunEvent, RunInfo, StepReport, ValidationReport
from dragoman.training.report import TrainingReport

ROOT = Path(__file__).resolve().parents[1]
GENERATED_PAGES = (
    "reference/cli.md",
    "reference/recipe.md",
    "reference/schemas.md",
    "reference/errors.md",
    "benchmarks/claims.md",
)
# Long pages, in the folder `reference`.
SPLIT_PAGES = ("python-api", "cli", "recipe", "schemas")
# Modules that print one of the pages as Markdown, by `python -m MODULE`, beside this file or of dragoman.
PAGE_MODULES = {
    "reference/recipe.md": "recipe_reference",
    "reference/errors.md": "dragoman.errors",
    "benchmarks/claims.md": "dragoman.paper.claims",
}
# Classes of the Python API whose fields the lines of `--json` repeat.
DESCRIBED_BY: dict[str, type] = {"ParseLine": Parse}
MAX_TITLE = 40
"""Characters of a section's title that the name of its file holds; of a longer title, it holds the first part."""
EXIT_STATUSES = """\
| status | meaning |
| --- | --- |
| 0 | The command has finished. |
| 1 | Something failed. One line on standard error names the problem, the place and the remedy. |
| 2 | The recipe, an option or an argument asks for something impossible. |
| 3 | Some lines are incomplete: truncated, repetitive, too long or without output. The output has all lines. |
| 4 | A file of `translate-file` was left out. The other files are translated. |
| 130 | The user stopped the command. A run is resumed by the same command. |
"""
TITLES = {
    "reference/cli.md": "# Command line",
    "reference/recipe.md": "# Recipe keys",
    "reference/schemas.md": "# JSON schemas",
    "reference/errors.md": "# Exit statuses and error codes",
    "benchmarks/claims.md": "# The paper's claims",
}
INTRODUCTIONS = {
    "reference/cli.md": "This page is generated from the commands. `dragoman COMMAND --help` prints the same text.",
    "reference/recipe.md": "This page is generated from `dragoman.config`. Unknown keys are errors.",
    "reference/schemas.md": "This page is generated from the code. Each schema describes one file or one kind of JSON output.",
    "reference/errors.md": f"## Exit statuses\n\n{EXIT_STATUSES}\n## Error codes\n\nEach error has a stable code.",
    "benchmarks/claims.md": "This page is generated from the claims that `dragoman paper claims` lists.",
}


def run_module(name: str) -> str:
    """Return the Markdown that a module prints, without its own title."""
    result = subprocess.run([sys.executable, "-m", name], capture_output=True, text=True, check=True, cwd=ROOT / "scripts")
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
    context = click.Context(cli, info_name="dragoman", **cli.context_settings)
    sections: list[str] = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if command is not None:
            sections.extend(format_command(name, command, context))
    return "\n".join(sections)


# --- JSON schemas ----------------------------------------------------------------------------------------------------------


def list_schema_types() -> dict[str, Any]:
    """Return the types whose JSON schema is published, by the file or the command that writes them."""
    types: dict[str, Any] = {
        "recipe.json": Recipe,
        "report.json": TrainingReport,
        "metrics.jsonl, type run": RunInfo,
        "metrics.jsonl, type train": StepReport,
        "metrics.jsonl, type valid": ValidationReport,
        "metrics.jsonl, type event": RunEvent,
        "config.json of a bundle, metadata": BundleMetadata,
    }
    modules = [translation_output, *map(import_module, COMMAND_MODULES)]
    for name, kind in (item for module in modules for item in vars(module).items()):
        command = re.search(r"`(dragoman [\w …-]+ --json)`", inspect.getdoc(kind) or "") if inspect.isclass(kind) else None
        if command and name.endswith(("Line", "Output", "Scores")):
            types.setdefault(command[1], kind)
    return types


def make_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a recipe, a dataclass or a pydantic model."""
    if kind is Recipe:
        return make_recipe_schema()
    return TypeAdapter(kind).json_schema(mode="serialization")


def read_field_meanings(kind: Any) -> dict[str, str]:
    """Return the descriptions of fields from the `name: description` lines in the docstrings of a class and its bases."""
    if issubclass(kind, RecipeSection):
        links = {name: f"[Keys of the section](recipe.md#{name})" for name in kind.model_fields}
        return {**links, **read_sentences(kind)}
    meanings: dict[str, str] = {}
    names: list[str] = []
    documents = [inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)]
    for line in "\n\n".join(documents).splitlines():
        entry = re.fullmatch(r"\s*(\w+(?:, \w+)*): (\S.*)", line)
        if entry:
            names = entry[1].split(", ")
            meanings.update(dict.fromkeys(names, entry[2]))
        elif names and line.startswith(" ") and line.strip():
            meanings.update({name: f"{meanings[name]} {line.strip()}" for name in names})
        else:
            names = []
    return meanings


def describe_fields(schema: dict[str, Any], meanings: dict[str, str]) -> str:
    """Return a table of the fields of a JSON schema."""
    rows = []
    for name, field in schema.get("properties", {}).items():
        kinds = [field, *field.get("anyOf", [])]
        types = [kind.get("type") or kind.get("$ref", "").rpartition("/")[2] for kind in kinds]
        types = [kind for kind in types if kind] or ["any"]
        required = "yes" if name in schema.get("required", []) else "no"
        meaning = escape_cell(meanings.get(name, ""))
        rows.append(f"| `{name}` | {' or '.join(dict.fromkeys(types))} | {required} | {meaning} |")
    return "\n".join(["| field | type | required | meaning |", "| --- | --- | --- | --- |", *rows])


def make_schemas_page(folder: Path) -> str:
    """Return the page of the JSON schemas, and write each schema as a file into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = []
    for title, kind in list_schema_types().items():
        schema = make_schema(kind)
        name = f"{kind.__name__}.schema.json"
        (folder / name).write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        summary = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        described_by = DESCRIBED_BY.get(kind.__name__, kind)
        table = describe_fields(schema, {**read_field_meanings(described_by), **read_field_meanings(kind)})
        sections.append(f"## {title}\n\n{summary}\n\n[Download the schema](schemas/{name})\n\n{table}\n")
    return "\n".join(sections)


# --- Pages -----------------------------------------------------------------------------------------------------------------


def make_page(path: str, folder: Path) -> str:
    """Return the Markdown of a generated page."""
    if path in PAGE_MODULES:
        body = run_module(PAGE_MODULES[path])
    else:
        body = make_cli_page() if path == "reference/cli.md" else make_schemas_page(folder / "reference" / "schemas")
    return f"{TITLES[path]}\n\n{INTRODUCTIONS[path]}\n\n{body}\n"


def unescape_code_in_tables(text: str) -> str:
    """Return Markdown without backslashes before the vertical bars in code of tables. Other renderers need the backslashes."""
    rows = [
        re.sub(r"`[^`]*`", lambda match: match[0].replace("\\|", "|"), line) if line.startswith("|") else line
        for line in text.split("\n")
    ]
    return "\n".join(rows)


def split_page(page: Path) -> list[str]:
    """Move a page into a folder of its name, with a page for each section, and return the names of the new files."""
    introduction, *sections = re.split("^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    page.unlink()
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    entries = {"index": introduction}
    for section in sections:
        title, _, body = section.partition("\n")
        names = title.removeprefix("dragoman ")
        name = re.sub(r"\W+", "-", names if len(names) < MAX_TITLE else names.partition(",")[0]).strip("-").lower()
        body = re.sub("^##", "#", body, flags=re.MULTILINE)
        entries[name] = f"# {title}\n" + re.sub(r"\]\((?!https?:)", "](../", body)
        sentence = re.search(r"^[A-Z].*?\.(?=\s)", body, re.MULTILINE)
        objects = ", ".join(f"`{name}`" for name in re.findall(r"^::: (\S+)", body, re.MULTILINE))
        anchor = re.sub(r"[^\w\s-]", "", title).lower().replace(" ", "-")
        meaning = objects or (sentence[0] if sentence else "")
        entries["index"] += f"- [{title}](./{name}.md){{ #{anchor} }}{': ' * bool(meaning)}{meaning}\n"
    for name, text in entries.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return [f"{name}.md" for name in entries]


def link_sections(text: str, reference: Path) -> str:
    """Return Markdown whose links to split pages lead to the pages of their sections."""

    def replace(match: re.Match[str]) -> str:
        folder, name, anchor = match.groups()
        section = anchor if anchor and (reference / name / f"{anchor}.md").exists() else "index"
        return f"]({folder}{name}/{section}.md)"

    return re.sub(rf"\]\(((?:\.\./)*(?:reference/)?)({'|'.join(SPLIT_PAGES)})\.md(?:#([\w-]+))?\)", replace, text)


def write_configuration(path: Path, files: dict[str, list[str]]) -> None:
    """Write `zensical.toml` with the pages of the sections, for a site beside it in the folder `build`."""
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    for name, names in files.items():
        text = text.replace(f'"reference/{name}.md"', json.dumps([f"reference/{name}/{file}" for file in names]))
    text = text.replace('"build/', '"').replace('"src"', '"../src"').replace('"scripts/', '"../scripts/')
    path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Write the documentation with its generated pages into the folder."""
    folder = Path(arguments[0]) if arguments else ROOT / "build" / "docs"
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(ROOT / "docs", folder)
    for path in GENERATED_PAGES:
        (folder / path).write_text(make_page(path, folder), encoding="utf-8")
    reference = folder / "reference"
    write_configuration(folder.parent / "zensical.toml", {name: split_page(reference / f"{name}.md") for name in SPLIT_PAGES})
    for page in folder.rglob("*.md"):
        text = link_sections(unescape_code_in_tables(page.read_text(encoding="utf-8")), reference)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
