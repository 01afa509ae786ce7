"""The application: routes, the guard before them, and errors in the shape of each API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from dragoman.errors import DragomanError, WriteError
from dragoman.serving.deepl_api import build_deepl_router
from dragoman.serving.deepl_glossaries import build_glossary_router
from dragoman.serving.file_jobs import FileJobs
from dragoman.serving.file_routes import build_file_router
from dragoman.serving.glossary_store import GlossaryStore
from dragoman.serving.http_errors import HttpError, to_http_error
from dragoman.serving.libretranslate_api import build_libretranslate_router
from dragoman.serving.middleware import RequestGuard
from dragoman.serving.openai_api import build_openai_router
from dragoman.serving.own_api import build_model_router, build_own_router
from dragoman.serving.page import build_page_router
from dragoman.serving.page_policy import PagePolicy
from dragoman.serving.request_queue import DeadlineError, QueueClosedError, QueueFullError
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerSettings
from dragoman.serving.telemetry import TraceRequests
from dragoman.version import __version__

logger = logging.getLogger("dragoman.serving")

NO_ROUTE = "no such route; this server translates, parses and transcribes, and /docs lists its routes"
HANDLED = (HttpError, DragomanError, QueueFullError, QueueClosedError, DeadlineError)


def build_app(service: TranslationService, settings: ServerSettings) -> FastAPI:
    """Return the application of a server."""
    jobs = FileJobs(service, settings.file_dir)
    glossaries = GlossaryStore(settings.glossary_dir, is_shared=settings.processes > 1)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        cleaning = asyncio.create_task(jobs.clean())
        yield
        cleaning.cancel()
        await jobs.close()
        await service.close()

    app = FastAPI(
        title="dragoman",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: f"{'_'.join(map(str, route.tags))}_{route.name}",
    )
    app.include_router(_build_health_router(service))
    app.include_router(build_libretranslate_router(service, settings))
    app.include_router(build_deepl_router(service, settings, glossaries))
    app.include_router(build_glossary_router(service, glossaries))
    app.include_router(build_own_router(service, settings, glossaries))
    app.include_router(build_model_router(service))
    app.include_router(build_file_router(jobs, settings))
    app.include_router(build_openai_router(service))
    app.include_router(build_page_router())
    for error_type in HANDLED:
        app.add_exception_handler(error_type, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_middleware(RequestGuard, settings=settings, metrics=service.metrics)
    if service.telemetry is not None:
        app.add_middleware(TraceRequests, telemetry=service.telemetry)
    if settings.allowed_origins:
        app.add_middleware(_AllowedPages, policy=PagePolicy(settings.host, settings.allowed_origins, settings.allowed_hosts))
    return app


class _AllowedPages(CORSMiddleware):
    """Headers that let a browser give answers to the pages that the operator allows."""

    def __init__(self, app: ASGIApp, policy: PagePolicy) -> None:
        super().__init__(
            app, allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"], allow_headers=["Authorization", "X-API-Key"]
        )
        self.policy = policy

    def is_allowed_origin(self, origin: str) -> bool:
        """Return whether the pages of a site may call the server."""
        return self.policy.allows_origin(origin)


def _build_health_router(service: TranslationService) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health", operation_id="health")
    @router.get("/livez", operation_id="is_alive")
    async def is_alive() -> dict[str, str]:
        """Answer while the process runs."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def is_ready() -> JSONResponse:
        """Answer 200 if requests are accepted, and 503 while the server stops or its queue is full."""
        state = service.describe_state()
        return JSONResponse({"status": state}, status_code=200 if state == "ok" else 503)

    return router


def _answer(request: Request, error: HttpError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.list_headers()}
    return Response(error.write_body(request.url.path), status_code=error.status, headers=headers)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, WriteError):
        logger.error("request failed: %s", error)
    return _answer(request, to_http_error(error))


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    message = NO_ROUTE if error.status_code == 404 else error.detail
    if "Allow" in headers:  # it has the methods of one function of the route
        methods = request.app.openapi()["paths"].get(request.scope["route"].path)
        headers["Allow"] = ", ".join(methods or [headers["Allow"]]).upper()
        message = f"the route takes {headers['Allow']}, not {request.method}"
    answer = _answer(request, HttpError(error.status_code, message, "invalid-route"))
    answer.headers.update(headers)
    return answer


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    problem = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": ("?",), "msg": "is not valid"}
    return _answer(request, HttpError(400, f"{problem['loc'][-1]}: {str(problem['msg']).lower()}"))
