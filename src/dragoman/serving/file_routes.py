"""Routes for files: LibreTranslate's `/translate_file`, the three steps of DeepL's `/v2/document`, and our own `/v1/files`."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import Field

from dragoman.serving.clients import identify_client
from dragoman.serving.deepl_api import Formality
from dragoman.serving.file_jobs import FileJobs, FileRequest, JobState
from dragoman.serving.http_errors import HttpError
from dragoman.serving.libretranslate_api import admit_body_key
from dragoman.serving.request_fields import OwnFields, RequestFields, check_fields, read_fields
from dragoman.serving.settings import ServerSettings
from dragoman.serving.uploads import check_name, describe_upload, read_upload

DOCUMENT_ID_LENGTH = 16
"""Characters of a job's name that are DeepL's document id; the other 16 are its key."""
MISSING = "Parameter '{name}' not specified."
DOWNLOAD_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of a translated file, which a browser stores and never shows as a page of the server."""
Language = Annotated[str, Field(min_length=1, max_length=40)]


class LibreTranslateFileFields(RequestFields):
    """Fields of /translate_file besides the file."""

    source: Language
    target: Language
    api_key: str | None = None


class DeeplDocumentFields(RequestFields):
    """Fields of /v2/document besides the file. Fields that change the style of a translation have no effect."""

    target_lang: Language
    source_lang: Annotated[str, Field(max_length=40)] | None = None
    filename: str | None = None
    output_format: str | None = None
    formality: Formality | None = None
    glossary_id: str | None = None


class DocumentKeyFields(RequestFields):
    """Fields of the other two steps."""

    document_key: str


class FileFields(OwnFields):
    """Fields of /v1/files besides the file.

    Attributes:
        target: language of the translation
        source: language of the file; without it, the language is detected
        scope: `empty` for texts without a translation, `fuzzy` also for those with a fuzzy one, `all` for all
        accept: `true` marks translations without a failed check as good; otherwise a human has to check them
    """

    target: Language
    source: Language | None = None
    scope: Literal["empty", "fuzzy", "all"] = "empty"
    accept: Literal["true", "false"] = "false"


def build_file_router(jobs: FileJobs, settings: ServerSettings) -> APIRouter:
    """Return the routes for files."""
    router = APIRouter()
    router.include_router(_build_libretranslate_router(jobs, settings))
    router.include_router(_build_deepl_router(jobs))
    router.include_router(_build_own_router(jobs))
    return router


def _build_libretranslate_router(jobs: FileJobs, settings: ServerSettings) -> APIRouter:
    router = APIRouter(tags=["LibreTranslate"])

    @router.post("/translate_file", openapi_extra=describe_upload(LibreTranslateFileFields))
    async def translate_file(request: Request) -> JSONResponse:
        """Translate a file, and return the address of the translation, which is there for a time."""
        upload = await read_upload(request)
        if not admit_body_key(request, settings, upload.fields.get("api_key")):
            raise HttpError(403, "Invalid API key", "invalid-key")
        fields, name = upload.check(LibreTranslateFileFields, "Invalid request: missing {name} parameter")
        source = None if fields.source == "auto" else fields.source
        state = await jobs.wait(
            (
                await jobs.create(
                    FileRequest(name, source, fields.target, client=identify_client(request.scope)), upload.content
                )
            ).id
        )
        try:
            jobs.get_translation(state.id)
        except HttpError:
            jobs.remove(state.id)  # the client does not know its name
            raise
        return JSONResponse({"translatedFileUrl": str(request.url_for("download_file", job_id=state.id))})

    @router.get("/download_file/{job_id}")
    async def download_file(job_id: str) -> FileResponse:
        """Return a translated file. Its address is a secret that takes the place of a key."""
        return _send_file(jobs, job_id)

    return router


