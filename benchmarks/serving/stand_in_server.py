"""Server with a stand-in for the model, whose speed is known. The rest of it is the server of `dragoman serve`.

It prints a line of JSON with its addresses when it is ready, one with its open tasks at SIGUSR1, and one with its exit status.
With --times, a child process serves at a time, so that many starts cost one import.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from dragoman.bundle import BundleMetadata
from dragoman.inference.retries import CHECK_RETRY
from dragoman.inference.translation_result import Translation
from dragoman.inference.translator import Translator
from dragoman.serving.model_set import ModelSet, ServedModel
from dragoman.serving.server import serve
from dragoman.serving.settings import ServerLimits, ServerSettings


class StandInTranslator:
    """Translator that writes capital letters, and takes some time for each batch and for each line."""

    def __init__(self, batch_seconds: float = 0.0, line_seconds: float = 0.0) -> None:
        self.batch_seconds = batch_seconds
        self.line_seconds = line_seconds
        self.num_lines = 0
        self.metadata = BundleMetadata()
        self.texts = SimpleNamespace(retry_decoding=CHECK_RETRY, reads_terms=False, uses_mask=lambda: False)
        self.bundle = SimpleNamespace(metadata=self.metadata, tokenizer=SimpleNamespace(languages=None, reads=None))

    def translate(self, lines: Sequence[str], **options: Any) -> list[Translation]:
        """Return the lines in capital letters."""
        time.sleep(self.batch_seconds + self.line_seconds * len(lines))
        self.num_lines += len(lines)
        return [Translation(line.upper(), -1.0) for line in lines]


def load_stand_in(translator: StandInTranslator) -> ModelSet:
    """Return models that translate from English to German."""
    return ModelSet([ServedModel("stand-in", cast(Translator, translator), (("en", "de"),))])


def print_json(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    translator = StandInTranslator(arguments.batch_seconds, arguments.line_seconds)
    limits = ServerLimits(**json.loads(arguments.limits))

    def report(*_: object) -> None:
        """Print the open tasks, and the lines that were translated."""
        print_json(tasks=len(asyncio.all_tasks()), lines=translator.num_lines)

    signal.signal(signal.SIGUSR1, report)
    serve(
        lambda: load_stand_in(translator),
        ServerSettings(port=0, admin_port=arguments.admin_port, limits=limits, retry=False),
        on_ready=lambda url, models: print_json(url=url, process=os.getpid()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-seconds", type=float, default=0.0)
    parser.add_argument("--line-seconds", type=float, default=0.0)
    parser.add_argument("--limits", default="{}", help="limits other than the defaults, as JSON")
    parser.add_argument("--admin-port", type=int)
    parser.add_argument("--times", type=int, default=1, help="servers to run one after the other")
    parser.add_argument("--log", action="store_true", help="write the log of requests to standard error")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.log else logging.ERROR, format="%(message)s", stream=sys.stderr)
    for _ in range(arguments.times):
        if process := os.fork():
            signal.signal(signal.SIGTERM, lambda *_, child=process: os.kill(child, signal.SIGTERM))
            _, status = os.waitpid(process, 0)
            print_json(exit_status=os.waitstatus_to_exitcode(status))
        else:
            run(arguments)
            os._exit(0)


if __name__ == "__main__":
    main()
