"""Jobs of three ranks whose connections leave from where a real controller says."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_bare_ranks, values, wired
from support.limits import limit_s
from support.refusals import named
from support.route_controller import Controller, leaf_of_each, path

from torch_topoopt.links.sockets import connections, describe
from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Plan, Prediction
from torch_topoopt.runtime import job

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_topoopt.plan import Link

SERVERS, SPINES = 3, 2
ELEMENTS = 50_000
LIMIT_S = 40.0
PORTS = {spine: (31000 + 2 * spine, 31001 + 2 * spine) for spine in range(SPINES)}


def ring_plan(*, planned_bytes: int) -> Plan:
    """A simplex ring, which sends so much over each link in an iteration, if that is not 0."""
    plan = make_plan(SERVERS, 1, ports="simplex")
    sizes = (planned_bytes,) * len(plan.network.links)
    return dataclasses.replace(plan, prediction=Prediction(0.0, 0.0, 0.0, 0.0, sizes))


def run_controlled(
    tmp_path: Path,
    function: Callable[[int, int], object],
    *,
    planned_bytes: int = 10**7,
    running: bool = True,
    **environment: str,
) -> list[object]:
    """Every host knows two source ports for each path; the functions find the controller's files
    in TEST_CONTROLLER."""
    plan = ring_plan(planned_bytes=planned_bytes)
    controller = Controller(tmp_path)
    with wired(plan, tmp_path) as of_ranks:
        controller.prepare(leaf_of_each(Wiring.load(of_ranks["TOPOOPT_WIRING"]), SPINES))
        controller.start()
        try:
            with controller.client() as client:
                for link in plan.network.links:
                    ends = link.source, link.target
                    table = {
                        port: path(ends[0], spine, ends[1])
                        for spine, ports in PORTS.items()
                        for port in ports
                    }
                    client.set_ports(f"h{ends[0]}", {f"h{ends[1]}": table})
            if not running:
                controller.kill()
            variables = of_ranks | controller.environment() | environment
            variables["TEST_CONTROLLER"] = str(tmp_path)
            return values(run_bare_ranks(SERVERS, function, **variables))
        finally:
            if running:
                controller.kill()


class Said(logging.Handler):
    """What this rank has logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("torch_topoopt").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)


def own_links(rank: int) -> dict[Link, tuple[str, str, int]]:
    """Of each link that this rank connects: its two addresses, and where the other one listens."""
    plan, wiring = (
        kind.load(os.environ[name])
        for kind, name in ((Plan, "TOPOOPT_PLAN"), (Wiring, "TOPOOPT_WIRING"))
    )
    ports = wiring.by_port()
    return {
        link: (
            ports[link.source, link.source_port].address,
            ports[link.target, link.target_port].address,
            wiring.tcp_port_of(ports[link.target, link.target_port]),
        )
        for link in connections(plan)
        if link.source == rank
    }


_READS = 10


def source_ports(rank: int) -> list[int]:
    """Of the established connections of this rank's links, as the kernel lists them.

    The list is not read at once: rows are left out where other sockets come and go meanwhile.
    """
    found = (listed_ports(rank) for _ in range(_READS))
    return next(filter(None, found), [])


def listed_ports(rank: int) -> list[int]:
    """Those of one reading."""

    def named(text: str) -> tuple[str, int]:
        address, port = text.split(":")
        return socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)

    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    open_ones = [(named(row[1]), named(row[2])) for row in rows if row[3] == "01"]
    return [
        near[1]
        for source, target, tcp_port in own_links(rank).values()
        for near, far in open_ones
        if near[0] == source and far == (target, tcp_port)
    ]


