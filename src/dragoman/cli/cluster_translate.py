"""Translation of a corpus file by the workers of a cluster: `dragoman translate --cluster`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.store_files import locate_inputs, resumable_output
from dragoman.cli.translation_output import write_translations
from dragoman.cluster.cluster_map import ClusterMap, Executor
from dragoman.cluster.versions import get_versions
from dragoman.console.input_windows import FILE_WINDOW
from dragoman.errors import BundleError
from dragoman.formats.object_store import check_output_is_free, is_url, normalize_url
from dragoman.formats.text import read_lines
from dragoman.inference.bundle_store import locate_bundle
from dragoman.inference.commands.line_report import LineWarnings
from dragoman.inference.synthetic_data import digest_file, number_windows
from dragoman.io.storage import read_digests

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation
    from dragoman.inference.translator import Translator
    from dragoman.runtime.device_options import DeviceOptions


@dataclass(frozen=True)
class WorkerTranslator:
    """Function that translates lines with a translator that each process loads once.

    bundles: absolute paths or URLs of the bundle and of the others of an ensemble
    """

    bundles: tuple[str, ...]
    device_options: DeviceOptions
    decoding: Mapping[str, Any]

    def __call__(self, lines: Sequence[str], start_index: int) -> list[Translation]:
        """Return the translation of each line. start_index: number of lines before them in the input"""
        translator = _load_translator(self.bundles, json.dumps(self.device_options))
        return translator.translate(lines, start_index=start_index, **self.decoding)


@lru_cache(maxsize=1)
def _load_translator(bundles: tuple[str, ...], device_options: str) -> Translator:
    from dragoman.inference.load import load

    return load(bundles[0], *bundles[1:], task="translation", **json.loads(device_options))


def on_one_thread(device_options: DeviceOptions) -> DeviceOptions:
    """Return the options of a worker, which has one core."""
    return {**device_options, "intra_threads": 1, "inter_threads": 1}


@dataclass(frozen=True)
class WindowTranslation:
    """Function of the number of lines before a window and its lines: their translations as text, and the warnings."""

    translate: WorkerTranslator
    as_json: bool

    def __call__(self, window: tuple[int, list[str]]) -> tuple[str, LineWarnings]:
        """Return the translations as they are in the output, and the warnings about the lines, which count from 1."""
        start, lines = window
        results = self.translate(lines, start)
        stream = io.StringIO()
        translated_lines = ((line, result, None) for line, result in zip(lines, results, strict=True))
        line_warnings = write_translations(stream, None, translated_lines, as_json=self.as_json, start_line=start + 1)
        return stream.getvalue(), line_warnings


def translate_on_cluster(
    bundles: Sequence[Path],
    source: str | Path,
    output: Path,
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

    Workers translate windows of lines with one thread. After an interruption, the same call continues.

    bundles, source, output: local paths or URLs of an object store
    on_progress: called with the lines that are done, and their total
    """
    check_output_is_free(normalize_url(output), overwrite=overwrite)  # before the input is fetched
    request = {
        "command": "translate",
        "bundles": [read_digests(locate_bundle(bundle), BundleError) for bundle in bundles],
        "decoding": dict(decoding),
        "device": [device_options["device"], device_options["precision"]],
        "json": as_json,
        "versions": get_versions(),
    }
    function = WindowTranslation(
        WorkerTranslator(tuple(map(normalize_url, bundles)), on_one_thread(device_options), decoding), as_json
    )
    with locate_inputs([str(source)]) as [text]:
        num_lines = sum(1 for _ in read_lines(text.path))  # names a line that cannot be read before any work is done
        request["text"] = digest_file(text.path)
        with resumable_output(output, request, overwrite=overwrite) as output_file:
            line_warnings = LineWarnings(**output_file.summary)
            on_progress(output_file.num_read, num_lines)
            lines = islice(read_lines(text.path), output_file.num_read, None)
            windows = number_windows(lines, window or FILE_WINDOW, output_file.num_read)
            for translations, window_warnings in ClusterMap(executor)(function, windows):
                num_read = window_warnings.line_count - output_file.num_read
                line_warnings.merge(window_warnings)
                output_file.append(translations, num_read=num_read, summary=vars(line_warnings))
                on_progress(output_file.num_read, num_lines)
    return line_warnings


def split_urls(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that are URLs of an object store, and the others. A setting is never a URL."""
    urls = [argument for argument in arguments if is_url(argument) and "=" not in argument.partition("://")[0]]
    return urls, [argument for argument in arguments if argument not in urls]
