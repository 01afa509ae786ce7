"""`dragoman`: finds the command, and turns a user's mistake into one line and an exit code.

The list of commands stands here as text, so that `dragoman --help` imports none of them.
"""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import sys

import click

from dragoman.errors import DragomanError, InterruptedRun, RankZeroError, is_out_of_memory
from dragoman.version import __version__

COMMANDS = {
    "quickstart": ("dragoman.cli.quickstart", "Make a small corpus, train on it, and look: no download, some minutes."),
    "clean": ("dragoman.cli.data", "Clean a recipe's corpora, and show what each rule dropped."),
    "prepare": ("dragoman.cli.data", "Learn the subword model of a recipe and encode its corpora."),
    "train": ("dragoman.cli.train", "Train a recipe to a bundle; go on where it stopped."),
    "watch": ("dragoman.cli.watch", "Write a page that shows a run as it goes."),
    "average": ("dragoman.cli.train", "Average checkpoints of a run into a bundle."),
    "translate": ("dragoman.cli.translate", "Translate a file or standard input, line by line."),
    "parse": ("dragoman.cli.parse", "Parse sentences into trees, line by line."),
    "explain": ("dragoman.cli.explain", "Write a page that shows why a translation is what it is."),
    "align": ("dragoman.cli.align", "Tell which word of a translation came from which."),
    "shortlist": ("dragoman.cli.shortlist", "Learn which words a bundle is likely to need for which."),
    "augment": ("dragoman.cli.augment", "Make more to learn from: back-translation, self-training, distillation."),
    "score": ("dragoman.cli.evaluate", "Score translations: against references, by a model, or both."),
    "evaluate": ("dragoman.cli.evaluate", "Translate a test set with a bundle and score the result."),
    "compare": ("dragoman.cli.evaluate", "Tell whether one system is better than another."),
    "export": ("dragoman.cli.export", "Write a bundle in the form of another engine."),
    "evalb": ("dragoman.cli.evalb", "Score parse trees against gold ones: labelled brackets, as EVALB counts."),
    "tree": ("dragoman.cli.tree", "Draw a parse tree as an SVG."),
    "paper": ("dragoman.cli.paper", "Run the paper's tables here, beside the printed ones."),
    "info": ("dragoman.cli.info", "Tell what a bundle is, what it was trained on and how."),
    "doctor": ("dragoman.cli.info", "Tell what this machine has, or what goes wrong in a run."),
}


STDOUT_ERROR_HINTS = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the quota is used up; make room",
    errno.EBADF: "is closed; open it",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="dragoman %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train, evaluate and run the Transformer of "Attention Is All You Need".

    \b
    Begin with:    dragoman quickstart
    Then:          dragoman translate runs/quickstart-de/bundle
    Help:          dragoman COMMAND --help
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.secho(record.getMessage(), err=True, dim=True)


def main() -> None:
    """The entry point: run, and answer a mistake in one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # text goes out as it comes in, whatever the locale
    stdout_was_closed = _reopen_closed_streams()
    if sys.stderr.isatty():  # people are told what keeps them waiting
        logger = logging.getLogger("dragoman")
        logger.addHandler(_StderrHandler())
        logger.setLevel(logging.INFO)
    try:
        cli.main(prog_name="dragoman", standalone_mode=False)
    except click.exceptions.Abort:
        _exit_with_error("interrupted", InterruptedRun.exit_code)
    except click.ClickException as error:
        hint = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        _exit_with_error(" ".join(error.format_message().split()) + hint, error.exit_code)
    except RankZeroError as error:
        sys.exit(error.exit_code)
    except DragomanError as error:
        _exit_with_error(str(error), error.exit_code)
    except KeyboardInterrupt:
        _exit_with_error("interrupted", InterruptedRun.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _exit_with_error("out of memory; lower training.batch_tokens or decoding.batch_tokens, or the sizes of the model", 1)
    except OSError as error:  # a reader that went away, as `| head` does, is click's to answer
        if error.errno not in STDOUT_ERROR_HINTS or (error.errno == errno.EBADF and not stdout_was_closed):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it would be tried once more at the very end
        _exit_with_error(f"standard output: {STDOUT_ERROR_HINTS[error.errno]} and run the command again", 1)


def _reopen_closed_streams() -> bool:
    """Python has no streams for what was closed: there is nothing to hear then, nobody to tell, and no place for a result.

    Returns whether there is none.
    """
    stdout_was_closed = sys.stdout is None
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:  # opened to be read, so that what is written there fails, as it should
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.open(os.devnull, os.O_RDONLY), "w")), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return stdout_was_closed


def _exit_with_error(message: str, code: int) -> None:
    click.echo(f"dragoman: {message}", err=True)
    sys.exit(code)
