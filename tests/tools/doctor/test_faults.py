"""Faults made for real between network namespaces, found, and repaired."""

from __future__ import annotations

import shutil
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from socket import socket as PlainSocket  # noqa: N812 (a class, whatever its name)
from typing import TYPE_CHECKING, Any

import pytest
from support.fabric.real_hosts import Hosts, cluster_of, real_hosts, wait_until_up
from support.limits import slowness
from support.plain_namespaces import skip_without_ipv6
from support.refusals import refused
from support.sites import InNamespace, examine, in_namespace

from torch_topoopt.fabric.hosts.host_script import setup_script
from torch_topoopt.fabric.hosts.host_setup import host_setup
from torch_topoopt.links.addresses import is_ipv6
from torch_topoopt.links.errors import FabricError
from torch_topoopt.tools.doctor.cluster_checks import reach_matrix
from torch_topoopt.tools.doctor.diagnosis import diagnose
from torch_topoopt.tools.doctor.findings import Finding, Site
from torch_topoopt.tools.doctor.probes import arp_answers
from torch_topoopt.tools.doctor.repair import apply_repairs, plan_repairs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.plans import RingPlan

# Findings that a network namespace cannot have, or that it or the machine has anyway: the ends of
# a virtual cable say 10 Gb/s whatever it carries.
_ELSEWHERE = {"buffers", "congestion", "governor", "firewall-unknown", "offloads", "speed"}


@pytest.fixture
def hosts(ring_plan: RingPlan, tmp_path: Path) -> Iterator[Hosts]:
    """Four hosts in a ring, set up by their scripts."""
    plan = ring_plan(4)
    with real_hosts(plan, tmp_path) as made:

        def set_up(number: int) -> None:
            text = setup_script(host_setup(plan, made.file, f"h{number}"))
            done = made.script(number, text)
            assert done.returncode == 0, done.stderr

        with ThreadPoolExecutor(4) as workers:
            list(workers.map(set_up, range(4)))
        wait_until_up(made)
        yield made


def _found(site: Site) -> dict[tuple[str, str], Finding]:
    return {(f.check, f.where): f for f in diagnose(site) if f.check not in _ELSEWHERE}


def test_hosts_that_are_set_up_are_well_and_stay_as_they_are(hosts: Hosts) -> None:
    before = [hosts.state(number) for number in range(4)]
    site = examine(hosts)
    assert _found(site) == {}
    assert reach_matrix(site) == {
        f"h{a}": {f"h{b}": "relay" if abs(a - b) == 2 else "direct" for b in range(4) if b != a}
        for a in range(4)
    }
    assert [hosts.state(number) for number in range(4)] == before


