"""Chunks of unequal size: how long slots take then, and who takes whose part.

A slot ends when its largest chunk has arrived. A schedule is made for chunks of one size; which
server plays which of its parts is free, and the parts are given out so that large chunks share
slots ("To Reconfigure or Not to Reconfigure", section 4.4, which leaves open how): a quadratic
assignment, here by exchanging the parts of two servers while slots get shorter. That stops soon
where one large chunk more or less in a slot changes nothing, so other searches begin by making
slots as unlike each other as they get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import (
    SENDER,
    SLOT,
    SOURCE,
    TARGET,
    AllToAllSchedule,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts

_MOST_WORK = 100_000_000  # sends looked at, over all exchanges tried
_PASSES = 8
_STARTS = 3  # beside everybody in its own part


def check_matrix(matrix: NDArray[np.float64], servers: int) -> NDArray[np.float64]:
    """Bytes from each server to each, with a diagonal of 0; raises ValueError for anything else."""
    if matrix.shape != (servers, servers):
        raise ValueError(
            f"matrix: has the shape {matrix.shape}, and {servers} servers need {servers, servers}"
        )
    if matrix.dtype.kind not in "iuf" or not np.all(np.isfinite(matrix)) or np.any(matrix < 0):
        raise ValueError("matrix: expected bytes, numbers from 0 on")
    cleared = matrix.astype(np.float64)
    np.fill_diagonal(cleared, 0.0)
    if not np.any(cleared):
        raise ValueError("matrix: no server has anything for another")
    return cleared


class SlotSizes:
    """The largest chunk of each slot of a schedule, for any assignment of its parts."""

    def __init__(self, schedule: AllToAllSchedule, matrix: NDArray[np.float64]) -> None:
        sends = schedule.whole().sends
        sends = sends[np.argsort(sends[:, SLOT], kind="stable")]
        self._sources, self._targets = sends[:, SOURCE], sends[:, TARGET]
        self._starts = np.searchsorted(sends[:, SLOT], np.arange(schedule.slots))
        self._matrix = matrix
        self.work = len(sends)

    def largest_bytes(self, servers: NDArray[np.int64]) -> NDArray[np.float64]:
        """By slot; `servers[x]` plays the part of server x of the schedule."""
        largest: NDArray[np.float64] = np.maximum.reduceat(self._sizes(servers), self._starts)
        return largest

    def total_bytes(self, servers: NDArray[np.int64]) -> float:
        """What the slots' largest chunks sum to."""
        return float(self.largest_bytes(servers).sum())

    def scatter(self, servers: NDArray[np.int64]) -> float:
        """Less, the more unlike each other slots are: minus the squares of what each carries."""
        carried = np.add.reduceat(self._sizes(servers), self._starts)
        return -float((carried**2).sum())

    def _sizes(self, servers: NDArray[np.int64]) -> NDArray[np.float64]:
        sizes: NDArray[np.float64] = self._matrix[servers[self._sources], servers[self._targets]]
        return sizes


def uneven_seconds(
    schedule: AllToAllSchedule, largest_bytes: NDArray[np.float64], costs: CircuitCosts
) -> float:
    """Of reconfigurations and slots; a slot in which nobody has anything to send takes no time."""
    sent = largest_bytes[largest_bytes > 0]
    slots_s = len(sent) * costs.slot_s(0) + float(sent.sum()) * 8e-9 / costs.link_gbps
    return schedule.reconfigurations * costs.reconfiguration_s + slots_s


def assigned(
    schedule: AllToAllSchedule, matrix: NDArray[np.float64], *, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(the server that plays each part, the largest chunk of each slot).

    Never worse than everybody playing itself; the same for the same seed.
    """
    n = schedule.servers
    sizes = SlotSizes(schedule, matrix)
    itself = np.arange(n)
    off_diagonal = matrix[~np.eye(n, dtype=bool)]
    if np.all(off_diagonal == off_diagonal[0]):
        return itself, sizes.largest_bytes(itself)
    random = np.random.default_rng(seed)
    most = max(1, _MOST_WORK // sizes.work // (2 * _STARTS + 1))
    found = [_exchanged(itself, sizes.total_bytes, most, random)]
    for i in range(_STARTS):
        start = random.permutation(n) if i else itself
        gathered = _exchanged(start, sizes.scatter, most, random)
        found.append(_exchanged(gathered, sizes.total_bytes, most, random))
    best = min(found, key=sizes.total_bytes)
    return best, sizes.largest_bytes(best)


def _exchanged(
    servers: NDArray[np.int64],
    cost: Callable[[NDArray[np.int64]], float],
    most: int,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """`servers` after exchanges of two that lower the cost; at most so many are tried."""
    n = len(servers)
    pairs = [(a, b) for a in range(n) for b in range(a)]
    least = cost(servers)
    for _ in range(_PASSES):
        before = least
        for i in random.permutation(len(pairs))[: max(most, 0)].tolist():
            a, b = pairs[i]
            tried = servers.copy()
            tried[[a, b]] = servers[[b, a]]
            after = cost(tried)
            if after < least:
                servers, least = tried, after
        most -= len(pairs)
        if least == before or most <= 0:
            break
    return servers


def relabelled(schedule: AllToAllSchedule, servers: NDArray[np.int64]) -> AllToAllSchedule:
    """The schedule in which `servers[x]` does what server x did."""
    if np.array_equal(servers, np.arange(len(servers))):
        return schedule
    whole = schedule.whole()
    links = np.empty_like(whole.links)
    links[:, servers] = servers[whole.links]
    sends = whole.sends.copy()
    for column in (SENDER, SOURCE, TARGET):
        sends[:, column] = servers[sends[:, column]]
    return AllToAllSchedule(links, whole.rounds, sends, translated=False)
