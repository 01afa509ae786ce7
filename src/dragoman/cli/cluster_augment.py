"""Synthetic pairs by the workers of a cluster: `dragoman augment --cluster`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.cluster_translate import WorkerTranslator
from dragoman.cluster.shards import Executor, Shard, write_by_shards

if TYPE_CHECKING:
    from dragoman.formats.pair import Pair
    from dragoman.inference.synthetic_data import Augmentation, PairFileFormat


@dataclass(frozen=True)
class AugmentShard:
    """Shard function that translates the sources of a window of pairs, and makes the lines of the output."""

    model: WorkerTranslator
    augmentation: Augmentation
    decoding: Mapping[str, Any]
    file_format: PairFileFormat

    def __call__(self, numbered_pairs: tuple[int, list[Pair]]) -> tuple[dict[str, bytes], Any]:
        """Return the lines as they are in the output, and the number of pairs by outcome."""
        start, pairs = numbered_pairs
        sources = [pair.source for pair in pairs]
        outputs = self.model.translator.translate(sources, start_index=start, **self.decoding)
        text, counts = self.augmentation.format_pairs(pairs, outputs, self.file_format)
        return {"txt": text.encode()}, dict(counts)


def augment_on_cluster(
    pairs: Iterable[Pair],
    function: AugmentShard,
    output: str | Path,
    request: Mapping[str, Any],
    executor: Executor,
    *,
    overwrite: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Counter[str]:
    """Write what `dragoman.inference.synthetic_data.augment` writes, byte for byte; return the number of pairs by outcome.

    A shard is a window of one machine. See `write_by_shards` for the arguments.

    on_progress: called with the number of lines that are done
    """
    request = {"command": "augment", **request}
    shards = _split_windows(pairs)
    records = write_by_shards(function, shards, output, request, executor, overwrite=overwrite, on_progress=on_progress)
    counts = Counter[str]()
    for record in records:
        counts.update(record.summary)
    return counts


def _split_windows(pairs: Iterable[Pair]) -> Iterator[Shard]:
    from dragoman.inference.synthetic_data import WINDOW_LINES

    iterator, start = iter(pairs), 0
    while window := list(islice(iterator, WINDOW_LINES)):
        content = json.dumps([start, *([pair.source, pair.target, pair.origin] for pair in window)])
        digest = sha256(content.encode()).hexdigest()
        yield Shard(f"lines-{start // WINDOW_LINES:07d}", (start, window), digest, len(window))
        start += len(window)
