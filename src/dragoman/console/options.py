"""Options, arguments and checks that several commands share."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import field, fields
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Concatenate, TypeVar, cast

import click

from dragoman.errors import OutputError, RecipeError
from dragoman.languages import to_language_code
from dragoman.platform_features import get_signals

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dragoman.runtime.device_options import DeviceOptions

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
OptionsT = TypeVar("OptionsT")

SUCCESS = 0
FAILURE = 1
USAGE_ERROR = 2
INCOMPLETE_LINES = 3
REFUSED_FILES = 4
INTERRUPTED = 130

EXIT_STATUSES = {
    SUCCESS: "The command did its work.",
    FAILURE: "The data, a bundle, a run or the machine has a problem. Standard error names it in one line.",
    USAGE_ERROR: "An option, an argument, a recipe key or a device is wrong.",
    INCOMPLETE_LINES: "The output is complete, but some lines or texts were not translated or parsed in full, or need a check.",
    REFUSED_FILES: "A file was not translated, because it cannot be read or written. Standard error names it.",
    INTERRUPTED: "A signal interrupted the command. A training run can be resumed.",
}
"""`dragoman --help` and the documentation print this table."""


def to_path(argument: str) -> Path:
    """Return the path of an argument: `-` is a standard stream, and `./-` a file of that name."""
    path = Path(argument)
    return path.absolute() if str(path) == "-" != argument else path


class PathType(click.Path):
    """Path of a file or folder; see `to_path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return to_path(os.fsdecode(super().convert(value, param, ctx)))


PATH_TYPE = PathType()


class BundleType(click.Path):
    """Folder of a bundle, or the name of a model that a distribution or this checkout holds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the folder, for a run folder that of its bundle. A path that exists takes precedence over a name."""
        from dragoman.errors import RunError
        from dragoman.io.storage import MANIFEST_FILE
        from dragoman.model_packages import resolve_model

        folder = resolve_model(Path(os.fsdecode(super().convert(value, param, ctx))))
        if not (folder / "recipe.json").is_file() or (folder / MANIFEST_FILE).is_file():
            return folder
        if not (folder / "bundle" / MANIFEST_FILE).is_file():
            raise RunError(
                f"{folder}: is a run that has no bundle yet; finish it with dragoman train, or write one from its newest "
                f"checkpoint: dragoman model average {folder} --last 1 -o BUNDLE",
                code="run-unfinished",
            )
        return folder / "bundle"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the models of this machine whose names go on as typed, and the files."""
        from click.shell_completion import CompletionItem

        from dragoman.model_packages import list_models

        names = [CompletionItem(name) for name in list_models() if name.startswith(incomplete)]
        return [*names, *super().shell_complete(ctx, param, incomplete)]


BUNDLE_TYPE = BundleType(path_type=Path)


class SuggestingGroup(click.Group):
    """Group whose error for an unknown command suggests the nearest command, and whose help has whole first sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, each with the first sentence of its own help."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in commands if command])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, and the other arguments. Raises UsageError for an unknown name."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            suggestions = self.list_suggestions(ctx)
            matches = get_close_matches(args[0], suggestions, n=1)
            hint = f"did you mean {suggestions[matches[0]]}?" if matches else "choose a command"
            ctx.fail(f"No such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def list_suggestions(self, ctx: click.Context) -> dict[str, str]:
        """Return what an unknown command may mean, by a name that it may resemble."""
        return {name: name for name in self.list_commands(ctx)}


class FiniteNumber(click.FloatRange):
    """Number without "nan" and "inf", which Python reads as numbers and which no range excludes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises UsageError if it is not finite or not in the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def option(*names: str, **settings: Any) -> Any:
    """Return a field of a class of options that `click.option` sets."""
    return shared(click.option(*names, **settings))


def argument(name: str, **settings: Any) -> Any:
    """Return a field of a class of options that `click.argument` sets."""
    return shared(click.argument(name, **settings))


def shared(decorator: Callable[[Any], Any]) -> Any:
    """Return a field of a class of options that a decorator of a command sets."""
    return field(metadata={"decorator": decorator})


def with_options(
    options_class: type[OptionsT],
) -> Callable[[Callable[Concatenate[OptionsT, ...], None]], Callable[..., None]]:
    """Return a decorator that gives a command one object of this dataclass, whose fields are options, and its other options."""
    option_fields = fields(cast(Any, options_class))

    def decorate(command: Callable[Concatenate[OptionsT, ...], None]) -> Callable[..., None]:
        @wraps(command)
        def call(**values: Any) -> None:
            command(options_class(**{item.name: values.pop(item.name) for item in option_fields}), **values)

        decorated: Callable[..., None] = call
        for item in reversed(option_fields):
            decorated = item.metadata.get("decorator", lambda unchanged: unchanged)(decorated)
        return decorated

    return decorate


def language_option(name: str, parameter: str, help_text: str) -> Callable[[CommandT], CommandT]:
    """Return an option that takes the code of a language, or its English name."""
    return click.option(name, parameter, metavar="CODE", type=to_language_code, help=help_text)


bundle_argument = click.argument("bundle", type=BUNDLE_TYPE)
recipe_argument = click.argument("recipe", type=PATH_TYPE)
run_argument = click.argument("run", type=PATH_TYPE)
overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
input_arguments = click.argument("arguments", nargs=-1, metavar="[FILE] [KEY=VALUE]...")

ensemble_option = click.option(
    "--ensemble", multiple=True, type=BUNDLE_TYPE, help="One more bundle of an ensemble. Repeat it for several bundles."
)
output_option = click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    callback=lambda _context, _option, value: None if value == Path("-") else value,
    help="Write to this file instead of standard output.",
)
to_option = language_option("--to", "target_language", "Target language, for a bundle of many languages.")
from_option = language_option("--from", "source_language", "Source language, for a bundle of many languages.")
device_option = click.option("--device", default="auto", show_default=True, help="Device: cpu, cuda, cuda:1, …")
references_option = click.option(
    "--ref", "references", multiple=True, type=PATH_TYPE, help="Reference file. Repeat it for several references."
)
tokenized_option = click.option("--tokenized", is_flag=True, help="The text is tokenized: count its tokens as they are.")
# The names of `BleuTokenizer`, which are not imported, because the recipe schema would slow down the start of every command.
BLEU_TOKENIZERS = ("auto", "13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "flores101", "flores200", "none")
bleu_tokenizer_option = click.option(
    "--bleu-tokenizer",
    type=click.Choice(BLEU_TOKENIZERS),
    metavar="NAME",
    default="auto",
    show_default=True,
    help=f"sacreBLEU's tokenizer for BLEU, of {', '.join(BLEU_TOKENIZERS)}. auto follows the target language.",
)
cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Work on a Ray cluster: HOST:PORT, or local for one that is started on this machine, or auto.",
)
window_option = click.option(
    "--window",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Lines that are batched together. A small window answers sooner, a large one is faster."
    "  [default: 2048 for a file, up to 128 for a pipe, 1 for a terminal]",
)


def usage_error(message: str) -> click.UsageError:
    """Return the error of options that do not go together. The command line adds a hint at the help of the command."""
    return click.UsageError(message, ctx=click.get_current_context())


def output_path_option(help_text: str, *, required: bool = False) -> Callable[[CommandT], CommandT]:
    """Return the option `-o`/`--output` of a command that does not write to standard output."""
    return click.option("-o", "--output", type=PATH_TYPE, required=required, help=help_text)


def overwrite_option(help_text: str = "Replace an output file that exists.") -> Callable[[CommandT], CommandT]:
    """Return the flag `--overwrite`."""
    return click.option("--overwrite", is_flag=True, help=help_text)


def json_option(help_text: str = "Print the result as JSON.") -> Callable[[CommandT], CommandT]:
    """Return the flag `--json`."""
    return click.option("--json", "as_json", is_flag=True, help=help_text)


def precision_option(default: str = "auto") -> Callable[[CommandT], CommandT]:
    """Return the option `--precision` with this default."""
    return click.option(
        "--precision",
        default=default,
        show_default=True,
        help="Precision: float32, int8 (CPU) or bfloat16 (GPU). auto takes the fastest on this machine.",
    )


placeholders_option = click.option(
    "--placeholders",
    type=click.Choice(["auto", "mask", "projection"]),
    default="auto",
    show_default=True,
    help="Keep placeholders by a mask on the search or by attention; auto takes the mask if the model was trained for it.",
)


def glossary_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--glossary` and `--strict-terms`. Raises UsageError for the second one alone."""

    @wraps(command)
    def wrapper(glossary: Path | None, strict_terms: bool, **kwargs: Any) -> None:
        if strict_terms and glossary is None:
            raise usage_error("--strict-terms is about the terms of --glossary; give both")
        command(glossary=glossary, strict_terms=strict_terms, **kwargs)

    strict_option = click.option(
        "--strict-terms", is_flag=True, help="Require the terms of the glossary, also where the model finds them unlikely."
    )
    return click.option("--glossary", type=PATH_TYPE, help="Terms to use and to check: a CSV, TSV or TBX file.")(
        strict_option(wrapper)
    )


def device_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that loads bundles.

    The command gets `ensemble`, and the other options together as `device_options`.
    """

    @wraps(command)
    def wrapper(device: str, precision: str, intra_threads: int | None, inter_threads: int | None, **kwargs: Any) -> None:
        options: DeviceOptions = {
            "device": device,
            "precision": precision,
            "intra_threads": intra_threads,
            "inter_threads": inter_threads,
        }
        command(device_options=options, **kwargs)

    wrapped: Callable[..., None] = wrapper
    shared_options: list[Any] = [
        ensemble_option,
        device_option,
        precision_option(),
        click.option("--intra-threads", type=int, help="Processor threads of each worker.  [default: chosen for this machine]"),
        click.option(
            "--inter-threads", type=int, help="Batches computed at the same time.  [default: chosen for this machine]"
        ),
    ]
    for option in reversed(shared_options):
        wrapped = option(wrapped)
    return wrapped


