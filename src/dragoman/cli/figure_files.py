"""Pictures in a folder: SVG and PNG, by their names."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import OutputError, WriteError
from dragoman.io.storage import cannot_write, refuse_existing, write_file, write_lines


def picture_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"{folder}: is not a folder, and is left as it is; give another name") from None
    except OSError as error:
        raise WriteError(cannot_write(folder, error)) from None


def write_svg(folder: Path, drawn: dict[str, str], *, overwrite: bool) -> None:
    for name, svg in drawn.items():
        write_lines(folder / f"{name}.svg", [svg.rstrip("\n")], overwrite=overwrite)


def write_png(folder: Path, drawn: dict[str, bytes], *, overwrite: bool) -> None:
    for name, pixels in drawn.items():
        path, partial = folder / f"{name}.png", folder / f".{name}.png.partial"
        try:
            partial.unlink(missing_ok=True)
            write_file(partial, [pixels])
            if not overwrite:
                refuse_existing(path)
            partial.replace(path)
        except OSError as error:
            raise WriteError(cannot_write(path, error)) from None
        finally:
            partial.unlink(missing_ok=True)
