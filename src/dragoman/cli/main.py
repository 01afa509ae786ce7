"""Entry point of the command line: it finds the command, and turns an error into one line and an exit status.

The table of commands is text, so that `dragoman --help` imports no command.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, cast

import click

from dragoman.console.options import EXIT_STATUSES, FAILURE, SuggestingGroup
from dragoman.errors import BundleError, DragomanError, InterruptedRun, MissingDependencyError, RankZeroError, is_out_of_memory
from dragoman.version import __version__

COMMAND_GROUPS = {
    "Everyday use": {
        "quickstart": (
            "dragoman.training.commands.quickstart",
            "Make a small corpus, train a model on it and show its translations.",
        ),
        "translate": ("dragoman.cli.translate", "Translate a file or standard input, line by line."),
        "translate-file": (
            "dragoman.documents.command",
            "Translate files of translators, web pages, subtitles and documents.",
        ),
        "transcribe": ("dragoman.transcription.command", "Write what is said in recordings, as text or subtitles."),
        "serve": ("dragoman.serving.command", "Serve bundles over HTTP, with a page to translate in."),
        "models": ("dragoman.catalog.command", "List models that are here and models to fetch, such as Firefox's."),
        "convert": ("dragoman.conversion.command", "Convert a model of another toolkit into a bundle."),
        "doctor": ("dragoman.cli.info", "Show what this machine has and which libraries are missing."),
    },
    "Training": {
        "init": ("dragoman.cli.init", "Look at the files of a corpus and write a recipe for them."),
        "prepare": ("dragoman.cli.data_commands", "Learn the tokenizer of a recipe and encode its corpora."),
        "recipe": ("dragoman.cli.recipe", "Print a recipe, and where each of its values comes from."),
        "train": ("dragoman.training.commands.train", "Train a recipe to a bundle, or resume its run."),
        "adapt": ("dragoman.training.commands.adapt", "Fine-tune a bundle on a translation memory."),
        "evaluate": ("dragoman.inference.commands.evaluate", "Translate a test set with a bundle and score the result."),
        "compare": ("dragoman.inference.commands.evaluate", "Compare two systems by paired bootstrap."),
        "diagnose": ("dragoman.cli.info", "Find problems in a run and name the recipe keys that solve them."),
        "clean": ("dragoman.cli.data_commands", "Clean the corpora of a recipe and show what each filter dropped."),
        "augment": ("dragoman.cli.augment", "Make synthetic pairs: back-translation, self-training, distillation."),
        "dashboard": ("dragoman.training.commands.dashboard", "Write a page that shows the progress of a run."),
    },
    "Models": {
        "info": ("dragoman.cli.info", "Show the model, the recipe and the training of a bundle."),
        "export": ("dragoman.export.command", "Write a bundle in the format of another engine."),
        "model": ("", "Average, quantize, calibrate and describe bundles, and make shortlists."),
        "explain": (
            "dragoman.cli.explain",
            "Write a page that shows the attention and the search of one output.",
        ),
    },
    "Research": {
        "score": ("dragoman.inference.commands.evaluate", "Score translations against references, with a model, or both."),
        "align": ("dragoman.inference.commands.align", "Align the words of translations with those of their sources."),
        "rerank": ("dragoman.experiments.reranking.command", "Choose from n-best outputs with the help of other bundles."),
        "parse": ("dragoman.parsing.commands.parse", "Parse sentences into trees, line by line."),
        "read-arrays": (
            "dragoman.experiments.frontends.command",
            "Write a corpus of sounds or pictures with their texts, for a recipe with a front end.",
        ),
        "draw-lines": ("dragoman.experiments.frontends.command", "Draw lines of text as pictures, in many fonts."),
        "read": ("dragoman.experiments.frontends.command", "Write the text of sound files or pictures."),
        "write-digits": (
            "dragoman.experiments.pictures_out.command",
            "Write corpora of sentences and pictures of digits, one character for each pixel.",
        ),
        "show-digits": ("dragoman.experiments.pictures_out.command", "Score and draw the digits that a model has written."),
        "tree": ("", "Score and draw parse trees."),
        "paper": ("dragoman.paper.commands.group", "Reproduce the tables and figures of the paper on this machine."),
    },
}
SUBCOMMANDS = {
    "model": {
        "average": ("dragoman.training.commands.train", "Average checkpoints of a run, or several bundles, into a bundle."),
        "merge-adapter": ("dragoman.cli.new_weights", "Merge a low-rank adapter into its base bundle."),
        "quantize": ("dragoman.cli.new_weights", "Write a bundle with int8 weights, a quarter of its size."),
        "card": ("dragoman.cli.card", "Show or change purpose, license, score and examples of a bundle."),
        "calibrate": ("dragoman.inference.commands.calibrate", "Calibrate the confidence of a bundle on a validation set."),
        "shortlist": ("dragoman.inference.commands.shortlist", "Learn the likely target tokens of each source token."),
    },
    "tree": {
        "evalb": (
            "dragoman.parsing.commands.evalb",
            "Score parse trees against gold trees by labeled brackets, as EVALB does.",
        ),
        "draw": ("dragoman.parsing.commands.draw_tree", "Draw a parse tree as an SVG."),
    },
}
"""Commands of the groups that import nothing until one of them is called."""
COMMANDS = {name: entry for group in COMMAND_GROUPS.values() for name, entry in group.items()}
COMMAND_MODULES = tuple(
    dict.fromkeys(path for table in (COMMANDS, *SUBCOMMANDS.values()) for path, _ in table.values() if path)
)
"""Modules of all commands."""
FURTHER_COMMANDS = {
    "prepare", "recipe", "clean", "augment", "dashboard", "model", "score", "align", "compare", "rerank", "parse",
    "draw-lines", "read-arrays", "read", "write-digits", "show-digits", "tree", "paper", "transcribe",
}  # fmt: skip
"""Commands that only `dragoman --all` lists."""


class ExampleFormatter(click.HelpFormatter):
    """Help whose examples fit the terminal: a long command goes on in the next line, so that it can be copied."""

    def write_text(self, text: str) -> None:
        """Write paragraphs, the examples with broken lines."""
        super().write_text("\n".join(self._break_command(line) for line in text.split("\n")))

    def _break_command(self, line: str) -> str:
        """Return a line of an example, divided between its words if it is too long."""
        width = self.width - self.current_indent
        start = _EXAMPLE.match(line)
        if start is None or len(line) <= width:
            return line
        lines, indent = [start[0]], " " * (start.end() + 2)
        for word in _SHELL_WORD.findall(line[start.end() :]):
            if len(lines[-1]) + len(word) + len("  \\") > width:
                lines[-1] += " \\"
                lines.append(indent + word)
            else:
                lines[-1] += word if lines[-1].endswith(" ") else f" {word}"
        return "\n".join(lines)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_EXAMPLE = re.compile(r"(?:\w+:)? +(?=dragoman |curl |echo )")
_SHELL_WORD = re.compile(r"""(?:--?[\w-]+ (?!-))?(?:[^\s"']|"[^"]*"|'[^']*')+""")
click.Context.formatter_class = ExampleFormatter

INTERRUPT_HINTS = dict.fromkeys(("adapt", "prepare", "train"), "; the same command goes on from what is done")
INTERRUPT_HINTS["translate-file"] = "; finished files are kept; the same command with --overwrite goes on"
"""What an interrupted command keeps, for the commands that keep something."""
STDOUT_ERROR_HINTS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the quota is used up; free some space",
    errno.EBADF: "is closed; open it",
}


class CommandTable(SuggestingGroup):
    """Group of the commands of a table: name → module and summary."""

    def __init__(self, name: str, table: Mapping[str, tuple[str, str]], *, help: str) -> None:
        super().__init__(name, help=help)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return None for an unknown name."""
        return import_command(self.table[cmd_name][0], cmd_name) if cmd_name in self.table else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help; none is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.table.items()])


def import_command(module: str, name: str) -> click.Command:
    """Return a command of a module, whose function has its name."""
    if module not in sys.modules:
        gc.disable()  # objects of modules are no garbage: a collection takes 30 ms now, and 50 ms when the process ends
        try:
            importlib.import_module(module)
        finally:
            gc.enable()
            gc.freeze()
    command = getattr(sys.modules[module], name.replace("-", "_"))
    assert isinstance(command, click.Command)
    return command


class LazyGroup(SuggestingGroup):
    """Group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, and of those that other packages add."""
        from dragoman.hooks import list_entries  # imported late, because `dragoman --help` lists no entries

        return [*COMMANDS, *(entry.name for entry in list_entries("commands") if entry.name not in COMMANDS)]

    def list_suggestions(self, ctx: click.Context) -> dict[str, str]:
        """Return the commands, and those of the groups by their own names."""
        inner = {name: f"{group} {name}" for group, commands in SUBCOMMANDS.items() for name in commands}
        return inner | super().list_suggestions(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return None for an unknown name."""
        if cmd_name not in COMMANDS:
            from dragoman.hooks import list_entries, load_entry

            entry = next((entry for entry in list_entries("commands") if entry.name == cmd_name), None)
            return None if entry is None else cast(click.Command, load_entry(entry))
        if cmd_name in SUBCOMMANDS:
            return CommandTable(cmd_name, SUBCOMMANDS[cmd_name], help=COMMANDS[cmd_name][1])
        return import_command(COMMANDS[cmd_name][0], cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. The error for a bundle that is not there also names the models that are."""
        try:
            return super().invoke(ctx)
        except BundleError as error:
            from dragoman.model_packages import list_models

            if error.code != "bundle-not-found":
                raise
            names = ", ".join([*list_models(), "or one that dragoman models lists"])
            raise BundleError(f"{error}, or the name of a model: {names}", code=error.code) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and the exit statuses into the help."""
        for title, commands in COMMAND_GROUPS.items():
            shown = [name for name in commands if ctx.params.get("all_commands") or name not in FURTHER_COMMANDS]
            if shown:
                with formatter.section(title):
                    formatter.write_dl([(name, commands[name][1]) for name in shown])
        if ctx.params.get("all_commands"):
            self._format_other_commands(formatter)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), meaning) for status, meaning in EXIT_STATUSES.items()])

    def _format_other_commands(self, formatter: click.HelpFormatter) -> None:
        """Write the commands of other packages with the name of their package; none is imported."""
        from dragoman.hooks import list_entries

        if entries := list_entries("commands"):
            with formatter.section("Commands of other packages"):
                formatter.write_dl(
                    [(entry.name, f"From {entry.dist.name if entry.dist else entry.value}.") for entry in entries]
                )


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="dragoman %(version)s")
@click.option("--all", "all_commands", is_flag=True, is_eager=True, help="Show all commands and exit.")
@click.option("-v", "--verbose", is_flag=True, help="Show details, such as the times of kernels, on standard error.")
@click.pass_context
def cli(ctx: click.Context, all_commands: bool, verbose: bool) -> None:
    """Train, evaluate and run the Transformer of "Attention Is All You Need".

    \b
    Translate:     dragoman translate en-de
    Train:         dragoman quickstart
    Help:          dragoman COMMAND --help
    The paper:     dragoman paper claims
    All commands:  dragoman --all
    """
    logging.getLogger("dragoman").setLevel(logging.DEBUG if verbose else logging.INFO)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.secho(self.format(record), err=True, dim=True)


