"""Measures one cable through the agents of both ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.links.errors import FabricError
from torch_topoopt.tools.bench.link.flows import FloodCount
from torch_topoopt.tools.bench.link.limits import FlowRate, LinkVerdict, verdict
from torch_topoopt.tools.doctor.link_rates import cable_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_topoopt.discovery.agent import Channel
    from torch_topoopt.tools.doctor.findings import Site

CONNECTIONS = (1, 2, 4)
_LATENCY_BYTES = (8, 64 << 10)
_MESSAGE_BYTES = 1 << 20
_LATENCY_S = 0.5


@dataclass(frozen=True)
class MeasuredDirection:
    """From one port to the other. `verdict` says what limits it."""

    JSON_FIELDS: ClassVar = (
        "source", "target", "gbps", "verdict.should_gbps", "verdict.limit", "verdict.advice",
        "rates",
    )  # fmt: skip

    source: str
    target: str
    rates: tuple[FlowRate, ...]
    verdict: LinkVerdict

    @property
    def gbps(self) -> float:
        """Of the best number of connections."""
        return max(rate.gbps for rate in self.rates)


@dataclass(frozen=True)
class EchoTime:
    """Half of a round trip of a message."""

    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class LibfabricTimes:
    """`provider`, or why there are no times. `gbps`: one message of 1 MiB at a time."""

    provider: str
    latency: tuple[EchoTime, ...] = ()
    gbps: float | None = None
    error: str = ""


@dataclass(frozen=True)
class MeasuredCable:
    """`damaged_frames`: dropped by the cards meanwhile; `earlier_gbps`: what was usual, if the
    slower direction is much slower now."""

    ends: tuple[str, str]
    directions: tuple[MeasuredDirection, ...]
    latency: tuple[EchoTime, ...]
    libfabric: LibfabricTimes | None
    damaged_frames: int
    earlier_gbps: float | None = None

    @property
    def gbps(self) -> float:
        return min(direction.gbps for direction in self.directions)


class CableBench:
    """`agents`: of the hosts at both ends of `cable`.

    `provider` of libfabric: None for verbs if both ports have an RDMA device that works;
    `pingpong`: both hosts have libfabric's program.
    """

    def __init__(
        self,
        site: Site,
        cable: tuple[str, str],
        agents: tuple[Channel, Channel],
        *,
        pingpong: bool,
        provider: str | None,
        window_s: float,
    ) -> None:
        self._site = site
        self._cable = cable
        self._agents = agents
        self._pingpong = pingpong
        self._provider = provider
        self._window_s = window_s
        self._ends = cable_ends(site, cable)
        if len(self._ends) < len(cable):
            raise FabricError(f"{' - '.join(cable)}: an end is not there; run topoopt doctor")
        self._addresses: list[str] = []
        self._ports: list[dict[str, int]] = []

    def run(self, progress: Callable[[float | None, str], None]) -> MeasuredCable:
        """Raises FabricError if the cable carries nothing."""
        assert self._site.file is not None
        for end, (_, interface), agent in zip(self._cable, self._ends, self._agents, strict=True):
            port = self._site.file.ports[end][1]
            self._addresses.append(port.ip)
            self._ports.append(
                agent.ask("listen", address=port.ip, interface=interface.name, gbps=port.gbps)
            )
        damaged = self._damaged()
        floods = {}
        for step, count in enumerate(CONNECTIONS):
            name = " - ".join(self._cable)
            progress(step / len(CONNECTIONS), f"{name}, connections: {count}")
            floods[count] = [
                self._flood([True] * count),
                self._flood([False] * count),
                self._flood([True] * count + [False] * count),
            ]
        latency = tuple(self._latency(size) for size in _LATENCY_BYTES)
        damaged = self._damaged() - damaged
        directions = tuple(self._direction(way, floods, damaged) for way in (0, 1))
        return MeasuredCable(self._cable, directions, latency, self._libfabric(), damaged)

    def _direction(
        self, way: int, floods: dict[int, list[list[FloodCount]]], damaged: int
    ) -> MeasuredDirection:
        rates = []
        for count, passes in floods.items():
            alone, together = passes[way], passes[2]
            sent = max(1, alone[way].sent_bytes)
            rates.append(
                FlowRate(
                    connections=count,
                    gbps=alone[1 - way].gbps,
                    together_gbps=together[1 - way].gbps,
                    resent=alone[way].resent_bytes / sent,
                    core=max(one.core for one in alone),
                )
            )
        source, target = self._cable if way == 0 else self._cable[::-1]
        judged = verdict(self._site, self._cable, rates, damaged)
        return MeasuredDirection(source, target, tuple(rates), judged)

    def _flood(self, sends: Sequence[bool]) -> list[FloodCount]:
        """`sends`: of the first end, for each connection; counts of both ends."""
        both = ({"sends": list(sends)}, {"sends": [not one for one in sends]})
        answers = self._ask_both("flood", *both, window_s=self._window_s)
        return [FloodCount(**answer) for answer in answers]

    def _latency(self, size_bytes: int) -> EchoTime:
        dialled, _ = self._ask_both("latency", {}, {}, size_bytes=size_bytes, limit_s=_LATENCY_S)
        return EchoTime(size_bytes, dialled["seconds"])

    def _ask_both(
        self, what: str, first: dict[str, Any], second: dict[str, Any], **both: Any
    ) -> list[dict[str, Any]]:
        """The first end dials the second."""
        far = [self._addresses[1], self._ports[1]["tcp_port"]]
        return self._at_once(what, {**both, **first, "far": far}, {**both, **second, "far": None})

    def _at_once(self, what: str, *arguments: dict[str, Any]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(2) as workers:
            asked = [
                workers.submit(agent.ask, what, **given)
                for agent, given in zip(self._agents, arguments, strict=True)
            ]
        return [answer.result() for answer in asked]

    def _damaged(self) -> int:
        return sum(int(agent.ask("errors")["frames"]) for agent in self._agents)

    def _libfabric(self) -> LibfabricTimes | None:
        ports = [self._site.facts[s].rdma.port_of(i.name) for s, i in self._ends]
        rdma = all(port is not None and port.state == "ACTIVE" for port in ports)
        provider = self._provider or ("verbs" if rdma else None)
        if provider is None:
            return None
        if not self._pingpong:
            return LibfabricTimes(
                provider, error="fi_pingpong is not on both hosts (libfabric-bin)"
            )
        verbs = provider.startswith("verbs")
        domains = [port.device if port is not None and verbs else None for port in ports]
        far = self._addresses[1].partition("%")[0]
        if far != self._addresses[1]:
            far += f"%{self._ends[0][1].name}"
        shared = {"provider": provider, "tcp_port": self._ports[1]["spare_port"]}
        times = []
        try:
            for size in (*_LATENCY_BYTES, _MESSAGE_BYTES):
                dialled, _ = self._at_once(
                    "libfabric",
                    {**shared, "far": far, "domain": domains[0], "size_bytes": size},
                    {**shared, "far": None, "domain": domains[1], "size_bytes": size},
                )
                times.append(EchoTime(size, dialled["seconds"]))
        except FabricError as error:
            return LibfabricTimes(provider, error=str(error))
        *latency, long = times
        return LibfabricTimes(provider, tuple(latency), long.size_bytes * 8e-9 / long.seconds)
