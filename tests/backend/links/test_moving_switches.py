"""Collectives during which a driver moves circuits through the protocol of its device, as root.

The devices are test servers that speak the real protocols; their circuits carry the data of
emulated hosts.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend.moving_circuits import MovingBench
from support.backend.ranks import make_plan, run_bare_ranks, values
from support.fabric.mirrored_switches import LightPath, MirroredOcs, MirroredPolatis
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces
from support.fabric.polatis_restconf_server import PolatisRestconfServer
from support.fabric.sonic_ocs_server import OcsServer
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.environment import SPARE_VARIABLE
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.fabric.switches.circuits import Fence, circuit_order
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.polatis_restconf import polatis_restconf
from torch_topoopt.fabric.switches.restconf import RestconfOptions
from torch_topoopt.fabric.switches.sonic_ocs import SonicOcs
from torch_topoopt.launcher.run.spare_ports import CableMover
from torch_topoopt.links.errors import FabricError
from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
from torch_topoopt.reconfiguration.alltoall_choice import measured_move_s
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.collectives.stepped import stepped_collectives
from torch_topoopt.runtime import job
from torch_topoopt.runtime.metrics import MetricsWriter
from torch_topoopt.supervision.job_files import JobFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.fabric.switches.circuits import Circuit
    from torch_topoopt.fabric.switches.spare_circuits import SpareCircuits
    from torch_topoopt.fabric.switches.switch import CircuitSwitch

SERVERS, SOCKETS = 4, 8
CALLS = 3
SETTLE_S = 0.05


class Moves:
    """Always moves, by an AllReduce on three topologies. `before[n]` is called before call n."""

    least_s = 0.0

    def __init__(self) -> None:
        costs = CircuitCosts(0.1, 1e-4, 0.01)
        self.schedule = stepped_collectives("all_reduce", SERVERS, 1, costs, 1e6)[1]
        self.before: dict[int, Callable[[], Any]] = {}
        self._calls = 0

    def __call__(
        self, collective: str, total_bytes: int, planned_s: float, servers: tuple[int, ...]
    ) -> Choice:
        self.before.get(self._calls, lambda: None)()
        self._calls += 1
        return Choice(self.schedule, "")


def all_reduces(rank: int, world: int) -> list[str]:
    """Of each call the error, or "right" or "wrong"."""
    dist.init_process_group("topoopt")
    found = []
    for _ in range(CALLS):
        own = torch.arange(20_000, dtype=torch.float32) * (rank + 1)
        try:
            dist.all_reduce(own)
        except RuntimeError as error:
            found.append(str(error))
            continue
        right = torch.arange(20_000, dtype=torch.float32) * (world * (world + 1) // 2)
        found.append("right" if torch.equal(own, right) else "wrong")
    dist.destroy_process_group()
    return found


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[contextlib.ExitStack]:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    monkeypatch.setenv("SWITCH_PASSWORD", OcsServer.password)
    with contextlib.ExitStack() as stack:
        yield stack


def bench_of(
    folder: Path, stack: contextlib.ExitStack, moves: Moves, open_switch: Callable[..., Any]
) -> MovingBench:
    return MovingBench(folder, stack, SERVERS, None, None, moves, open_switch)


def sonic(
    device: MirroredOcs, stack: contextlib.ExitStack
) -> Callable[[NetnsFabric], CircuitSwitch]:
    def open_switch(fabric: NetnsFabric) -> CircuitSwitch:
        device.light_path = LightPath(fabric.layout.switch_namespace)
        server = stack.enter_context(OcsServer(device))
        options = RestconfOptions(patience_s=limit_s(10.0), insecure=True)
        password = PasswordSource(env="SWITCH_PASSWORD")
        return SonicOcs(
            "ocs0", server.address, user="admin", password=password, options=options, poll_s=0.01
        )

    return open_switch


def polatis(
    device: MirroredPolatis, stack: contextlib.ExitStack
) -> Callable[[NetnsFabric], CircuitSwitch]:
    def open_switch(fabric: NetnsFabric) -> CircuitSwitch:
        device.light_path = LightPath(fabric.layout.switch_namespace)
        server = stack.enter_context(PolatisRestconfServer(device))
        options = RestconfOptions(patience_s=limit_s(10.0), insecure=True)
        password = PasswordSource(env="SWITCH_PASSWORD")
        switch = polatis_restconf(
            "ocs0", server.address, user="admin", password=password, options=options
        )
        return stack.enter_context(contextlib.closing(switch))

    return open_switch


def test_a_sonic_device_moves_circuits_and_one_that_stays_dark_is_named(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    device, moves = MirroredOcs(size=SOCKETS, settle_s=SETTLE_S), Moves()
    bench = bench_of(tmp_path, stack, moves, sonic(device, stack))
    assert measured_move_s(bench.plan, bench.mover) > SETTLE_S
    plan_circuits = bench.circuits_of(bench.plan.network.links)
    broken = first_circuit(bench, moves)
    moves.before = {1: lambda: device.broken.add(broken), 2: device.broken.clear}
    for first, second, third in values(bench.run(all_reduces)):
        assert (first, third) == ("right", "right")
        assert str(broken) in second
    assert [bool(ended.error) for ended in bench.ended] == [False, True, False]
    assert device.circuits() == plan_circuits


def test_a_polatis_device_moves_circuits_and_its_restart_is_survived(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    users = {"admin": OcsServer.password}
    device, moves = MirroredPolatis(size=SOCKETS, settle_s=SETTLE_S, users=users), Moves()
    bench = bench_of(tmp_path, stack, moves, polatis(device, stack))
    assert measured_move_s(bench.plan, bench.mover) > SETTLE_S
    plan_circuits = bench.circuits_of(bench.plan.network.links)
    moves.before = {1: lambda: setattr(device, "reboot_after", 2)}
    assert values(bench.run(all_reduces)) == [["right"] * CALLS] * SERVERS
    assert device.boots == 1
    assert not [ended.error for ended in bench.ended if ended.error]
    assert device.circuits() == plan_circuits


def first_circuit(bench: MovingBench, moves: Moves) -> Circuit:
    """Of the first topology, and not of the plan."""
    number = bench.mover.prepare(dict(enumerate(moves.schedule.links[0].tolist())))
    circuits = bench.circuits_of(bench.mover._topologies[number].links)
    bench.mover.close()  # the thread of the service opens its own connections
    return min(circuits - bench.circuits_of(bench.plan.network.links), key=circuit_order)


def work_until_it_is_back(folder: Path, rank: int, world: int) -> int:
    """Trains until a cable was lost and is back, and a bit longer; rank 0 says when to cut it."""
    dist.init_process_group("topoopt")
    deadline = time.monotonic() + limit_s(15.0)
    last = None
    for step in range(1_000_000):
        own = torch.arange(20_000) * (rank + 1) + step
        dist.all_reduce(own)
        total = world * (world + 1) // 2
        assert torch.equal(own, torch.arange(20_000) * total + world * step)
        if step == 3 and rank == 0:
            (folder / "cut").touch()
        lost = torch.tensor([len(job.jobs[-1].session.lost_cables()), time.monotonic() > deadline])
        dist.all_reduce(lost, dist.ReduceOp.MAX)
        assert not lost[1], f"after {step} steps: lost cables: {int(lost[0])}, last {last}"
        if lost[0] > 0:
            last = step + 5
        elif last is not None and step > last:
            break
    dist.destroy_process_group()
    return step


def break_first(device: MirroredOcs | MirroredPolatis, circuits: SpareCircuits) -> None:
    """The light between the ports of the first cable is gone for good."""
    for circuit in circuits.circuits_of(circuits.links[0]):
        if isinstance(device, MirroredOcs):
            device.broken.add(circuit)
        else:
            device.brake(circuit)
    device.show()


@pytest.mark.parametrize("kind", ["sonic", "polatis"])
def test_a_cable_that_the_device_no_longer_joins_moves_to_spare_ports(
    kind: str, tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARE_VARIABLE, "1")
    plan = make_plan(SERVERS, 2)
    options = NetnsOptions(switch_delay_s=0.0, spare_ports=1)
    fabric = stack.enter_context(contextlib.closing(NetnsFabric(a_name(), options)))
    plan.save(tmp_path / "plan.json")
    fabric.connect(plan).save(tmp_path / "wiring.json")
    users, sockets = {"admin": OcsServer.password}, SOCKETS + SERVERS
    device: MirroredOcs | MirroredPolatis
    if kind == "sonic":
        device = MirroredOcs(size=sockets, settle_s=SETTLE_S)
        switch = sonic(device, stack)(fabric)
    else:
        device = MirroredPolatis(size=sockets, settle_s=SETTLE_S, users=users)
        switch = polatis(device, stack)(fabric)
    circuits = fabric.spare_circuits(plan, switch)
    assert circuits is not None
    stack.callback(circuits.close)
    wanted = [circuit for link in circuits.links for circuit in circuits.circuits_of(link)]
    fence = Fence(frozenset(port for circuit in wanted for port in circuit.ports))
    configure(switch, wanted, fence, timeout_s=limit_s(10.0))
    metrics = MetricsWriter(tmp_path / "metrics.jsonl", time.time())
    mover, over = CableMover(circuits, JobFolder(tmp_path), metrics, 1.0), threading.Event()

    def watch() -> None:
        cut = tmp_path / "cut"
        while not over.wait(0.2):
            if cut.exists():
                cut.unlink()
                break_first(device, circuits)
            mover.look(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        outcomes = run_bare_ranks(
            SERVERS,
            functools.partial(work_until_it_is_back, tmp_path),
            namespaces=[fabric.layout.namespace(server) for server in range(SERVERS)],
            store_address=fabric.management_address,
            TOPOOPT_PLAN=str(tmp_path / "plan.json"),
            TOPOOPT_WIRING=str(tmp_path / "wiring.json"),
        )
    finally:
        over.set()
        watcher.join()
    assert len(set(values(outcomes))) == 1, "no rank has missed a step"
    events = [json.loads(line) for line in metrics.path.read_text().splitlines()]
    assert events[0]["moved"], events
    assert [number for _, number in events[0]["ports"]] == [2, 2]


def test_a_device_of_duplex_circuits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = make_plan(SERVERS, 2)
    fabric = NetnsFabric(a_name(), NetnsOptions(relay="kernel", switch_delay_s=0.0))
    panel = MemorySwitch(SOCKETS, name="panel", duplex=True)
    with contextlib.closing(fabric):
        fabric.connect(plan)
        with refused(FabricError, "panel", "duplex"):
            fabric.circuit_mover(plan, panel)
