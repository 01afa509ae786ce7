"""Glossaries that clients have sent to the server: in memory, or in a folder that the operator names.

Their number and their terms are limited. A glossary does not change: a client deletes it and sends another one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from dragoman.errors import DragomanError
from dragoman.io.storage import atomic_write, make_dirs, to_write_error
from dragoman.languages import is_same_language
from dragoman.serving.clients import ANYBODY, Requester, has_share
from dragoman.serving.http_errors import HttpError
from dragoman.text.glossary import Glossary, GlossaryEntry

MAX_GLOSSARIES = 100
MAX_ENTRIES = 10_000
"""Terms of one glossary."""
MAX_ALL_ENTRIES = 100_000
"""Terms of all glossaries."""
PARTIAL_SECONDS = 600.0
"""Age from which a file that is not finished was left by a killed server."""
QUOTA_EXCEEDED = 456
"""DeepL's HTTP status for a quota that is used up."""

Pair = tuple[str, str]
"""Source language and target language."""


@dataclass(frozen=True)
class StoredGlossary:
    """Glossary with its name, its pair of languages, and the time of its creation in ISO 8601.

    client: name of the client that sent it; empty for one that the operator has put into the folder, which all may read
    group: id that it has in common with those of other pairs, or empty
    """

    id: str
    name: str
    source_language: str
    target_language: str
    creation_time: str
    entries: tuple[GlossaryEntry, ...]
    client: str = ""
    group: str = ""

    def has_pair(self, pair: Pair) -> bool:
        """Return whether it is of a pair of languages; an empty code fits any."""
        own = self.source_language, self.target_language
        return all(not code or is_same_language(code, other) for code, other in zip(pair, own, strict=True))


def check_folder(folder: Path) -> None:
    """Make a folder for glossaries if it is absent. Raises WriteError if no file can be written there."""
    try:
        make_dirs(folder)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise to_write_error(folder, error) from None


class GlossaryStore:
    """Glossaries by their ids.

    folder: folder of the files, which several processes can share; None keeps glossaries in memory
    is_shared: several processes serve, so that memory is not enough

    The owner that functions take is the name of a client that has a key, which sees its own glossaries only, or empty.
    """

    def __init__(self, folder: Path | None = None, *, is_shared: bool = False) -> None:
        self._folder, self._is_shared = folder, is_shared
        self._in_memory: dict[str, StoredGlossary] = {}
        self._index = lru_cache(maxsize=8)(_build_glossary)
        if folder is not None:
            _remove_partial_files(folder)

    def add(
        self,
        name: str,
        source_language: str,
        target_language: str,
        entries: Sequence[GlossaryEntry],
        client: Requester = ANYBODY,
        group: str = "",
    ) -> StoredGlossary:
        """Store a glossary.

        Raises HttpError if it has no terms, or if there is no room for it, and DataError for entries that contradict others.
        """
        check_number_of_entries(entries)
        glossary = Glossary(entries)  # finds contradictions
        self._check_room(len(glossary.entries), client)
        created = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        stored = StoredGlossary(
            str(uuid.uuid4()), name, source_language, target_language, created, glossary.entries, client.name, group
        )
        self._write(stored)
        return stored

    def rename(self, stored: StoredGlossary, name: str) -> None:
        """Give a glossary another name."""
        self._write(replace(stored, name=name))

    def _write(self, stored: StoredGlossary) -> None:
        if self._folder is not None:
            make_dirs(self._folder)
            with atomic_write(self._folder / f"{stored.id}.json", overwrite=True) as stream:
                json.dump(asdict(stored), stream, ensure_ascii=False)
        elif self._is_shared:
            raise HttpError(
                400,
                "a server with several processes stores glossaries in a folder only; its operator has to start it with "
                "--glossaries DIR",
                "no-glossary-folder",
            )
        else:
            self._in_memory[stored.id] = stored

    def _check_room(self, num_entries: int, client: Requester) -> None:
        """Raise HttpError if the glossaries are too many or too large, those of all clients or the share of this one."""
        sizes = [(len(stored.entries), bool(client.name) and stored.client == client.name) for stored in self._iter_all()]
        own_sizes = [size for size, is_own in sizes if is_own]
        has_place = has_share(len(own_sizes), len(sizes), MAX_GLOSSARIES)
        if not has_place or not has_share(sum(own_sizes), sum(size for size, _ in sizes), MAX_ALL_ENTRIES, num_entries):
            raise HttpError(
                QUOTA_EXCEEDED,
                f"Quota exceeded: the server has room for {MAX_GLOSSARIES} glossaries with {MAX_ALL_ENTRIES} terms together, "
                "half of them for one client; delete one",
                "too-many-glossaries",
            )

    def list_all(self, owner: str = "") -> list[StoredGlossary]:
        """Return the glossaries of an owner, or all of them, oldest first."""
        visible = (stored for stored in self._iter_all() if _is_visible(stored, owner))
        return sorted(visible, key=lambda stored: (stored.creation_time, stored.id))

    def _iter_all(self) -> Iterator[StoredGlossary]:
        yield from self._in_memory.values()
        for path in self._folder.glob("*.json") if self._folder is not None else ():
            if (stored := _read(path)) is not None:
                yield stored

    def get(self, glossary_id: str, owner: str = "") -> StoredGlossary:
        """Return a glossary. Raises HttpError for an unknown id."""
        stored = self._in_memory.get(glossary_id)
        if stored is None and self._folder is not None and _is_id(glossary_id):
            stored = _read(self._folder / f"{glossary_id}.json")
        if stored is None or not _is_visible(stored, owner):
            raise HttpError(404, "Glossary not found", "unknown-glossary")
        return stored

    def get_group(self, group: str, owner: str = "", *, to_change: bool = False) -> list[StoredGlossary]:
        """Return the glossaries of a group, or the one with this id.

        to_change: the owner changes or deletes them

        Raises HttpError for an unknown id, and for a glossary of the operator that the owner would change.
        """
        members = [stored for stored in self.list_all(owner) if (stored.group or stored.id) == group]
        if not members:
            raise HttpError(404, "Glossary not found", "unknown-glossary")
        if to_change:
            for stored in members:
                _check_owner(stored, owner)
        return members

    def get_index(self, glossary_id: str, owner: str = "", pair: Pair = ("", "")) -> Glossary:
        """Return a glossary for translation: the one of its group for a pair of languages, if there is one.

        Raises HttpError for an unknown id.
        """
        with suppress(HttpError):
            if (stored := self.get(glossary_id, owner)).has_pair(pair):
                return self._index(stored)
        members = self.get_group(glossary_id, owner)
        return self._index(find_pair(members, pair) or members[0])

    def delete(self, glossary_id: str, owner: str = "") -> None:
        """Delete a glossary. Raises HttpError for an unknown id, and for a glossary of the operator."""
        _check_owner(self.get(glossary_id, owner), owner)
        self._in_memory.pop(glossary_id, None)
        if self._folder is not None and _is_id(glossary_id):
            (self._folder / f"{glossary_id}.json").unlink(missing_ok=True)


