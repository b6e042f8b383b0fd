"""The rates of the cables of a cluster file, measured by all of its hosts together.

An interface reports the rate of its port, and a virtual one 10 Gb/s; a bad cable, a PCIe slot or a
shaper carries less. So all cables are flooded both ways, at once, before any prediction. A pause of
a busy processor may halve what a flood carries, so a cable that is slower than its file says is
flooded twice. The rates are cached, so that later jobs of the same file get the same plans, unless
TOPOOPT_COST_MODEL=measure.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_topoopt.discovery.floods import FloodRate, send_floods
from torch_topoopt.discovery.probe import Probe, Responder
from torch_topoopt.discovery.rates import MEASURABLE_GBPS, alike
from torch_topoopt.fabric.cluster.static_plan import stated_rates
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import broadcast, failure_broadcast, receive
from torch_topoopt.links.sockets import listen
from torch_topoopt.plan.codec import decode, json_text, write_text_atomically
from torch_topoopt.plan.kept_files import kept_file, measures_again

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.links.meeting import Meeting

_MEET_S = 60.0  # for steps that take every host seconds
_FLOODS = 2  # at most; the faster one counts
_CONFIRMED = 0.6  # fraction of the file's rate that confirms it: floods reach less than all

log = logging.getLogger("torch_topoopt")


@dataclass(frozen=True)
class CableRate:
    """The rate of a cable, by its ends; None if no measurement found or confirmed it."""

    ends: tuple[str, str]
    gbps: float | None


def measured_cables(file: ClusterFile, server: int, meeting: Meeting) -> tuple[CableRate, ...]:
    """The rate of each cable, the same on all hosts; this host is `server`.

    Raises FabricError if a host is missing.
    """
    deadline = time.monotonic() + _MEET_S
    path = kept_file("cables", file.to_yaml())
    if server == 0:
        with failure_broadcast(meeting, "kept rates"):
            broadcast(meeting, "kept rates", _read(path, file))
    if (kept := receive(meeting, "kept rates", deadline)) is not None:
        return tuple(decode(tuple[CableRate, ...], kept))
    flows: list[FloodRate] = []  # of all hosts, at server 0
    for turn in range(_FLOODS):
        own = _flood(file, server, meeting, deadline, turn)
        meeting.publish(f"flows/{turn}", json.dumps([asdict(flow) for flow in own]))
        topic = f"rates of cables/{turn}"
        if server == 0:
            with failure_broadcast(meeting, topic):
                texts = meeting.collect(f"flows/{turn}", range(len(file.servers)), deadline)
                listed = [one for _, text in sorted(texts.items()) for one in json.loads(text)]
                flows += [FloodRate.from_plain(one) for one in listed]
                found = judged(file, flows)
                last = turn == _FLOODS - 1 or not _any_slow(file, found)
                if last:
                    _keep(path, found)
                broadcast(meeting, topic, [asdict(rate) for rate in found] if last else None)
        if (rates := receive(meeting, topic, deadline)) is not None:
            return tuple(decode(tuple[CableRate, ...], rates))
    raise AssertionError("the last flood has rates")


def with_rates(file: ClusterFile, rates: Sequence[CableRate]) -> ClusterFile:
    """The cluster with the measured rates of ports."""
    of_end = {end: rate.gbps for rate in rates for end in rate.ends if rate.gbps is not None}
    servers = tuple(
        replace(
            server,
            ports=tuple(
                replace(port, gbps=of_end.get(f"{server.name}:{port.name}", port.gbps))
                for port in server.ports
            ),
        )
        for server in file.servers
    )
    return replace(file, servers=servers).validate()


def judged(file: ClusterFile, flows: Sequence[FloodRate]) -> tuple[CableRate, ...]:
    """The cables' rates from floods: the slower of the two directions counts, each of which has the
    rate of its fastest flood."""
    of_cable: dict[int, dict[tuple[int, str], FloodRate]] = {}
    numbers = {
        (file.ports[end][0], file.ports[end][1].ip): number
        for number, cable in enumerate(file.cables)
        for end in cable
    }
    for flow in flows:
        end = flow.probe.source, flow.probe.source_address
        of_end = of_cable.setdefault(numbers[end], {})
        of_end[end] = max(of_end.get(end, flow), flow, key=lambda one: one.gbps)
    stated = stated_rates(file)
    found: dict[int, float] = {}
    lower: dict[int, float] = {}
    for number, both in of_cable.items():
        slower = min(both.values(), key=lambda flow: flow.gbps)
        said = stated[file.cables[number]]
        if said is not None and slower.gbps >= _CONFIRMED * said:
            found[number] = said
        elif slower.limited_by_link and 0 < slower.gbps < MEASURABLE_GBPS:
            lower[number] = slower.gbps
    found |= alike(lower)
    return tuple(CableRate(cable, found.get(n)) for n, cable in enumerate(file.cables))


def _any_slow(file: ClusterFile, rates: Sequence[CableRate]) -> bool:
    """Whether a rate is not the file's."""
    stated = stated_rates(file)
    return any(rate.gbps not in (None, stated[rate.ends]) for rate in rates)


