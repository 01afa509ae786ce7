"""Translation of a corpus file by the workers of a cluster: `dragoman translate --cluster`."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.translation_output import write_translations
from dragoman.cluster.shards import Executor, ShardRecord, split_lines, write_by_shards
from dragoman.console.input_windows import FILE_WINDOW
from dragoman.formats.object_store import check_output_is_free, fetch_file, is_url, normalize_url
from dragoman.inference.commands.line_report import LineWarnings

if TYPE_CHECKING:
    from dragoman.inference.translator import Translator
    from dragoman.runtime.device_options import DeviceOptions


@dataclass(frozen=True)
class WorkerTranslator:
    """Translator that each process loads once.

    bundles: absolute paths or URLs of the bundle and of the others of an ensemble
    """

    bundles: tuple[str, ...]
    device_options: DeviceOptions

    @property
    def translator(self) -> Translator:
        """Return the translator of the bundle, which the process keeps for further commands."""
        return _load_translator(self.bundles, json.dumps(self.device_options))


@lru_cache(maxsize=1)
def _load_translator(bundles: tuple[str, ...], device_options: str) -> Translator:
    from dragoman.inference.load import load

    return load(bundles[0], *bundles[1:], task="translation", **json.loads(device_options))


def on_one_thread(device_options: DeviceOptions) -> DeviceOptions:
    """Return the options of a worker, which has one core."""
    return {**device_options, "intra_threads": 1, "inter_threads": 1}


@dataclass(frozen=True)
class TranslateShard:
    """Shard function that translates lines."""

    model: WorkerTranslator
    decoding: Mapping[str, Any]
    as_json: bool

    def __call__(self, numbered_lines: tuple[int, list[str]]) -> tuple[dict[str, bytes], Any]:
        """Return the translations as they are in the output, and the numbers of the lines with a warning, from 1."""
        start, lines = numbered_lines
        results = self.model.translator.translate(lines, start_index=start, **self.decoding)
        stream = io.StringIO()
        translated_lines = ((line, result, None) for line, result in zip(lines, results, strict=True))
        line_warnings = write_translations(stream, None, translated_lines, as_json=self.as_json, start_line=start + 1)
        return {"txt": stream.getvalue().encode()}, line_warnings.line_numbers


def translate_on_cluster(
    bundles: Sequence[Path],
    source: str | Path,
    output: str | Path,
    executor: Executor,
    *,
    device_options: DeviceOptions,
    decoding: Mapping[str, Any],
    as_json: bool = False,
    window: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> LineWarnings:
    """Translate a file as one machine does, byte for byte, and return the warnings about its lines.

    A shard is a window of lines. Workers translate with one thread. See `write_by_shards` for the arguments.

    bundles, source: local paths or URLs of an object store
    on_progress: called with the lines that are done, and their total
    """
    from dragoman.errors import BundleError
    from dragoman.formats.text import read_lines
    from dragoman.inference.bundle_store import locate_bundle
    from dragoman.io.storage import read_digests

    input_url = normalize_url(source)
    check_output_is_free(normalize_url(output), overwrite=overwrite)  # before the input is fetched
    digests = [read_digests(locate_bundle(bundle), BundleError) for bundle in bundles]
    request = {
        "command": "translate",
        "input": input_url,
        "bundles": digests,
        "decoding": dict(decoding),
        "device": [device_options["device"], device_options["precision"]],
        "json": as_json,
        "window": window or FILE_WINDOW,
    }
    model = WorkerTranslator(tuple(map(normalize_url, bundles)), on_one_thread(device_options))
    function = TranslateShard(model, decoding, as_json)
    with ExitStack() as stack:
        path = Path(input_url)
        if is_url(input_url):
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()), Path(input_url).name)
            fetch_file(input_url, path)
        num_lines = sum(1 for _ in read_lines(path))  # names a line that cannot be read before any work is done
        on_progress(0, num_lines)
        records = write_by_shards(
            function,
            split_lines(read_lines(path), lines_per_shard=window or FILE_WINDOW),
            output,
            request,
            executor,
            overwrite=overwrite,
            on_progress=lambda done: on_progress(done, num_lines),
        )
    return _merge_warnings(records)


def _merge_warnings(records: Iterable[ShardRecord]) -> LineWarnings:
    """Return the warnings of all shards, those that occur first in front."""
    line_warnings = LineWarnings()
    for record in records:
        for warning, line_numbers in record.summary.items():
            line_warnings.line_numbers.setdefault(warning, []).extend(line_numbers)
        line_warnings.line_count += record.num_units
    return line_warnings


def split_urls(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that are URLs of an object store, and the others. A setting is never a URL."""
    urls = [argument for argument in arguments if is_url(argument) and "=" not in argument.partition("://")[0]]
    return urls, [argument for argument in arguments if argument not in urls]
