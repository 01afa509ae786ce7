"""Server that translates one request after the other, as LibreTranslate does."""

from __future__ import annotations

import asyncio
import threading

from serving.peer_application import PeerTranslator, read_arguments, run


def main() -> None:
    arguments = read_arguments()
    translator = PeerTranslator(arguments)
    lock = threading.Lock()

    def translate_alone(sentence: str) -> str:
        with lock:
            return translator.translate([sentence])[0]

    async def translate(sentence: str) -> str:
        return await asyncio.to_thread(translate_alone, sentence)

    run(translate, arguments.port)


if __name__ == "__main__":
    main()
