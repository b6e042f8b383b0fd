"""The daemon step by step, with switches in memory and real processes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from mesh_cluster import make_mesh_cluster
from shared_cluster import make_cluster, program, used_servers
from support.launcher import wait_for
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, Difference
from torch_topoopt.fabric.switches.memory_switch import MemorySwitch
from torch_topoopt.fabric.switches.selector import MemorySelector
from torch_topoopt.fabric.switches.switch import cable_circuits
from torch_topoopt.plan import Plan
from torch_topoopt.tools.queue.daemon import Daemon
from torch_topoopt.tools.queue.mesh_places import MeshPlaces
from torch_topoopt.tools.queue.partition import cables_of, ports_needed
from torch_topoopt.tools.queue.processes import LocalProcesses
from torch_topoopt.tools.queue.store import Store
from torch_topoopt.tools.queue.switch_work import SwitchWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

WAITS = 'echo started >> "$1.ran"; while [ ! -e "$1.go" ]; do sleep 0.02; done'


class SlowSwitch(MemorySwitch):
    """A robot: while `robot` is not set, changes take for ever. `asked`: one has begun."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, name=name)
        self.robot = threading.Event()
        self.robot.set()
        self.asked = threading.Event()

    def apply(self, difference: Difference, progress: object = None) -> None:
        self.asked.set()
        assert self.robot.wait(limit_s(60))
        super().apply(difference)


class Site:
    """A cluster and its daemon, which is stepped by the test."""

    def __init__(self, folder: Path, cluster: ClusterFile, ring_plan: Callable[..., Plan]) -> None:
        self.folder = folder
        self.cluster = cluster
        self.ring_plan = ring_plan
        self.store = Store(folder / "state", create=True)
        self.switches = {
            entry.name: SlowSwitch(len(entry.sockets) + 8, entry.name) for entry in cluster.switches
        }
        self.selector = MemorySelector()
        self.processes = LocalProcesses()
        self.daemon = self.new_daemon()

    def new_daemon(self) -> Daemon:
        daemon = Daemon(
            self.store,
            self.cluster,
            SwitchWork(open_switch=lambda entry: self.switches[entry.name]),
            self.selector,
            self.processes,
            topoopt=("topoopt",),
            retry_s=0.02,
            check_s=0.05,
        )
        daemon.recover()
        return daemon

    def submit(self, servers: int, text: str = WAITS) -> int:
        number = len(self.store.jobs()) + 1
        spec = program(self.folder, text, arguments=(str(number),), name=f"job{number}.sh")
        plan = self.ring_plan(servers)
        return self.store.submit(f"job{number}", servers, ports_needed(plan), plan.to_json(), spec)

    def go(self, *jobs: int) -> None:
        for number in jobs:
            (self.folder / f"{number}.go").touch()

    def until(self, *states: str) -> None:
        """Steps until the jobs are in these states, in their order."""

        def there() -> bool:
            self.daemon.step()
            return self.states() == list(states)

        try:
            wait_for(there, f"the states {states}")
        except AssertionError as error:
            raise AssertionError(f"{error}; they are {self.states()}: {self.log()}") from None

    def step_until(self, condition: Callable[[], bool], what: str) -> None:
        def stepped() -> bool:
            self.daemon.step()
            return condition()

        wait_for(stepped, what)

    def states(self) -> list[str]:
        return [job.state for job in self.store.jobs()]

    def log(self, job: int | None = None) -> list[str]:
        return [event.text for _, event in self.store.events(job)]

    def circuits(self) -> set[tuple[str, Circuit]]:
        return {(name, c) for name, s in self.switches.items() for c in s.circuits()}

    def circuits_of(self, *numbers: int) -> set[tuple[str, Circuit]]:
        layouts = [self.store.job(number).layout for number in numbers]
        return {
            (name, circuit)
            for layout in layouts
            if layout
            for name, pairs in cables_of(layout).items()
            for a, b in pairs
            for circuit in cable_circuits(self.switches[name], a, b)
        }

    def close(self) -> None:
        for switch in self.switches.values():
            switch.robot.set()
        for job in self.store.jobs():
            self.processes.kill_marked(f"{self.store.meta('id')}:{job.id}")
        self.store.close()


