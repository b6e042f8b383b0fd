"""The daemon killed at random moments: real processes, a real queue, a switch that goes on.

The switch is a Polatis test server (RESTCONF) in this process, the 1x2 switches a program with
a file; the jobs are shell scripts that find out themselves whether they are alone on their servers.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from shared_cluster import make_cluster, program, used_servers
from support.fabric.polatis_device import PolatisDevice
from support.fabric.polatis_restconf_server import PolatisRestconfServer
from support.launcher import wait_for
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.switch import cable_circuits
from torch_topoopt.tools.queue import jobs as j
from torch_topoopt.tools.queue.partition import cables_of, ports_needed
from torch_topoopt.tools.queue.processes import LocalProcesses
from torch_topoopt.tools.queue.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.plan import Plan

LIMIT_S = 200.0

FOUND = (
    r"it was (preparing|clearing); the rest of the work on its switches is done again"
    r"|it was ready; its circuits are being checked"
    r"|it was \w+, and no process of it was started yet"
    r"|it was \w+, and ended while no daemon ran"
    r"|it was \w+; its process \d+ runs on and is adopted"
)

RELAYS = """
import json, os, pathlib, sys
path = pathlib.Path(sys.argv[1])
state = json.loads(path.read_text()) if path.exists() else {}
if sys.argv[2] == "set":
    new = path.with_name(f"relays.{os.getpid()}")
    new.write_text(json.dumps(state | dict(a.split("=") for a in sys.argv[3:])))
    new.replace(path)
else:
    for port in sys.argv[3:]:
        print(port, state.get(port, "switch"))
"""

# Takes each of its servers for itself, says so if it is not alone there, and counts its runs.
JOB = """
echo "$1 started" >> ran
for server in $TOPOOPT_JOB_SERVERS; do
    mkdir "taken-$server" || echo "$1 is not alone on $server" >> conflicts
