"""Program that trains for one step and prints the seconds of each part of the start as a JSON object.

`start_parts.py RECIPE KEY=VALUE …` takes the arguments of `dragoman train`. The parts are the interpreter and torch, the other
imports, the set-up (data, kernels, model, optimizer), and the first step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path


def main() -> None:
    moments = [time.time()]
    import torch  # noqa: F401

    moments.append(time.time())
    from dragoman.config import read_recipe
    from dragoman.training.monitoring.events import RunStarted, StepDone, TrainingEvent
    from dragoman.training.run import train

    moments.append(time.time())

    def note_moment(event: TrainingEvent) -> None:
        if isinstance(event, RunStarted | StepDone):
            moments.append(time.time())
        if isinstance(event, StepDone):
            names = ("torch", "imports", "set-up", "first step")
            seconds = [after - before for before, after in pairwise(moments)]
            print(json.dumps(dict(zip(names, seconds, strict=True))), flush=True)
            os._exit(0)  # the run is not finished

    train(read_recipe(Path(sys.argv[1]), sys.argv[2:]), note_moment)


if __name__ == "__main__":
    main()
