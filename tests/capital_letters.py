"""Models that write capital letters, so that each answer of a server is known."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dragoman.bundle import BundleMetadata
from dragoman.config import make_recipe
from dragoman.inference.retries import CHECK_RETRY
from dragoman.inference.translation_constraints import TranslationConstraints
from dragoman.inference.translation_result import Translation
from dragoman.inference.translator import Translator
from dragoman.serving.model_set import ModelSet, Pair, ServedModel
from dragoman.serving.service import TranslationService
from dragoman.serving.settings import ServerLimits, ServerSettings

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


class CapitalTranslator:
    """Stand-in for a translator.

    suffix, dropped: text that it adds, and a word that it leaves out
    calls: lines and options of each call
    gate, reached: calls wait until the first is set, and set the second before
    """

    def __init__(self, suffix: str = "", dropped: str = "") -> None:
        self.suffix, self.dropped = suffix, dropped
        self.calls: list[tuple[list[str], dict[str, Any]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.metadata = BundleMetadata()
        card = {"purpose": "Letters", "license": "CC0-1.0", "examples": ["One day."]}
        self.recipe = make_recipe({"name": "capitals", "card": card})
        self.bundle = SimpleNamespace(metadata=self.metadata, tokenizer=SimpleNamespace(languages=None, reads=None))
        self.texts = SimpleNamespace(retry_decoding=CHECK_RETRY, reads_terms=False, uses_mask=lambda: False)

    def translate(self, lines: Sequence[str], *, attention: bool = False, **decoding: Any) -> list[Translation]:
        """Return the lines in capital letters, with as many alternatives as `nbest` asks for."""
        self.reached.set()
        self.gate.wait(120)
        self.calls.append((list(lines), decoding))
        if any("fail" in line for line in lines):
            raise ValueError("the translator fails")
        constraints = decoding.get("constraints") or [None] * len(lines)
        return [
            add_phrases(self.translate_line(line, decoding.get("nbest", 1)), line_constraints)
            for line, line_constraints in zip(lines, constraints, strict=True)
        ]

    def translate_line(self, line: str, nbest: int) -> Translation:
        words = [word for word in line.split() if word != self.dropped]
        pieces = tuple("▁" + word for word in words)
        text = " ".join(word if "{" in word else word.upper() for word in words) + self.suffix
        targets = tuple("▁" + word for word in text.split())
        others = tuple(Translation(f"{text} {number}") for number in range(1, nbest))
        links = tuple((index, index) for index in range(len(words)))
        return Translation(
            text, -1.5, targets, source_tokens=pieces, attention=np.eye(len(words)), alignment=links, alternatives=others
        )


def add_phrases(translation: Translation, constraints: TranslationConstraints | None) -> Translation:
    """Return the translation with the first phrase of each group of which it has none."""
    groups = (*constraints.include_any, *constraints.terms) if constraints is not None else ()
    lacking = [group[0] for group in groups if not any(phrase in translation.text for phrase in group)]
    return replace(translation, text=" ".join([translation.text, *lacking])) if lacking else translation


def make_models(*translators: tuple[CapitalTranslator, Pair], pivot: str | None = None) -> ModelSet:
    """Return served models of these translators."""
    return ModelSet(
        [ServedModel(f"model-{pair[0]}-{pair[1]}", cast(Translator, translator), (pair,)) for translator, pair in translators],
        pivot=pivot,
    )


def make_client(service: TranslationService, settings: ServerSettings | None = None) -> TestClient:
    """Return a client of the application. Only tests that call it import the libraries of the server."""
    from fastapi.testclient import TestClient

    from dragoman.serving.app import build_app

    return TestClient(build_app(service, settings or ServerSettings()), raise_server_exceptions=False)


def make_service(translator: CapitalTranslator | None = None, **limits: Any) -> TranslationService:
    """Return a service from English to German."""
    return TranslationService(make_models((translator or CapitalTranslator(), ("en", "de"))), ServerLimits(**limits))


@contextmanager
def listen(service: TranslationService, settings: ServerSettings | None = None) -> Iterator[str]:
    """Run an application in a thread; give its address."""
    import uvicorn

    from dragoman.serving.app import build_app

    server = uvicorn.Server(uvicorn.Config(build_app(service, settings or ServerSettings()), log_config=None, loop="asyncio"))
    with socket.socket() as server_socket:
        server_socket.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [server_socket]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{server_socket.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
