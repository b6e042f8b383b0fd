"""The check of a timeline: the data of every server, from the first move to the last send.

It uses moves and sends alone, not their plan. It checks that circuits exist when they are used,
that no port sends two things at once or while it is dark, and that durations are right. Servers
send only data that they have, every contribution is added once, and every block is delivered once
to each server that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt.reconfiguration.collectives.phases import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.collectives.port_timeline import (
        PortMove,
        PortSend,
        PortTimeline,
    )

    Words = NDArray[np.uint64]

_SLACK = 1e-9  # of the whole time, for sums of floats


class TimelineError(ValueError):
    """An invalid timeline; the message names the port or the piece."""


def replay(timeline: PortTimeline, costs: CircuitCosts) -> float:
    """Seconds of the timeline; raises TimelineError for the first rule that it breaks."""
    n = timeline.servers
    if timeline.collective not in COLLECTIVES or timeline.blocks not in (1, n):
        raise TimelineError(f"collective: {timeline.collective} of {timeline.blocks} blocks")
    if not timeline.sends:
        raise TimelineError("sends: nothing is sent")
    slack_s = _SLACK * timeline.seconds
    strides = _strides(timeline, costs, slack_s)
    _check_ports(timeline, costs, slack_s)
    by_piece: list[list[tuple[PortSend, int]]] = [[] for _ in range(timeline.pieces)]
    for send, stride in zip(timeline.sends, strides, strict=True):
        if not 0 <= send.piece < timeline.pieces:
            raise TimelineError(f"piece {send.piece}: there are {timeline.pieces}")
        by_piece[send.piece].append((send, stride))
    for piece, sends in enumerate(by_piece):
        _Blocks(timeline, piece).deliver(sends)
    return timeline.seconds


def _strides(timeline: PortTimeline, costs: CircuitCosts, slack_s: float) -> list[int]:
    """The stride of each send's circuit; checks moves."""
    moves: list[list[PortMove]] = [[] for _ in range(timeline.degree)]
    for move in timeline.moves:
        if not 0 <= move.port < timeline.degree or not 0 < move.stride < timeline.servers:
            raise TimelineError(
                f"port {move.port}: a stride of {move.stride}, and there are {timeline.degree} "
                f"ports and {timeline.servers} servers"
            )
        before_s = moves[move.port][-1].end_s if moves[move.port] else 0.0
        if move.begin_s < before_s - slack_s:
            raise TimelineError(f"port {move.port}: moves while it moves")
        if move.end_s - move.begin_s < costs.reconfiguration_s - slack_s:
            raise TimelineError(f"port {move.port}: moves in less than the switch's delay")
        moves[move.port].append(move)
    found = []
    for send in timeline.sends:
        if not 0 <= send.port < timeline.degree:
            raise TimelineError(f"port {send.port}: there are {timeline.degree}")
        before = [m for m in moves[send.port] if m.begin_s < send.end_s - slack_s]
        if not before or before[-1].end_s > send.begin_s + slack_s:
            raise TimelineError(f"port {send.port}: sends at {send.begin_s:g} s, while it is dark")
        found.append(before[-1].stride)
    return found


def _check_ports(timeline: PortTimeline, costs: CircuitCosts, slack_s: float) -> None:
    """Checks that no link carries two sends at once, and that durations match the bytes."""
    block_bytes = timeline.total_bytes / timeline.pieces / timeline.blocks
    free_s = np.zeros((timeline.degree, timeline.servers))
    for send in sorted(timeline.sends, key=lambda send: send.begin_s):
        part = send.part
        if len(part.offsets) > timeline.blocks or (timeline.blocks > 1 and not part.offsets):
            raise TimelineError(
                f"port {send.port}: {len(part.offsets)} of {timeline.blocks} blocks"
            )
        for listed in (part.offsets, part.senders or ()):
            if len({one % timeline.servers for one in listed}) < len(listed):
                raise TimelineError(f"port {send.port}: a block or a sender is listed twice")
        least_s = costs.slot_s(part.count * block_bytes)
        if send.end_s - send.begin_s < least_s - slack_s:
            raise TimelineError(
                f"port {send.port}: {part.count} blocks take {least_s:g} s, and have "
                f"{send.end_s - send.begin_s:g} s"
            )
        senders = slice(None) if part.senders is None else list(part.senders)
        if np.any(free_s[send.port, senders] > send.begin_s + slack_s):
            raise TimelineError(f"port {send.port}: two sends at once, at {send.begin_s:g} s")
        free_s[send.port, senders] = send.end_s


