"""Server that translates all waiting requests together: each worker takes what waits, up to 64 sentences of similar length."""

from __future__ import annotations

import asyncio

from serving.peer_application import PeerTranslator, read_arguments, run

MAX_BATCH = 64


def main() -> None:
    arguments = read_arguments()
    translator = PeerTranslator(arguments)
    waiting: list[tuple[str, asyncio.Future[str]]] = []
    free_workers = arguments.workers

    async def translate_waiting() -> None:
        """Translate batches until nothing waits."""
        nonlocal free_workers
        while waiting:
            waiting.sort(key=lambda item: len(item[0]))
            batch = waiting[:MAX_BATCH]
            del waiting[:MAX_BATCH]
            results = await asyncio.to_thread(translator.translate, [sentence for sentence, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result)
        free_workers += 1

    async def translate(sentence: str) -> str:
        nonlocal free_workers
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting.append((sentence, future))
        if free_workers:
            free_workers -= 1
            tasks.add(task := asyncio.create_task(translate_waiting()))
            task.add_done_callback(tasks.discard)
        return await future

    tasks: set[asyncio.Task[None]] = set()
    run(translate, arguments.port)


if __name__ == "__main__":
    main()
