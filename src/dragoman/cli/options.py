"""What commands that read lines with a bundle are given: a file or standard input, settings written key=value, a place."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from dragoman.errors import OutputError, RecipeError

if TYPE_CHECKING:
    from dragoman.inference.session import DeviceOptions

ENSEMBLE_OPTION = click.option(
    "--with", "others", multiple=True, type=click.Path(path_type=Path), help="One more bundle for an ensemble."
)
OUTPUT_OPTION = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    callback=lambda _context, _option, value: None if value == Path("-") else value,
    help="Write here instead of standard output.",
)
DEVICE_OPTION = click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, …")


class FiniteNumber(click.FloatRange):
    """A number; Python reads "nan" and "inf" as such, and no range keeps out the first."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


INFERENCE_OPTIONS = (
    ENSEMBLE_OPTION,
    DEVICE_OPTION,
    click.option(
        "--precision", default="auto", show_default=True, help="float32, bfloat16, int8; auto takes the fastest here."
    ),
    click.option("--threads", type=int, help="Of a processor, for each replica; as suits this machine when not given."),
    click.option("--replicas", type=int, help="Batches computed side by side; as suits this machine when not given."),
)


def add_device_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that opens bundles: it is given `others`, and as one argument `placing` where they compute."""

    @wraps(command)
    def wrapper(device: str, precision: str, intra_threads: int | None, inter_threads: int | None, **kwargs: Any) -> None:
        device_options: DeviceOptions = {
            "device": device,
            "precision": precision,
            "threads": intra_threads,
            "replicas": inter_threads,
        }
        command(placing=device_options, **kwargs)

    wrapped: Callable[..., None] = wrapper
    for option in reversed(INFERENCE_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def open_text_output(output: Path | None, *, overwrite: bool) -> AbstractContextManager[IO[str]]:
    """The file, or standard output where none is named."""
    from dragoman.io.storage import atomic_write

    if output is None:
        return nullcontext(sys.stdout)
    treat_termination_as_interrupt()
    return atomic_write(output, overwrite=overwrite)


def treat_termination_as_interrupt() -> None:
    """What schedulers and terminals that go away send does what Ctrl-C does from now on: nothing is left half written."""
    for name in ("SIGTERM", "SIGHUP"):
        signal_number = getattr(signal, name, None)
        if signal_number is not None and signal.getsignal(signal_number) == signal.SIG_DFL:
            with suppress(ValueError):  # not the thread that may
                signal.signal(signal_number, signal.default_int_handler)


def check_output_paths(*output_paths: Path | None, overwrite: bool, input_paths: Iterable[Path | None] = ()) -> None:
    """Raise OutputError where one of these files, those that are asked for at all, exists and may not be replaced.

    read: what the same command reads, which nothing may replace
    """
    from dragoman.io.storage import check_path_is_free

    existing_inputs = [source for source in input_paths if source is not None]
    for path in output_paths:
        if path is None:
            continue
        if path == Path("-"):
            raise OutputError("-: is no file; this cannot be written to standard output, give the name of a file")
        if _is_standard_input(path) or any(_is_same_or_inside(source, path) for source in existing_inputs):
            raise OutputError(f"{path}: is what is read, and is left as it is; give another name for what is written")
        if not overwrite:
            check_path_is_free(path)


def _is_standard_input(path: Path) -> bool:
    with suppress(OSError, AttributeError, ValueError):  # there may be neither
        return path.is_file() and os.path.samestat(path.stat(), os.fstat(sys.stdin.fileno()))
    return False


def _is_same_or_inside(source: Path, path: Path) -> bool:
    """Whether it is that file, or in that folder, if dragoman sealed it."""
    from dragoman.io.storage import MANIFEST_FILE

    with suppress(OSError):  # one of them may not be there yet, under a folder that is not
        if path.resolve() == source.resolve() or path.samefile(source):
            return True
    with suppress(OSError):
        return (source / MANIFEST_FILE).is_file() and any(parent.samefile(source) for parent in path.resolve().parents)
    return False


def parse_file_and_settings(arguments: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """FILE, none where that is `-` or not given, and the decoding knobs, told apart by their equals sign."""
    from dragoman.config import parse_setting

    decoding: dict[str, Any] = {}
    files = []
    for argument in arguments:
        if "=" in argument and not os.path.exists(argument):
            key, value = parse_setting(argument)
            decoding[key.removeprefix("decoding.")] = value
        else:
            files.append(Path(argument))
    if len(files) > 1:
        raise RecipeError(f"{files[1]}: one file at a time; settings are written key=value")
    return (files[0] if files and files[0] != Path("-") else None), decoding


def count_lines(source: Path | None) -> int | None:
    """How many lines there are to do, where a file can tell; a mistake in one of them comes out before any work is done."""
    from dragoman.formats.text import read_lines

    if source is None or (source.exists() and not source.is_file()):
        return None
    return sum(1 for _ in read_lines(source))


def format_line_numbers(line_numbers: Sequence[int], max_shown: int = 5) -> str:
    """How many lines, and which: 7 (1, 2, 3, 4, 5, …)."""
    return (
        f"{len(line_numbers)} ({', '.join(map(str, line_numbers[:max_shown]))}{', …' if len(line_numbers) > max_shown else ''})"
    )
