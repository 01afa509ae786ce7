"""Budget of bytes: the order of those that wait, the end of a wait, and a request that is canceled."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.serving.byte_budget import ByteBudget
from dragoman.serving.request_queue import QueueFullError


def test_requests_take_turns_and_large_ones_are_not_passed() -> None:
    async def run() -> None:
        budget, order = ByteBudget(10), []

        async def work(name: str, num_bytes: int) -> None:
            async with budget.take(num_bytes, 60.0):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(work("a", 6), work("b", 50), work("c", 1), work("d", 9))
        assert order == ["a", "b", "c", "d"]
        assert budget.num_taken == 0

    asyncio.run(run())


def test_one_client_leaves_bytes_to_others() -> None:
    """A client that has bytes already may have as many as it leaves: five of ten, then three, and then one."""

    async def run() -> None:
        budget, holders = ByteBudget(10), []

        async def hold(client: str) -> None:
            async with budget.take(1, 60.0, client):
                holders.append(client)
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(hold(client)) for client in "a" * 50 + "b" * 50 + "c" * 50]
        await asyncio.sleep(0.01)
        assert "".join(holders) == "aaaaabbbc"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.num_taken == 0

    asyncio.run(run())


def test_wait_ends_by_time_and_by_cancellation() -> None:
    async def run() -> None:
        budget = ByteBudget(10)

        async def wait(seconds: float) -> None:
            async with budget.take(5, seconds):
                await asyncio.Event().wait()

        async with budget.take(8, 0.0):
            waiting = asyncio.create_task(wait(60.0))
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError):
                await wait(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert budget.num_taken == 0
        granted = asyncio.create_task(wait(60.0))
        async with budget.take(10, 0.0):
            late = asyncio.create_task(wait(60.0))
            await asyncio.sleep(0)
        late.cancel()  # in the moment in which it has got its part
        granted.cancel()
        await asyncio.gather(late, granted, return_exceptions=True)
        assert budget.num_taken == 0

    asyncio.run(run())


def test_part_that_is_granted_in_the_last_moment_is_used() -> None:
    """The first request gives its part back in the turn of the event loop in which the wait of the second one ends."""

    async def run() -> None:
        budget = ByteBudget(10)

        async def take() -> int:
            async with budget.take(5, 0.0):
                return budget.num_taken

        async with budget.take(10, 0.0):
            late = asyncio.create_task(take())
            await asyncio.sleep(0)
        assert await late == 5
        assert budget.num_taken == 0

    asyncio.run(run())
