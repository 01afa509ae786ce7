import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from cluster.schedule import Cluster, list_scenarios, simulate


def test_equal_shards_take_whole_turns() -> None:
    schedule = simulate([2.0], 25, Cluster(num_workers=10), seed=1)
    assert schedule.makespan == pytest.approx(6.0)  # three turns of 2 s, the last one with 5 shards
    assert schedule.efficiency == pytest.approx(25 * 2.0 / (10 * 6.0))


def test_driver_limits_many_workers() -> None:
    schedule = simulate([1.0], 1000, Cluster(num_workers=500, dispatch_seconds=0.01), seed=1)
    assert schedule.makespan == pytest.approx(1000 * 0.01 + 1.0)


def test_copy_of_a_slow_shard_ends_first() -> None:
    # Two workers, of which one takes 10 s for a shard. The other one ends at 1 s and repeats it until 2 s.
    slow = Cluster(num_workers=2, slow_share=0.5, slow_factor=10.0)
    assert simulate([1.0], 2, slow, seed=1).makespan == pytest.approx(10.0)
    schedule = simulate([1.0], 2, Cluster(num_workers=2, slow_share=0.5, slow_factor=10.0, speculates=True), seed=1)
    assert schedule.makespan == pytest.approx(2.0)
    assert schedule.num_copies == 1


@pytest.mark.parametrize("speculates", [False, True])
def test_lost_shards_are_done_again(speculates: bool) -> None:
    cluster = Cluster(num_workers=20, loss_probability=0.2, restart_seconds=5.0, speculates=speculates)
    schedule = simulate([1.0, 3.0], 400, cluster, seed=2)
    # A fifth of the attempts is lost: 400 shards need 500 attempts on average, with a deviation of 11.
    assert 50 <= schedule.num_lost <= 150
    assert schedule.makespan > 400 * 2.0 / 20
    assert schedule == simulate([1.0, 3.0], 400, cluster, seed=2)
    assert schedule != simulate([1.0, 3.0], 400, cluster, seed=3)


def test_scenarios_are_deterministic_and_speculation_shortens_the_tail() -> None:
    def run() -> list[float]:
        return [simulate([9.0, 10.0, 11.0], 3000, cluster, seed=1).makespan for cluster in list_scenarios(100, 0.001).values()]

    makespans = run()
    assert makespans == run()
    equal, slow, slow_with_speculation, *_ = makespans
    assert equal < slow_with_speculation < slow
