"""A host that forwards for others, in a namespace: what it changes, and that nothing is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import require_namespaces
from support.plain_namespaces import End, Namespaces, ip, up
from support.refusals import refused

from torch_topoopt.fabric.cluster import host_forwarding
from torch_topoopt.fabric.cluster.host_forwarding import HostForwarding, ports_here
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.kernel_tables import CircuitRoute, KernelTables
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.fabric.netns.kernel import Result

ADDRESS = "198.19.128.1"
MAC = "02:00:00:00:00:01"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A namespace with a port `nic0`."""
    require_namespaces()
    monkeypatch.setenv(host_forwarding.STATE_VARIABLE, str(tmp_path))
    with Namespaces() as namespaces:
        names = [namespaces.add(), namespaces.add()]
        namespaces.cable(End(names[0], "nic0"), End(names[1], "nic0"))
        for number, name in enumerate(names, start=1):
            up(name, "nic0", f"10.9.0.{number}/24")
        yield names[0]


def inside(host: str, call: Callable[[], Result]) -> Result:
    return netns_kernel.inside(host, call)


def settings(host: str) -> list[str]:
    names = [*host_forwarding._OF_TCP, *(f"conf/nic0/{n}" for n in host_forwarding._OF_PORTS)]
    paths = [Path("/proc/sys/net/ipv4", name) for name in names]
    return inside(host, lambda: [path.read_text() for path in paths if path.exists()])


def state(host: str) -> list[str]:
    """All that a job changes."""
    shown = [
        ip(f"-n {host} {what}")
        for what in ("rule", "route show table all", "neigh show nud permanent", "addr show dev lo")
    ]
    return [*shown, *settings(host)]


def write_routes(tables: KernelTables) -> None:
    route = CircuitRoute("10.9.0.7", "nic0", "10.9.0.2", MAC, None)
    tables.write_plan([route], {"198.19.128.9": [route]})
    tables.write(3, [route])
    tables.select(3)
    tables.close()


def test_all_changes_are_undone(host: str) -> None:
    before = state(host)
    forwarding = inside(host, lambda: HostForwarding(["nic0"], ADDRESS))
    inside(host, lambda: write_routes(forwarding.tables))
    rules = ip(f"-n {host} rule")
    assert "from 198.19.128.9" in rules
    assert rules.count("proto 84") == 3
    assert MAC in ip(f"-n {host} neigh show nud permanent")
    assert "dev nic0" in ip(f"-n {host} route get 10.9.0.7")
    assert ADDRESS in ip(f"-n {host} addr show dev lo")
    assert settings(host)[-5:] == ["1\n", "2\n", "0\n", "1\n", "2\n"]
    inside(host, forwarding.close)
    assert state(host) == before
    inside(host, forwarding.close)
    assert inside(host, host_forwarding.undo_left) is False


def test_the_next_job_undoes_what_a_killed_one_has_left(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(host)
    killed = inside(host, lambda: HostForwarding(["nic0"], ADDRESS))
    inside(host, lambda: write_routes(killed.tables))
    with refused(FabricError, "another job", "forwarding-"):
        inside(host, lambda: HostForwarding(["nic0"], ADDRESS))
    monkeypatch.setattr(host_forwarding, "process_start", lambda process: -1)  # it has ended
    assert inside(host, lambda: host_forwarding.undo_left(dry_run=True)) is True
    following = inside(host, lambda: HostForwarding(["nic0"], "198.19.128.2"))
    assert "proto 84" not in ip(f"-n {host} rule")
    assert ADDRESS + "/32" not in ip(f"-n {host} addr show dev lo")
    inside(host, following.close)
    assert state(host) == before


def test_a_job_that_was_killed_before_any_change_leaves_an_empty_file(host: str) -> None:
    before = state(host)
    path = inside(host, host_forwarding.state_file)
    path.touch()
    assert inside(host, host_forwarding.undo_left) is True
    assert not path.exists()
    assert state(host) == before


def test_an_interface_that_is_not_there_is_named_and_nothing_is_left(
    host: str, tmp_path: Path
) -> None:
    before = state(host)
    with refused(FabricError, "nic7"):
        inside(host, lambda: HostForwarding(["nic0", "nic7"], ADDRESS))
    forwarding = inside(host, lambda: HostForwarding(["nic0"], ADDRESS))
    route = CircuitRoute("10.9.0.7", "nic7", "10.9.0.2", MAC, None)
    with refused(FabricError, "nic7"):
        inside(host, lambda: forwarding.tables.write(0, [route]))
    inside(host, forwarding.close)
    assert state(host) == before
    assert list(tmp_path.iterdir()) == []


def test_ports_are_found_by_their_addresses(host: str) -> None:
    found = inside(host, lambda: ports_here(["10.9.0.1", "10.9.0.2"]))
    (port,) = found.values()
    assert list(found) == ["10.9.0.1"]
    assert port.interface == "nic0"
    assert port.mac in ip(f"-n {host} link show dev nic0")


def test_without_the_right_to_change_routes_it_says_so(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nCapEff:\t00000000a80425fb\n")
    with refused(FabricError, "root", "CAP_NET_ADMIN"):
        host_forwarding.require_rights(status)
    status.write_text(f"CapEff:\t{1 << 12:016x}\n")
    host_forwarding.require_rights(status)


def test_the_state_file_names_the_process(host: str) -> None:
    forwarding = inside(host, lambda: HostForwarding(["nic0"], ADDRESS))
    kept = json.loads(inside(host, host_forwarding.state_file).read_text())
    assert (kept["owner"], kept["address"]) == (os.getpid(), ADDRESS)
    inside(host, forwarding.close)
