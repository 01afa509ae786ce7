"""A process beside this one that has the same bundles open, searches batches for it, and ends with it.

Threads of Python wait for each other's interpreter at every operation of a step; processes do not. Weights are mapped from the
same files, so that memory holds them once. Both sides speak lines of JSON. The process is started by its command, not by
`multiprocessing`, which would run the caller's own program once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, Protocol

from dragoman.config import DecodingConfig
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.io.storage import MANIFEST_FILE
from dragoman.tasks.generation import BatchSearch, GenerationJob
from dragoman.tasks.inference_model import InferenceModel

SearchResults = list[list[Hypothesis]]


@dataclass(frozen=True)
class WorkerSpec:
    """What a process opens to say what this one says.

    seals: SHA-256 of the manifest of each folder, when this process opened it
    """

    bundles: tuple[str, ...]
    precision: str
    shortlist: str | None
    checksums: tuple[str, ...]


def compute_checksums(paths: Sequence[str | Path]) -> tuple[str, ...]:
    """Raises OSError."""
    return tuple(hashlib.sha256((Path(path) / MANIFEST_FILE).read_bytes()).hexdigest() for path in paths)


def build_worker_spec(bundle_paths: Sequence[Path], precision: str, shortlist: str | Path | None) -> WorkerSpec | None:
    """What other processes would open; none where it is not on disk (any more)."""
    try:
        checksums = compute_checksums([*bundle_paths, *([shortlist] if shortlist is not None else [])])
    except OSError:
        return None
    bundles = tuple(str(bundle_path.absolute()) for bundle_path in bundle_paths)
    shortlist_path = None if shortlist is None else str(Path(shortlist).absolute())
    return WorkerSpec(bundles, precision, shortlist_path, checksums) if bundles else None


def is_serializable(job: object) -> bool:
    """Whether this is work that can be written down: searches that no function of the caller's takes part in."""
    return (
        isinstance(job, GenerationJob)
        and job.search.constraint_factory is None
        and job.search.decoding_constraints.allowed_tokens_fn is None
    )


class WorkQueue(Protocol):
    """Pieces of work that several take from."""

    def take(self) -> int | None:
        """The number of a piece that nobody has taken yet."""
        ...

    def build_request(self, index: int) -> dict[str, Any]: ...

    def complete(self, index: int, results: SearchResults) -> None: ...

    def requeue(self, index: int) -> None:
        """Somebody else has to do it."""
        ...


class Worker:
    """The process, as this one sees it: takes from each job until nothing is left; a piece at which it fails is given back."""

    def __init__(self, spec: WorkerSpec, threads: int) -> None:
        """Raises OSError where no process can be started."""
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dragoman.inference.parallel.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)},
            process_group=0 if os.name == "posix" else None,  # Ctrl-C is for the first process, which ends the others
        )
        self.ready = threading.Event()
        self.ended = threading.Event()
        self._queues: SimpleQueue[WorkQueue | None] = SimpleQueue()
        settings = {**vars(spec), "threads": threads}
        events = (self.ready, self.ended)
        threading.Thread(
            target=_serve_queues, args=(self.process, self._queues, settings, *events), name="worker", daemon=True
        ).start()
        self.terminate = weakref.finalize(self, _terminate, self.process, self._queues)

    def submit(self, queue: WorkQueue) -> None:
        """Take part in this job, as soon as the process has come up and has nothing else to do."""
        self._queues.put(queue)


def _terminate(process: subprocess.Popen[bytes], queues: SimpleQueue[WorkQueue | None]) -> None:
    queues.put(None)
    process.kill()
    process.wait()


def _serve_queues(
    process: subprocess.Popen[bytes],
    queues: SimpleQueue[WorkQueue | None],
    settings: Mapping[str, Any],
    ready: threading.Event,
    ended: threading.Event,
) -> None:
    """Hand the process its pieces, one at a time, until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            if _send_request(process, settings).get("seals") == list(settings["seals"]):
                ready.set()
                while (queue := queues.get()) is not None:
                    _process_queue(process, queue)
        except (OSError, ValueError):
            pass  # it was ended, or killed; whoever gave the work does it himself
        finally:
            ended.set()
            ready.set()


def _process_queue(process: subprocess.Popen[bytes], queue: WorkQueue) -> None:
    while (index := queue.take()) is not None:
        results: SearchResults | None = None
        try:
            answer = _send_request(process, queue.build_request(index))
            if "found" in answer:
                results = [[_decode_hypothesis(fields) for fields in hypotheses] for hypotheses in answer["found"]]
        finally:
            if results is None:
                queue.requeue(index)
        if results is None:
            return
        queue.complete(index, results)


def _send_request(process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> dict[str, Any]:
    """Raises OSError, or ValueError where there is no answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def encode_request(job: GenerationJob, batch: Sequence[int]) -> dict[str, Any]:
    """A batch and how it is searched, as JSON has it."""
    search = job.search
    sources, sample_ids, constraints = job.select_batch(batch)
    return {
        "config": search.config.model_dump_json(),
        "start_id": search.start_id,
        "rules": vars(search.decoding_constraints),
        "branching": search.return_alternatives,
        "narrowed": search.inference_model.restrict_vocabulary is not None,
        "sources": [list(map(int, source)) for source in sources],
        "places": list(sample_ids),
        "wishes": [vars(sentence_constraints) for sentence_constraints in constraints],
    }


def run_request(request: Mapping[str, Any], inference_model: InferenceModel) -> SearchResults:
    """What this search finds."""
    decoding_constraints = DecodingConstraints(**{**request["rules"], "suppressed": tuple(request["rules"]["suppressed"])})
    search = BatchSearch(
        inference_model if request["narrowed"] else replace(inference_model, narrowed=None),
        DecodingConfig.model_validate_json(request["config"]),
        request["start_id"],
        decoding_constraints,
        None,
        request["branching"],
    )
    constraints = [
        SentenceConstraints(**{name: _to_tuples(value) for name, value in fields.items()}) for fields in request["wishes"]
    ]
    return search.run(range(len(request["sources"])), request["sources"], request["places"], constraints)


def _to_tuples(value: Any) -> Any:
    """Lists within lists as tuples within tuples."""
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def _decode_hypothesis(fields: list[Any]) -> Hypothesis:
    return Hypothesis(*map(_to_tuples, fields))


def main() -> None:
    """Open the bundles of the first line, then answer line by line until there are no more."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    settings = json.loads(sys.stdin.buffer.readline())
    import torch

    from dragoman.inference.translator import load_translator

    torch.set_num_threads(settings["threads"])
    paths = (*settings["bundles"], *([settings["shortlist"]] if settings["shortlist"] else []))
    translator = load_translator(
        *settings["bundles"], device="cpu", precision=settings["precision"], shortlist=settings["shortlist"], inter_threads=1
    )
    inference_model = translator.inference_model
    _write_answer(output, {"seals": compute_checksums(paths)})
    for line in sys.stdin.buffer:
        answer: dict[str, Any]
        try:
            results = run_request(json.loads(line), inference_model)
            answer = {"found": [[list(vars(hypothesis).values()) for hypothesis in hypotheses] for hypotheses in results]}
        except Exception as error:  # whatever it is, who asked does the work himself and meets it there
            answer = {"failed": str(error)}
        _write_answer(output, answer)


def _write_answer(output: IO[bytes], answer: Mapping[str, Any]) -> None:
    output.write(json.dumps(answer).encode() + b"\n")
    output.flush()


if __name__ == "__main__":
    main()
