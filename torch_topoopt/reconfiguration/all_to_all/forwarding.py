"""Forwarding without barriers: in every slot every link carries a waiting chunk, if any.

A link sends the waiting chunk with the most remaining hops first, ties by arrival. All links choose
at once, slot by slot. The queues of a link are ranges of one array; their sizes are known in
advance, since every chunk's route is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.link_routes import LinkRoutes


def forwarded(routes: LinkRoutes) -> AllToAllSchedule:
    """The schedule of an all-to-all on one topology."""
    n, degree = routes.links.shape
    sources, targets, path = routes.paths()
    chunks, link, slot = sent_slots(path, n * degree)
    sends = np.stack(
        [slot, link // degree, link % degree, sources[chunks], targets[chunks], 0 * slot], axis=1
    )
    slots = int(slot.max(initial=-1)) + 1
    return AllToAllSchedule(
        routes.links[None], ((slots,),), sends.astype(np.int32), translated=False
    )


def sent_slots(
    path: NDArray[np.int64], links: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(chunk, link, slot) of every send, in order of slots. `path`: see LinkRoutes.paths."""
    left = (path >= 0).sum(axis=1)  # remaining hops
    most = path.shape[1]
    queues = path + np.arange(most) * links  # of hop and link
    sizes = np.bincount(queues[path >= 0], minlength=links * most)
    head = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    tail = head.copy()
    waiting = np.zeros(int(sizes.sum()), dtype=np.int64)

    def enqueue(chunks: NDArray[np.int64]) -> None:
        queue = queues[chunks, left[chunks] - 1]
        order = np.argsort(queue, kind="stable")
        queue, chunks = queue[order], chunks[order]
        rank = np.arange(len(queue)) - np.searchsorted(queue, queue)
        waiting[tail[queue] + rank] = chunks
        np.add.at(tail, queue, 1)

    enqueue(np.flatnonzero(left > 0))
    every = np.arange(links)
    sent: list[tuple[NDArray[np.int64], NDArray[np.int64], int]] = []
    slot = 0
    while True:
        some = (head < tail).reshape(most, links)[::-1]
        busy = every[some.any(axis=0)]
        if not len(busy):
            break
        queue = (most - 1 - some.argmax(axis=0)[busy]) * links + busy
        chunks = waiting[head[queue]]
        head[queue] += 1
        left[chunks] -= 1
        sent.append((chunks, busy, slot))
        enqueue(chunks[left[chunks] > 0])
        slot += 1
    return (
        np.concatenate([chunks for chunks, _, _ in sent]),
        np.concatenate([busy for _, busy, _ in sent]),
        np.repeat([slot for _, _, slot in sent], [len(busy) for _, busy, _ in sent]),
    )