def open_text_output(output: Path | None, *, overwrite: bool) -> AbstractContextManager[IO[str]]:
    """Return the opened output file, or standard output if no file is named."""
    from dragoman.io.storage import atomic_write

    if output is None:
        return nullcontext(sys.stdout)
    treat_termination_as_interrupt()
    return atomic_write(output, overwrite=overwrite)


def treat_termination_as_interrupt() -> None:
    """Make SIGTERM and SIGHUP act like Ctrl-C, so that no file is left half written."""
    for signal_number in get_signals("SIGTERM", "SIGHUP"):
        if signal.getsignal(signal_number) == signal.SIG_DFL:
            with suppress(ValueError):  # only the main thread may set a handler
                signal.signal(signal_number, signal.default_int_handler)


def check_output_paths(*output_paths: Path | None, overwrite: bool, input_paths: Iterable[Path | None] = ()) -> None:
    """Raise OutputError if an output path exists and may not be replaced, or if it is an input.

    Raises UsageError if two of the paths are equal.

    output_paths: paths that the command writes; None stands for an output that is not asked for
    input_paths: paths that the same command reads; nothing may replace them
    """
    from dragoman.io.storage import check_path_is_free

    existing_inputs = [source for source in input_paths if source is not None]
    outputs = [path for path in output_paths if path is not None]
    for number, path in enumerate(outputs):
        if path.resolve() in [other.resolve() for other in outputs[:number]]:
            raise usage_error(f"{path}: is the name of two outputs; give two names")
        if path == Path("-"):
            raise OutputError("-: cannot be standard output for this command; give the name of a file")
        if _is_standard_input(path) or any(_is_same_or_inside(source, path) for source in existing_inputs):
            raise OutputError(
                f"{path}: is an input of this command, which is never overwritten; give another output name",
                code="output-is-input",
            )
        if not overwrite:
            check_path_is_free(path)


