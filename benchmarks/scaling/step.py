"""One step as events: what is computed when, and what travels meanwhile.

Computing and the network each do one thing at a time. What travels is queued as it becomes ready; a step ends when both are
done and the weights are updated. All ranks wait for the slowest, whose pace is taken for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .cluster import Cluster
from .work import BACKWARD, FORWARD, Block, num_weights

# As DDP has it: gradients travel in buckets of this many bytes, the first one sooner.
BUCKET, FIRST_BUCKET = 25 * 2**20, 2**20
# Fused Adam reads weight, gradient and two moments and writes all but the gradient, which its norm has read once before.
ADAM_BYTES = 8 * 4


@dataclass(frozen=True)
class Step:
    """Seconds of one step.

    computing: forward and backward pass of the slowest rank
    updating: the optimiser
    exposed: what computing waited for
    """

    computing: float
    updating: float
    exposed: float

    @property
    def seconds(self) -> float:
        return self.computing + self.updating + self.exposed


@dataclass(frozen=True)
class Timed:
    """A block with the seconds that it takes on the slowest rank."""

    block: Block
    forward: float
    backward: float


def timed(blocks: Sequence[Block], cluster: Cluster, *, source_tokens: float, target_tokens: float) -> list[Timed]:
    """Either the products decide how long a block takes, or, where they are few, the launches."""
    result = []
    for block in blocks:
        operations = block.operations(source_tokens, target_tokens) / cluster.rate
        launches = block.kernels * cluster.kernel_seconds
        result.append(Timed(block, max(FORWARD * operations, launches), max(BACKWARD * operations, 2 * launches)))
    return result


def update_seconds(blocks: Sequence[Block], cluster: Cluster, *, shared: bool = False) -> float:
    """Of the optimiser on one device: of all weights, or, where the devices share them out, of as much as each has."""
    return num_weights(blocks) * ADAM_BYTES / cluster.memory / (cluster.devices if shared else 1)


def ddp_step(parts: Sequence[Timed], cluster: Cluster, *, gradient_bytes: int = 4, bucket: float = BUCKET) -> Step:
    """The whole model on each device; buckets of gradients are summed while the backward pass goes on."""
    computing = sum(part.forward + part.backward for part in parts)
    updating = update_seconds([part.block for part in parts], cluster)
    if cluster.devices == 1:
        return Step(computing, updating, 0.0)
    network = 0.0
    for ready, size in _buckets(parts, gradient_bytes, bucket):
        network = max(ready, network) + cluster.all_reduce(size)
    return Step(computing, updating, max(network - computing, 0.0))


def _buckets(parts: Sequence[Timed], gradient_bytes: int, bucket: float) -> Iterator[tuple[float, float]]:
    """When each bucket is full, and its bytes; gradients come in the order of the backward pass."""
    now = sum(part.forward for part in parts)
    open_bytes, limit = 0.0, min(FIRST_BUCKET, bucket)
    for part in reversed(parts):
        now += part.backward
        for tensor in reversed(part.block.tensors):
            open_bytes += tensor * gradient_bytes
            if open_bytes >= limit:
                yield now, open_bytes
                open_bytes, limit = 0.0, bucket
    if open_bytes:
        yield now, open_bytes


def fsdp_step(parts: Sequence[Timed], cluster: Cluster, *, weight_bytes: int = 4, gradient_bytes: int = 4) -> Step:
    """A share of the model on each device (FSDP2).

    A group of weights is put together while the group before it is computed, and once more for the backward pass, save the
    root's, which stays; gradients are summed and shared out as soon as a group's are whole, the root's at the end.
    """
    computing = sum(part.forward + part.backward for part in parts)
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.block.group] = sizes.get(part.block.group, 0) + sum(part.block.tensors)
    updating = update_seconds([part.block for part in parts], cluster, shared=True)
    if cluster.devices == 1:
        return Step(computing, updating, 0.0)
    network = now = cluster.all_gather(sizes["root"] * weight_bytes)
    for backward in (False, True):
        visits = _visits(parts, backward=backward)
        gathered = {"root": 0.0}
        started = now
        for (group, seconds), (following, _) in pairwise([*visits, ("root", 0.0)]):
            if group not in gathered:  # the first of a pass; the others were asked for one visit ahead
                network = gathered[group] = max(network, started) + cluster.all_gather(sizes[group] * weight_bytes)
            started = max(now, gathered[group])
            if following not in gathered:
                network = gathered[following] = max(network, started) + cluster.all_gather(sizes[following] * weight_bytes)
            now = started + seconds
            if backward and group != "root":
                network = max(network, now) + cluster.reduce_scatter(sizes[group] * gradient_bytes)
    network = max(network, now) + cluster.reduce_scatter(sizes["root"] * gradient_bytes)
    return Step(computing, updating, network - computing)


def _visits(parts: Sequence[Timed], *, backward: bool) -> list[tuple[str, float]]:
    """Groups in the order in which a pass needs them, with their seconds; neighbours of one group are one visit."""
    visits: list[tuple[str, float]] = []
    for part in reversed(parts) if backward else parts:
        seconds = part.backward if backward else part.forward
        if visits and visits[-1][0] == part.block.group:
            visits[-1] = (part.block.group, visits[-1][1] + seconds)
        else:
            visits.append((part.block.group, seconds))
    return visits
