"""A direct-connect fabric of network namespaces on one machine: the cables of a Plan as veth pairs.

    sudo python benchmarks/direct_fabric.py --servers 12 --degree 4 --bandwidth 25Mbps --mtu 9000

wires twelve hosts, prints the TCP goodput of single links, and takes everything away again.

Each server is a network namespace. Each cable is a veth pair whose two ends a token bucket (tbf)
limits to the bandwidth, so a link has the rate, the frame overhead and the queue of a real one.
Beside its ports a host has a `management` interface, on a bridge that all hosts share, for
rendezvous, and an address of its own that the others reach over the cables, forwarded by the hosts
in between: what software needs that expects everyone to reach everyone (gloo, Open MPI).

The namespaces have no names: each is kept by one process that the kernel kills when this one ends,
however that happens, and the interfaces vanish with it. Nothing can be left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from rank_processes import RankError, call_in_processes

from torch_topoopt.fabric import links
from torch_topoopt.fabric.driver import FabricError
from torch_topoopt.fabric.wiring import PortAddress, Wiring
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.rank_main import die_with
from torch_topoopt.launcher.units import parse_gbps
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.topology_finder import find_network

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_TCP_PORT = 20000
_MAX_SERVERS = 250
_MIN_MTU, _MAX_MTU = 576, 65521
_QUEUE_S = 0.02  # what a port's queue holds, at the link's rate
_MIN_BURST_BYTES = 16 << 10  # what the kernel's pacing releases at a time, and some
_WINDOW_S = 0.5  # goodput is the median over windows: one late process must not bend it


def make_plan(servers: int, degree: int, gbps: float) -> Plan:
    """A data-parallel plan whose network TopologyFinder chose."""
    cluster = Cluster(servers, degree, gbps)
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    network = find_network(cluster, demand)
    return Plan.of_network(cluster, network, demand, model="benchmark")


class DirectFabric:
    """Wires one Plan; the plan's `link_gbps` is the rate of every link and direction.

    `mtu` is that of every cable. Needs root, `ip` and `tc`; raises FabricError if something of it
    is missing. `close()`, or the end of this process, takes the fabric away.
    """

    def __init__(self, plan: Plan, *, mtu: int = 1500) -> None:
        if plan.cluster.ports != "duplex":
            raise FabricError(f"ports: {plan.cluster.ports!r} cannot be a veth pair; use 'duplex'")
        if plan.cluster.servers > _MAX_SERVERS:
            raise FabricError(f"servers: {plan.cluster.servers} is more than {_MAX_SERVERS}")
        if not _MIN_MTU <= mtu <= _MAX_MTU:
            raise FabricError(f"mtu: {mtu} is not in {_MIN_MTU}..{_MAX_MTU}")
        for tool in ("ip", "tc", "nsenter"):
            if shutil.which(tool) is None:
                raise FabricError(f"{tool}: not found; install iproute2 and util-linux")
        self.plan = plan
        self._mtu = mtu
        self._keepers: list[int] = []  # processes; one per server, the last for the bridge
        try:
            for _ in range(plan.cluster.servers + 1):
                self._keepers.append(_keep_namespace())
            self._wire()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DirectFabric:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes the fabric away; harmless if that has happened."""
        while self._keepers:
            keeper = self._keepers.pop()
            os.kill(keeper, signal.SIGKILL)
            os.waitpid(keeper, 0)

    def wiring(self) -> Wiring:
        """The addresses of all ports; tbf limits the rate, so the sockets need not."""
        ports = {(link.source, link.source_port) for link in self.plan.network.links}
        return (
            Wiring(
                version=Wiring.VERSION,
                fabric="direct",
                plan_digest=self.plan.digest(),
                tcp_port=_TCP_PORT,
                ports=tuple(
                    PortAddress(
                        server,
                        port,
                        port_address(server, port),
                        None,
                        speed_gbps=self.plan.cluster.link_gbps,
                    )
                    for server, port in sorted(ports)
                ),
            )
            .validate()
            .check(self.plan)
        )

    def namespace_path(self, server: int) -> str:
        """The namespace of `server`, for setns and nsenter; -1: that of the management bridge."""
        return f"/proc/{self._keepers[server]}/ns/net"

    def enter(self, server: int) -> None:
        """Moves the calling thread into the namespace of `server` (-1: the bridge's)."""
        with open(self.namespace_path(server)) as namespace:
            _check(_libc().setns(namespace.fileno(), _CLONE_NEWNET), "setns")

    def _wire(self) -> None:
        servers = range(self.plan.cluster.servers)
        bridge = len(servers)
        commands: dict[int, list[str]] = {bridge: ["link add bridge type bridge"]}
        commands[bridge] += [
            "link set lo up",
            f"addr add {management_address(-1)}/16 dev bridge",
            "link set bridge up",
        ]
        for server in servers:
            commands[bridge] += [
                f"link add host{server} type veth peer name management "
                f"netns {self._keepers[server]}",
                f"link set host{server} master bridge up",
            ]
            commands[server] = [
                "link set lo up",
                f"addr add {management_address(server)}/16 dev management",
                "link set management up",
                # An interface of its own, for software that wants the name of one. It is a pair
                # whose other end is not used.
                "link add host type veth peer name host-end",
                f"addr add {host_address(server)}/32 dev host",
                "link set host-end up",
                "link set host up",
            ]
        cables = list(links.connections(self.plan))
        for cable in cables:
            commands[cable.source].append(
                f"link add port{cable.source_port} mtu {self._mtu} type veth "
                f"peer name port{cable.target_port} mtu {self._mtu} "
                f"netns {self._keepers[cable.target]}"
            )
        # In three passes: the bridge's and the cables' far ends must exist before they are used.
        _ip(self._keepers[bridge], commands[bridge])
        for server in servers:
            _ip(self._keepers[server], commands[server])
        for server in servers:
            _ip(self._keepers[server], self._port_commands(server))
        for server in servers:
            _ip(self._keepers[server], self._route_commands(server))
            self._limit(server)

    def _port_commands(self, server: int) -> Iterator[str]:
        for link in self.plan.network.links:
            if link.source == server:
                yield (
                    f"addr add {port_address(server, link.source_port)} "
                    f"peer {port_address(link.target, link.target_port)} dev port{link.source_port}"
                )
                yield f"link set port{link.source_port} up"

    def _route_commands(self, server: int) -> Iterator[str]:
        """A route to each other host's own address, over the first link towards it."""
        ports = {
            link.target: (link.source_port, link.target_port)
            for link in reversed(self.plan.network.links)
            if link.source == server
        }
        for target, first in next_hops(self.plan, server).items():
            near_port, far_port = ports[first]
            yield (
                f"route add {host_address(target)}/32 via {port_address(first, far_port)} "
                f"dev port{near_port} src {host_address(server)}"
            )

    def _limit(self, server: int) -> None:
        rate = self.plan.cluster.link_bytes_per_s
        burst = max(_MIN_BURST_BYTES, 2 * (self._mtu + 14), round(rate / 250))
        limit = max(burst * 2, round(rate * _QUEUE_S))
        ports = {link.source_port for link in self.plan.network.links if link.source == server}
        _batch(
            self._keepers[server],
            "tc",
            [
                f"qdisc add dev port{port} root tbf rate {rate * 8:.0f}bit burst {burst} "
                f"limit {limit}"
                for port in sorted(ports)
            ],
        )