class _Blocks:
    """For one piece: the contributions in every block at every server."""

    def __init__(self, timeline: PortTimeline, piece: int) -> None:
        n, blocks = timeline.servers, timeline.blocks
        self.n, self.blocks, self.piece = n, blocks, piece
        self.collective = timeline.collective
        words = -(-n // 64)
        server = np.arange(n)
        of: Words = np.zeros((n, words), dtype=np.uint64)
        of[server, server // 64] = np.uint64(1) << (server % 64).astype(np.uint64)
        everyone: Words = np.bitwise_or.reduce(of, axis=0)
        self.value: Words = np.zeros((n, blocks, words), dtype=np.uint64)
        if self.collective == "all_gather":
            self.goal = of
            self.value[server, server] = of
        elif self.collective == "broadcast":
            self.goal = np.repeat(of[:1], blocks, axis=0)
            self.value[0] = self.goal
        else:
            self.goal = np.repeat(everyone[None], blocks, axis=0)
            self.value[:] = of[:, None]

    def deliver(self, sends: list[tuple[PortSend, int]]) -> None:
        """Replays all sends in order of time; data ending at a moment is usable from then on."""
        events: list[tuple[float, int, int, Callable[[], None]]] = []
        for i, (send, stride) in enumerate(sends):
            under_way: list[tuple[NDArray[np.int64], NDArray[np.int64], Words]] = []

            def begin(send: PortSend = send, under_way: list[Any] = under_way) -> None:
                under_way.append(self._taken(send))

            def end(
                send: PortSend = send, stride: int = stride, under_way: list[Any] = under_way
            ) -> None:
                self._arrive(send, stride, *under_way.pop())

            events += [(send.begin_s, 1, i, begin), (send.end_s, 0, i, end)]
        for _, _, _, act in sorted(events, key=lambda event: event[:3]):
            act()
        kept = self.value
        if self.collective == "reduce_scatter":
            server = np.arange(self.n)
            missing = np.any(kept[server, server] != self.goal, axis=-1)
        else:
            missing = np.any(kept != self.goal, axis=(1, 2))
        if np.any(missing):
            raise TimelineError(
                f"piece {self.piece}: server {int(missing.argmax())} does not get all of it"
            )

    def _taken(self, send: PortSend) -> tuple[NDArray[np.int64], NDArray[np.int64], Words]:
        """(senders, blocks, contributions) of a send."""
        part = send.part
        senders = np.arange(self.n) if part.senders is None else np.array(part.senders)
        offsets = np.array(part.offsets, dtype=np.int64) if part.offsets else -senders[:1] * 0
        block = senders[:, None] * bool(part.offsets) + offsets[None]
        sender = np.repeat(senders[:, None], block.shape[1], axis=1)
        scattered = self.collective == "broadcast" and part.senders is not None
        if scattered:
            real = block < self.blocks  # blocks are scattered once, not around the ring
            sender, block = sender[real], block[real]
        else:
            sender, block = sender.ravel(), block.ravel() % self.blocks
        taken = self.value[sender, block]
        if np.any(nothing := ~taken.any(axis=-1)):
            server = int(sender[nothing.argmax()])
            raise TimelineError(
                f"piece {self.piece}: server {server} sends at {send.begin_s:g} s what it does not "
                "have"
            )
        if scattered and part.offsets:
            self.value[sender, block] = 0  # scattered blocks are handed on; gathering returns them
        return sender, block, taken

    def _arrive(
        self,
        send: PortSend,
        stride: int,
        sender: NDArray[np.int64],
        block: NDArray[np.int64],
        taken: Words,
    ) -> None:
        receiver = (sender + stride) % self.n
        had = self.value[receiver, block]
        if send.reduces:
            wrong, what = np.any(had & taken, axis=-1), "adds a contribution twice"
            self.value[receiver, block] = had | taken
        else:
            whole = np.all(taken == self.goal[block], axis=-1)
            again = np.all(had == self.goal[block], axis=-1)
            wrong, what = ~whole | again, "gets a block that is not whole, or gets it twice"
            self.value[receiver, block] = taken
        if np.any(wrong):
            server = int(receiver[wrong.argmax()])
            raise TimelineError(f"piece {self.piece}: server {server} {what}, at {send.end_s:g} s")
