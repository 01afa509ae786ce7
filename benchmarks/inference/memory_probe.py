"""Process that translates and prints its memory.

`memory_probe.py BUNDLE PRECISION COUNT [EXTRA]` reads lines from standard input and translates COUNT of them in a cycle. EXTRA
limits the tokens of the first output beyond its source, because a random model emits no end token. The process prints a line of
JSON after the first sentence and after each tenth of COUNT.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

CHUNK = 1000


def read_memory() -> dict[str, float]:
    """Return resident, anonymous and peak memory in MiB, from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = {
        name: int(size.split()[0]) / 1024 for name, _, size in (line.partition(":") for line in lines) if size.endswith("kB")
    }
    return {"resident": sizes["VmRSS"], "anonymous": sizes["RssAnon"], "peak": sizes["VmHWM"]}


def main() -> None:
    began = time.time()

    from dragoman import load

    lines = sys.stdin.read().splitlines()
    translator = load(sys.argv[1], task="translation", device="cpu", precision=sys.argv[2])
    loaded = read_memory()
    limit: dict[str, Any] = {"max_extra_tokens": int(sys.argv[4])} if len(sys.argv) > 4 else {}
    translator.translate(lines[:1], **limit)
    print(json.dumps({"done": 1, "seconds": time.time() - began, "loaded": loaded, **read_memory()}), flush=True)
    count, done, tenths = int(sys.argv[3]), 0, 0
    endless = cycle(lines)
    while done < count:
        translator.translate(list(islice(endless, min(CHUNK, count - done))), method="greedy")
        done += min(CHUNK, count - done)
        if done * 10 // count > tenths:
            tenths = done * 10 // count
            print(json.dumps({"done": done, "seconds": time.time() - began, **read_memory()}), flush=True)


if __name__ == "__main__":
    main()