def find_pair(glossaries: Iterable[StoredGlossary], pair: Pair) -> StoredGlossary | None:
    """Return the first glossary of a pair of languages, or None."""
    return next((stored for stored in glossaries if stored.has_pair(pair)), None)


def _remove_partial_files(folder: Path) -> None:
    """Remove files that a killed server did not finish. One that another server writes now is younger."""
    for path in folder.glob(".*.partial"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > PARTIAL_SECONDS:
                path.unlink()


def _check_owner(stored: StoredGlossary, owner: str) -> None:
    if owner and stored.client != owner:
        raise HttpError(403, "the glossary belongs to the operator of the server, who alone deletes it", "not-owner")


def _is_visible(stored: StoredGlossary, owner: str) -> bool:
    return not owner or stored.client in (owner, "")


def check_number_of_entries(entries: Sequence[GlossaryEntry]) -> None:
    """Raise HttpError for a glossary without terms, and for one with too many."""
    if not entries:
        raise HttpError(400, "entries: the glossary has no terms", "empty-glossary")
    if len(entries) > MAX_ENTRIES:
        raise HttpError(
            413, f"entries: has {len(entries)} terms, more than {MAX_ENTRIES}; send several glossaries", "glossary-too-large"
        )


def _build_glossary(stored: StoredGlossary) -> Glossary:
    return Glossary(stored.entries, stored.source_language, stored.target_language)


def _is_id(text: str) -> bool:
    """Return whether a text is an id as the store makes them, and no path."""
    with suppress(ValueError):
        return str(uuid.UUID(text)) == text
    return False


def _read(path: Path) -> StoredGlossary | None:
    """Return the glossary of a file, or None if the file is gone or not one of the store's."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(GlossaryEntry(**{**entry, "targets": tuple(entry["targets"])}) for entry in fields["entries"])
        return StoredGlossary(**{**fields, "entries": entries})
    except (OSError, ValueError, TypeError, KeyError, DragomanError):
        return None
