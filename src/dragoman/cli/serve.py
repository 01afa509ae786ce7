"""Command `serve`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import PATH_TYPE, device_option, json_option, precision_option, usage_error
from dragoman.errors import MissingDependencyError
from dragoman.platform_features import count_allowed_cores
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.inference.session import DeviceOptions
    from dragoman.serving.model_set import ModelSet


@click.command()
@click.argument("bundles", nargs=-1, type=PATH_TYPE, metavar="BUNDLE...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=5000, show_default=True, help="Port; 0 takes a free one.")
@click.option("--admin-port", type=click.IntRange(0, 65535), help="Port of the metrics.  [default: no metrics]")
@click.option("--admin-host", default="127.0.0.1", show_default=True, help="Address of the metrics.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Processes that serve; each has its own models.",
)
@click.option("--pivot", metavar="LANGUAGE", help="Join two bundles by this language where none serves a pair.")
@click.option("--keys", type=PATH_TYPE, help="File with the digests of the API keys that requests must have.")
@click.option("--hash-key", is_flag=True, help="Read a key from standard input, print its digest for --keys, and end.")
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Site whose web pages may call the server, such as https://example.org; repeat for several.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Public name of the server, such as translate.example.org; repeat for several.",
)
@click.option(
    "--proxy",
    multiple=True,
    metavar="ADDRESS",
    help="Address of a reverse proxy that names its clients in X-Forwarded-For; repeat for several.",
)
@click.option("--max-body-bytes", type=click.IntRange(1), default=1 << 20, show_default=True, help="Most bytes of a request.")
@click.option(
    "--max-file-bytes", type=click.IntRange(1), default=16 << 20, show_default=True, help="Most bytes of a request with a file."
)
@click.option("--max-files", type=click.IntRange(0), default=100, show_default=True, help="Most files that are kept.")
@click.option(
    "--file-seconds", type=click.FloatRange(1), default=3600.0, show_default=True, help="Time for which a file is kept."
)
@click.option("--max-texts", type=click.IntRange(1), default=1000, show_default=True, help="Most texts of a request.")
@click.option(
    "--max-queue-tokens", type=click.IntRange(1), default=100_000, show_default=True, help="Most tokens that wait together."
)
@click.option(
    "--queue-seconds", type=click.FloatRange(0), default=15.0, show_default=True, help="Longest wait for room in the queue."
)
@click.option(
    "--request-seconds", type=click.FloatRange(0), default=120.0, show_default=True, help="Longest time of a request."
)
@click.option("--traces", is_flag=True, help="Send OpenTelemetry traces, as the environment variables OTEL_* say.")
@click.option("--glossaries", type=PATH_TYPE, metavar="DIR", help="Folder for glossaries of clients; else memory holds them.")
@click.option("--no-retry", is_flag=True, help="Return a translation that fails a check without a second search.")
@json_option("Print the address and the languages as JSON when the server accepts requests.")
@device_option
@precision_option()
@click.option(
    "--intra-threads",
    type=int,
    help="Processor threads of each batch.  [default: chosen for this machine; with --processes, its cores divided among them]",
)
@click.option(
    "--inter-threads",
    type=int,
    help="Batches computed at the same time by a process.  [default: chosen for this machine; with --processes, 1]",
)
def serve(
    bundles: tuple[Path, ...],
    host: str,
    port: int,
    admin_port: int | None,
    admin_host: str,
    processes: int,
    pivot: str | None,
    keys: Path | None,
    hash_key: bool,
    allow_origin: tuple[str, ...],
    allow_host: tuple[str, ...],
    proxy: tuple[str, ...],
    max_body_bytes: int,
    max_file_bytes: int,
    max_files: int,
    file_seconds: float,
    max_texts: int,
    max_queue_tokens: int,
    queue_seconds: float,
    request_seconds: float,
    traces: bool,
    glossaries: Path | None,
    no_retry: bool,
    as_json: bool,
    device: str,
    precision: str,
    intra_threads: int | None,
    inter_threads: int | None,
) -> None:
    """Serve bundles over HTTP, by the APIs of LibreTranslate and DeepL, an API of our own, and a page to translate in.

    The server listens on this machine only, unless --host says otherwise. SIGTERM and Ctrl-C stop it after the requests in
    progress. SIGHUP loads the bundles again, without a lost request. A bundle of a parser serves /v1/parse.

    \b
    Example:  dragoman serve runs/multi30k-ende/bundle
              curl -d q="Hello." -d source=en -d target=de http://127.0.0.1:5000/translate
    """
    from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings
    from dragoman.serving.settings import hash_key as compute_digest

    if hash_key:
        key = sys.stdin.readline().rstrip("\r\n")
        if not key:
            raise usage_error("--hash-key: standard input has no key; write one line to it")
        click.echo(compute_digest(key))
        return
    if not bundles:
        raise usage_error("a BUNDLE is missing; name the bundles to serve")
    settings = ServerSettings(
        host=host,
        port=port,
        admin_host=admin_host,
        admin_port=admin_port,
        processes=processes,
        traces=traces,
        limits=ServerLimits(
            max_body_bytes=max_body_bytes,
            max_file_bytes=max_file_bytes,
            max_files=max_files,
            file_seconds=file_seconds,
            max_texts=max_texts,
            max_queue_tokens=max_queue_tokens,
            queue_seconds=queue_seconds,
            request_seconds=request_seconds,
        ),
        api_keys=None if keys is None else ApiKeys.read(keys),
        allowed_origins=allow_origin,
        allowed_hosts=allow_host,
        proxies=proxy,
        retry=not no_retry,
        glossary_dir=glossaries,
    )
    try:
        if processes == 1:
            from dragoman.serving.server import serve as run_server
        else:
            from dragoman.serving.server_processes import serve_in_processes
    except ImportError as error:
        raise MissingDependencyError(error.name or "fastapi", "serve", "dragoman serve") from error
    from dragoman.cli.json_outputs import ServeOutput, to_json_line

    if processes > 1:
        if intra_threads is None and inter_threads is None:
            intra_threads = max(1, count_allowed_cores() // processes)
        inter_threads = inter_threads or 1
    device_options: DeviceOptions = {
        "device": device,
        "precision": precision,
        "intra_threads": intra_threads,
        "inter_threads": inter_threads,
        "compile_in_background": True,
    }

    def report(url: str, targets: dict[str, list[str]]) -> None:
        """Say that the server accepts requests."""
        click.echo(f"serving {format_count(len(bundles), 'bundle')} at {url}", err=True)
        if as_json:
            click.echo(to_json_line(ServeOutput(url, list(map(str, bundles)), targets)))

    load_models = partial(_load_models, bundles, pivot, device_options)
    if processes > 1:
        serve_in_processes(load_models, settings, bundles=bundles, on_ready=report)
    else:
        run_server(load_models, settings, on_ready=report)


def _load_models(bundles: tuple[Path, ...], pivot: str | None, device_options: DeviceOptions) -> ModelSet:
    """Load the bundles, in the process that serves them."""
    from dragoman.serving.model_set import ModelSet  # imports torch

    return ModelSet.load(bundles, pivot=pivot, **device_options)
