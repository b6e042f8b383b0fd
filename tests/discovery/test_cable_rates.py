"""The rates of a cluster file's cables: what floods say of them, and that all hosts agree."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from support.limits import limit_s
from support.thread_meeting import Board, ThreadMeeting

from torch_topoopt.discovery import cable_rates
from torch_topoopt.discovery.cable_rates import CableRate, judged, measured_cables, with_rates
from torch_topoopt.discovery.floods import FloodRate
from torch_topoopt.discovery.probe import Probe
from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from torch_topoopt.links.meeting import Meeting


def ring(gbps: float | None = 10.0, *, network: str = "10.201") -> ClusterFile:
    """Three servers; cable I is that of server I with the next one."""
    ports: list[list[PortEntry]] = [[], [], []]
    cables = []
    for number, ends in enumerate(((0, 1), (1, 2), (2, 0))):
        names = []
        for last, server in enumerate(ends, start=1):
            name = f"p{len(ports[server])}"
            ports[server].append(PortEntry(name, f"{network}.{number}.{last}/30", gbps))
            names.append(f"h{server}:{name}")
        cables.append((names[0], names[1]))
    servers = tuple(
        ServerEntry(f"h{i}", f"10.200.0.{i + 1}", ports=tuple(own)) for i, own in enumerate(ports)
    )
    return ClusterFile(1, "lab", servers, tuple(cables)).validate()


def flow(file: ClusterFile, near: str, far: str, gbps: float, *, limited: bool = True) -> FloodRate:
    (source, own), (target, other) = file.ports[near], file.ports[far]
    return FloodRate(Probe(source, own.ip, target, other.ip, 1), gbps, 1e-5, limited)


def both_ways(file: ClusterFile, cable: int, *gbps: float, limited: bool = True) -> list[FloodRate]:
    a, b = file.cables[cable]
    return [
        flow(file, *ends, rate, limited=limited)
        for ends, rate in zip(((a, b), (b, a)), gbps, strict=True)
    ]


def rates_of(rates: Iterable[CableRate]) -> list[float | None]:
    return [rate.gbps for rate in rates]


def test_a_cable_that_carries_less_than_its_file_says_gets_what_it_carries() -> None:
    file = ring()
    flows = [
        *both_ways(file, 0, 0.093, 0.096),
        *both_ways(file, 1, 9.4, 9.3),
        *both_ways(file, 2, 9.4, 0.01),
    ]
    found = judged(file, flows)
    assert rates_of(found) == [0.093, 10.0, 0.01]
    assert [rate.ends for rate in found] == list(file.cables)
    changed = with_rates(file, found)
    assert [changed.ports[end][1].gbps for end in file.cables[0]] == [0.093, 0.093]
    assert [changed.ports[end][1].gbps for end in file.cables[1]] == [10.0, 10.0]


def test_alike_cables_get_one_rate() -> None:
    file = ring()
    flows = [
        f
        for cable, rate in enumerate((0.09, 0.1, 0.095))
        for f in both_ways(file, cable, rate, rate)
    ]
    assert rates_of(judged(file, flows)) == [0.095, 0.095, 0.095]


def test_what_no_measurement_confirms_is_not_known() -> None:
    file = ring()
    flows = [*both_ways(file, 0, 4.0, 4.0), *both_ways(file, 1, 0.3, 0.3, limited=False)]
    assert rates_of(judged(file, flows)) == [None, None, None]
    assert with_rates(file, judged(file, flows)) == file
    unsaid = ring(None)
    flows = [*both_ways(unsaid, 0, 4.0, 4.0), *both_ways(unsaid, 1, 0.1, 0.1)]
    assert rates_of(judged(unsaid, flows)) == [None, 0.1, None]


def test_the_fastest_flood_of_each_direction_counts() -> None:
    file = ring()
    halved = [*both_ways(file, 0, 0.01, 0.02), *both_ways(file, 1, 0.02, 0.01)]
    assert rates_of(judged(file, halved)) == [0.01, 0.01, None]
    again = [*both_ways(file, 0, 0.02, 0.01), *both_ways(file, 1, 0.01, 0.01)]
    assert rates_of(judged(file, [*halved, *again])) == [0.02, 0.01, None]


def measured_together(file: ClusterFile) -> tuple[list[tuple[CableRate, ...]], Board]:
    board = Board()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(measured_cables, file, s, ThreadMeeting(board, s)) for s in range(3)]
        return [future.result(limit_s(60)) for future in futures], board


def test_all_hosts_agree_and_the_next_job_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # The loopback device carries more than 1 Mb/s, whatever else this machine does.
    file = ring(0.001, network=f"127.{100 + os.getpid() % 100}")
    found, board = measured_together(file)
    assert found == [tuple(CableRate(cable, 0.001) for cable in file.cables)] * 3
    assert ("flows/0", 0) in board.texts
    assert ("flows/1", 0) not in board.texts, "all cables carry what the file says"
    again, board = measured_together(file)
    assert again == found
    assert ("flows/0", 0) not in board.texts
    monkeypatch.setenv("TOPOOPT_COST_MODEL", "measure")
    assert ("flows/0", 0) in measured_together(file)[1].texts


def test_a_port_that_is_not_here_is_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found, _ = measured_together(ring(network="192.0"))
    assert [rates_of(rates) for rates in found] == [[None, None, None]] * 3


def test_a_cable_that_is_slower_than_its_file_says_is_flooded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = ring(1.0, network=f"127.{100 + os.getpid() % 100}")

    def flood(
        file: ClusterFile, server: int, meeting: Meeting, deadline: float, turn: int
    ) -> list[FloodRate]:
        return [
            flow(file, near, far, (0.01, 0.02)[turn])
            for cable in file.cables
            for near, far in (cable, cable[::-1])
            if file.ports[near][0] == server
        ]

    monkeypatch.setattr(cable_rates, "_flood", flood)
    found, board = measured_together(file)
    assert [rates_of(rates) for rates in found] == [[0.02] * 3] * 3
    assert ("flows/1", 0) in board.texts
