"""SVG and PNG files of the commands that write several figures."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import OutputError
from dragoman.io.storage import check_path_is_free, to_write_error, write_lines, write_with_digest


def make_picture_dir(folder: Path) -> None:
    """Create the folder with its parents. Raises OutputError if a file has its name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"{folder}: is a file, not a folder; give another name") from None
    except OSError as error:
        raise to_write_error(folder, error) from None


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
