"""Finds the ranks that caused a hang or failure, from the ranks' flight recorders.

A collective has the same number on all members of its group, and a message the same place in its
direction on both ends. So each unfinished call shows which ranks are missing from it. A rank that
others wait for, and that waits for none, is the root of the wait-for graph; without a root there is
a deadlock.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.plan import Link
    from torch_topoopt.supervision.dumps import Dump, RecordedCall

_LIVE = ("asked for", "SIGUSR1")  # reasons of dumps that are no failures
_PATIENCE_NS = 1_000_000_000  # younger calls of a job without a failure are normal
_SAME_TIME_NS = 2_000_000_000  # dumps further apart cannot be compared
_MOST_NAMED = 8
# a rank's report of the exception that ended its script: name, colon, text
_RAISED = re.compile(r"rank (\d+) failed: ([A-Z]\w*(?:: .*)?)", re.DOTALL)
# members may pass blocks of different sizes
_UNEVEN = ("all_to_all", "gather", "scatter", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Blame:
    """One fault. `ranks` caused it; empty if no rank did.

    `kind`: "raised", "mismatch", "gone", "behind", "message", "deadlock", "link" or "unfinished".
    """

    kind: str
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class _Wait:
    """Rank `waiting` is blocked until rank `missing` makes the matching call of `call`."""

    waiting: int
    missing: int
    call: RecordedCall


def find_culprits(dumps: dict[int, Dump]) -> list[Blame]:
    """The faults, the cause first; an empty list if nothing waits and nothing has failed."""
    job = _AllDumps(dumps)
    waits = list(job.waits())
    found = [*job.raised(), *job.mismatches(), *job.gone()]
    found += [
        f for f in job.waited_for(waits) if not any(set(f.ranks) & set(g.ranks) for g in found)
    ]
    found += job.lost_links()
    if not waits:
        found += job.stalled_links() or (job.unfinished() if not found else [])
    return found


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 2"; of many, only the first."""
    named = [str(rank) for rank in sorted(ranks)]
    if len(named) > _MOST_NAMED:
        return f"ranks {', '.join(named[:_MOST_NAMED])} and {len(named) - _MOST_NAMED} more"
    if len(named) == 1:
        return f"rank {named[0]}"
    return f"ranks {', '.join(named[:-1])} and {named[-1]}"


