"""The packet level of `run_flows`: every packet, every queue, and a transport.

docs/planning/simulators.md describes the model and every option with its default and source; the
options are keywords of `run_flows(..., level="packet")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TRANSPORTS = tuple(_core.packet_transports())
ACKS = ("latency", "links", "instant")
PATH_CHOICES = ("planned", "adaptive")


@dataclass(frozen=True, slots=True)
class Reroute:
    """From `time_s` on, flow `flow` and all others with its path send over the links `path`.

    Packets that are in the network by then stay on the old path."""

    time_s: float
    flow: int
    path: tuple[int, ...]


def run_packet_level(
    program: _core.FlowProgram,
    until_s: float,
    keep_going: Callable[[float, int], bool] | None,
    *,
    paths: Mapping[int, Sequence[Sequence[int]]] | None = None,
    reroutes: Sequence[Reroute] = (),
    control: _core.CircuitControl | None = None,
    routing: _core.AdaptiveRouting | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs a program packet by packet.

    `paths[flow]`: the packets of a flow, and of all flows with the same path, use these in turn;
    with `spread="ecmp"` each flow uses one. `control` moves circuits
    (csrc/sim/core/reconfigurer.h): every window calls its `choose` with the time and the waiting
    bytes. After a move, senders are held until the network has drained and the delay is over. With
    `path_choice="adaptive"`, each node forwards a packet over the link with the shortest queue
    among those of `routing` (architectures/adaptive.py; by default all shortest paths).

    Raises ValueError for an unknown option or one out of range, a path that does not lead from
    source to target, `acks="links"` where a link has none in the other direction, a deadlock of
    paused links, which it names, and a `routing` of another network or with too few channels.
    """
    result: dict[str, Any] = _core.run_packet_level(
        program,
        until_s,
        keep_going,
        options,
        [(flow, [list(path) for path in choice]) for flow, choice in (paths or {}).items()],
        [(change.time_s, change.flow, list(change.path)) for change in reroutes],
        control,
        routing,
    )
    return result


def packet_options() -> tuple[str, ...]:
    """Names of all options of the packet level."""
    return tuple(_core.packet_options())
