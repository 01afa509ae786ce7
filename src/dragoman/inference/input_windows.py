"""Windows of a stream: the lines or sentences that are computed together, each with its companion from a second stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from dragoman.errors import DataError

ItemT = TypeVar("ItemT")
CompanionT = TypeVar("CompanionT")

DEFAULT_WINDOW = 2048
"""Lines or sentences that `stream` computes together."""


def split_windows(
    items: Iterable[ItemT],
    companions: Iterable[CompanionT] | None,
    window: int,
    *,
    start_index: int,
    item_name: str,
    companion_name: str,
) -> Iterator[tuple[int, list[ItemT], Sequence[CompanionT] | None]]:
    """Return the index of the first item of each window, its items, and their companions.

    companions: one for each item, such as its constraints; None if no item has one
    item_name, companion_name: noun of one item and plural noun of the companions, for messages

    Raises TypeError for a single text and ValueError for an empty window, both at once. Raises DataError if there are more or
    fewer companions than items, when the shorter of the two ends.
    """
    if isinstance(items, str):
        raise TypeError(f"stream: a sequence of {item_name}s is needed, not a text; write stream([text])")
    if window < 1:
        raise ValueError(f"window = {window} is less than 1; give 1 or more")
    companion_iterator = None if companions is None else iter(companions)

    def iter_windows() -> Iterator[tuple[int, list[ItemT], Sequence[CompanionT] | None]]:
        item_iterator, index = iter(items), start_index
        while window_items := list(islice(item_iterator, window)):
            window_companions = None if companion_iterator is None else list(islice(companion_iterator, len(window_items)))
            if window_companions is not None and len(window_companions) < len(window_items):
                end = f"{companion_name} end after {item_name} {index + len(window_companions)}, before the {item_name}s"
                raise DataError(f"{end}; give {companion_name} for each {item_name}")
            yield index, window_items, window_companions
            index += len(window_items)
        if companion_iterator is not None and any(True for _ in companion_iterator):
            end = f"{item_name}s end after {item_name} {index}, before the {companion_name}"
            raise DataError(f"{end}; give {companion_name} for these {item_name}s only")

    return iter_windows()
