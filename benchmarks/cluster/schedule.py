"""Simulated schedule of many workers: makespan and efficiency from measured times of shards.

The driver hands out one shard after the other, which takes it `dispatch_seconds`. A worker that is free takes the next shard.
The time of a shard is drawn from the measured ones. Some workers are slower by a factor. A worker may be lost in a shard, which
is then done again. With speculation, a worker that finds no shard left repeats the running shard whose end is farthest away.
The copy that ends first counts, and the worker of the other one is free at that moment.

    PYTHONPATH=benchmarks python -m cluster.schedule --seconds 9.5 --shards 488282
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import click


@dataclass(frozen=True)
class Cluster:
    """Workers of the simulation.

    dispatch_seconds: time of the driver for each shard
    slow_share, slow_factor: share of the workers that are slower, and by how much
    loss_probability: probability that a worker is lost in a shard, at a uniform moment; it is back after `restart_seconds`
    """

    num_workers: int = 1000
    dispatch_seconds: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 1.0
    loss_probability: float = 0.0
    restart_seconds: float = 60.0
    speculates: bool = False


@dataclass(frozen=True)
class Schedule:
    """Result of a simulation.

    makespan: seconds until the last shard has ended
    efficiency: seconds of all shards on workers of full speed, over the seconds of all workers
    num_copies: shards that were started a second time by speculation
    """

    makespan: float
    efficiency: float
    num_copies: int
    num_lost: int


@dataclass(eq=False)
class _Attempt:
    shard: int
    worker: int
    end: float
    is_lost: bool
    is_canceled: bool = False


def simulate(shard_seconds: Sequence[float], num_shards: int, cluster: Cluster, *, seed: int) -> Schedule:
    """Return the schedule of `num_shards` shards whose times are drawn from the measured ones."""
    rng = random.Random(seed)
    durations = [rng.choice(shard_seconds) for _ in range(num_shards)]
    num_slow = round(cluster.slow_share * cluster.num_workers)
    slowness = [cluster.slow_factor if worker < num_slow else 1.0 for worker in range(cluster.num_workers)]
    rng.shuffle(slowness)
    waiting = deque(range(num_shards))
    free = [(0.0, worker) for worker in range(cluster.num_workers)]
    events: list[tuple[float, int, _Attempt]] = []
    running: dict[int, list[_Attempt]] = {}
    idle: list[tuple[float, int]] = []
    serial = count()
    driver_free, makespan, num_copies, num_lost, num_done = 0.0, 0.0, 0, 0, 0

    def start(shard: int, worker: int, now: float) -> None:
        nonlocal driver_free
        begin = driver_free = max(now, driver_free) + cluster.dispatch_seconds
        seconds = durations[shard] * slowness[worker]
        is_lost = rng.random() < cluster.loss_probability
        end = begin + seconds * (rng.random() if is_lost else 1.0)
        attempt = _Attempt(shard, worker, end, is_lost)
        running.setdefault(shard, []).append(attempt)
        heapq.heappush(events, (end, next(serial), attempt))

    def place(worker: int, now: float) -> None:
        """Give a free worker a shard, or a copy of a running one."""
        nonlocal num_copies
        if waiting:
            start(waiting.popleft(), worker, now)
            return
        single = [attempts[0] for attempts in running.values() if len(attempts) == 1] if cluster.speculates else []
        if single:
            latest = max(single, key=lambda attempt: (attempt.end, attempt.shard))
            if now + cluster.dispatch_seconds + durations[latest.shard] * slowness[worker] < latest.end:
                num_copies += 1
                start(latest.shard, worker, now)
                return
        idle.append((now, worker))

    heapq.heapify(free)
    while num_done < num_shards:
        if free and (not events or free[0][0] <= events[0][0]):
            now, worker = heapq.heappop(free)
            place(worker, now)
            continue
        now, _, attempt = heapq.heappop(events)
        if attempt.is_canceled:
            continue
        running[attempt.shard].remove(attempt)
        if attempt.is_lost:
            num_lost += 1
            heapq.heappush(free, (now + cluster.restart_seconds, attempt.worker))
            if not running[attempt.shard]:
                del running[attempt.shard]
                waiting.append(attempt.shard)
                if idle:
                    heapq.heappush(free, (now, idle.pop()[1]))
            continue
        num_done, makespan = num_done + 1, now
        heapq.heappush(free, (now, attempt.worker))
        for other in running.pop(attempt.shard):
            other.is_canceled = True
            heapq.heappush(free, (now, other.worker))
    return Schedule(makespan, sum(durations) / (cluster.num_workers * makespan), num_copies, num_lost)


def list_scenarios(num_workers: int, dispatch_seconds: float) -> dict[str, Cluster]:
    """Return the scenarios of the report. The shares of slow and lost workers are assumptions, not measurements."""
    slow = {"slow_share": 0.02, "slow_factor": 4.0}
    scenarios: dict[str, dict[str, float | bool]] = {
        "equal workers": {},
        "2 % of the workers 4 times slower": slow,
        "the same, with speculation": {**slow, "speculates": True},
        "the same, and 1 of 1,000 shards loses its worker": {**slow, "loss_probability": 0.001},
        "the same, with speculation and losses": {**slow, "loss_probability": 0.001, "speculates": True},
    }
    return {
        name: Cluster(num_workers=num_workers, dispatch_seconds=dispatch_seconds, **settings)  # type: ignore[arg-type]
        for name, settings in scenarios.items()
    }


@click.command()
@click.option("--seconds", "shard_seconds", type=float, multiple=True, required=True, help="Measured seconds of a shard.")
@click.option("--shards", "num_shards", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--workers", "num_workers", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--dispatch", "dispatch_seconds", type=float, default=0.0, show_default=True, help="Driver seconds of a shard.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(shard_seconds: tuple[float, ...], num_shards: int, num_workers: int, dispatch_seconds: float, seed: int) -> None:
    """Print the makespan and the efficiency of each scenario."""
    for name, cluster in list_scenarios(num_workers, dispatch_seconds).items():
        schedule = simulate(shard_seconds, num_shards, cluster, seed=seed)
        click.echo(
            f"{name}: {schedule.makespan:,.0f} s, efficiency {schedule.efficiency:.3f}, {schedule.num_copies} copies, "
            f"{schedule.num_lost} lost"
        )


if __name__ == "__main__":
    main()