def _build_deepl_router(jobs: FileJobs) -> APIRouter:
    router = APIRouter(prefix="/v2/document", tags=["DeepL"])

    async def find(request: Request, document_id: str) -> JobState:
        """Return the state of a document; the key of the document is a part of the secret name of its job."""
        if len(document_id) != DOCUMENT_ID_LENGTH:
            raise HttpError(404, "Document not found", "file-not-found")
        key = check_fields(DocumentKeyFields, await read_fields(request), missing=MISSING).document_key
        return jobs.get(document_id + key, identify_client(request.scope).owner)

    @router.post("", openapi_extra=describe_upload(DeeplDocumentFields))
    async def upload_document(request: Request) -> JSONResponse:
        """Start the translation of a document."""
        upload = await read_upload(request)
        fields, name = upload.check(DeeplDocumentFields, MISSING)
        name = check_name(fields.filename) if fields.filename else name
        output_format = (fields.output_format or "").lower().lstrip(".")
        if output_format and output_format != PurePath(name).suffix.lower().lstrip("."):
            raise HttpError(400, f"output_format: a {PurePath(name).suffix} file stays in its format; leave it out")
        if fields.glossary_id:
            raise HttpError(400, "glossary_id: the server translates files without a glossary; leave it out")
        source = fields.source_lang.lower() if fields.source_lang else None
        state = await jobs.create(
            FileRequest(name, source, fields.target_lang.lower(), is_counted=True, client=identify_client(request.scope)),
            upload.content,
        )
        return JSONResponse({"document_id": state.id[:DOCUMENT_ID_LENGTH], "document_key": state.id[DOCUMENT_ID_LENGTH:]})

    @router.post("/{document_id}")
    async def document_status(request: Request, document_id: str) -> JSONResponse:
        """Return the state of a document."""
        state = await find(request, document_id)
        answer: dict[str, Any] = {"document_id": document_id, "status": state.status}
        if state.status == "translating" and (seconds := state.estimate_seconds()) is not None:
            answer["seconds_remaining"] = seconds
        if state.status == "done":
            answer["billed_characters"] = state.characters
        if state.status == "error":
            answer["message"] = answer["error_message"] = state.error
        return JSONResponse(answer)

    @router.post("/{document_id}/result")
    async def download_document(request: Request, document_id: str) -> FileResponse:
        """Return the translated document."""
        return _send_file(jobs, (await find(request, document_id)).id)

    return router


def _build_own_router(jobs: FileJobs) -> APIRouter:
    router = APIRouter(prefix="/v1/files", tags=["dragoman"])

    @router.post("", status_code=202, openapi_extra=describe_upload(FileFields))
    async def upload_file(request: Request) -> JSONResponse:
        """Start the translation of a file."""
        upload = await read_upload(request)
        fields, name = upload.check(FileFields)
        state = await jobs.create(
            FileRequest(
                name,
                fields.source,
                fields.target,
                fields.scope,
                fields.accept == "true",
                client=identify_client(request.scope),
            ),
            upload.content,
        )
        return JSONResponse(describe_job(state), status_code=202, headers={"Location": f"files/{state.id}"})

    @router.get("/{job_id}")
    async def file_status(request: Request, job_id: str) -> JSONResponse:
        """Return the state of a file: its progress, and the texts that fail a check."""
        state = jobs.get(job_id, identify_client(request.scope).owner)
        return JSONResponse(describe_job(state), headers={"Cache-Control": "no-store"})

    @router.get("/{job_id}/content")
    async def file_content(request: Request, job_id: str) -> FileResponse:
        """Return the translated file."""
        jobs.get(job_id, identify_client(request.scope).owner)
        return _send_file(jobs, job_id)

    @router.delete("/{job_id}", status_code=204)
    async def remove_file(request: Request, job_id: str) -> Response:
        """Remove a file and its translation; a translation in progress ends."""
        jobs.get(job_id, identify_client(request.scope).owner)
        jobs.remove(job_id)
        return Response(status_code=204)

    return router


def describe_job(state: JobState) -> dict[str, Any]:
    """Return the fields of a file's state."""
    answer: dict[str, Any] = {
        "id": state.id,
        "name": state.name,
        "status": state.status,
        "source": state.source,
        "target": state.target,
        "done": state.done,
        "total": state.total,
    }
    if state.status == "done":
        answer |= {"flagged": state.flagged, "flagged_texts": state.flags}
    if state.status == "error":
        answer["error"] = {"code": state.code, "message": state.error}
    return answer


def _send_file(jobs: FileJobs, job_id: str) -> FileResponse:
    path, name = jobs.get_translation(job_id)
    return FileResponse(path, filename=name, media_type="application/octet-stream", headers=DOWNLOAD_HEADERS)
