"""Parts of both peers: the arguments, the tokenizers, and the route of LibreTranslate."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece
import uvicorn
from fastapi import FastAPI, Request


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--length", type=int, default=0, help="tokens of each output; 0 for the model's own end")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


class PeerTranslator:
    """CTranslate2 with the tokenizers beside the model."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        folder = arguments.folder
        self.translator = ctranslate2.Translator(
            str(folder), compute_type="int8", inter_threads=arguments.workers, intra_threads=arguments.threads
        )
        source, target = folder / "source.model", folder / "target.model"
        self.source = sentencepiece.SentencePieceProcessor(model_file=str(source))
        self.target = sentencepiece.SentencePieceProcessor(model_file=str(target if target.exists() else source))
        self.options: dict[str, Any] = {"beam_size": arguments.beam, "length_penalty": 1.0}
        if arguments.length:
            self.options |= {"min_decoding_length": arguments.length, "max_decoding_length": arguments.length}

    def translate(self, sentences: list[str]) -> list[str]:
        """Translate sentences in one batch."""
        pieces = [self.source.encode(sentence, out_type=str) for sentence in sentences]
        results = self.translator.translate_batch(pieces, **self.options)
        return [self.target.decode(result.hypotheses[0]) for result in results]


def run(translate: Callable[[str], Awaitable[str]], port: int) -> None:
    """Serve LibreTranslate's route."""
    app = FastAPI(docs_url=None, redoc_url=None)

    @app.post("/translate")
    async def answer(request: Request) -> dict[str, str]:
        fields = await request.json()
        return {"translatedText": await translate(fields["q"])}

    uvicorn.run(app, port=port, log_config=None, access_log=False, http="h11")
