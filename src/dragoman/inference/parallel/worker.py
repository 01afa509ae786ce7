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
from dragoman.decoding.constraints import Rules, Wish
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.io.storage import MANIFEST
from dragoman.tasks.generation import Search, Work
from dragoman.tasks.inference_model import Speaker

Found = list[list[Hypothesis]]


@dataclass(frozen=True)
class Opening:
    """What a process opens to say what this one says.

    seals: SHA-256 of the manifest of each folder, when this process opened it
    """

    bundles: tuple[str, ...]
    precision: str
    shortlist: str | None
    seals: tuple[str, ...]


def seals_of(folders: Sequence[str | Path]) -> tuple[str, ...]:
    """Raises OSError."""
    return tuple(hashlib.sha256((Path(folder) / MANIFEST).read_bytes()).hexdigest() for folder in folders)


def opening_of(folders: Sequence[Path], precision: str, shortlist: str | Path | None) -> Opening | None:
    """What other processes would open; none where it is not on disk (any more)."""
    try:
        seals = seals_of([*folders, *([shortlist] if shortlist is not None else [])])
    except OSError:
        return None
    bundles = tuple(str(folder.absolute()) for folder in folders)
    listed = None if shortlist is None else str(Path(shortlist).absolute())
    return Opening(bundles, precision, listed, seals) if bundles else None


def is_portable(work: object) -> bool:
    """Whether this is work that can be written down: searches that no function of the caller's takes part in."""
    return isinstance(work, Work) and work.search.constrain is None and work.search.rules.allow is None


class Job(Protocol):
    """Pieces of work that several take from."""

    def take(self) -> int | None:
        """The number of a piece that nobody has taken yet."""
        ...

    def request(self, number: int) -> dict[str, Any]: ...

    def finish(self, number: int, found: Found) -> None: ...

    def give_back(self, number: int) -> None:
        """Somebody else has to do it."""
        ...


class Worker:
    """The process, as this one sees it: takes from each job until nothing is left; a piece at which it fails is given back."""

    def __init__(self, opening: Opening, threads: int) -> None:
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
        self.over = threading.Event()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        told = {**vars(opening), "threads": threads}
        events = (self.ready, self.over)
        threading.Thread(target=_accompany, args=(self.process, self._jobs, told, *events), name="worker", daemon=True).start()
        self.end = weakref.finalize(self, _end, self.process, self._jobs)

    def join(self, job: Job) -> None:
        """Take part in this job, as soon as the process has come up and has nothing else to do."""
        self._jobs.put(job)


def _end(process: subprocess.Popen[bytes], jobs: SimpleQueue[Job | None]) -> None:
    jobs.put(None)
    process.kill()
    process.wait()


def _accompany(
    process: subprocess.Popen[bytes],
    jobs: SimpleQueue[Job | None],
    told: Mapping[str, Any],
    ready: threading.Event,
    over: threading.Event,
) -> None:
    """Hand the process its pieces, one at a time, until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            if _ask(process, told).get("seals") == list(told["seals"]):
                ready.set()
                while (job := jobs.get()) is not None:
                    _take_part(process, job)
        except (OSError, ValueError):
            pass  # it was ended, or killed; whoever gave the work does it himself
        finally:
            over.set()
            ready.set()


def _take_part(process: subprocess.Popen[bytes], job: Job) -> None:
    while (number := job.take()) is not None:
        found: Found | None = None
        try:
            answer = _ask(process, job.request(number))
            if "found" in answer:
                found = [[_hypothesis(one) for one in some] for some in answer["found"]]
        finally:
            if found is None:
                job.give_back(number)
        if found is None:
            return
        job.finish(number, found)


def _ask(process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> dict[str, Any]:
    """Raises OSError, or ValueError where there is no answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def request_of(work: Work, batch: Sequence[int]) -> dict[str, Any]:
    """A batch and how it is searched, as JSON has it."""
    search = work.search
    sources, places, wishes = work.of(batch)
    return {
        "config": search.config.model_dump_json(),
        "start_id": search.start_id,
        "rules": vars(search.rules),
        "branching": search.branching,
        "narrowed": search.speaker.narrowed is not None,
        "sources": [list(map(int, source)) for source in sources],
        "places": list(places),
        "wishes": [vars(wish) for wish in wishes],
    }


def answer_to(request: Mapping[str, Any], speaker: Speaker) -> Found:
    """What this search finds."""
    rules = Rules(**{**request["rules"], "suppressed": tuple(request["rules"]["suppressed"])})
    search = Search(
        speaker if request["narrowed"] else replace(speaker, narrowed=None),
        DecodingConfig.model_validate_json(request["config"]),
        request["start_id"],
        rules,
        None,
        request["branching"],
    )
    wishes = [Wish(**{name: _tuples(value) for name, value in wish.items()}) for wish in request["wishes"]]
    return search.run(range(len(request["sources"])), request["sources"], request["places"], wishes)


def _tuples(value: Any) -> Any:
    """Lists within lists as tuples within tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _hypothesis(told: list[Any]) -> Hypothesis:
    return Hypothesis(*map(_tuples, told))


def main() -> None:
    """Open the bundles of the first line, then answer line by line until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    told = json.loads(sys.stdin.buffer.readline())
    import torch

    from dragoman.inference.translator import load

    torch.set_num_threads(told["threads"])
    folders = (*told["bundles"], *([told["shortlist"]] if told["shortlist"] else []))
    translator = load(*told["bundles"], device="cpu", precision=told["precision"], shortlist=told["shortlist"], replicas=1)
    speaker = translator.speaker
    _tell(answers, {"seals": seals_of(folders)})
    for line in sys.stdin.buffer:
        answer: dict[str, Any]
        try:
            found = answer_to(json.loads(line), speaker)
            answer = {"found": [[list(vars(one).values()) for one in some] for some in found]}
        except Exception as error:  # whatever it is, who asked does the work himself and meets it there
            answer = {"failed": str(error)}
        _tell(answers, answer)


def _tell(answers: IO[bytes], answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
