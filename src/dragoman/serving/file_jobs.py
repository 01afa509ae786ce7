"""Translation of files: each upload is a job with a folder of its own, which is removed after a time.

A job's folder has the original, the translation and the state. Each state is written completely or not at all, so other
processes of the server can read it. The name of the folder is a secret that only the client knows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman.documents.document import Document, add_plural_forms
from dragoman.documents.file_garbage import FileGarbage
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.reading import ended_by
from dragoman.documents.translate_document import DocumentOptions, UnitResult, translate_document
from dragoman.documents.unit_selection import Scope, list_selected
from dragoman.errors import DataError, DragomanError
from dragoman.inference.text_options import ModelLimits
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.whole_texts import LineRequest
from dragoman.runtime.owned_folder import has_owner, own_folder
from dragoman.serving.clients import ANYBODY, QUEUE_CLIENT, Requester, has_share
from dragoman.serving.http_errors import HttpError, to_http_error
from dragoman.serving.model_set import LineKey, Step
from dragoman.serving.queued_search import RequestTimes
from dragoman.serving.request_queue import QueueClosedError, QueueFullError, estimate_tokens
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import FILE_DIR_PREFIX
from dragoman.text.projection import split_units

if TYPE_CHECKING:
    from dragoman.inference.translation_result import Translation
from dragoman.inference.unit_weights import compute_unit_weights

Status = Literal["queued", "translating", "done", "error"]

MAX_RUNNING = 2
"""Files that a process translates at the same time; their lines share the queue with all requests."""
MAX_QUEUED_TOKENS = 4096
"""Tokens that a file has in the queue at the same time."""
MAX_FLAGGED = 100
"""Flagged texts that the state of a job names."""
MAX_DETECTED_CHARACTERS = 2000
CLEANING_SECONDS = 60.0
ORIGINAL, TRANSLATION, STATE = "original", "translation", "state"
"""Names of the files of a job."""
_PROCESS_PREFIX = "process-"
_ID = re.compile(r"[0-9a-f]{32}")

logger = logging.getLogger("dragoman.serving")


@dataclass(frozen=True)
class FileRequest:
    """File to translate.

    name: its name, whose ending selects the format
    source: language of the texts, or None to detect it
    scope, accept: see `DocumentOptions`
    is_counted: add the characters of its texts to the usage that DeepL's API reports
    client: the client that sent it
    """

    name: str
    source: str | None
    target: str
    scope: Scope = "empty"
    accept: bool = False
    is_counted: bool = False
    client: Requester = ANYBODY


@dataclass(frozen=True)
class JobState:
    """State of a job.

    id: secret name of the job
    name: name of the translated file
    source, target: languages
    done, total: number of texts that are translated, and that were to be translated
    characters: characters of the texts that were to be translated
    flagged, flags: number of texts that fail a check, and the first ones of them
    started: seconds of the clock at the start of the translation
    error, code: reason why there is no translation
    process: name of the folder that the server process owns which translates the file
    client: name of the client that sent the file
    """

    id: str
    name: str
    source: str
    target: str
    status: Status = "queued"
    done: int = 0
    total: int = 0
    characters: int = 0
    flagged: int = 0
    flags: list[dict[str, Any]] = field(default_factory=list)
    started: float = 0.0
    error: str = ""
    code: str = ""
    process: str = ""
    client: str = ""

    def estimate_seconds(self) -> int | None:
        """Return the time that is left by the speed up to now; None if there is no speed yet."""
        seconds = max(0.0, time.time() - self.started)  # somebody may have set the clock back
        return round(seconds * (self.total - self.done) / self.done) if self.done else None


class _JobFolders:
    """Folders of all jobs.

    path: folder of the folders; without one, a private folder that is made at the first use and removed at the end
    max_seconds: time after its last change for which a job is kept
    """

    def __init__(self, path: Path | None, max_seconds: float) -> None:
        self._path = path
        self._own_path: Path | None = None
        self._temporary = ExitStack()
        self._max_seconds = max_seconds
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """Folder of the folders."""
        with self._lock:
            if self._path is None:
                self._path = self._temporary.enter_context(own_folder(FILE_DIR_PREFIX))
            return self._path

    def own(self) -> str:
        """Return the name of a folder that this process owns as long as it lives."""
        path = self.path
        with self._lock:
            if self._own_path is None:
                self._own_path = self._temporary.enter_context(own_folder(_PROCESS_PREFIX, path))
            return self._own_path.name

    def has_owner(self, name: str) -> bool:
        """Return whether the process with this folder lives."""
        return has_owner(self.path / name)

    def close(self) -> None:
        self._temporary.close()

    def create(self, state: JobState, content: bytes) -> None:
        folder = self.path / state.id
        folder.mkdir(mode=0o700)
        (folder / ORIGINAL).write_bytes(content)
        self.write(state)

    def write(self, state: JobState) -> None:
        """Write a state. The folder of a job that was removed stays away."""
        folder = self.path / state.id
        new = folder / f"{STATE}.{threading.get_ident()}"
        with suppress(FileNotFoundError):
            new.write_text(json.dumps(asdict(state), ensure_ascii=False), encoding="utf-8")
            new.replace(folder / STATE)

    def read(self, job_id: str) -> JobState | None:
        """Return the state of a job; None for one that does not exist or has expired."""
        if not _ID.fullmatch(job_id) or self._has_expired(self.path / job_id):
            return None
        try:
            return JobState(**json.loads((self.path / job_id / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def remove(self, job_id: str) -> None:
        shutil.rmtree(self.path / job_id, ignore_errors=True)

    def remove_expired(self) -> Counter[str]:
        """Remove the jobs that have expired, and return the number of the others by their clients."""
        counts: Counter[str] = Counter()
        for folder in self.path.iterdir():
            if not _ID.fullmatch(folder.name):
                continue
            if self._has_expired(folder):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                state = self.read(folder.name)
                counts["" if state is None else state.client] += 1
        return counts

    def _has_expired(self, folder: Path) -> bool:
        try:
            return time.time() - folder.stat().st_mtime > self._max_seconds
        except OSError:
            return False


class FileJobs:
    """Jobs of this process, and the states of the jobs of all processes.

    folder: folder of the jobs, which the processes of a server share; without one, a private temporary folder
    """

    def __init__(self, service: TranslationService, folder: Path | None = None) -> None:
        self._service = service
        self._folders = _JobFolders(folder, service.limits.file_seconds)
        self._threads = ThreadPoolExecutor(MAX_RUNNING, thread_name_prefix="files")
        self._stopped = threading.Event()
        self._garbage = FileGarbage()
        self._running: dict[str, asyncio.Future[None]] = {}
        self._creation_lock = asyncio.Lock()

    async def create(self, request: FileRequest, content: bytes) -> JobState:
        """Start the translation of a file, and return its state.

        Raises DataError for a format or a language that is not served, HttpError if the client has its share of the places, and
        QueueFullError if there are too many jobs.
        """
        if self._stopped.is_set():
            raise QueueClosedError
        get_parser(request.name)
        self._service.models.check_translates()
        self._service.models.check_language(request.target)
        if request.source is not None:
            self._service.models.find_route(request.source, request.target)
        state = JobState(
            secrets.token_hex(16),
            name_translation(request),
            request.source or "",
            request.target,
            process=await asyncio.to_thread(self._folders.own),
            client=request.client.name,
        )
        async with self._creation_lock:
            self._check_places(await asyncio.to_thread(self._folders.remove_expired), request.client)
            creation = asyncio.ensure_future(asyncio.to_thread(self._folders.create, state, content))
            try:
                await asyncio.shield(creation)
            except BaseException:  # the client went away, or there is no room: the folder must not stay without a job
                creation.add_done_callback(lambda _: self._folders.remove(state.id))
                raise
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, self._run, state, request, loop)
        self._running[state.id] = future
        future.add_done_callback(lambda _: self._running.pop(state.id, None))
        return state

    def _check_places(self, counts: Counter[str], client: Requester) -> None:
        """Raise an error if there is no place, or none for this client."""
        limit = self._service.limits.max_files
        if counts.total() >= limit:
            raise QueueFullError
        if client.name and not has_share(counts[client.name], counts.total(), limit):
            raise HttpError(
                429,
                f"the server keeps {counts[client.name]} files of yours, and as many places are for other clients; delete one, "
                "or wait until its time is over",
                "too-many-files",
            )

    async def wait(self, job_id: str) -> JobState:
        """Return the state of a job of this process when it is finished. If the caller is canceled, the job is removed."""
        try:
            if (future := self._running.get(job_id)) is not None:
                await asyncio.shield(future)
        except asyncio.CancelledError:
            self._folders.remove(job_id)
            raise
        return self.get(job_id)

    def get(self, job_id: str, owner: str = "") -> JobState:
        """Return the state of a job. Raises HttpError for one that does not exist, or does not any more.

        owner: name of the client whose job it has to be; empty for that of any client
        """
        state = self._folders.read(job_id)
        if state is None or (owner and state.client != owner):
            raise HttpError(404, "the file does not exist, or was removed after its time; send it again", "file-not-found")
        if state.status in ("queued", "translating") and not self._folders.has_owner(state.process):
            message = "the server process that translated the file has ended; send the file again"
            return replace(state, status="error", error=message, code="process-ended")
        return state

    def get_translation(self, job_id: str) -> tuple[Path, str]:
        """Return the translated file of a job, and its name. Raises HttpError if there is none, or not yet."""
        state = self.get(job_id)
        if state.status == "error":
            raise HttpError(400, state.error, state.code)
        if state.status != "done":
            raise HttpError(503, "the file is not translated yet; ask for its state", "file-not-ready")
        return self._folders.path / job_id / TRANSLATION, state.name

    def remove(self, job_id: str) -> None:
        """Remove a job; one that is in progress ends. Raises HttpError for one that does not exist."""
        self.get(job_id)
        self._folders.remove(job_id)

    async def clean(self) -> None:
        """Remove expired jobs from time to time until the task is canceled."""
        while True:
            await asyncio.sleep(min(CLEANING_SECONDS, self._service.limits.file_seconds))
            await asyncio.to_thread(self._folders.remove_expired)

    async def close(self) -> None:
        """End the jobs in progress, and remove a private folder."""
        self._stopped.set()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._folders.close()

    def _run(self, state: JobState, request: FileRequest, loop: asyncio.AbstractEventLoop) -> None:
        """Translate the file of a job in a thread, and write its translation and its state."""
        with self._garbage.without_full_collections():
            self._work(state, request, loop)

    def _work(self, state: JobState, request: FileRequest, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with ended_by(partial(self._check_goes_on, state.id)):
                state, content = self._translate(state, request, loop)
            (self._folders.path / state.id / TRANSLATION).write_bytes(content)
            if request.is_counted:
                loop.call_soon_threadsafe(self._service.usage.add, state.characters, request.client.owner)
        except Exception as error:
            is_removed = not (self._folders.path / state.id).exists()  # a step may have met this by another error
            suffix = Path(state.name).suffix
            if isinstance(error, _RemovedError) or is_removed:
                logger.info("the work on a file (%s) has ended: it was removed, or its client has left", suffix)
                return
            if isinstance(error, QueueClosedError):
                logger.info("the work on a file (%s) has ended: the server stops", suffix)
            elif not isinstance(error, DragomanError | HttpError | QueueFullError):
                logger.exception("translation of a file (%s) failed", suffix)
            answer = to_http_error(error)
            state = replace(state, status="error", error=answer.message, code=answer.code)
            (self._folders.path / state.id / TRANSLATION).unlink(missing_ok=True)  # a part of it, if the disk is full
        try:
            self._folders.write(state)
        except OSError:
            logger.exception("the state of a file cannot be written; it is removed")
            self._folders.remove(state.id)

    def _translate(self, state: JobState, request: FileRequest, loop: asyncio.AbstractEventLoop) -> tuple[JobState, bytes]:
        """Return the final state and the translation."""
        original = self._folders.path / state.id / ORIGINAL
        document = parse_document(request.name, original.read_bytes())
        document = add_plural_forms(document, get_parser(request.name), request.target)
        original.unlink()
        source = request.source or self._detect(document)
        route = self._service.models.find_route(source, request.target)
        if not route:
            raise DataError(f"the file is in {source} already; choose another target language", code="unsupported-language")
        selected = list_selected(document, request.scope, source_language=source, target_language=request.target)
        state = replace(
            state,
            source=source,
            status="translating",
            started=time.time(),
            total=len(selected),
            characters=sum(len(unit.source) for unit in selected),
        )
        self._folders.write(state)
        is_direct = len(route) == 1
        options = DocumentOptions(
            source,
            request.target,
            request.scope,
            request.accept,
            limits=route[0].limits if is_direct else ModelLimits(),
            mask_codes=is_direct and route[0].mask_codes,
            language_check=self._service.language_check,
        )
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            with suppress(OSError):  # a full disk; the translation may have room
                self._folders.write(replace(state, done=done))

        def translate(lines: LineRequest) -> Sequence[Translation]:
            self._check_goes_on(state.id)
            future = asyncio.run_coroutine_threadsafe(self._translate_lines(state, route, lines), loop)
            return future.result()

        result = translate_document(document, get_parser(request.name), translate, options, advance)
        flagged = [item for item in result.results if item.flags]
        state = replace(
            state,
            status="done",
            done=len(selected),
            flagged=len(flagged),
            flags=[_describe_flagged(item) for item in flagged[:MAX_FLAGGED]],
        )
        return state, result.content

    def _check_goes_on(self, job_id: str) -> None:
        """Raise an error if the server stops or the job was removed."""
        if self._stopped.is_set():
            raise QueueClosedError
        if not (self._folders.path / job_id).exists():
            raise _RemovedError

    def _detect(self, document: Document) -> str:
        """Return the language that the document states, or that of its texts."""
        text = "\n".join(unit.source for unit in document.units)[:MAX_DETECTED_CHARACTERS]
        return document.source_language or self._service.detector.detect(text)[0].language

    async def _translate_lines(self, state: JobState, route: Sequence[Step], request: LineRequest) -> list[Translation]:
        """Translate lines by one model or by two, a part of them at a time so that other requests have room."""
        QUEUE_CLIENT.set(state.client)
        results: list[Translation] = []
        constraints = TranslationConstraints(keep_marks=True) if request.keep_marks else None
        for lines in _divide_lines(request.lines):
            self._check_goes_on(state.id)
            until = time.monotonic() + self._service.limits.file_seconds
            translations: list[Translation] = []
            for step in route:
                first, texts = translations, [item.text for item in translations] or lines
                is_retry = request.is_retry and step is route[-1]
                key = LineKey(step, request.attention, is_retry, constraints=constraints)
                translations = await self._service.translate_lines(key, texts, RequestTimes(until, until))
                if first:
                    translations = list(map(_join_steps, lines, first, translations))
            results += translations
        return results


class _RemovedError(Exception):
    """End of a job whose folder was removed."""


def name_translation(request: FileRequest) -> str:
    """Return the name of the translated file, such as `page.de.html`."""
    path = Path(request.name)
    return path.with_suffix(f".{request.target.lower()}{path.suffix}").name


def _describe_flagged(result: UnitResult) -> dict[str, Any]:
    return {
        "context": result.unit.context,
        "source": result.unit.source,
        "text": result.text,
        "flags": list(result.flags),
    }


def _divide_lines(lines: Sequence[str]) -> list[list[str]]:
    """Return the lines in parts of at most `MAX_QUEUED_TOKENS`; a longer line is a part by itself."""
    parts: list[list[str]] = []
    room = 0
    for line in lines:
        tokens = estimate_tokens(line)
        if tokens > room or not parts:
            parts.append([])
            room = MAX_QUEUED_TOKENS
        parts[-1].append(line)
        room -= tokens
    return parts


def _join_steps(source: str, first: Translation, second: Translation) -> Translation:
    """Return the second step with attention to the words of the source: the product of that of both steps."""
    if second.attention is None:
        return second
    attention = compute_unit_weights(second, first.text) @ compute_unit_weights(first, source)
    return replace(
        second,
        tokens=tuple(second.text[start:end] for start, end in split_units(second.text)),
        source_tokens=tuple(source[start:end] for start, end in split_units(source)),
        attention=attention,
        token_log_probs=(),
        alternatives=(),
    )
