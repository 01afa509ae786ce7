"""Main program of a worker process: opens the bundles of its client and searches batches until its input ends.

Run by `worker`:  python -m dragoman.inference.parallel.worker_main
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from dragoman.bundle import load_bundle
from dragoman.inference.backends.device import resolve_device
from dragoman.inference.backends.select import build_inference_model
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.inference.parallel.messages import compute_checksums, encode_results, run_request
from dragoman.runtime.thread_count import set_num_threads
from dragoman.shortlist import read_shortlist
from dragoman.tasks.inference_model import InferenceModel


def main() -> None:
    """Open the bundles that the first line names, then answer each further line."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the prints of libraries out of the answers
    settings = json.loads(sys.stdin.buffer.readline())
    set_num_threads(settings["threads"])
    inference_model = open_inference_model(settings)
    folders = (*settings["bundles"], *([settings["shortlist"]] if settings["shortlist"] else []))
    _write_answer(output, {"checksums": compute_checksums(folders)})
    for line in sys.stdin.buffer:
        _write_answer(output, answer_request(line, inference_model))


def open_inference_model(settings: Mapping[str, Any]) -> InferenceModel:
    """Return the models of the client, prepared for search on the CPU."""
    bundles = [load_bundle(Path(path)) for path in settings["bundles"]]
    choice = resolve_device("cpu", settings["precision"])
    assert choice.precision is not None, "the client has chosen the precision"

    return build_inference_model(
        [TrainedModel.from_bundle(bundle, is_mapped=True) for bundle in bundles],
        "cpu",
        choice.precision,
        None if settings["shortlist"] is None else read_shortlist(Path(settings["shortlist"]), bundles[0].tokenizer),
    )


def answer_request(line: bytes, inference_model: InferenceModel) -> dict[str, Any]:
    """Return the answer to one message: its results, or the text of an error."""
    try:
        return {"results": encode_results(run_request(json.loads(line), inference_model))}
    except Exception as error:  # any error: the client searches the batch itself and raises the same error
        return {"error": str(error)}


def _write_answer(output: IO[bytes], answer: Mapping[str, Any]) -> None:
    output.write(json.dumps(answer).encode() + b"\n")
    output.flush()


if __name__ == "__main__":
    main()