class _AllDumps:
    """All dumps together."""

    def __init__(self, dumps: dict[int, Dump]) -> None:
        self.dumps = dict(sorted(dumps.items()))
        self.members = {
            group: ranks for dump in self.dumps.values() for group, ranks in dump.members.items()
        }
        # group -> number -> rank -> call
        self.collectives: dict[str, dict[int, dict[int, RecordedCall]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                if call.message is None:
                    self.collectives[call.group][call.number][rank] = call

    def _waiting(self, rank: int) -> Iterator[RecordedCall]:
        """The unfinished calls of a rank, without recent ones."""
        dump = self.dumps[rank]
        patience_ns = _PATIENCE_NS if dump.why in _LIVE else 0
        for call in dump.calls:
            if call.unfinished and dump.time_ns - call.called_ns >= patience_ns:
                yield call

    # ---- the wait-for graph

    def waits(self) -> Iterator[_Wait]:
        for rank in self.dumps:
            seen: set[str] = set()
            for call in self._waiting(rank):
                if call.message is not None:
                    yield from self._message_waits(rank, call)
                elif call.group not in seen:  # the later ones of a group wait for the first
                    seen.add(call.group)
                    for member in self.members.get(call.group, ()):
                        if member != rank and not self._has_called(member, call):
                            yield _Wait(rank, member, call)

    def _has_called(self, rank: int, call: RecordedCall) -> bool:
        dump = self.dumps.get(rank)
        return dump is not None and dump.called.get(call.group, 0) >= call.number

    def _message_waits(self, rank: int, call: RecordedCall) -> Iterator[_Wait]:
        message, members = call.message, self.members.get(call.group, ())
        assert message is not None
        ends = (message.sender, message.receiver)
        if not all(0 <= end < len(members) for end in ends):
            return  # from any rank
        sender, receiver = (members[end] for end in ends)
        other = receiver if call.name == "send" else sender
        if other != rank and not self._has_matching(other, call):
            yield _Wait(rank, other, call)

    def _has_matching(self, rank: int, call: RecordedCall) -> bool:
        """Whether `rank` has made the call at the other end of a message."""
        dump, message = self.dumps.get(rank), call.message
        if dump is None or message is None:
            return False
        wanted = "recv" if call.name == "send" else "send"
        for other in dump.calls:
            if other.message is None or (other.group, other.name) != (call.group, wanted):
                continue
            its = other.message
            if its.sender == -1 and its.receiver == message.receiver:
                return True  # from any rank, so maybe this one
            same = (its.sender, its.receiver, its.tag)
            if same == (message.sender, message.receiver, message.tag) and (
                its.place >= message.place or not its.place
            ):
                return True
        return False

    # ---- faults

    def raised(self) -> list[Blame]:
        """Scripts that ended with an exception of their own."""
        found = {}
        for dump in self.dumps.values():
            match = _RAISED.search(dump.why)
            if match and not match[2].startswith("Dist"):  # PyTorch's own errors of operations
                found[int(match[1])] = match[2].strip().splitlines()[0]
        return [
            Blame("raised", (rank,), f"{self._name(rank)} ended with an exception: {why}")
            for rank, why in sorted(found.items())
        ]

    def gone(self) -> list[Blame]:
        size = max(dump.world_size for dump in self.dumps.values())
        gone = tuple(rank for rank in range(size) if rank not in self.dumps)
        if not gone:
            return []
        left = "left no dump: its process has ended, or its host is down"
        if len(gone) > 1:
            left = "left no dumps: their processes have ended, or their hosts are down"
        said = Counter(
            dump.why for dump in self.dumps.values() if any(f"rank {r}" in dump.why for r in gone)
        )
        reported = f" (others report: {said.most_common(1)[0][0]})" if said else ""
        return [Blame("gone", gone, f"{ranks_text(gone)} {left}{reported}")]

    def mismatches(self) -> list[Blame]:
        """The first call of each group in which its members differ."""
        found = []
        for group, by_number in sorted(self.collectives.items()):
            for number, calls in sorted(by_number.items()):
                kinds: dict[str, list[int]] = defaultdict(list)
                for rank, call in calls.items():
                    kinds[_signature(call)].append(rank)
                if len(kinds) > 1:
                    found.append(_mismatch(group, number, kinds))
                    break
        return found

    def waited_for(self, waits: list[_Wait]) -> list[Blame]:
        waiting = {wait.waiting for wait in waits}
        roots = sorted({wait.missing for wait in waits} - waiting)
        if waits and not roots:
            return [self._deadlock(waits)]
        found = []
        for rank in roots:
            of_rank = [wait for wait in waits if wait.missing == rank]
            first = of_rank[0]
            text = f"{self._name(rank)} {_missing_part(first)}; "
            text += f"{ranks_text([w.waiting for w in of_rank])} wait"
            text += "s for it" if len({w.waiting for w in of_rank}) == 1 else " for it"
            if rank in self.dumps and self.dumps[rank].where:
                text += f". It is at {self.dumps[rank].where}"
            kind = "behind" if first.call.message is None else "message"
            found.append(Blame(kind, (rank,), text))
        return found

    def _deadlock(self, waits: list[_Wait]) -> Blame:
        """A cycle of the wait-for graph; every awaited rank waits itself."""
        next_of = {wait.waiting: wait for wait in waits}
        path: list[int] = []
        rank = waits[0].waiting
        while rank not in path:
            path.append(rank)
            rank = next_of[rank].missing
        cycle = path[path.index(rank) :]
        steps = [
            f"rank {r} waits for rank {next_of[r].missing} in {next_of[r].call}" for r in cycle
        ]
        return Blame("deadlock", tuple(sorted(cycle)), f"a deadlock: {'; '.join(steps)}")

    def lost_links(self) -> list[Blame]:
        """Links that a rank has declared lost, though both servers are alive.

        Links of a server without a dump were lost with it.
        """
        servers = {dump.server for dump in self.dumps.values()}
        lost = {
            count.link
            for dump in self.dumps.values()
            for count in dump.links
            if count.sends and not count.up and count.link.source_port >= 0
            if {count.link.source, count.link.target} <= servers
        }
        ends = sorted((e.source, e.source_port, e.target, e.target_port) for e in lost)
        return [
            Blame("link", (), f"the link server {s} port {p} -> server {t} port {q} is lost")
            for s, p, t, q in ends
        ]

    def stalled_links(self) -> list[Blame]:
        """Links with undelivered bytes while calls wait."""
        if not any(any(self._waiting(rank)) for rank in self.dumps):
            return []
        times = [dump.time_ns for dump in self.dumps.values()]
        if max(times) - min(times) > _SAME_TIME_NS:
            return []
        sent: dict[Link, int] = {}
        received: dict[Link, int] = {}
        for dump in self.dumps.values():
            for count in dump.links:
                if count.sends:
                    sent[count.link] = count.sent_bytes
                back = count.link.reverse if count.sends else count.link
                received[back] = count.received_bytes
        lost = {link: sent[link] - received[link] for link in sent if link in received}
        return [
            Blame(
                "link",
                (),
                f"the link server {link.source} port {link.source_port} -> server {link.target} "
                f"port {link.target_port} has not delivered {format_bytes(size)} of "
                f"{format_bytes(sent[link])} sent: it is dead, or stalls",
            )
            for link, size in sorted(lost.items(), key=lambda item: -item[1])
            if size > 0 and link.source_port >= 0
        ]

    def unfinished(self) -> list[Blame]:
        """Unfinished calls that all members have made."""
        found: dict[tuple[str, int], RecordedCall] = {}
        for rank in self.dumps:
            for call in self._waiting(rank):
                if call.message is None and call.state == "started":
                    found.setdefault((call.group, call.number), call)
        return [
            Blame("unfinished", (), f"all ranks have called {call}, which was still under way")
            for call in found.values()
        ]

    def _name(self, rank: int) -> str:
        dump = self.dumps.get(rank)
        return (
            f"rank {rank}" if dump is None else f"rank {rank} (server {dump.server}, {dump.host})"
        )


def _missing_part(wait: _Wait) -> str:
    if wait.call.message is None:
        return f"has not called {wait.call}"
    if wait.call.name == "send":
        return f"has not called recv for a message of rank {wait.waiting} ({wait.call})"
    return f"has not sent what rank {wait.waiting} receives ({wait.call})"


def _signature(call: RecordedCall) -> str:
    """The properties of a call that must be equal on all members."""
    root = f" from rank {call.root} of the group" if call.root >= 0 else ""
    types = ", ".join(dict.fromkeys(call.types))
    of = f" of {types}" if types else ""
    shown = "" if call.name in _UNEVEN or not call.input_sizes else f" {_shapes(call.input_sizes)}"
    return f"{call.name}{root}{shown}{of}"


def _shapes(sizes: tuple[tuple[int, ...], ...]) -> str:
    return " and ".join("x".join(map(str, one)) or "1" for one in sizes)


def _mismatch(group: str, number: int, kinds: dict[str, list[int]]) -> Blame:
    most = max(len(ranks) for ranks in kinds.values())
    common = [kind for kind, ranks in kinds.items() if len(ranks) == most]
    all_ranks = sorted(rank for ranks in kinds.values() for rank in ranks)
    others = tuple(r for r in all_ranks if len(common) != 1 or r not in kinds[common[0]])
    parts = [
        f"{ranks_text(ranks)} called {kind}"
        for kind, ranks in sorted(kinds.items(), key=lambda item: (len(item[1]), item[1]))
    ]
    return Blame(
        "mismatch",
        others,
        f"ranks disagree on collective {number} of group {group}: {', '.join(parts)}",
    )
