"""Transcription of recordings that clients send: their windows wait in a queue of their own, and each client has its turn."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING

from dragoman.serving.queued_search import QueuedSearch, RequestTimes
from dragoman.serving.request_queue import estimate_tokens

if TYPE_CHECKING:
    from dragoman.transcription.transcriber import SpeechTask, Transcriber
    from dragoman.transcription.transcript import Transcript

MAX_WAITING = 64
"""Recordings of which a window waits."""


@dataclass(frozen=True, eq=False)
class RecordingRequest:
    """Recording and how it is transcribed; see `Transcriber.transcribe`. content: the bytes of its file"""

    content: bytes
    name: str
    task: SpeechTask
    language: str | None = None
    prompt: str = ""


@dataclass(frozen=True, eq=False)
class _Windows:
    """Windows of one recording, which no batch shares with another. transcripts: transcript up to the end of each window"""

    transcripts: Generator[Transcript]


class Recordings:
    """Queue of the windows of recordings. A window takes seconds, and lines of text wait in another queue meanwhile."""

    @cached_property
    def _searches(self) -> QueuedSearch[_Windows, Transcript | None]:
        """Searches, whose thread starts with the first recording."""
        return QueuedSearch(_advance, max_tokens=MAX_WAITING * estimate_tokens(""))

    async def transcribe(self, model: Transcriber, request: RecordingRequest, times: RequestTimes) -> Transcript:
        """Return the transcript of a recording.

        Raises DataError for a file that is no recording, and for a language or a task that the model does not have, and the
        errors of `QueuedSearch.run`.
        """
        windows = _Windows(
            model.iter_transcripts(
                BytesIO(request.content),
                name=request.name,
                language=request.language,
                task=request.task,
                prompt=request.prompt,
            )
        )
        transcript: Transcript | None = None
        try:
            while (following := (await self._searches.run(windows, [""], times))[0]) is not None:
                transcript = following
        finally:
            with suppress(ValueError):  # the thread of the queue is in a window, and nobody waits for it
                windows.transcripts.close()
        assert transcript is not None
        return transcript

    async def close(self, seconds: float) -> None:
        """Finish the windows in the queue within these seconds, and refuse new ones."""
        if "_searches" in self.__dict__:
            await self._searches.close(seconds)


def _advance(windows: _Windows, lines: Sequence[str]) -> list[Transcript | None]:
    """Transcribe the next window of a recording; None behind the last one."""
    return [next(windows.transcripts, None)]
