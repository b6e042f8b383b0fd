"""The rendezvous of a cluster's hosts: one `topoopt run` on each, over the management network.

Server 0 holds torch's TCPStore, which its ranks use afterwards, too. It also profiles and plans for
all hosts, because hosts with other processors or libraries may find other plans, and all need the
same one. A failure on one host ends the run on all of them, with the same message.

With `--nnodes MIN:MAX` the job starts with some of the hosts, and others come later (door.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch_topoopt
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import broadcast, failure_broadcast, receive
from torch_topoopt.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from torch_topoopt.discovery.cable_rates import CableRate
    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import ServerEntry
    from torch_topoopt.fabric.driver import FabricDriver
    from torch_topoopt.launcher.rendezvous.door import Door
    from torch_topoopt.launcher.rendezvous.hosts_attempt import HostsAttempt

_RETRY_S = 0.2  # until server 0 listens
_TRY_S = 3.0  # for one attempt to connect to the store; torch exceeds it by a pause of about 2 s
_GIVE_UP_S = 5.0  # for the last attempt to fail
_LATE_S = 10.0  # more for the others, so that server 0 times out first and names the late ones
_SHUTDOWN_S = 10.0  # for the other hosts to read everything from server 0, or its failure
_GATHER_S = 60.0  # for the last host's ranks to end, after those of this one
_FAILED_S = 5.0  # the same, once a rank has failed: its host may be gone for good
_LOOK_S = 0.1  # between two polls of others' messages
_PLAN_S = 3600.0  # profiling a big model, or planning a big cluster, takes a while


@dataclass(frozen=True)
class ClusterChoice:
    """The cluster, the number of this host's server, and the address of server 0's store.

    The job starts with `least` servers or more (None: all), `last_call_s` after these have come.
    """

    file: ClusterFile
    path: str
    server: int
    master_address: str
    master_port: int
    meet_timeout_s: float
    least: int | None = None
    last_call_s: float = 30.0

    @property
    def may_grow(self) -> bool:
        """Whether the job may start without some of the servers, and take them in later."""
        return self.least is not None and self.least < len(self.file.servers)

    @property
    def name(self) -> str:
        return self.file.servers[self.server].name

    def describe(self, server: int) -> str:
        """`h2 (node rank 2, 10.200.0.3)`."""
        entry = self.file.servers[server]
        return f"{entry.name} (node rank {server}, {entry.management})"


def servers_here(file: ClusterFile) -> list[int]:
    """The servers of `file` with a management address of this host."""
    return [number for number, server in enumerate(file.servers) if _is_here(server)]


def _is_here(server: ServerEntry) -> bool:
    """Whether this host has the management address of `server`, by binding to it."""
    try:
        found = socket.getaddrinfo(server.management, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False  # an unresolvable name is not this host's
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return not ipaddress.ip_address(address[0]).is_loopback
        except OSError:
            continue
    return False


class ClusterSite:
    """This host among the hosts of its job, which are all present once `join` has returned.

    `choice` has the servers of the job, `members` are their numbers in the whole cluster file.
    `earlier_restarts` is the number of restarts before this host was taken in. As a context it ends
    with a shutdown handshake: server 0 stays until the others no longer need its store.
    """

    def __init__(self, choice: ClusterChoice, store: Any) -> None:
        self.choice = choice
        self.whole = choice
        self.members = tuple(range(len(choice.file.servers)))
        self.earlier_restarts = 0
        self._reported: set[str] = set()  # hosts that are gone
        self.door: Door | None = None
        self._store = store
        self._attempt = 0
        self._meeting = _LauncherMeeting(choice, store)
        self._present = [choice.server]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            return  # Ctrl-C: at once, without waiting for others
        with contextlib.suppress(FabricError):
            if self.door is not None and self.leads:
                error = f"the job of {self.choice.describe(0)} has ended"
                self.door.refuse([*self.door.waiting(self.absent)], error)
            self._meeting.publish("left", "")
            if self.leads:
                self._meeting.collect("left", self._present, time.monotonic() + _SHUTDOWN_S)

    @classmethod
    def join(cls, choice: ClusterChoice) -> ClusterSite:
        """Meets the other hosts; raises FabricError naming the missing or mismatching ones.

        If the job has begun and may grow, this host waits until it is taken in.
        """
        deadline = time.monotonic() + choice.meet_timeout_s
        site = cls(choice, _open_store(choice, deadline))
        if choice.may_grow:
            site._come_in(deadline)
            return site
        with contextlib.ExitStack() as on_failure:
            on_failure.push(site)
            site._gather_hosts(deadline)
            on_failure.pop_all()
        return site

    def measure_cables(self) -> tuple[CableRate, ...]:
        """The rates of the cables, from all hosts; from now on the site's cluster has them."""
        from torch_topoopt.discovery.cable_rates import measured_cables, with_rates

        rates = measured_cables(self.choice.file, self.choice.server, self._meeting)
        self.choice = replace(self.choice, file=with_rates(self.choice.file, rates))
        return rates

    @property
    def leads(self) -> bool:
        """Whether this host is the one that plans."""
        return self.choice.server == 0

    def share_plan(self, make: Callable[[], Plan]) -> Plan:
        """The plan that server 0 makes; raises FabricError on the others if it cannot."""
        if not self.leads:
            return Plan.from_json(receive(self._meeting, "plan", time.monotonic() + _PLAN_S))
        with failure_broadcast(self._meeting, "plan", f"{self.choice.name}: "):
            plan = make()
        broadcast(self._meeting, "plan", plan.to_json())
        return plan

    def share_text(self, topic: str, make: Callable[[], str]) -> str:
        """What server 0 makes; raises FabricError on the others if it cannot."""
        if not self.leads:
            return str(receive(self._meeting, topic, time.monotonic() + _PLAN_S))
        with failure_broadcast(self._meeting, topic, f"{self.choice.name}: "):
            text = make()
        broadcast(self._meeting, topic, text)
        return text

    def fabric(self, snapshots: Path | None, *, forwarding: bool = False) -> FabricDriver:
        """The driver of this host's cables, and of the circuits of ports on switches.

        `snapshots` gets the circuits from before, on server 0, unless it is None. With
        `forwarding`, hosts on switches forward for each other.
        """
        from torch_topoopt.discovery.local_host import NamespaceHost
        from torch_topoopt.fabric.cluster import host_forwarding
        from torch_topoopt.fabric.cluster.static import StaticFabric
        from torch_topoopt.fabric.cluster.switched import SwitchedFabric

        host_forwarding.undo_left()
        file, server = self.choice.file, self.choice.server

        def on_cables(file: ClusterFile) -> FabricDriver:
            return StaticFabric(file, server, self._meeting, NamespaceHost())

        if not file.switches:
            return on_cables(file)
        leader = self.choice.master_address if forwarding else ""
        return SwitchedFabric(
            file, server, self._meeting, on_cables, folder=snapshots, leader=leader
        )

    def attempt(self, run_id: str) -> HostsAttempt:
        """The next start of the ranks. A restart has a new store, since the old one still has the
        keys of the ranks before."""
        from torch.distributed import PrefixStore
        from torch.distributed.elastic.rendezvous import RendezvousStoreInfo

        from torch_topoopt.launcher.rendezvous import rendezvous
        from torch_topoopt.launcher.rendezvous.hosts_attempt import HostsAttempt

        choice, of_ranks, port = self.choice, None, self.choice.master_port
        if self._attempt and self.leads:
            of_ranks = rendezvous.listening_store(choice.master_address, 0)
            broadcast(self._meeting, "store of the ranks", of_ranks.port)
        if self._attempt:
            limit = time.monotonic() + choice.meet_timeout_s
            port = receive(self._meeting, "store of the ranks", limit)
        return HostsAttempt(
            self._meeting,
            PrefixStore(f"launchers/{self._attempt}", self._store),
            RendezvousStoreInfo(choice.master_address, port),
            server=choice.server,
            hosts=len(choice.file.servers),
            run_id=run_id,
            of_ranks=of_ranks,
        )

    def go_on(self, lost: Collection[int]) -> None:
        """Another attempt, without the servers `lost`; the others are renumbered."""
        file, server = self.choice.file, self.choice.server
        self.members = tuple(m for number, m in enumerate(self.members) if number not in lost)
        choice = replace(
            self.choice,
            file=file.without({file.servers[other].name for other in lost}),
            server=server - sum(other < server for other in lost),
        )
        self._meet(self._attempt + 1, choice)

    def regroup(self, members: Sequence[int], restarts: int) -> None:
        """Another attempt, after `restarts` restarts, on these servers of the whole cluster file.

        All of them call it; server 0 takes the new ones in. The rates of cables are forgotten.
        """
        attempt = self._attempt + 1
        if self.door is not None and self.leads:
            came = [server for server in members if server not in self.members]
            self.door.take_in(came, [attempt, list(members), restarts])
        self._enter(attempt, members)

    def report_gone(self, servers: Iterable[int]) -> None:
        """Warns, once for each, that launchers of these hosts have ended."""
        from torch_topoopt.launcher import console

        for host in map(self.choice.describe, servers):
            if host not in self._reported:
                self._reported.add(host)
                console.warning(f"{host} is gone: its launcher has ended")

    @property
    def absent(self) -> list[int]:
        """The servers of the whole cluster file that are not in the job."""
        return [s for s in range(len(self.whole.file.servers)) if s not in self.members]

    def choice_of(self, members: Sequence[int], rates: Sequence[CableRate] = ()) -> ClusterChoice:
        """This host among these servers of the whole cluster file, with known rates of cables."""
        from torch_topoopt.discovery.cable_rates import with_rates

        file = with_rates(self.whole.file, rates)
        if len(members) < len(file.servers):
            file = file.of_servers([file.servers[server].name for server in members])
        return replace(self.whole, file=file, server=members.index(self.whole.server))

    def facts(self) -> dict[str, str]:
        """The values that have to be equal on all hosts."""
        digest = hashlib.sha256(self.whole.file.to_yaml().encode()).hexdigest()[:16]
        return {"version": torch_topoopt.__version__, "cluster": digest}

    def _come_in(self, deadline: float) -> None:
        """Server 0 waits for enough hosts; the others wait until they are taken in."""
        from torch_topoopt.launcher.rendezvous.door import Door

        self.door = Door(self._store, self._meeting.gone)
        attempt = 0
        if self.leads:
            members = self._await_enough(self.door, deadline)
            self.door.take_in(members[1:], [attempt, members, self.earlier_restarts])
        else:
            server = self.whole.server
            number = self.door.come(server, self.facts())
            answer = self.door.await_answer(server, number, deadline + _LATE_S)
            attempt, members, self.earlier_restarts = answer
        self._enter(attempt, members)

    def _await_enough(self, door: Door, deadline: float) -> list[int]:
        """The servers to start with: those that are joined with server 0. Raises FabricError."""
        from torch_topoopt.fabric.cluster.static_plan import connected_part

        whole, last_call = self.whole, deadline
        others = range(1, len(whole.file.servers))
        while True:
            came = door.waiting(others)
            for server, facts in came.items():
                if problem := difference(self.facts(), facts):
                    error = f"{whole.describe(server)} {problem}"
                    door.refuse([*came], error)
                    raise FabricError(error)
            members, now = connected_part(whole.file, [0, *came]), time.monotonic()
            enough = whole.least is not None and len(members) >= whole.least
            last_call = min(last_call, now + whole.last_call_s) if enough else deadline
            if len(members) == len(whole.file.servers) or now >= last_call:
                there = door.still_waiting(members[1:]) if enough else []
                if enough and len(there) == len(members) - 1:
                    return members
                if not enough:
                    error = self._too_few(came, members)
                    door.refuse([*came], error)
                    raise FabricError(error)
            time.sleep(_LOOK_S)

    def _too_few(self, came: Collection[int], members: Sequence[int]) -> str:
        whole, count = self.whole, len(self.whole.file.servers)
        missing = [s for s in range(1, count) if s not in came]
        apart = [whole.file.servers[s].name for s in came if s not in members]
        parts = []
        if missing:
            parts.append(
                f"{self._meeting.late('here', missing)}: run `topoopt run --cluster {whole.path} "
                "...` there too"
            )
        if apart:
            parts.append(f"no cable or switch joins {', '.join(apart)} with {whole.name}")
        parts.append(f"--nnodes needs at least {whole.least} servers, of which {len(members)}")
        return "; ".join(parts) + " are there"

    def _enter(self, attempt: int, members: Sequence[int]) -> None:
        self.members = tuple(members)
        self._meet(attempt, self.choice_of(members))

    def _meet(self, attempt: int, choice: ClusterChoice) -> None:
        """The hosts of an attempt meet under topics of their own."""
        from torch.distributed import PrefixStore

        self._attempt, self.choice = attempt, choice
        store = PrefixStore(f"restart/{attempt}", self._store)
        self._meeting = _LauncherMeeting(choice, store)
        self._present = [*range(len(choice.file.servers))]

    def gather(self, topic: str, value: Any, *, failed: bool) -> list[Any]:
        """The values of all hosts, on server 0; the one of this host, on the others.

        A lost host is omitted; after its ranks `failed`, the timeout is shorter.
        """
        with contextlib.suppress(FabricError) if failed else contextlib.nullcontext():
            self._meeting.publish(topic, json.dumps(value))
        if not self.leads:
            return [value]
        deadline = time.monotonic() + (_FAILED_S if failed else _GATHER_S)
        gathered = {}
        for server in self._present:
            with contextlib.suppress(FabricError):
                gathered[server] = json.loads(
                    self._meeting.collect(topic, [server], deadline)[server]
                )
        self._present = [*gathered]  # a lost host takes no part in the shutdown handshake
        return [*gathered.values()]

    def _gather_hosts(self, deadline: float) -> None:
        """Server 0 checks that all hosts have the same file; the others wait for the result."""
        here = self.facts()
        self._meeting.publish("here", json.dumps(here))
        if not self.leads:
            receive(self._meeting, "all here", max(deadline, time.monotonic()) + _LATE_S)
            return
        servers = range(len(self.choice.file.servers))
        with failure_broadcast(self._meeting, "all here"):
            texts = self._collect_hosts(servers, deadline)
            for server in servers:
                if problem := difference(here, json.loads(texts[server])):
                    raise FabricError(f"{self.choice.describe(server)} {problem}")
        broadcast(self._meeting, "all here", None)

    def _collect_hosts(self, servers: range, deadline: float) -> dict[int, str]:
        """The facts of each host; notes the present hosts, also if one is missing."""
        try:
            return self._meeting.collect("here", servers, deadline)
        except FabricError as error:
            raise FabricError(
                f"{error}: run `topoopt run --cluster {self.choice.path} ...` there too"
            ) from None
        finally:
            self._present = [s for s in servers if self._meeting.has_published("here", s)]


