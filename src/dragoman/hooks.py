"""Hooks: the places where an experiment of dragoman, or a package of your own, attaches to it.

An entry is an entry point of a distribution, in the group `dragoman.<hook>`:

    [project.entry-points."dragoman.architectures"]
    experts = "dragoman.experiments.experts.options:ExpertsOptions"

It is loaded when it is needed, and not before. `HOOKS` says what an entry of each hook is. The how-to page "Extend dragoman"
builds a package with one entry for each. The protocols of the first three hooks are the classes that an entry derives from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import HookError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DISTRIBUTION = "dragoman"
HOOKS: Mapping[str, str] = {
    "architectures": (
        "subclass of `dragoman.config.ModelExtension`: its keys join the section `model` of a recipe, and `change_parts` "
        "replaces functions of `dragoman.model.parts.ModelParts`"
    ),
    "losses": (
        "subclass of `dragoman.config.LossExtension`: its keys join the section `training`, and `change_loss` returns a "
        "function of a model and a batch, as `dragoman.training.losses.function` describes"
    ),
    "searches": (
        "subclass of `dragoman.config.SearchExtension`: its keys join the section `decoding`, and `search` returns the "
        "hypotheses of a batch from the steps of a `dragoman.tasks.inference_model.InferenceModel`"
    ),
    "tasks": ("`dragoman.data.tokenization.vocabulary.StructuredTask`, for a `task.kind` without a text target: `parsing`"),
    "commands": "click command with the name of the entry; `dragoman --all` lists it",
}
"""What an entry of each hook is."""


def list_entries(hook: str) -> tuple[EntryPoint, ...]:
    """Return the entries of a hook: those of dragoman, and then those of other distributions in the order of their names."""
    return (*list_own_entries(hook), *list_other_entries(hook))


@cache
def list_other_entries(hook: str) -> tuple[EntryPoint, ...]:
    """Return the entries of other distributions. It reads the metadata of each distribution that is installed."""
    from importlib.metadata import entry_points  # a translation asks no hook

    assert hook in HOOKS, f"{hook} is no hook"
    group = f"{DISTRIBUTION}.{hook}"
    others = [entry for entry in entry_points(group=group) if entry.dist is None or entry.dist.name != DISTRIBUTION]
    return tuple(sorted(others, key=lambda entry: entry.name))


@cache
def list_own_entries(hook: str) -> tuple[EntryPoint, ...]:
    """Return the entries of dragoman itself.

    An editable installation has the entry points of the day when it was installed, so a source tree is read instead.
    """
    import tomllib
    from importlib.metadata import EntryPoint, PackageNotFoundError, distribution

    group = f"{DISTRIBUTION}.{hook}"
    project_file = Path(__file__).parents[2] / "pyproject.toml"
    if project_file.is_file():
        entries = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]["entry-points"].get(group, {})
        return tuple(EntryPoint(name, value, group) for name, value in entries.items())
    try:
        return tuple(distribution(DISTRIBUTION).entry_points.select(group=group))
    except PackageNotFoundError:
        return ()


def load_entry(entry: EntryPoint) -> Any:
    """Return the object of an entry. Raises HookError in one line if it cannot be imported."""
    try:
        return entry.load()
    except Exception as error:  # the code of a stranger may raise anything
        distribution = entry.dist.name if entry.dist is not None else DISTRIBUTION
        problem = " ".join(str(error).split()) or type(error).__name__
        raise HookError(
            f"{distribution}: its entry {entry.name} = {entry.value!r} of {entry.group} cannot be imported: {problem}; update "
            f"or remove it: pip uninstall {distribution}"
        ) from error


def describe_entry(entry: EntryPoint) -> str:
    """Return the name of an entry, with that of its distribution if it is another one."""
    return entry.name if entry.dist is None or entry.dist.name == DISTRIBUTION else f"{entry.name} ({entry.dist.name})"


def load_task(name: str) -> Any:
    """Return the entry of the hook `tasks` with this name. Raises HookError if there is none or it cannot be imported."""
    entry = next((entry for entry in list_entries("tasks") if entry.name == name), None)
    if entry is None:
        raise HookError(f"no package attaches the task {name!r}; install dragoman again, or the package that has it")
    return load_entry(entry)


def iter_entries(hook: str) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield each entry of a hook that can be imported, with its object; `find_broken_entries` names the others.

    Entries of other distributions come last, and are searched for then.
    """
    for list_part in (list_own_entries, list_other_entries):
        for entry in list_part(hook):
            try:
                yield entry, load_entry(entry)
            except HookError:
                continue


def find_broken_entries(hook: str) -> list[str]:
    """Return one line for each entry of a hook that cannot be imported."""
    problems = []
    for entry in list_entries(hook):
        try:
            load_entry(entry)
        except HookError as error:
            problems.append(str(error))
    return problems