def test_faults_of_many_kinds_are_found_and_repaired(hosts: Hosts) -> None:
    nft = shutil.which("nft") is not None
    hosts.interface(0, 0, "mtu", "9000")
    hosts.interface(0, 1, "down")
    hosts.on(1, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/p0/rp_filter")
    hosts.on(1, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/p1/forwarding")
    hosts.on(2, "ip", "address", "add", "10.77.0.1/32", "dev", "p0")  # of h0
    hosts.on(2, *["ip", "link", "del", "topofwd0"])
    hosts.on(2, *["ip", "link", "del", "topofwd1"])
    if nft:
        hosts.on(2, "nft", "add table inet guard")
        chain = "type filter hook forward priority 0; policy drop;"
        hosts.on(2, "nft", f"add chain inet guard pass {{ {chain} }}")
    site = examine(hosts)
    found = _found(site)
    expected = {
        ("mtu", "h0:p0"),
        ("link", "h0:p1"),
        ("rp_filter", "h1:p0"),
        ("forwarding", "h1:p1"),
        ("duplicate", "h2 (p0)"),
        *([("firewall-forward", "h2 nft chain inet guard pass")] if nft else []),
    }
    assert expected <= set(found)
    beside = set(found) - expected
    # consequences of these: the other end of the port that is down, and the host not reached
    assert {check for check, _ in beside} <= {"carrier", "cabling", "reach", "address"}
    assert ("carrier", "h3:p0") in beside
    assert reach_matrix(site)["h0"]["h3"] != "direct"

    workers = {f"h{number}": InNamespace(hosts, number) for number in range(4)}
    commands: list[str] = []
    repairs = [f for f in plan_repairs(diagnose(site)) if f.check not in _ELSEWHERE]
    apply_repairs(repairs, site, workers, lambda finding, command: commands.append(command))
    assert "ip link set dev p0 mtu 1500" in commands
    wait_until_up(hosts)
    assert expected.isdisjoint(_found(examine(hosts)))


def test_a_repair_that_does_not_help_ends_the_rest(hosts: Hosts) -> None:
    hosts.interface(0, 0, "mtu", "9000")
    hosts.interface(1, 1, "mtu", "9000")
    site = examine(hosts)
    first, second = (f for f in diagnose(site) if f.check == "mtu")
    workers = {f"h{number}": InNamespace(hosts, number) for number in range(4)}
    useless = replace(first, repair=("true",))
    with refused(FabricError, "MTU", "p0", 9000):
        apply_repairs([useless, second], site, workers, lambda finding, command: None)
    failing = replace(first, repair=("ip link set dev nowhere mtu 1500",))
    with refused(FabricError, "nowhere"):
        _apply_over_shell(failing, site, hosts)
    assert "mtu 9000" in hosts.on(1, *["ip", "link", "show", "dev", "p1"])


def _apply_over_shell(finding: Finding, site: Site, hosts: Hosts) -> None:
    """With the real runner of commands, which finds out that a command failed."""
    from torch_topoopt.tools.doctor.hosts import LocalAccess

    class Inside(LocalAccess):
        def shell(self, command: str) -> None:
            LocalAccess.shell(self, " ".join([*hosts.inside(0), "sh", "-c", f"'{command}'"]))

    apply_repairs([finding], site, {"h0": Inside("h0", hosts.file)}, lambda f, c: None)


def test_nothing_is_repaired_by_an_ordinary_user(hosts: Hosts) -> None:
    hosts.interface(0, 0, "mtu", "9000")
    site = examine(hosts, 0)
    site = Site({**site.facts, "h0": replace(site.facts["h0"], root=False)}, site.file)
    workers = {f"h{number}": InNamespace(hosts, number) for number in range(4)}
    with refused(FabricError, "h0", "root", "nothing was changed"):
        apply_repairs(plan_repairs(diagnose(site)), site, workers, lambda f, c: None)
    assert "mtu 9000" in hosts.on(0, *["ip", "link", "show", "dev", "p0"])


def test_a_smaller_mtu_at_an_end_without_facts_is_found_by_the_probe(hosts: Hosts) -> None:
    hosts.interface(1, 1, "mtu", "1300")
    found = _found(examine(hosts, 0))
    finding = found["mtu-path", "h0:p0"]
    assert finding.what == "packets of 1500 bytes do not get across, those of 1280 do"


@pytest.mark.parametrize("address", ["169.254.{cable}.{last}/16", "fd00:1{cable}::{last}/64"])
def test_a_smaller_mtu_is_found_whatever_the_addresses_are(
    address: str, ring_plan: RingPlan, tmp_path: Path
) -> None:
    """In one subnet, where a kernel answers an echo by its routes; and of IPv6."""
    skip_without_ipv6()
    plan = ring_plan(3)
    with real_hosts(plan, tmp_path, cluster_of(plan, address=address)) as hosts:
        for number, server in enumerate(hosts.file.servers):
            lines = [f"link set dev {p.interface} up" for p in server.ports]
            at_once = "nodad" if is_ipv6(address) else ""
            lines += [f"address add {p.address} dev {p.interface} {at_once}" for p in server.ports]
            hosts.on(number, "ip", "-batch", "-", given="\n".join(lines))
        wait_until_up(hosts)
        hosts.interface(1, 1, "mtu", "1300")
        site = examine(hosts, 0)
        finding = _found(site)["mtu-path", "h0:p0"]
        assert finding.what == "packets of 1500 bytes do not get across, those of 1280 do"
        assert reach_matrix(site)["h0"] == {"h1": "direct", "h2": "direct"}


def test_an_address_that_the_neighbour_claims_is_found_by_arp(hosts: Hosts) -> None:
    own = hosts.file.servers[0].ports[0].ip
    hosts.on(1, *f"ip address add {own}/32 dev p1".split())  # h0:p0 is plugged into h1:p1
    finding = _found(examine(hosts, 0))["duplicate", f"h0 {own}"]
    assert finding.what == "a host with MAC 02:00:5e:00:01:01 says that it has this address, too"


def test_cables_in_wrong_ports_are_found_from_both_ends(
    ring_plan: RingPlan, tmp_path: Path
) -> None:
    plan = ring_plan(4)
    meant = cluster_of(plan)
    ends = {end: cable for cable in meant.cables for end in cable}
    first, second = ends["h0:p0"], ends["h2:p0"]
    crossed = [(first[0], second[1]), (second[0], first[1])]
    others = [cable for cable in meant.cables if cable not in (first, second)]
    plugged = replace(meant, cables=(*crossed, *others))
    with real_hosts(plan, tmp_path, plugged) as wired:
        hosts = Hosts(wired.names, meant, tmp_path)
        for number, server in enumerate(meant.servers):
            lines = [f"address add {p.address} dev {p.interface}" for p in server.ports]
            lines += [f"link set dev {p.interface} up" for p in server.ports]
            hosts.on(number, "ip", "-batch", "-", given="\n".join(lines))
        wait_until_up(hosts)
        found = {
            where: f.what for (c, where), f in _found(examine(hosts)).items() if c == "cabling"
        }
        wrong = dict(pair for a, b in crossed for pair in ((a, b), (b, a)))
        right = dict(pair for a, b in (first, second) for pair in ((a, b), (b, a)))
        assert found == {
            end: f"the cable reaches {wrong[end]}; the cluster file says {right[end]}"
            for end in wrong
        }
        alone = _found(examine(hosts, 0))["cabling", first[0]]  # without asking another host
        assert alone.what == found[first[0]]


def test_what_arrives_at_another_interface_is_no_answer(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what arrives there before the socket is bound to its own."""
    neighbour, asked = hosts.names[3], hosts.file.servers[3].ports[0]  # plugged into h0:p1
    mac = bytes.fromhex(str(asked.mac).replace(":", ""))
    reply = struct.pack(
        *("!6s6sHHHBBH6s4s6s4s", b"\xff" * 6, mac, 0x0806, 1, 0x0800, 6, 4, 2),
        *(mac, socket.inet_aton(asked.ip), mac, bytes(4)),
    )

    def send_reply() -> None:
        with PlainSocket(socket.AF_PACKET, socket.SOCK_RAW, 0) as line:
            line.bind((asked.interface, 0))
            line.send(reply)

    class LateSocket(PlainSocket):
        def bind(self, address: Any) -> None:
            in_namespace(neighbour, send_reply)
            super().bind(address)

    monkeypatch.setattr(socket, "socket", LateSocket)
    own = str(hosts.file.servers[0].ports[0].mac)
    answers = in_namespace(hosts.names[0], lambda: arp_answers("p0", own, [asked.ip]))
    assert answers == ()


def test_probing_takes_little_time_where_no_host_answers(hosts: Hosts) -> None:
    for number in (1, 2, 3):
        hosts.on(number, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/icmp_echo_ignore_all")
    started = time.monotonic()
    site = examine(hosts, 0)
    assert time.monotonic() - started < 20 * slowness()
    assert set(reach_matrix(site)["h0"].values()) == {"none"}
