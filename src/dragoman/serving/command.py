"""Command `serve`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    argument,
    device_option,
    json_option,
    option,
    precision_option,
    shared,
    usage_error,
    with_options,
)
from dragoman.errors import MissingDependencyError
from dragoman.platform_features import count_allowed_cores
from dragoman.runtime.counts import format_count
from dragoman.serving.addresses import bind_addresses
from dragoman.serving.settings import ApiKeys, ServerLimits, ServerSettings, hash_key

if TYPE_CHECKING:
    from dragoman.runtime.device_options import DeviceOptions
    from dragoman.serving.model_set import ModelSet


@dataclass(frozen=True)
class ServeOutput:
    """Line of `dragoman serve --json` when the server accepts requests. languages: targets of each source language"""

    url: str
    bundles: list[str]
    languages: dict[str, list[str]]


def _limit_option(name: str, kind: click.ParamType[Any], text: str) -> Any:
    """Return the field of a limit of requests, whose default is that of `ServerLimits`."""
    default = getattr(ServerLimits, name)
    return option(f"--{name.replace('_', '-')}", type=kind, default=default, show_default=True, help=text)


@dataclass(frozen=True)
class ServeOptions:
    """Options of `dragoman serve`."""

    bundles: tuple[Path, ...] = argument("bundles", nargs=-1, type=BUNDLE_TYPE, metavar="BUNDLE...")
    host: str = option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
    port: int = option(
        "--port", type=click.IntRange(0, 65535), default=5000, show_default=True, help="Port; 0 takes a free one."
    )
    admin_port: int | None = option(
        "--admin-port", type=click.IntRange(0, 65535), help="Port of the metrics.  [default: no metrics]"
    )
    admin_host: str = option("--admin-host", default="127.0.0.1", show_default=True, help="Address of the metrics.")
    processes: int = option(
        "--processes",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Processes that serve; each has its own models.",
    )
    pivot: str | None = option(
        "--pivot", metavar="LANGUAGE", help="Join two bundles by this language where none serves a pair."
    )
    keys: Path | None = option("--keys", type=PATH_TYPE, help="File with the digests of the API keys that requests must have.")
    hash_key: bool = option(
        "--hash-key", is_flag=True, help="Read a key from standard input, print its digest for --keys, and end."
    )
    allow_origin: tuple[str, ...] = option(
        "--allow-origin",
        multiple=True,
        metavar="URL",
        help="Site whose web pages may call the server, such as https://example.org; repeat for several.",
    )
    allow_host: tuple[str, ...] = option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="Public name of the server, such as translate.example.org; repeat for several.",
    )
    proxy: tuple[str, ...] = option(
        "--proxy",
        multiple=True,
        metavar="ADDRESS",
        help="Address of a reverse proxy that names its clients in X-Forwarded-For; repeat for several.",
    )
    max_body_bytes: int = _limit_option("max_body_bytes", click.IntRange(1), "Most bytes of a request.")
    max_file_bytes: int = _limit_option("max_file_bytes", click.IntRange(1), "Most bytes of a request with a file.")
    max_files: int = _limit_option("max_files", click.IntRange(0), "Most files that are kept.")
    file_seconds: float = _limit_option("file_seconds", click.FloatRange(1), "Time for which a file is kept.")
    max_texts: int = _limit_option("max_texts", click.IntRange(1), "Most texts of a request.")
    max_queue_tokens: int = _limit_option("max_queue_tokens", click.IntRange(1), "Most tokens that wait together.")
    queue_seconds: float = _limit_option("queue_seconds", click.FloatRange(0), "Longest wait for room in the queue.")
    request_seconds: float = _limit_option("request_seconds", click.FloatRange(0), "Longest time of a request.")
    traces: bool = option("--traces", is_flag=True, help="Send OpenTelemetry traces, as the environment variables OTEL_* say.")
    glossaries: Path | None = option(
        "--glossaries", type=PATH_TYPE, metavar="DIR", help="Folder for glossaries of clients; else memory holds them."
    )
    no_retry: bool = option("--no-retry", is_flag=True, help="Return a translation that fails a check without a second search.")
    no_language_check: bool = option(
        "--no-language-check", is_flag=True, help="Also translate sentences that are in the target language already."
    )
    as_json: bool = shared(json_option("Print the address and the languages as JSON when the server accepts requests."))
    device: str = shared(device_option)
    precision: str = shared(precision_option())
    intra_threads: int | None = option(
        "--intra-threads",
        type=int,
        help="Processor threads of each batch.  [default: chosen here; with --processes, its cores divided among them]",
    )
    inter_threads: int | None = option(
        "--inter-threads",
        type=int,
        help="Batches computed at the same time by a process.  [default: chosen here; with --processes, 1]",
    )


@click.command()
@with_options(ServeOptions)
def serve(args: ServeOptions) -> None:
    """Serve bundles over HTTP, by the APIs of LibreTranslate and DeepL, an API of our own, and a page to translate in.

    The server listens on this machine only, unless --host says otherwise. SIGTERM and Ctrl-C stop it after the requests in
    progress. SIGHUP loads the bundles again, without a lost request. A bundle of a parser serves /v1/parse. A bundle of a
    speech model serves /v1/audio/transcriptions, as OpenAI's clients call it.

    \b
    Example:  dragoman serve en-de
              curl -d q="Hello." -d source=en -d target=de http://127.0.0.1:5000/translate
    """
    if args.hash_key:
        key = sys.stdin.readline().rstrip("\r\n")
        if not key:
            raise usage_error("--hash-key: standard input has no key; write one line to it")
        click.echo(hash_key(key))
        return
    if not args.bundles:
        raise usage_error("a BUNDLE is missing; name the bundles to serve")
    settings = _make_settings(args)
    with ExitStack() as stack:
        bind_addresses(settings, stack)  # an address that is taken is refused before the models are fetched and opened
    try:
        if args.processes == 1:
            from dragoman.serving.server import serve as run_server
        else:
            from dragoman.serving.server_processes import serve_in_processes
    except ImportError as error:
        raise MissingDependencyError(error.name or "fastapi", "serve", "dragoman serve") from error
    from dragoman.catalog.by_name import fetch_if_listed
    from dragoman.io.json_fields import to_json_line

    bundles = tuple(fetch_if_listed(bundle) for bundle in args.bundles)
    intra_threads, inter_threads = args.intra_threads, args.inter_threads
    if args.processes > 1:
        if intra_threads is None and inter_threads is None:
            intra_threads = max(1, count_allowed_cores() // args.processes)
        inter_threads = inter_threads or 1
    device_options: DeviceOptions = {
        "device": args.device,
        "precision": args.precision,
        "intra_threads": intra_threads,
        "inter_threads": inter_threads,
    }

    def report(url: str, targets: dict[str, list[str]]) -> None:
        """Say that the server accepts requests."""
        click.echo(f"serving {format_count(len(bundles), 'bundle')} at {url}", err=True)
        if args.as_json:
            click.echo(to_json_line(ServeOutput(url, list(map(str, bundles)), targets)))

    load_models = partial(_load_models, bundles, args.pivot, device_options)
    if args.processes > 1:
        serve_in_processes(load_models, settings, bundles=bundles, on_ready=report)
    else:
        run_server(load_models, settings, on_ready=report)


def _make_settings(args: ServeOptions) -> ServerSettings:
    from dragoman.serving.glossary_store import check_folder
    from dragoman.serving.page_policy import check_names

    check_names(args.allow_origin, args.allow_host, args.proxy)
    if args.glossaries is not None:
        check_folder(args.glossaries)
    return ServerSettings(
        host=args.host,
        port=args.port,
        admin_host=args.admin_host,
        admin_port=args.admin_port,
        processes=args.processes,
        traces=args.traces,
        limits=ServerLimits(
            **{limit.name: getattr(args, limit.name) for limit in fields(ServerLimits) if hasattr(args, limit.name)}
        ),
        api_keys=None if args.keys is None else ApiKeys.read(args.keys),
        allowed_origins=args.allow_origin,
        allowed_hosts=args.allow_host,
        proxies=args.proxy,
        retry=not args.no_retry,
        language_check=not args.no_language_check,
        glossary_dir=args.glossaries,
    )


def _load_models(bundles: tuple[Path, ...], pivot: str | None, device_options: DeviceOptions) -> ModelSet:
    """Load the bundles, in the process that serves them."""
    from dragoman.serving.model_set import ModelSet  # imports torch

    return ModelSet.load(bundles, pivot=pivot, **device_options)
