"""The cluster that a strategy was told of: not every one is told by ``TF_CONFIG``."""

from __future__ import annotations

from typing import Any

from otel_tf._guard import Guard

__all__ = ["cluster_of"]


def cluster_of(strategy: Any) -> dict[str, Any] | None:
    """Returns what ``TF_CONFIG`` would say of this process, or None where the strategy has no cluster."""
    with Guard("asking the strategy for its cluster"):
        resolver = getattr(strategy, "cluster_resolver", None)
        if resolver is None or resolver.task_type is None or resolver.task_id is None:
            return None
        cluster = resolver.cluster_spec().as_dict()
        task = {"type": resolver.task_type, "index": resolver.task_id}
        return {"cluster": cluster, "task": task} if cluster else None
    return None
