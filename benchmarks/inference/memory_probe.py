"""Process that translates and prints its memory.

`memory_probe.py BUNDLE COUNT` reads lines from standard input and translates COUNT of them in a cycle. It prints a line of JSON
after the first sentence and after each tenth of COUNT.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle, islice
from pathlib import Path

CHUNK = 1000


def read_memory() -> dict[str, float]:
    """Return resident and peak memory in MiB, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = {
        name: int(size.split()[0]) / 1024 for name, _, size in (line.partition(":") for line in lines) if size.endswith("kB")
    }
    return {"resident": sizes["VmRSS"], "peak": sizes["VmHWM"]}


def main() -> None:
    from dragoman import load

    lines = sys.stdin.read().splitlines()
    translator = load(sys.argv[1], task="translation", device="cpu")
    translator.translate(lines[:1])
    print(json.dumps({"done": 1, **read_memory()}), flush=True)
    count, done, tenths = int(sys.argv[2]), 0, 0
    endless = cycle(lines)
    while done < count:
        translator.translate(list(islice(endless, min(CHUNK, count - done))), method="greedy")
        done += min(CHUNK, count - done)
        if done * 10 // count > tenths:
            tenths = done * 10 // count
            print(json.dumps({"done": done, **read_memory()}), flush=True)


if __name__ == "__main__":
    main()
