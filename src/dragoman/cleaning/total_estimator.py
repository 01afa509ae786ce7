"""Number of pairs in a corpus, estimated while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from dragoman.config import CorpusConfig
from dragoman.formats.pair import Pair
from dragoman.formats.readers import list_corpus_files
from dragoman.formats.text import BYTE_COUNTER


class TotalEstimator:
    """Estimator of the number of pairs in a corpus, from the share of its bytes that is read.

    The number is unknown for standard input and for Parquet.
    """

    def __init__(self, corpus: CorpusConfig, root: Path) -> None:
        paths = [path for path in list_corpus_files(corpus, root) if path.suffix != ".parquet" and path.is_file()]
        self.total_bytes = 0 if corpus.reads_standard_input else sum(path.stat().st_size for path in paths)
        self.start_bytes = BYTE_COUNTER.num_bytes
        self.num_pairs = 0

    def count(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs and count them. The reader may be several chunks ahead of the filters."""
        for pair in pairs:
            self.num_pairs += 1
            yield pair

    def estimate(self) -> int | None:
        """Return the estimated number of pairs in the corpus, rounded to two digits, or None if it is unknown."""
        bytes_read = min(BYTE_COUNTER.num_bytes - self.start_bytes, self.total_bytes)
        if not bytes_read:
            return None
        if bytes_read == self.total_bytes:
            return self.num_pairs
        return max(self.num_pairs, int(float(f"{self.num_pairs * self.total_bytes / bytes_read:.1e}")))