class _LauncherMeeting:
    """The rendezvous of the launchers: servers are the ranks, every failure is a FabricError."""

    def __init__(self, choice: ClusterChoice, store: Any) -> None:
        from torch.distributed import DistError

        from torch_topoopt.runtime.job_network import StoreMeeting

        self._meeting = StoreMeeting(store, choice.server, choice.describe)
        self._broken = DistError
        self.gone = f"the connection to {choice.describe(0)} broke; did `topoopt run` end there?"

    def publish(self, topic: str, text: str) -> None:
        try:
            self._meeting.publish(topic, text)
        except self._broken:
            raise FabricError(self.gone) from None

    def collect(self, topic: str, ranks: Iterable[int], deadline: float) -> dict[int, str]:
        ranks = list(ranks)
        try:
            # torch's own wait handles no signal, and logs two lines at each timeout
            while missing := self._meeting.missing(topic, ranks):
                if time.monotonic() >= deadline:
                    raise self._meeting.late(topic, missing)
                time.sleep(_LOOK_S)
            return self._meeting.collect(topic, ranks, max(deadline, time.monotonic() + _LATE_S))
        except self._broken:
            raise FabricError(self.gone) from None

    def late(self, topic: str, ranks: Sequence[int]) -> FabricError:
        """The error where `ranks` have not published in time."""
        return self._meeting.late(topic, ranks)

    def has_published(self, topic: str, rank: int) -> bool:
        try:
            return not self._meeting.missing(topic, [rank])
        except self._broken:
            raise FabricError(self.gone) from None


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """The first difference between the facts of a host and those of server 0; "" if none."""
    if there["version"] != here["version"]:
        return f"has torch_topoopt {there['version']}, server 0 has {here['version']}"
    if there["cluster"] != here["cluster"]:
        return "has a cluster file that says something else than that of server 0; copy it"
    return ""


