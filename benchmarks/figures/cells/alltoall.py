"""All-to-alls on circuits that move, and their baselines (docs/planning/alltoall.md)."""

from __future__ import annotations

from typing import Any

import alltoall


# parameters: the circuits and the sizes
def timed(*, servers: int, degree: int, workload: str, mean_mb: float, seed: int) -> Any:
    """(topologies, slots): of each baseline, of mode best, and of the paper's own sequences."""
    counts = alltoall.chunk_counts(servers, workload, mean_mb, seed)
    return {
        "others": alltoall.baselines(counts, degree, seed),
        "best": alltoall.ours(counts, degree, workload, seed),
        "paper": alltoall.paper_sequences(counts, degree, seed),
    }


def gaps(*, servers: int) -> Any:
    """Slots by the number of topologies, as [topologies, slots], with one circuit."""
    found = alltoall.shift_slots(servers)
    return {name: list(slots.items()) for name, slots in found.items()}