def step(rank: int, world: int, number: int) -> None:
    summed = torch.arange(ELEMENTS) * (rank + 1) + number
    dist.all_reduce(summed)
    assert torch.equal(summed, torch.arange(ELEMENTS) * (world * (world + 1) // 2) + world * number)


def work_until(rank: int, world: int, holds: Callable[[], bool], what: str) -> None:
    """Until it holds on all ranks; every sum is checked."""
    deadline = time.monotonic() + limit_s(LIMIT_S)
    for number in range(10**6):
        step(rank, world, number)
        state = torch.tensor([int(not holds()), int(time.monotonic() > deadline)])
        dist.all_reduce(state, dist.ReduceOp.MAX)
        if not state[0]:
            return
        time.sleep(0.02)  # leaves the processor to what is waited for
        assert not state[1], f"not in time: {what}; rank {rank}: {source_ports(rank)}"


def controller() -> Controller:
    return Controller(Path(os.environ["TEST_CONTROLLER"]))


def spine_of(rank: int) -> int:
    """That the controller has chosen for the one flow of this rank."""
    with controller().client() as client:
        (flow,) = client.wait(f"h{rank}", 0).flows
    assert flow.path is not None
    return int(flow.path[1].removeprefix("spine"))


def is_placed(rank: int) -> bool:
    """Whether its connection, the only one, leaves where the controller says."""
    ports = source_ports(rank)
    return len(ports) == 1 and ports[0] in PORTS[spine_of(rank)]


# ---- on the ranks --------------------------------------------------------------------------------


def follow(rank: int, world: int) -> tuple[int, int]:
    """Leaves from an assigned port, moves twice, and survives the controller."""
    said = Said()
    dist.init_process_group("topoopt")
    first = spine_of(rank)
    assert source_ports(rank) == [PORTS[first][0]], said.lines
    step(rank, world, 0)
    if rank == 0:
        with controller().client() as client:
            client.set_links(down=[("leaf0", f"spine{first}")])
    work_until(rank, world, lambda: is_placed(rank), "flows leave the dead path")
    if rank == 0:
        assert set(source_ports(rank)) <= set(PORTS[1 - first])
    if rank == 0:
        controller().kill()
    work_until(rank, world, lambda: said.said("goes on with ECMP"), "the controller is missed")
    kept = source_ports(rank)
    if rank == 0:
        controller().start()
    work_until(rank, world, lambda: said.said("is back"), "the controller is back")
    assert source_ports(rank) == kept
    if rank == 0:
        with controller().client() as client:
            client.set_links(down=[("leaf0", f"spine{1 - first}")], up=[("leaf0", f"spine{first}")])
    work_until(rank, world, lambda: is_placed(rank), "flows leave the dead path again")
    if rank == 0:
        assert set(source_ports(rank)) <= set(PORTS[first])
    assert len(source_ports(rank)) == 1
    dist.destroy_process_group()
    return first, kept[0]


def flee(rank: int, world: int) -> bool:
    """From a port that is in use, one that is degraded, and ports that are all in use."""
    said = Said()
    (link,) = own_links(rank)
    source = own_links(rank)[link][0]
    taken = []
    for ports in PORTS.values():
        for port in ports[: rank % 3]:  # none, the first one, both
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((source, port))
            listener.listen()
            taken.append(listener)
    dist.init_process_group("topoopt")
    first = spine_of(rank)
    expected = (*PORTS[first], *source_ports(rank))[rank % 3]
    assert source_ports(rank) == [expected], (said.lines, PORTS[first])
    assert said.said("are in use") == (rank == 2)
    step(rank, world, 0)
    agent = job.jobs[-1].agent
    assert agent is not None
    if rank == 0:
        agent.degraded(link, "it is slow")
    holds = (lambda: source_ports(rank) == [PORTS[1 - first][0]]) if rank == 0 else lambda: True
    work_until(rank, world, holds, "a degraded path is left")
    dist.destroy_process_group()
    return said.said(f"{describe(link)}: it is slow")


def count(rank: int, world: int) -> int:
    """Leaves from an assigned port once it has sent enough."""
    said = Said()
    dist.init_process_group("topoopt")
    (before,) = source_ports(rank)
    assert before not in sum(PORTS.values(), ())
    known = sum(PORTS.values(), ())
    work_until(rank, world, lambda: set(source_ports(rank)) <= set(known), str(said.lines))
    dist.destroy_process_group()
    return len(said.lines)


def stay(rank: int, world: int) -> list[str]:
    said = Said()
    dist.init_process_group("topoopt")
    for number in range(3):
        step(rank, world, number)
    assert source_ports(rank)[0] not in sum(PORTS.values(), ())
    dist.destroy_process_group()
    return said.lines


# ---- tests ---------------------------------------------------------------------------------------


def test_connections_follow_the_controller_which_may_be_killed_and_come_back(
    tmp_path: Path,
) -> None:
    run_controlled(tmp_path, follow)


def test_ports_in_use_and_degraded_paths_are_left(tmp_path: Path) -> None:
    # Another plan than in other tests has other addresses, whose ports nobody had before.
    assert run_controlled(tmp_path, flee, planned_bytes=10**8) == [True, False, False]


def test_flows_of_unknown_size_are_controlled_once_they_are_large(tmp_path: Path) -> None:
    run_controlled(tmp_path, count, planned_bytes=0)


def test_small_flows_are_left_to_ecmp(tmp_path: Path) -> None:
    run_controlled(tmp_path, stay, TOPOOPT_CONTROLLER_THRESHOLD="20MB")


def test_a_job_starts_without_the_controller_and_says_so(tmp_path: Path) -> None:
    for lines in run_controlled(tmp_path, stay, running=False):
        assert any(named(line, "ECMP") for line in lines)