def _open_store(choice: ClusterChoice, deadline: float) -> Any:
    from torch.distributed import DistError, TCPStore

    from torch_topoopt.launcher.rendezvous import rendezvous  # which imports torch

    leads = choice.server == 0
    address, port = choice.master_address, choice.master_port
    if leads:
        rendezvous.check_reachable(address)
    else:
        _wait_until_listening(choice, deadline)
    left = timedelta(seconds=max(1.0, deadline - time.monotonic()))

    def connect() -> Any:
        while True:
            limit = timedelta(seconds=min(_TRY_S, max(1.0, deadline - time.monotonic())))
            try:
                store = TCPStore(address, port, timeout=limit, wait_for_workers=False)
            except DistError:
                if time.monotonic() >= deadline:
                    raise
            else:
                store.set_timeout(left)
                return store

    try:
        if leads:  # the elastic agent and the ranks use the same store at this port
            return rendezvous.listening_store(address, port, left)
        return _in_time(connect, deadline + _GIVE_UP_S)
    except TimeoutError:
        reason = f"no answer within {choice.meet_timeout_s:g} s of --meet-timeout"
    except DistError as error:
        reason = str(error).splitlines()[0]
    raise FabricError(
        f"what listens at {address}:{port} is not the store of {choice.describe(0)} ({reason}): "
        f"another service? choose another --master-port, on all hosts"
    )