def port_address(server: int, port: int) -> str:
    return f"10.100.{server}.{port + 1}"


def host_address(server: int) -> str:
    return f"10.101.{server}.1"


def management_address(server: int) -> str:
    """That of a server, or of the bridge (-1)."""
    return f"10.102.{server + 1}.1"


def next_hops(plan: Plan, server: int) -> dict[int, int]:
    """Every other server -> the neighbour over which `server` reaches it in the fewest hops.

    Ties go to the neighbour of the shortest forward stride. Each hop of such a path comes nearer,
    whichever host decides, so nothing is ever forwarded in a circle.
    """
    count = plan.cluster.servers
    neighbours: dict[int, set[int]] = {s: set() for s in range(count)}
    for link in plan.network.links:
        neighbours[link.source].add(link.target)
    queue = deque(sorted(neighbours[server], key=lambda other: (other - server) % count))
    chosen = {neighbour: neighbour for neighbour in queue}
    while queue:
        here = queue.popleft()
        for further in sorted(neighbours[here], key=lambda other: (other - here) % count):
            if further != server and further not in chosen:
                chosen[further] = chosen[here]
                queue.append(further)
    return chosen


def hop_count(plan: Plan, source: int, target: int) -> int:
    hops = 0
    while source != target:
        source = next_hops(plan, source)[target]
        hops += 1
    return hops


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise FabricError(f"{what}: {os.strerror(number)} (network namespaces need root)")