@pytest.fixture(params=[1, 2], ids=["one switch", "a switch per port"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, ring_plan: Callable[..., Plan]
) -> Iterator[Site]:
    site = Site(tmp_path, make_cluster(4, addresses=("",) * request.param), ring_plan)
    yield site
    site.close()


@pytest.fixture
def small(tmp_path: Path, ring_plan: Callable[..., Plan]) -> Iterator[Site]:
    site = Site(tmp_path, make_cluster(2), ring_plan)
    yield site
    site.close()


def test_the_next_jobs_circuits_are_there_while_one_runs_and_flip_when_it_ends(site: Site) -> None:
    site.submit(4), site.submit(4), site.submit(2)
    site.until("running", "ready", "queued")
    assert len(site.circuits_of(1)) == len(site.circuits_of(2)) == 8
    assert site.circuits() == site.circuits_of(1, 2)
    ports = [f"h{i}:p{k}" for i in range(4) for k in range(2)]
    assert set(site.selector.sides(ports).values()) == {"switch"}
    applied = site.circuits()
    site.go(1)
    site.until("done", "running", "ready")
    assert set(site.selector.sides(ports).values()) == {"lookahead"}
    assert site.circuits_of(2) <= applied
    assert site.circuits() == site.circuits_of(2, 3)
    site.go(2, 3)
    site.until("done", "done", "done")
    assert site.circuits() == set()
    assert (site.store.job(1).side, site.store.job(2).side) == ("switch", "lookahead")


def test_a_flip_does_not_wait_for_a_switch_that_is_being_changed(site: Site) -> None:
    site.submit(4), site.submit(2)
    site.until("running", "ready")
    switch = site.switches["ocs0"]
    switch.asked.clear()
    switch.robot.clear()
    site.submit(2)
    site.until("running", "ready", "preparing")
    site.go(1)
    site.until("clearing", "running", "preparing")
    assert switch.asked.wait(limit_s(30))
    assert not switch.robot.is_set()
    switch.robot.set()
    site.until("done", "running", "running")


def test_a_switch_without_an_answer_is_tried_again_and_the_status_says_why(small: Site) -> None:
    switch = small.switches["ocs0"]
    switch.deaf = True
    small.submit(2)
    small.until("preparing")
    small.step_until(lambda: small.store.job(1).attempts >= 3, "three attempts")
    job = small.store.job(1)
    assert job.problem is not None
    assert "ocs0: no answer" in job.problem
    assert job.next_try_at > 0
    assert sum("no answer" in text for text in small.log(1)) == 1  # once, not each time
    switch.deaf = False
    small.until("running")
    assert small.store.job(1).problem is None


def test_a_running_job_whose_switch_is_away_says_so_until_it_is_back(small: Site) -> None:
    small.submit(2)
    small.until("running")
    small.switches["ocs0"].deaf = True
    small.step_until(lambda: bool(small.store.job(1).problem), "the problem")
    problem = str(small.store.job(1).problem)
    assert problem == "its circuits cannot be checked: ocs0: no answer"
    small.switches["ocs0"].deaf = False
    small.step_until(lambda: small.store.job(1).problem is None, "the end of it")
    assert small.states() == ["running"]


def test_a_ready_job_starts_only_once_the_next_daemon_has_seen_its_circuits(small: Site) -> None:
    small.submit(2), small.submit(2)
    small.until("running", "ready")
    small.switches["ocs0"].deaf = True
    small.daemon = small.new_daemon()
    small.go(1)
    small.until("clearing", "ready")
    small.step_until(lambda: small.store.job(2).attempts > 1, "two looks")
    assert small.states() == ["clearing", "ready"]
    assert "no answer" in str(small.store.job(2).problem)
    small.switches["ocs0"].deaf = False
    small.until("done", "running")


def test_circuits_that_vanish_under_a_running_job_are_set_again(small: Site) -> None:
    small.submit(2)
    small.until("running")
    [(name, lost), *_] = small.circuits_of(1)
    MemorySwitch.apply(small.switches[name], Difference((lost,), ()))
    assert small.circuits() < small.circuits_of(1)
    small.step_until(lambda: small.circuits() == small.circuits_of(1), "circuits")
    wait_for(
        lambda: (
            small.daemon.step() or any(f"set again: {name} + {lost}" in t for t in small.log(1))
        ),
        "the message",
    )
    assert small.states() == ["running"]


def test_a_1x2_switch_that_is_stuck_keeps_the_job_from_starting_and_is_named(small: Site) -> None:
    small.submit(2), small.submit(2)
    small.until("running", "ready")
    small.selector.stuck = {"h1:p0"}
    small.go(1)
    small.until("done", "starting")
    small.step_until(lambda: bool(small.store.job(2).problem), "the problem")
    assert "h1:p0 did not move to lookahead" in str(small.store.job(2).problem)
    assert not (small.folder / "2.ran").exists()
    small.selector.stuck = set()
    small.until("done", "running")


def test_the_sockets_of_others_are_never_touched(small: Site) -> None:
    """Sockets 1 to 8 are the cluster's; circuits of no job are removed there, and only there."""
    switch = small.switches["ocs0"]
    theirs, leftover = cable_circuits(switch, "9", "10"), cable_circuits(switch, "1", "2")
    MemorySwitch.apply(switch, Difference((), theirs + leftover))
    small.submit(2)
    small.until("running")
    assert small.circuits() == {("ocs0", c) for c in theirs} | small.circuits_of(1)
    assert any(t.startswith("circuits of no job were removed: ocs0 - 1A-2B") for t in small.log())
    small.go(1)
    small.until("done")
    assert switch.circuits() == set(theirs)


def test_a_foreign_circuit_in_the_way_is_reported_and_not_removed(small: Site) -> None:
    switch = small.switches["ocs0"]
    across = cable_circuits(switch, "1", "9")
    MemorySwitch.apply(switch, Difference((), across))
    small.submit(2)
    small.until("preparing")
    small.step_until(lambda: bool(small.store.job(1).problem), "the problem")
    assert "is in use by circuit" in str(small.store.job(1).problem)
    assert switch.circuits() == set(across)


def test_a_job_of_which_nothing_was_begun_is_not_recovered(small: Site) -> None:
    small.submit(2)
    small.new_daemon()
    assert not any("recovered" in line for line in small.log(1))


def test_a_job_in_the_queue_is_cancelled_without_the_daemon(small: Site) -> None:
    small.submit(2)
    assert small.store.cancel(1) == "cancelled"
    small.until("cancelled")
    assert not (small.folder / "1.ran").exists()
    assert small.store.cancel(1) == "cancelled"


def test_a_job_is_cancelled_while_its_circuits_are_being_set(small: Site) -> None:
    switch = small.switches["ocs0"]
    switch.robot.clear()
    small.submit(2)
    small.step_until(switch.asked.is_set, "the change")
    assert small.store.cancel(1) == "preparing"
    small.until("clearing")
    switch.robot.set()
    small.until("cancelled")
    assert small.circuits() == set()


def test_a_ready_job_is_cancelled_and_the_running_one_keeps_its_circuits(small: Site) -> None:
    small.submit(2), small.submit(2)
    small.until("running", "ready")
    assert small.store.cancel(2) == "ready"
    small.until("running", "cancelled")
    assert small.circuits() == small.circuits_of(1)
    assert not (small.folder / "2.ran").exists()


def test_a_starting_job_is_cancelled_and_never_starts(small: Site) -> None:
    small.submit(2), small.submit(2)
    small.until("running", "ready")
    small.selector.deaf = True
    small.go(1)
    small.until("done", "starting")
    small.store.cancel(2)
    small.until("done", "cancelled")
    assert not (small.folder / "2.ran").exists()
    assert used_servers(small.store) == {}


def test_a_running_job_is_cancelled_with_all_its_processes(small: Site) -> None:
    small.submit(2, f"setsid sh -c 'sleep 60' & {WAITS}")
    small.until("running")
    wait_for((small.folder / "1.ran").exists, "the job")
    assert small.store.cancel(1) == "running"
    small.until("cancelled")
    assert small.processes.kill_marked(f"{small.store.meta('id')}:1") == 0
    assert (small.circuits(), used_servers(small.store)) == (set(), {})


def test_the_exit_code_of_a_job_is_kept(small: Site) -> None:
    small.submit(2, "exit 3")
    small.until("failed")
    job = small.store.job(1)
    assert (job.exit_code, small.circuits()) == (3, set())
    assert any(named(text, "exit code 3", "program 3") for text in small.log(1))


def test_servers_are_free_only_when_no_process_of_a_dead_supervisor_is_left(small: Site) -> None:
    small.submit(2)
    small.until("running")
    wait_for((small.folder / "1.ran").exists, "the job")
    identity = small.processes.find(small.folder / "state/jobs/1")
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    small.until("failed")
    assert "gone without an exit code" in str(small.log(1))
    assert small.processes.kill_marked(f"{small.store.meta('id')}:1") == 0


def test_a_new_daemon_starts_nothing_twice(small: Site) -> None:
    """Each daemon ends after a few steps, in the middle of its work."""
    chance = random.Random(1)
    small.submit(2)
    deadline = time.monotonic() + limit_s(60)
    daemons = 0
    while not (small.folder / "1.ran").exists():
        assert time.monotonic() < deadline, small.log()
        small.daemon = small.new_daemon()
        daemons += 1
        # the first one ends before the job can have started
        for _ in range(chance.randint(1, 12) if daemons > 1 else 1):
            small.daemon.step()
            time.sleep(0.002)  # how far its other thread gets meanwhile is up to chance, too
    assert daemons > 1
    small.go(1)
    small.until("done")
    assert (small.folder / "1.ran").read_text() == "started\n"


def test_launch_hosts_starts_one_topoopt_run_per_server_with_the_jobs_own_cluster_file(
    small: Site,
) -> None:
    """The program `topoopt` is one of the test's, which keeps what it was called with."""
    (small.folder / "bin").mkdir()
    stub = small.folder / "bin" / "topoopt"
    stub.write_text(f'#!/bin/sh\necho "$@" > {small.folder}/$AT\n')
    stub.chmod(0o755)
    reach = ("env", f"PATH={small.folder}/bin:/usr/bin:/bin", "AT={server}")
    spec = replace(program(small.folder), launch="hosts", reach=reach, arguments=("--epochs", "2"))
    small.store.submit("hosts", 2, 1, small.ring_plan(2).to_json(), spec)
    small.until("done")
    for rank in range(2):
        called = (small.folder / f"h{rank}").read_text().split()
        options = dict(zip(called[1:-3:2], called[2:-3:2], strict=True))
        assert (called[0], called[-3:]) == ("run", [spec.script, "--epochs", "2"])
        assert (options["--nnodes"], options["--node-rank"]) == ("2", str(rank))
        assert load_cluster(options["--cluster"]).cables == (("h0:p0", "h1:p0"),)
        assert Plan.load(options["--plan"]) == small.ring_plan(2)


def test_the_passwords_of_switches_stay_with_the_daemon(
    tmp_path: Path, ring_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(2)
    entry = replace(cluster.switches[0], user="u", password=PasswordSource(env="OCS_PASSWORD"))
    site = Site(tmp_path, replace(cluster, switches=(entry,)), ring_plan)
    monkeypatch.setenv("OCS_PASSWORD", "hunter2")
    monkeypatch.setenv("OTHER", "kept")
    try:
        site.submit(2, "env > seen")
        site.until("done")
    finally:
        site.close()
    seen = (tmp_path / "seen").read_text()
    assert "hunter2" not in seen
    assert "OTHER=kept" in seen
    assert "TOPOOPT_JOB_SERVERS=h0 h1" in seen
    assert f"TOPOOPT_JOB_PLAN={tmp_path}/state/jobs/1/plan.json" in seen


def test_jobs_of_a_hammingmesh_wait_for_a_submesh_and_moves_are_proposed(
    tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    site = Site(tmp_path, make_mesh_cluster(4, 2), ring_plan)
    try:
        for servers in (2, 2, 2, 2):
            site.submit(servers)
        site.until(*["running"] * 4)
        on = [set(job.layout.servers) for job in site.store.jobs() if job.layout]
        assert len(set().union(*on)) == 8
        mesh = MeshPlaces.of(site.cluster)
        assert mesh is not None
        boards = [mesh.sub_mesh(names) for names in on]
        # Two jobs end whose boards share neither rows nor columns: four are free, no 2x2 is.
        first = 0
        second = next(i for i in range(4) if not set(boards[i].columns) & set(boards[0].columns)
                      and not set(boards[i].rows) & set(boards[0].rows))  # fmt: skip
        site.submit(4)
        site.go(first + 1, second + 1)
        states = ["running"] * 4 + ["queued"]
        states[first] = states[second] = "done"
        site.until(*states)
        site.step_until(lambda: any("if these moved" in line for line in site.log(5)), "a proposal")
        site.daemon.step()
        [said] = [line for line in site.log(5) if "if these moved" in line]
        assert "0.859 s with 64 GiB of an accelerator" in said
        site.go(*(i + 1 for i in range(4) if i not in (first, second)))
        site.go(5)
        site.until(*["done"] * 5)
        assert any("gets 2x2 boards" in line for line in site.log(5))
        assert "it needs no circuits" in site.log(1)
        assert not any("light" in line for line in site.log())
    finally:
        site.close()