def _in_time(connect: Callable[[], Any], deadline: float) -> Any:
    """The result of `connect`; raises TimeoutError after the deadline, and signals' exceptions.

    torch waits in C++ for a silent store, without signals or a limit. That thread is left behind,
    because this process ends soon. An attempt that fails while the interpreter ends would abort the
    process, so the deadline is after the end of all attempts that torch limits.
    """
    result: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            result.put((connect(), None))
        except BaseException as error:
            result.put((None, error))

    with _without_stderr():
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            made, error = result.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        thread.join()
    if error is not None:
        raise error
    return made


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Inside, nothing reaches stderr: torch logs a C++ stack for every attempt to connect."""
    sys.stderr.flush()
    before = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _wait_until_listening(choice: ClusterChoice, deadline: float) -> None:
    where = (choice.master_address, choice.master_port)
    reason = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection(where, timeout=min(left, 5.0)).close()
            return
        except socket.gaierror as error:
            raise FabricError(f"master-addr: {where[0]!r}: {error.strerror}") from None
        except OSError as error:
            reason = error.strerror or "no answer"
            time.sleep(min(_RETRY_S, left))
    raise FabricError(
        f"{choice.describe(0)} does not hold the job's store at {where[0]}:{where[1]} ({reason}): "
        f"run `topoopt run --cluster {choice.path} ...` there too"
    )