OTHER_OPTIONS = dict.fromkeys(("--source", "--src", "--source-language"), "--from")
OTHER_OPTIONS |= dict.fromkeys(("--target", "--tgt", "--target-language"), "--to")
"""Names that other programs have for an option, and its name here."""


def main() -> None:
    """Run the command line, and print an error as one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The output is UTF-8 in every locale. A byte of a file's name that is none becomes an escape, which JSON has, too.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    stdout_was_closed = _reopen_closed_streams()
    _show_log_messages()
    try:
        cli.main(prog_name="dragoman", standalone_mode=False)
    except click.exceptions.Abort:
        _exit_with_error(describe_interrupt(), InterruptedRun.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.ctx:
            name = OTHER_OPTIONS.get(error.option_name, "")
            if any(name in parameter.opts for parameter in error.ctx.command.params):
                error = click.UsageError(f"No such option {error.option_name!r}; did you mean {name}?", error.ctx)
        message = " ".join(error.format_message().split())
        if isinstance(error, click.MissingParameter) and error.ctx:
            example = (error.ctx.command.help or "").partition("Example:")[2].strip().partition("\n")[0]
            message = f"{message.rstrip('.')}; for example: {example}" if example else message
        hint = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        _exit_with_error(message + hint, error.exit_code)
    except RankZeroError as error:
        sys.exit(error.exit_code)
    except DragomanError as error:
        _exit_with_error(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        missing = MissingDependencyError.from_import(error, "this command, or this model,")
        if missing is None:
            raise
        _exit_with_error(str(missing), missing.exit_code)
    except KeyboardInterrupt:
        _exit_with_error(describe_interrupt(), InterruptedRun.exit_code)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 wraps an interrupt while it makes a class
            _exit_with_error(describe_interrupt(), InterruptedRun.exit_code)
        if not is_out_of_memory(error):
            raise
        _exit_with_error(
            "memory: is used up; lower training.batch_tokens or decoding.batch_tokens, or the sizes of the model", FAILURE
        )
    except OSError as error:  # click itself ends the command if the reader has closed the pipe, as in `| head`
        if error.errno == errno.ENAMETOOLONG:
            _exit_with_error(f"{str(error.filename)[:80]!r}: this name is too long for a file; give a shorter one", FAILURE)
        if isinstance(error, FileNotFoundError) and error.filename is None:  # so is the error of os.getcwd alone
            _exit_with_error("the current folder: was removed; change to another one", FAILURE)
        if error.errno not in STDOUT_ERROR_HINTS or (error.errno == errno.EBADF and not stdout_was_closed):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python writes the rest again at exit
        _exit_with_error(f"standard output: {STDOUT_ERROR_HINTS[error.errno]} and run the command again", FAILURE)


def _show_log_messages() -> None:
    """Print the log messages about slow steps, such as the first compilation of a kernel, on standard error."""
    logger = logging.getLogger("dragoman")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        logger.addHandler(_StderrHandler())


def _reopen_closed_streams() -> bool:
    """Replace the standard streams that the caller has closed; return whether standard output was closed.

    Closed input reads as empty. Text for a closed standard error is dropped. Writing to a closed standard output fails.
    """
    stdout_was_closed = sys.stdout is None
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:  # opened for reading, so that a write fails
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.open(os.devnull, os.O_RDONLY), "w")), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return stdout_was_closed


def describe_interrupt() -> str:
    """Return the message of an interrupted command."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    return f"interrupted{INTERRUPT_HINTS.get(command, '')}"


def _exit_with_error(message: str, code: int) -> None:
    """Print a message, and end the process. Controls, such as a line break in the name of a file, become escapes."""
    message = _CONTROL.sub(lambda control: repr(control[0])[1:-1], message)
    click.echo(f"dragoman: {message}", err=True)
    sys.exit(code)
