"""SVG and PNG files of commands: one chart, or several figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dragoman.console.options import check_output_paths
from dragoman.io.storage import check_path_is_free, to_write_error, write_lines, write_with_digest
from dragoman.viz.matplotlib_svg import check_matplotlib


def check_chart(output: Path | None, *, overwrite: bool, input_paths: Iterable[Path | None] = ()) -> None:
    """Raise an error before the work if the chart of a command cannot be drawn or written; see `check_output_paths`."""
    check_output_paths(output, overwrite=overwrite, input_paths=input_paths)
    if output is not None:
        check_matplotlib()


def write_chart(output: Path | None, draw: Callable[[], str], *, overwrite: bool) -> None:
    """Write the SVG that `draw` returns, if the command has a file for it."""
    if output is not None:
        write_lines(output, [draw()], overwrite=overwrite)


def write_svg(folder: Path, svgs: dict[str, str], *, overwrite: bool) -> None:
    """Write each SVG to NAME.svg. Raises OutputError if a file exists and may not be replaced."""
    for name, svg in svgs.items():
        write_lines(folder / f"{name}.svg", [svg.rstrip("\n")], overwrite=overwrite)


def write_png(folder: Path, pngs: dict[str, bytes], *, overwrite: bool) -> None:
    """Write each PNG to NAME.png. Raises OutputError if a file exists and may not be replaced."""
    for name, content in pngs.items():
        path, partial_path = folder / f"{name}.png", folder / f".{name}.png.partial"
        try:
            partial_path.unlink(missing_ok=True)
            write_with_digest(partial_path, [content])
            if not overwrite:
                check_path_is_free(path)
            partial_path.replace(path)
        except OSError as error:
            raise to_write_error(path, error) from None
        finally:
            partial_path.unlink(missing_ok=True)
