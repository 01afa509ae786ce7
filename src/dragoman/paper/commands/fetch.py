"""Command `paper fetch`."""

from __future__ import annotations

from pathlib import Path

import click

from dragoman.console.options import (
    json_option,
    overrides_argument,
    print_note,
    recipe_argument,
    treat_termination_as_interrupt,
    usage_error,
)
from dragoman.errors import DataError
from dragoman.runtime.counts import format_count


@click.command()
@recipe_argument
@overrides_argument
@json_option()
def fetch(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Fetch the corpora of RECIPE from statmt.org into its data.root. RECIPE is wmt14-ende-base, or another of WMT14.

    The command unpacks the files that the recipe names. The same command continues after an interruption. Files that exist
    are not fetched again, and an archive that lies in the folder is unpacked without a network.

    \b
    Example:  dragoman paper fetch wmt14-ende-base
              dragoman paper fetch wmt14-enfr-big data.root=path/to/wmt14
    """
    from dragoman.catalog.corpora import DISK_FACTOR, fetch_archive, find_archives
    from dragoman.catalog.download import FetchError
    from dragoman.config import read_recipe
    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.formats.object_store import is_url
    from dragoman.formats.readers import list_corpus_files

    data = read_recipe(recipe, overrides).data
    if is_url(data.root):
        raise usage_error(f"data.root = {data.root!r}: give a folder")
    folder = Path(data.root)
    corpora = [*data.training_corpora().values()]
    corpora += [*data.evaluation_corpora("valid").values(), *data.evaluation_corpora("test").values()]
    paths = [path for corpus in corpora for path in list_corpus_files(corpus, folder)]
    archives = find_archives(paths)
    if archives:
        treat_termination_as_interrupt()
        gigabytes = sum(archive.file.num_bytes or 0 for archive in archives) / 1e9
        print_note(
            f"{folder}: {format_count(len(archives), 'archive')} of WMT, {gigabytes:.1f} GB, and on disk up to "
            f"{DISK_FACTOR * gigabytes:.1f} GB with the unpacked files. WMT gives them for research; for other uses, ask the "
            "owners that statmt.org/wmt14 names."
        )
    for number, archive in enumerate(archives):
        try:
            with progress_bar(stderr_console(), f"fetching {archive.file.name}", archive.file.num_bytes, unit="bytes") as bar:
                fetch_archive(archive, folder, bar.advance)
        except FetchError as error:
            urls = " ".join(other.file.url for other in archives[number:])
            raise DataError(
                f"{error}; without a network, fetch {urls} elsewhere into {folder}, and repeat the command", code=error.code
            ) from None
    if as_json:
        print_json({"folder": str(folder), "files": sorted(map(str, paths)), "fetched": [a.file.url for a in archives]})
        return
    click.echo(f"{folder}: has the {format_count(len(paths), 'file')} of the recipe; the archives can be deleted")
