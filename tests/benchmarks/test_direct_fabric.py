"""The direct-connect fabric of namespaces, on three hosts; needs root, as the fabric does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from direct_fabric import DirectFabric, goodput_bytes_per_s, host_address, make_plan
from rank_processes import call_in_processes

from torch_topoopt.fabric.driver import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def namespaces() -> set[str]:
    """Network namespaces of all processes there are."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(process / "ns" / "net"))
        except OSError:  # it has ended, or is not ours
            continue
    return found


@pytest.fixture
def fabric() -> Iterator[DirectFabric]:
    try:
        wired = DirectFabric(make_plan(4, 2, 0.05))
    except FabricError as error:
        pytest.skip(f"no network namespaces here: {error}")
    with wired:
        yield wired


def test_a_link_has_its_bandwidth_less_the_frames_overhead(fabric: DirectFabric) -> None:
    goodput = goodput_bytes_per_s(fabric, 0, 1, 1.0)
    assert 0.5 < goodput / fabric.plan.cluster.link_bytes_per_s < 1.0


def test_hosts_without_a_cable_reach_each_other_through_one_in_between(
    fabric: DirectFabric,
) -> None:
    def run(which: int) -> bytes:
        fabric.enter(2 * which)
        if which == 1:
            with socket.create_server((host_address(2), 20000)) as listener:
                listener.settimeout(20.0)
                os.write(told, b"1")
                return listener.accept()[0].recv(16)
        os.read(ready, 1)
        with socket.create_connection((host_address(2), 20000), timeout=20.0) as connection:
            connection.sendall(b"over server 1")
        return b""

    ready, told = os.pipe()
    assert (0, 2) not in {(link.source, link.target) for link in fabric.plan.network.links}
    assert call_in_processes(2, run, limit_s=30.0)[1] == b"over server 1"


def test_nothing_is_left_behind(fabric: DirectFabric) -> None:
    inside = {os.readlink(fabric.namespace_path(server)) for server in (-1, 0, 1, 2, 3)}
    assert len(inside) == 5
    assert inside <= namespaces()
    before = interfaces()
    fabric.close()
    assert not inside & namespaces()
    assert interfaces() == before


def test_a_killed_benchmark_leaves_nothing_behind(fabric: DirectFabric) -> None:
    fabric.close()
    script = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        "from direct_fabric import DirectFabric, make_plan\n"
        "fabric = DirectFabric(make_plan(3, 2, 0.05))\n"
        "print(*[os.readlink(fabric.namespace_path(s)) for s in range(-1, 3)], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    inside = set(ended.stdout.split())
    assert len(inside) == 4, ended.stderr
    # The keepers are killed with their parent; the last of them may still be ending.
    for _ in range(200):
        if not inside & namespaces():
            break
        subprocess.run(["true"], check=True)
    assert not inside & namespaces()


def test_a_plan_of_one_way_links_is_refused() -> None:
    import dataclasses

    plan = make_plan(3, 2, 0.05)
    simplex = dataclasses.replace(plan.cluster, ports="simplex")
    with pytest.raises(FabricError, match="ports: 'simplex' cannot be a veth pair"):
        DirectFabric(dataclasses.replace(plan, cluster=simplex))
    with pytest.raises(FabricError, match=r"mtu: 100 is not in 576\.\."):
        DirectFabric(plan, mtu=100)