done
sleep "$2"
for server in $TOPOOPT_JOB_SERVERS; do rmdir "taken-$server"; done
echo "$1 ended" >> ran
"""


class Site:
    """A cluster of four servers, its switch, and the daemon that is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = PolatisDevice(size=16, settle_s=0.02)
        self.server = PolatisRestconfServer(self.device)
        (folder / "relays.py").write_text(RELAYS)
        # without site-packages and environment, it starts in 20 ms
        relays = (sys.executable, "-I", "-S", str(folder / "relays.py"), str(folder / "relays"))
        cluster = make_cluster(
            4, kind="polatis-restconf", addresses=(self.server.address,), selector=relays
        )
        (folder / "password").touch(mode=0o600)
        (folder / "password").write_text("root\n")
        login = {
            "user": "admin",
            "password": PasswordSource(file=str(folder / "password")),
            "options": {"insecure": True},
        }
        cluster = replace(cluster, switches=tuple(replace(s, **login) for s in cluster.switches))
        self.file = folder / "lab.yaml"
        cluster.save(self.file)
        self.state = folder / "state"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.log = open(folder / "daemon.log", "ab")  # noqa: SIM115 - closed in `close`

    def start(self) -> subprocess.Popen[bytes]:
        self.daemon = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch_topoopt.launcher.main", "cluster", "daemon"),
                *("--cluster", str(self.file), "--state", str(self.state)),
                *("--retry", "0.05", "--until-idle"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        return self.daemon

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait(limit_s(20))

    def close(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill()
        store = Store(self.state)
        for job in store.jobs():
            LocalProcesses().kill_marked(f"{store.meta('id')}:{job.id}")
        store.close()
        self.log.close()
        self.server.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_nothing_is_lost_when_it_is_killed_at_random_moments(
    kills: int, site: Site, ring_plan: Callable[..., Plan]
) -> None:
    chance = random.Random(20)
    store = Store(site.state, create=True)
    sizes = [2, 4, 2, 1, 3, 4, 2, 2, 1, 4, 3, 2]
    for number, servers in enumerate(sizes, start=1):
        spec = program(
            site.folder, JOB, arguments=(f"{number}", f"{chance.uniform(0.05, 0.8):.2f}")
        )
        plan = ring_plan(servers)
        store.submit(f"job{number}", servers, ports_needed(plan), plan.to_json(), spec)
    for kill in range(kills):
        starts = len(_starts(store))
        site.start()
        if kill % 5:  # the others are killed while they start, or soon after
            wait_for(lambda before=starts: len(_starts(store)) > before, "a daemon")
        time.sleep(chance.uniform(0, 0.6))  # the moment of the kill, not a wait for anything
        site.kill()
        _check_queue(store, len(sizes))
    daemon = site.start()
    assert daemon.wait(limit_s(LIMIT_S)) == 0, site.folder
    ran = (site.folder / "ran").read_text().splitlines()
    everybody = range(1, len(sizes) + 1)
    assert Counter(ran) == Counter(
        f"{n} {what}" for n in everybody for what in ("started", "ended")
    )
    assert not (site.folder / "conflicts").exists()
    assert {job.state for job in store.jobs()} == {j.DONE}
    assert site.device.circuits() == frozenset()
    _check_messages(store, kills)
    store.close()


def _starts(store: Store) -> list[str]:
    return [event.text for _, event in store.events() if "daemon has started" in event.text]


def _check_queue(store: Store, count: int) -> None:
    """The invariants of the queue."""
    jobs = store.jobs()
    assert len(jobs) == count
    used = used_servers(store)
    for job in jobs:
        own = {server for server, user in used.items() if user == job.id}
        assert own == (
            set(job.layout.servers)
            if job.layout and job.state in (j.STARTING, j.RUNNING, j.STOPPING)
            else set()
        )


def _check_messages(store: Store, kills: int) -> None:
    """Every successor of a killed daemon says what it found of each job that was not over."""
    texts = [event.text for _, event in store.events()]
    assert len(_starts(store)) > kills * 4 / 5
    found = [text for text in texts if text.startswith("recovered: ")]
    assert len(found) > kills
    assert all(re.fullmatch(FOUND, text.removeprefix("recovered: ")) for text in found)


def test_a_running_job_is_adopted_and_its_circuits_stay(
    site: Site, ring_plan: Callable[..., Plan]
) -> None:
    """Killed while one job runs and the next is prepared: the circuits are just those of both."""
    store = Store(site.state, create=True)
    for number in (1, 2):
        spec = program(site.folder, 'while [ ! -e "go" ]; do sleep 0.05; done')
        store.submit(f"job{number}", 4, 2, ring_plan(4).to_json(), spec)
    site.start()
    wait_for(lambda: [job.state for job in store.jobs()] == [j.RUNNING, j.READY], "two wired jobs")
    wired = site.device.circuits()
    site.kill()
    [process] = [json.loads(p.read_text()) for p in site.state.glob("jobs/*/process.json")]
    assert wired == _circuits_of(site, store.jobs())
    site.device.preserves = False
    site.device.reboot()  # while it is not watched
    assert site.device.circuits() == frozenset()
    site.start()
    wait_for(lambda: site.device.circuits() == wired, "the circuits that were lost")
    assert os.path.exists(f"/proc/{process['pid']}")
    (site.folder / "go").touch()
    assert site.daemon is not None
    assert site.daemon.wait(limit_s(60)) == 0
    texts = [event.text for _, event in store.events(1)]
    assert any(named(text, f"process {process['pid']}", "adopted") for text in texts)
    assert any(named(text, "changed", "set again", "ocs0") for text in texts)
    assert site.device.circuits() == frozenset()
    store.close()


def _circuits_of(site: Site, jobs: list[j.QueuedJob]) -> set[object]:
    cluster = load_cluster(site.file)
    switch = open_switch(cluster.switches[0])
    found = {
        circuit
        for job in jobs
        if job.layout
        for a, b in cables_of(job.layout)["ocs0"]
        for circuit in cable_circuits(switch, a, b)
    }
    switch.close()
    return set(found)
