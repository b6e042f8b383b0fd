"""Checks of an all-to-all schedule that share nothing with its replay: the paper's sum of matrices.

`matrix_form` forgets slots and links and keeps what the paper keeps (section 3.1): how many hops
each chunk takes on each topology; `check_matrix_form` checks that the powers of the adjacency
matrices lead there, and that all flows together are the all-to-all. `check_barriers` checks rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import SLOT, AllToAllSchedule
from torch_topoopt.reconfiguration.all_to_all.verification import ScheduleError, chunk_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_barriers(schedule: AllToAllSchedule) -> None:
    """Raises ScheduleError for a chunk that does not leave and arrive within one round."""
    ends = np.cumsum([slots for rounds in schedule.rounds for slots in rounds])
    round_of = np.searchsorted(ends, schedule.sends[:, SLOT], side="right")
    order = np.lexsort((schedule.sends[:, SLOT], chunk_numbers(schedule, schedule.sends)))
    chunks, round_of = chunk_numbers(schedule, schedule.sends)[order], round_of[order]
    late = (np.diff(chunks) == 0) & (np.diff(round_of) != 0)
    if np.any(late):
        pair = int(chunks[:-1][late][0]) // _most_parts(schedule)
        source, target = divmod(pair, schedule.servers)
        raise ScheduleError(f"chunk {source} to {target}: is under way when its round ends")


Term = tuple[tuple[int, ...], "NDArray[np.int64]"]


def matrix_form(schedule: AllToAllSchedule) -> list[Term]:
    """The schedule as a sum: (hops on each topology, chunks of each pair that take so many).

    Where no chunk is carried, all but one of the hop counts of a term are 0: this is the paper's
    sum of M (elementwise) P_i^h. Carried chunks make it products P_1^a P_2^b ...
    """
    whole = schedule.whole()
    n = whole.servers
    topology = np.searchsorted(whole.first_slots()[1:], whole.sends[:, SLOT], side="right")
    chunks, chunk_of = np.unique(chunk_numbers(whole, whole.sends), return_inverse=True)
    hops = np.zeros((len(chunks), whole.reconfigurations), dtype=np.int64)
    np.add.at(hops, (chunk_of, topology), 1)
    kinds, kind_of = np.unique(hops, axis=0, return_inverse=True)
    flows = np.zeros((len(kinds), n * n), dtype=np.int64)
    np.add.at(flows, (kind_of.ravel(), chunks // _most_parts(whole)), 1)
    return [(tuple(kind.tolist()), flows[i].reshape(n, n)) for i, kind in enumerate(kinds)]


def check_matrix_form(
    links: NDArray[np.int32], terms: list[Term], counts: NDArray[np.int32] | None = None
) -> int:
    """Raises ScheduleError unless the terms are walks on the topologies and sum to `counts` (None:
    one chunk of every pair).

    Returns the least slots that these hops take: of each topology, the hops of all flows over its
    circuits, rounded up, but no fewer than the longest of them has.
    """
    d, n, k = links.shape
    adjacency = np.zeros((d, n, n), dtype=bool)
    for i in range(d):
        adjacency[i, np.arange(n)[:, None], links[i]] = True
        np.fill_diagonal(adjacency[i], False)
    total = np.zeros((n, n), dtype=np.int64)
    hops_sum, longest = np.zeros(d, dtype=np.int64), np.zeros(d, dtype=np.int64)
    for hops, flows in terms:
        walks = np.eye(n, dtype=np.float64)
        for i, count in enumerate(hops):
            for _ in range(count):
                walks = (walks @ adjacency[i] > 0).astype(np.float64)
        if np.any(flows[walks == 0]):
            source, target = map(int, np.argwhere((flows > 0) & (walks == 0))[0])
            raise ScheduleError(f"chunk {source} to {target}: no walk has the hops {hops}")
        total += flows
        hops_sum += np.array(hops) * int(flows.sum())
        longest = np.maximum(longest, hops)
    if not np.array_equal(total, 1 - np.eye(n, dtype=np.int64) if counts is None else counts):
        raise ScheduleError("the flows do not sum to the all-to-all")
    return int(np.maximum(-(-hops_sum // (n * k)), longest).sum())


def _most_parts(schedule: AllToAllSchedule) -> int:
    return 1 if schedule.counts is None else max(1, int(schedule.counts.max()))
