"""The check of a schedule: a replay, hop by hop.

`verify` checks that links exist, that none is used twice in a slot, and that each chunk goes from
its source over one server after another to its target, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.reconfiguration.all_to_all.schedule import (
    PART,
    PORT,
    SENDER,
    SLOT,
    SOURCE,
    TARGET,
    AllToAllSchedule,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ScheduleError(ValueError):
    """An invalid schedule; the message names slot, server or chunk."""


@dataclass(frozen=True)
class ScheduleReplay:
    """Counts of a replay: `link_slots` are hops of all chunks, `carried` the chunks that crossed
    from a topology into a later one."""

    slots: int
    reconfigurations: int
    link_slots: int
    carried: int


def verify(schedule: AllToAllSchedule) -> ScheduleReplay:
    """ScheduleReplays a schedule; raises ScheduleError for the first rule that it breaks.

    A translated schedule is judged by the chunks of server 0: in a circulant, translations of two
    sends meet on a link exactly where both leave through one port in one slot.
    """
    links, sends, n = schedule.links, schedule.sends, schedule.servers
    _check_links(links)
    if schedule.translated:
        offsets = (links - np.arange(n, dtype=np.int32)[None, :, None]) % n
        if np.any(offsets != offsets[:, :1]):
            raise ScheduleError("translated: a topology is not a circulant")
        if np.any(sends[:, SOURCE] != 0) or schedule.counts is not None:
            raise ScheduleError("translated: expected chunks of server 0 only, one a pair")
    counts = schedule.chunk_counts()
    if counts.shape != (n, n) or np.any(counts < 0) or np.any(np.diagonal(counts)):
        raise ScheduleError(
            f"counts: expected {n} x {n} numbers from 0 on, and 0 from each to itself"
        )
    if len(sends) and not (
        np.all(sends[:, SLOT] >= 0)
        and np.all(sends[:, SLOT] < schedule.slots)
        and np.all((sends[:, PORT] >= 0) & (sends[:, PORT] < schedule.degree))
        and np.all(sends[:, [SENDER, SOURCE, TARGET]] >= 0)
        and np.all(sends[:, [SENDER, SOURCE, TARGET]] < n)
        and np.all((sends[:, PART] >= 0) & (sends[:, PART] < _most_parts(schedule)))
    ):
        raise ScheduleError("sends: a slot, server, port or part is out of range")
    topology = np.searchsorted(schedule.first_slots()[1:], sends[:, SLOT], side="right")
    _check_exclusive(schedule)
    receivers = links[topology, sends[:, SENDER], sends[:, PORT]]
    if np.any(dark := receivers == sends[:, SENDER]):
        row = sends[int(np.argmax(dark))]
        raise ScheduleError(f"slot {row[SLOT]}: port {row[PORT]} of server {row[SENDER]} is dark")
    order = np.lexsort((sends[:, SLOT], chunk_numbers(schedule, sends)))
    starts = _check_walks(schedule, sends[order], receivers[order])
    changed = np.diff(topology[order]) != 0
    changed[starts[1:] - 1] = False  # between two chunks
    chunk_of = np.cumsum(np.isin(np.arange(len(sends)), starts))
    copies = n if schedule.translated else 1
    return ScheduleReplay(
        slots=schedule.slots,
        reconfigurations=schedule.reconfigurations,
        link_slots=len(sends) * copies,
        carried=len(np.unique(chunk_of[1:][changed])) * copies,
    )


def chunk_numbers(schedule: AllToAllSchedule, sends: NDArray[np.int32]) -> NDArray[np.int64]:
    """A number for the chunk of each of these sends."""
    pairs = sends[:, SOURCE].astype(np.int64) * schedule.servers
    numbers: NDArray[np.int64] = pairs + sends[:, TARGET]
    return numbers * _most_parts(schedule) + sends[:, PART]


def _most_parts(schedule: AllToAllSchedule) -> int:
    return 1 if schedule.counts is None else max(1, int(schedule.counts.max()))


def _check_links(links: NDArray[np.int32]) -> None:
    """Every server receives on at most as many ports as it has."""
    _, n, k = links.shape
    if np.any((links < 0) | (links >= n)):
        raise ScheduleError(f"links: expected servers from 0 to {n - 1}")
    for i, topology in enumerate(links):
        lit = topology[topology != np.arange(n)[:, None]]
        received = np.bincount(lit, minlength=n)
        if received.max() > k:
            raise ScheduleError(
                f"topology {i}: server {int(received.argmax())} receives on {received.max()} "
                f"circuits and has {k}"
            )


def _check_exclusive(schedule: AllToAllSchedule) -> None:
    """No link carries two chunks in a slot."""
    sends = schedule.sends.astype(np.int64)
    sender = 0 if schedule.translated else sends[:, SENDER]
    used = (sends[:, SLOT] * schedule.servers + sender) * schedule.degree + sends[:, PORT]
    order = np.argsort(used, kind="stable")
    twice = np.flatnonzero(np.diff(used[order]) == 0)
    if len(twice):
        first, second = schedule.sends[order[twice[0] : twice[0] + 2]]
        raise ScheduleError(
            f"slot {first[SLOT]}: port {first[PORT]} of server {first[SENDER]} carries the chunk "
            f"{first[SOURCE]} to {first[TARGET]} and that of {second[SOURCE]} to {second[TARGET]}"
        )


def _check_walks(
    schedule: AllToAllSchedule, sends: NDArray[np.int32], receivers: NDArray[np.int32]
) -> NDArray[np.int64]:
    """`sends` by chunk and slot; returns the row at which each chunk starts."""
    n, most = schedule.servers, _most_parts(schedule)
    chunks = (sends[:, SOURCE].astype(np.int64) * n + sends[:, TARGET]) * most + sends[:, PART]
    new = np.ones(len(sends), dtype=bool)
    new[1:] = np.diff(chunks) != 0
    starts = np.flatnonzero(new)
    counts = schedule.chunk_counts()[: 1 if schedule.translated else n].ravel()
    parts = np.arange(len(counts) * most, dtype=np.int64)
    expected = parts[parts % most < np.repeat(counts, most)]
    if not np.array_equal(chunks[starts], expected):
        wrong = int(np.setxor1d(chunks[starts], expected)[0])
        what = "is never sent" if wrong in expected else "has nowhere to go"
        raise ScheduleError(f"chunk {wrong // most // n} to {wrong // most % n}: {what}")

    def fail(bad: NDArray[np.bool_], what: str) -> None:
        if np.any(bad):
            row = sends[int(np.argmax(bad))]
            raise ScheduleError(f"chunk {row[SOURCE]} to {row[TARGET]}: in slot {row[SLOT]} {what}")

    held = np.empty_like(receivers)  # the chunk's server before each send
    held[1:] = receivers[:-1]
    held[starts] = sends[starts, SOURCE]
    fail(held != sends[:, SENDER], "it is sent by a server that does not have it")
    again = np.zeros(len(sends), dtype=bool)
    again[1:] = ~new[1:] & (np.diff(sends[:, SLOT]) <= 0)
    fail(again, "it is sent twice")
    last = np.append(new[1:], True)
    fail(
        (receivers == sends[:, TARGET]) != last, "its walk ends elsewhere, or goes on at its target"
    )
    return starts
