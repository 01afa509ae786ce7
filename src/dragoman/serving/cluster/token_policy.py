"""Number of replicas by the tokens of the requests that wait or are translated."""

from __future__ import annotations

from typing import Any

UNFINISHED_TOKENS = "unfinished_tokens"
"""Name of the metric that a replica records."""


class TokenPolicy:
    """Autoscaling policy of Ray Serve: one replica for each `tokens_per_replica` unfinished tokens of a deployment.

    Ray averages the tokens of each replica over its look-back period. It also bounds the result, and applies it when it has
    lasted for the delay of the deployment.
    """

    def __init__(self, tokens_per_replica: int) -> None:
        self.tokens_per_replica = tokens_per_replica

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas, before Ray rounds it up, and an empty state."""
        tokens = (context.aggregated_metrics or {}).get(UNFINISHED_TOKENS, {})
        return sum(tokens.values()) / self.tokens_per_replica, {}
