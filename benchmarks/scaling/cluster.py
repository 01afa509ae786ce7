"""Devices and the links between them: how long they take to sum or to put together what each has a part of.

Within a node every device sends and receives at its link's speed; between nodes each has a network adapter of its own. A sum
over all devices goes in three stages, one after the other: each device gets its share of the node's sum, shares are summed over
the nodes, and each node puts its shares together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """So many equal devices.

    rate: operations a second that a device reaches in training
    kernel_seconds: the least that a kernel takes, however small
    memory: bytes a second of a device's own memory
    node, network: bytes a second, each way, of a device's link within the node, and of its adapter
    node_hop, network_hop: seconds from one device to the next
    """

    devices: int
    rate: float
    kernel_seconds: float
    memory: float
    node: float
    network: float
    node_hop: float = 2e-6
    network_hop: float = 5e-6
    node_size: int = 8

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.node_size)

    @property
    def in_node(self) -> int:
        return min(self.devices, self.node_size)

    def all_reduce(self, size: float) -> float:
        """Seconds until every device has the sum of `size` bytes that each has."""
        return 2.0 * _ring(size, self.in_node, self.node, self.node_hop) + _between(
            size / self.in_node, self.nodes, self.network, self.network_hop
        )

    def reduce_scatter(self, size: float) -> float:
        """Seconds until each has its share of the sum of `size` bytes that each has; as long as the way back."""
        shares = _ring(size / self.in_node, self.nodes, self.network, self.network_hop)
        return _ring(size, self.in_node, self.node, self.node_hop) + shares

    def all_gather(self, size: float) -> float:
        """Seconds until every device has all of `size` bytes of which each has a share."""
        return self.reduce_scatter(size)


def _ring(size: float, places: int, speed: float, hop: float) -> float:
    """One way round a ring: everyone's share passes by everyone else."""
    if places == 1:
        return 0.0
    return (places - 1) / places * size / speed + (places - 1) * hop


def _between(size: float, nodes: int, speed: float, hop: float) -> float:
    """A sum over the nodes: round a ring twice, or up and down two trees that share the load, whichever is faster."""
    if nodes == 1:
        return 0.0
    tree = 2.0 * size / speed + 2.0 * math.ceil(math.log2(nodes)) * hop
    return min(2.0 * _ring(size, nodes, speed, hop), tree)
