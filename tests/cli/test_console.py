"""Tests of progress lines, tables and the JSON types of the command line."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

import click
import numpy as np
import pytest
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import Progress

from dragoman import model_packages
from dragoman.cli import translation_output
from dragoman.cli.main import COMMAND_MODULES, COMMANDS, LazyGroup, cli
from dragoman.console.input_windows import is_shown_as_it_comes
from dragoman.console.rate_bar import CountColumn, RateColumn
from dragoman.console.terminal import PreparationProgressBar, print_table, progress_bar
from dragoman.inference.commands.evaluate import ScoreOutput
from dragoman.inference.translation_result import Translation
from dragoman.io.json_fields import to_json_fields
from dragoman.runtime.progress import LineTimer, ProgressLog, RecentRate
from dragoman.training.commands.progress_bar import TrainingProgressBar
from dragoman.training.monitoring.events import RunInfo, RunStarted, StepDone

JSON_TYPES = [
    value
    for module in (translation_output, *map(import_module, COMMAND_MODULES))
    for value in vars(module).values()
    if isinstance(value, type)
    and is_dataclass(value)
    and value.__module__ == module.__name__
    and not value.__name__.endswith(("Options", "Summary"))
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, progress_lines: None) -> list[float]:
    """Return the time in a list. A test changes its item to let time pass."""
    now = [0.0]
    for function in (LineTimer.__init__, ProgressLog.__init__, RecentRate.__init__):
        monkeypatch.setitem(function.__kwdefaults__ or {}, "clock", lambda: now[0])
    return now


def walk_commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands that are not groups."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk_commands(child, (*path, name))
    else:
        yield path, command


def test_every_command_has_json_and_example() -> None:
    commands = dict(walk_commands(LazyGroup("dragoman", params=cli.params)))
    assert {path[0] for path in commands} == set(COMMANDS)
    for path, command in commands.items():
        assert any("--json" in option.opts for option in command.params), path
        assert f"dragoman {' '.join(path)}" in (command.help or ""), path
        assert all(option.help for option in command.params if isinstance(option, click.Option)), path


def test_help_fits_a_terminal_and_its_examples_can_be_copied() -> None:
    """80 columns, of which click leaves two free."""
    for path, command in walk_commands(LazyGroup("dragoman", params=cli.params)):
        text = command.get_help(click.Context(command, info_name=" ".join(("dragoman", *path)), terminal_width=78))
        assert max(map(len, text.splitlines())) <= 78, path
        joined = re.sub(r" \\\n +", " ", text)
        for example in re.findall(r"(?:\w+: |^) +(dragoman .*)", cleandoc(command.help or ""), re.MULTILINE):
            assert example in joined, path


def test_names_of_models_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_packages, "list_models", lambda: ["en-de", "fr-en"])
    command = LazyGroup("dragoman", params=cli.params).get_command(click.Context(cli), "translate")
    assert command is not None
    items = command.params[0].shell_complete(click.Context(command), "en")
    assert [(item.type, item.value) for item in items] == [("plain", "en-de"), ("file", "en")]


def test_json_outputs_have_schemas(subtests: pytest.Subtests) -> None:
    for json_type in JSON_TYPES:
        with subtests.test(json_type=json_type):
            schema = TypeAdapter(json_type).json_schema(mode="serialization")
            assert schema["type"] == "object"
            assert set(schema["properties"]) <= set(json_type.__dataclass_fields__)


def test_optional_fields_without_value_are_left_out() -> None:
    alternative = Translation("eins", -0.5, ("▁eins",), (-0.5,), attention=np.ones((1, 1)))
    assert (
        not {"mbr_score", "confidence", "pivot", "source_tokens", "attention", "alignment"} & to_json_fields(alternative).keys()
    )
    assert to_json_fields(ScoreOutput(scores=[])) == {"scores": []}
    assert to_json_fields({"nested": (alternative,)})["nested"][0]["text"] == "eins"


def test_table_in_a_pipe_is_never_folded(capsys: pytest.CaptureFixture[str]) -> None:
    header, cell, title = "a long heading " * 8, "cell" * 40, "title " * 40
    print_table(title, [header, "x"], [(cell, "1")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == title.strip()
    assert lines[1] == f"{header}{' ' * (len(cell) - len(header))}  x"
    assert lines[2] == f"{cell}  1"


@pytest.mark.parametrize("columns", [41, 42, 43, 46, 47])
def test_names_of_a_table_are_whole_in_a_narrow_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells of 20 and 21 letters need 43 columns without a frame, and 48 with one."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_table("models", ["name", "score"], [("n" * 20, "s" * 21)])
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert sum("n" * 20 in line for line in lines) == 1
    assert ("┃" in lines[2]) == (columns < 43)
    assert max(map(len, lines)) <= columns


def test_a_bar_does_not_disturb_what_a_terminal_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        assert is_shown_as_it_comes(tmp_path / "input", None) == is_terminal
        assert not is_shown_as_it_comes(tmp_path / "input", tmp_path / "output")


def test_progress_without_a_terminal_is_log_lines(clock: list[float]) -> None:
    stream = io.StringIO()
    with progress_bar(Console(file=stream), "translating", 100) as bar:
        for _ in range(5):
            clock[0] += 10.0
            bar.advance(10)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "translating: 20 of 100 lines (20 %), 1 lines/s, 1 min 20 s left",
        "translating: 40 of 100 lines (40 %), 1 lines/s, 1 min left",
    ]


def test_bar_states_rate_and_time_left_once_they_are_measured(clock: list[float]) -> None:
    """Lines that come at once say nothing about the rate: 10 more in a millisecond are not 10,000 a second."""
    column = RateColumn("lines")
    bar = Progress(column)
    bar.add_task("translating", total=100)
    (task,) = bar.tasks
    texts = []
    for seconds, done in ((0.0, 0), (5.0, 50), (0.001, 60), (10.0, 80)):
        clock[0] += seconds
        bar.update(task.id, completed=done)
        texts.append(column.render(task).plain)
    assert texts[0] == ""
    assert texts[-1] == "5.3 lines/s, 4 s left"
    assert max(float(text.partition(" ")[0]) for text in texts[1:]) <= 12


@pytest.mark.parametrize(("total", "expected"), [(None, ["", "1,200"]), (2000, ["   0/2000", "1200/2000"])])
def test_bar_counts_no_more_than_it_knows(total: int | None, expected: list[str]) -> None:
    column = CountColumn()
    bar = Progress(column)
    bar.add_task("validating", total=total)
    texts = []
    for done in (0, 1200):
        bar.update(bar.tasks[0].id, completed=done)
        texts.append(column.render(bar.tasks[0]).plain)
    assert texts == expected


def test_preparation_logs_each_task(clock: list[float]) -> None:
    stream = io.StringIO()
    bar = PreparationProgressBar(Console(file=stream))
    for task_name in ("reading train", "encoding train"):
        bar.update(task_name, 0, 50)
        clock[0] += 25.0
        bar.update(task_name, 25, 50)
    bar.close()
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "reading train: 25 of 50 pairs (50 %)",
        "encoding train: 25 of 50 pairs (50 %)",
    ]


def test_preparation_logs_between_two_tasks(clock: list[float]) -> None:
    """Hashing the input files, for example, reports no progress."""
    stream = io.StringIO()
    bar = PreparationProgressBar(Console(file=stream))
    clock[0] += 25.0
    bar.write_if_due()
    bar.update("reading train", 0, 50)
    clock[0] += 20.0
    bar.write_if_due()
    bar.close()
    clock[0] += 10.0
    bar.write_if_due()
    assert stream.getvalue().splitlines() == [
        "preparing: 25 s so far",
        "reading train: 0 of 50 pairs (0 %), 20 s so far",
    ]


def test_training_logs_phases_without_steps(clock: list[float]) -> None:
    stream = io.StringIO()
    bar = TrainingProgressBar(Console(file=stream))
    for event in (None, RunStarted(RunInfo("tiny", "run", "cpu", 1000), {}), StepDone(1, 0.5), StepDone(2, 1.0)):
        if event is not None:
            bar(event)
        clock[0] += 20.0
        bar.write_if_due()
    bar.close()
    assert stream.getvalue().splitlines() == [
        "preparing: 20 s so far",
        "1,000 parameters on cpu",
        "first step: 20 s so far",
        "training: step 1, 50.0% of the budget",
        "finishing the run: 20 s so far",
    ]


def test_waiting_for_input_is_no_progress(clock: list[float]) -> None:
    stream = io.StringIO()
    with progress_bar(Console(file=stream), "translating", None) as bar:

        def arrive_slowly() -> Iterator[int]:
            clock[0] += 60.0
            bar.write_if_due()
            yield 1

        for _ in bar.iter_input(arrive_slowly(), is_live=True):
            assert stream.getvalue() == ""
            bar.write_if_due()
            assert stream.getvalue() == "translating: 0 lines, 1 min so far\n"
        clock[0] += 60.0
        list(bar.iter_input(arrive_slowly(), is_live=False))
    assert len(stream.getvalue().splitlines()) == 2


TRANSLATE_SCRIPT = """
import sys
from dragoman.cli.main import cli
cli(["translate", sys.argv[1]], standalone_mode=False)
names = ("torch", "rich", "dragoman.evaluation.metrics", "dragoman.inference.whole_texts", "dragoman.text.placeholders")
print([name for name in names if name in sys.modules])
"""


def test_translation_in_a_pipe_imports_few_modules(bundle: Path) -> None:
    command = [sys.executable, "-c", TRANSLATE_SCRIPT, str(bundle)]
    done = subprocess.run(command, input="one red two\n", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]