def _is_standard_input(path: Path) -> bool:
    with suppress(OSError, AttributeError, ValueError):  # the file or the descriptor may not exist
        return path.is_file() and os.path.samestat(path.stat(), os.fstat(sys.stdin.fileno()))
    return False


def _is_same_or_inside(source: Path, path: Path) -> bool:
    """Return whether `path` is the file `source`, or lies inside `source` if that is a folder with a manifest."""
    from dragoman.io.storage import MANIFEST_FILE

    with suppress(OSError):  # the path may not exist yet
        if path.resolve() == source.resolve() or path.samefile(source):
            return True
    with suppress(OSError):
        return (source / MANIFEST_FILE).is_file() and any(parent.samefile(source) for parent in path.resolve().parents)
    return False


def parse_decoding_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Return the decoding options that are written `key=value`. Raises RecipeError for any other form."""
    from dragoman.config import parse_setting

    return {key.removeprefix("decoding."): value for key, value in map(parse_setting, overrides)}


def add_languages(decoding: dict[str, Any], source_language: str | None, target_language: str | None) -> None:
    """Set the languages of --from and --to in the decoding options. Raises UsageError for a language that is named twice."""
    for key, option, language in (("source_language", "--from", source_language), ("target_language", "--to", target_language)):
        if language is not None and key in decoding:
            raise usage_error(f"{option} and {key}= are given; drop one of the two")
        if language is not None:
            decoding[key] = language


def split_files_and_settings(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return files and `key=value` settings. An argument with an equals sign is a setting, unless such a file exists."""
    settings = [argument for argument in arguments if "=" in argument and not os.path.exists(argument)]
    return [to_path(argument) for argument in arguments if argument not in settings], settings


def parse_file_and_settings(arguments: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """Return the input file and the decoding options.

    The file is None if it is `-` or not given. Raises RecipeError for more than one file.
    """
    files, settings = split_files_and_settings(arguments)
    if len(files) > 1:
        raise RecipeError(f"{files[1]}: is a second file; give one file, and write settings as key=value")
    return (files[0] if files and files[0] != Path("-") else None), parse_decoding_overrides(settings)


def count_lines(source: Path | None) -> int | None:
    """Return the number of lines of a regular file, or None for any other input.

    Raises DataError for a line that cannot be read, before any work is done.
    """
    from dragoman.formats.text import read_lines

    if source is None or (source.exists() and not source.is_file()):
        return None
    return sum(1 for _ in read_lines(source))


def format_line_numbers(line_numbers: Sequence[int], count: int | None = None) -> str:
    """Return the number of lines and the first of their numbers: `7 (1, 2, 3, 4, 5, …)`.

    count: number of lines, if `line_numbers` has the first ones only
    """
    count = len(line_numbers) if count is None else count
    return f"{count} ({', '.join(map(str, line_numbers[:5]))}{', …' if count > 5 else ''})"


def print_note(text: str) -> None:
    """Print one line for the user on standard error."""
    click.echo(text, err=True)
