"""One process that translates: how soon the first sentence comes, and what memory it holds. A program of its own.

`remember.py BUNDLE PRECISION COUNT [EXTRA]` reads lines from standard input and translates COUNT of them, from the first again
after the last; the very first with at most EXTRA tokens more than it has, since random weights come to no end. Prints a line of
JSON after the first sentence and after each tenth of them.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import cycle, islice
from pathlib import Path

CHUNK = 1000


def held() -> dict[str, float]:
    """MiB now and at most, by the kernel's account; what stands in memory that no file backs is counted apart."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = {
        name: int(rest.split()[0]) / 1024 for name, _, rest in (one.partition(":") for one in lines) if rest.endswith("kB")
    }
    return {"resident": sizes["VmRSS"], "anonymous": sizes["RssAnon"], "most": sizes["VmHWM"]}


def main() -> None:
    began = time.time()
    from dragoman import load

    lines = sys.stdin.read().splitlines()
    translator = load(sys.argv[1], device="cpu", precision=sys.argv[2])
    loaded = held()
    translator.translate(lines[:1], **({"max_extra_tokens": int(sys.argv[4])} if len(sys.argv) > 4 else {}))
    print(json.dumps({"done": 1, "seconds": time.time() - began, "loaded": loaded, **held()}), flush=True)
    count, done, told = int(sys.argv[3]), 0, 0
    endless = cycle(lines)
    while done < count:
        translator.translate(list(islice(endless, min(CHUNK, count - done))), method="greedy")
        done += min(CHUNK, count - done)
        if done * 10 // count > told:
            told = done * 10 // count
            print(json.dumps({"done": done, "seconds": time.time() - began, **held()}), flush=True)


if __name__ == "__main__":
    main()