def _flood(
    file: ClusterFile, server: int, meeting: Meeting, deadline: float, turn: int
) -> list[FloodRate]:
    """Floods from the ports of this host, while it counts those of the others."""
    with contextlib.ExitStack() as stack:
        listeners: dict[str, socket.socket] = {}
        for end, interface in _own_ends(file, server):
            with contextlib.suppress(OSError, FabricError):  # the driver will report the fault
                address = file.ports[end][1].ip
                listeners[end] = stack.enter_context(listen(address, 0, interface))
        ports = {end: listener.getsockname()[1] for end, listener in listeners.items()}
        job = secrets.token_hex(8)
        meeting.publish(f"flood ports/{turn}", json.dumps({"job": job, "ports": ports}))
        texts = meeting.collect(f"flood ports/{turn}", range(len(file.servers)), deadline)
        hosts = [json.loads(text) for _, text in sorted(texts.items())]
        responder = Responder(list(listeners.values()), hosts[0]["job"], server)
        stack.callback(responder.close)
        listening = {end: port for host in hosts for end, port in host["ports"].items()}
        flows = send_floods(list(_probes(file, server, listening)), hosts[0]["job"])
        # No host closes its end while another one sends.
        meeting.publish(f"flooded/{turn}", "")
        meeting.collect(f"flooded/{turn}", range(len(file.servers)), deadline)
    return flows


def _own_ends(file: ClusterFile, server: int) -> Iterator[tuple[str, str | None]]:
    for cable in file.cables:
        for end in cable:
            if file.ports[end][0] == server:
                yield end, file.ports[end][1].interface


def _probes(file: ClusterFile, server: int, listening: Mapping[str, int]) -> Iterator[Probe]:
    for cable in file.cables:
        for near, far in (cable, cable[::-1]):
            if file.ports[near][0] != server or not {near, far} <= listening.keys():
                continue
            own, other = file.ports[near][1], file.ports[far]
            yield Probe(server, own.ip, other[0], other[1].ip, listening[far], own.interface)


def _read(path: Path, file: ClusterFile) -> list[dict[str, Any]] | None:
    """The cached rates, or None; raises DocumentError for a wrong TOPOOPT_COST_MODEL."""
    if measures_again():
        return None
    try:
        kept: list[dict[str, Any]] = json.loads(path.read_text())["cables"]
        rates: tuple[CableRate, ...] = decode(tuple[CableRate, ...], kept)
        if [rate.ends for rate in rates] != list(file.cables):
            raise ValueError("other cables")
        return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("%s is not what a job has kept there (%s); measured again", path, error)
        return None


def _keep(path: Path, rates: Sequence[CableRate]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json_text({"cables": [asdict(rate) for rate in rates]})
        write_text_atomically(path, text + "\n")
    except OSError as error:
        log.warning("the rates of cables cannot be kept (%s): the next job measures again", error)