def _keep_namespace() -> int:
    """Starts a process in a new network namespace, which lives as long as that process."""
    parent = os.getpid()
    ready, told = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us, after its ranks
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with(parent)
            _check(_libc().unshare(_CLONE_NEWNET), "unshare")
            for setting in ("ip_forward", "conf/all/forwarding", "conf/default/forwarding"):
                Path("/proc/sys/net/ipv4", setting).write_text("1")
            for scope in ("all", "default"):
                Path("/proc/sys/net/ipv4/conf", scope, "rp_filter").write_text("0")
            os.write(told, b"ok")
            while True:
                signal.pause()
        except BaseException as error:
            os.write(told, str(error).encode())
        finally:
            os._exit(1)
    os.close(told)
    with open(ready, "rb") as answer:
        said = answer.read(2)
        if said != b"ok":
            os.waitpid(keeper, 0)
            raise FabricError((said + answer.read()).decode())
    return keeper


def _ip(keeper: int, commands: list[str] | Iterator[str]) -> None:
    _batch(keeper, "ip", list(commands))


def _batch(keeper: int, tool: str, commands: list[str]) -> None:
    result = subprocess.run(
        ["nsenter", f"--net=/proc/{keeper}/ns/net", tool, "-batch", "-"],
        input="\n".join(commands) + "\n",
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    if result.returncode != 0:
        raise FabricError(f"{tool}: {result.stderr.strip()}")


def goodput_bytes_per_s(fabric: DirectFabric, source: int, target: int, seconds: float) -> float:
    """What one TCP connection carries over the link from `source` to its neighbour `target`."""
    link = next(
        link for link in fabric.plan.network.links if (link.source, link.target) == (source, target)
    )
    far = (port_address(target, link.target_port), _TCP_PORT - 1)

    def send() -> None:
        fabric.enter(source)
        with socket.create_connection(far, timeout=5.0) as connection:
            block = bytes(64 << 10)
            with contextlib.suppress(ConnectionError):  # the receiver ends it
                while True:
                    connection.sendall(block)

    def receive(listener: socket.socket) -> float:
        connection = listener.accept()[0]
        connection.settimeout(5.0)
        block = bytearray(1 << 20)
        windows = []
        for _ in range(1 + max(1, round(seconds / _WINDOW_S))):
            begin = time.monotonic()
            received = 0
            while time.monotonic() < begin + _WINDOW_S:
                received += connection.recv_into(block)
            windows.append(received / (time.monotonic() - begin))
        return statistics.median(windows[1:])  # in the first, TCP looks for the rate

    def run(which: int) -> float:
        if which == 0:
            fabric.enter(target)
            with socket.create_server(far) as listener:
                listener.settimeout(5.0)
                os.write(told, b"1")
                return receive(listener)
        os.read(ready, 1)
        send()
        return 0.0

    ready, told = os.pipe()
    try:
        return call_in_processes(2, run, limit_s=seconds + 15)[0]
    finally:
        os.close(ready)
        os.close(told)


def sampled_links(plan: Plan, count: int) -> list[tuple[int, int]]:
    """`count` links, one of each kind of stride first."""
    strides: dict[int, list[tuple[int, int]]] = {}
    for link in plan.network.links:
        stride = (link.target - link.source) % plan.cluster.servers
        strides.setdefault(stride, []).append((link.source, link.target))
    turns = [pairs[turn % len(pairs)] for turn in range(count) for pairs in strides.values()]
    return list(dict.fromkeys(turns))[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=12)
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument("--bandwidth", default="25Mbps", help="of a link and direction")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each link measured")
    arguments = parser.parse_args()
    try:
        plan = make_plan(arguments.servers, arguments.degree, parse_gbps(arguments.bandwidth))
        started = time.monotonic()
        with DirectFabric(plan, mtu=arguments.mtu) as fabric:
            print(f"# wired {len(plan.network.links)} links in {time.monotonic() - started:.2f} s")
            rate = plan.cluster.link_bytes_per_s
            for source, target in sampled_links(plan, 4):
                goodput = goodput_bytes_per_s(fabric, source, target, arguments.seconds)
                print(
                    f"  link {source:3} -> {target:3}  {goodput / 1e6:9.4f} MB/s  "
                    f"{goodput / rate:6.4f} of the rate",
                    flush=True,
                )
    except (FabricError, InputError, RankError, ValueError) as error:
        print(f"direct_fabric: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
