"""Schedules in the packet simulator: every hop of a chunk is a flow of packets over one circuit.

A hop starts when its chunk has arrived and the circuit has delivered the chunk before. A topology
starts when everything on the one before has arrived and the switch's delay is over. There are no
other barriers, so a run exceeds the slot model only by packet headers.

Where all servers act alike (`AllToAllSchedule.translated`), only the circuits of server 0 are
simulated: a hop of another server has its counterpart among them, at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt import _core
from torch_topoopt.reconfiguration.all_to_all.schedule import PORT, SENDER, SLOT
from torch_topoopt.reconfiguration.all_to_all.verification import chunk_numbers
from torch_topoopt.sim import run_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule
    from torch_topoopt.sim import FlowsResult

MOST_PACKET_HOPS = 2_000_000_000
_PAYLOAD_BYTES = 8936  # default of a full packet


def simulated(
    schedule: AllToAllSchedule,
    costs: CircuitCosts,
    chunk_bytes: float,
    *,
    level: str = "packet",
    **options: Any,
) -> FlowsResult:
    """Runs a verified schedule whose chunks all have `chunk_bytes`, at a level of `sim.run_flows`.

    `options` are those of the packet level. Raises ValueError for unknown ones, for chunks that are
    not above 0, and for more than MOST_PACKET_HOPS packets, each counted on every circuit.
    """
    if not chunk_bytes > 0:
        raise ValueError(f"bytes-per-pair: {chunk_bytes:g} bytes is not a size above 0")
    folded = schedule.translated and options.get("acks") != "links"
    sends = schedule.sends if folded else schedule.whole().sends
    if level == "packet":
        check_packets([(len(sends), chunk_bytes)], options)
    program = _program(schedule, sends, folded, costs, chunk_bytes)
    return run_program(program, level=level, **options)


def check_packets(flows: Iterable[tuple[int, float]], options: Mapping[str, Any]) -> None:
    """Raises ValueError for more than MOST_PACKET_HOPS packets of (number of flows, bytes)."""
    payload = options.get("mtu_bytes", _PAYLOAD_BYTES)
    packets = sum(count * -(-size // payload) for count, size in flows)
    if packets > MOST_PACKET_HOPS:
        raise ValueError(
            f"level: packet would send {packets:.3g} packets over circuits, and the most is "
            f"{MOST_PACKET_HOPS:.3g}; use fewer servers or smaller sizes"
        )


def _program(
    schedule: AllToAllSchedule,
    sends: NDArray[np.int32],
    folded: bool,
    costs: CircuitCosts,
    chunk_bytes: float,
) -> _core.FlowProgram:
    """Hops by topology and slot; each topology has circuits of its own, dark until its turn."""
    n = schedule.servers
    program = _core.FlowProgram(n, n)
    numbers = chunk_numbers(schedule, sends)
    order = np.argsort(sends[:, SLOT], kind="stable")
    ends = schedule.first_slots()[1:]
    topology = np.searchsorted(ends, sends[order, SLOT], side="right").tolist()
    rows = sends[order][:, [SENDER, PORT]].tolist()
    chunks = numbers[order].tolist()
    bits_per_s, latency_ns = costs.link_gbps * 1e9, costs.latency_s * 1e9
    at = -1
    circuits: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}  # per circuit: its latest hop
    arrived: dict[int, int] = {}  # per chunk: its latest hop on this topology
    moved = -1
    for i, (sender, port), chunk in zip(topology, rows, chunks, strict=True):
        while at < i:  # the switch moves all circuits when everything has arrived
            at += 1
            moved = program.add_delay(costs.reconfiguration_s)
            for hop in last.values():
                program.add_dependency(hop, moved)
            circuits, last, arrived = {}, {}, {}
        here = 0 if folded else sender
        if (here, port) not in circuits:
            target = int(schedule.links[i, here, port])
            circuits[here, port] = program.add_link(here, target, bits_per_s, latency_ns)
        circuit = circuits[here, port]
        hop = program.add_flow(here, int(schedule.links[i, here, port]), chunk_bytes, [circuit])
        program.add_dependency(last.get(circuit, moved), hop)
        if chunk in arrived:
            program.add_dependency(arrived[chunk], hop)
        last[circuit] = arrived[chunk] = hop
    return program
