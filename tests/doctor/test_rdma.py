"""RDMA devices and cards: read from trees that look like real machines, and judged."""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

import pytest
from support.device_tree import Function, add_card, add_spark
from support.fabric.real_hosts import cluster_of
from support.sites import changed, changed_interface, healthy

from torch_topoopt.doctor.diagnosis import diagnose
from torch_topoopt.doctor.facts import (
    CardFacts,
    GidFacts,
    HostFacts,
    RdmaFacts,
    RdmaPortFacts,
)
from torch_topoopt.doctor.flow_control import parse_pfc, read_pause, read_pfc
from torch_topoopt.doctor.link_rates import link_rates
from torch_topoopt.doctor.rdma import read_rdma, roce_mtu
from torch_topoopt.fabric.hardware import SYSFS_VARIABLE, physical_port
from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from support.plans import RingPlan

    from torch_topoopt.doctor.findings import Finding, Site


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "sys"
    root.mkdir()
    monkeypatch.setenv(SYSFS_VARIABLE, str(root))
    return root


def test_a_spark_has_two_ports_of_two_functions_each(tree: Path) -> None:
    add_spark(tree, addresses={"enp1s0f0np0": ("fe80::1", "10.0.0.1")})
    names = ["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"]
    ports = [physical_port(name) for name in names]
    assert ports[0] == ports[2] is not None
    assert ports[1] == ports[3] is not None
    assert ports[0] != ports[1]
    facts = read_rdma(names)
    assert {(port.device, port.interface) for port in facts.ports} == {
        ("rocep1s0f0", "enp1s0f0np0"),
        ("rocep1s0f1", "enp1s0f1np1"),
        ("roceP2p1s0f0", "enP2p1s0f0np0"),
        ("roceP2p1s0f1", "enP2p1s0f1np1"),
    }
    first = facts.port_of("enp1s0f0np0")
    assert first is not None
    assert (first.state, first.layer, first.gbps) == ("ACTIVE", "Ethernet", 200.0)
    assert [(gid.index, gid.kind, gid.gid) for gid in first.gids] == [
        (0, "IB/RoCE v1", "fe80::1"),
        (1, "RoCE v2", "fe80::1"),
        (2, "IB/RoCE v1", "::ffff:a00:1"),
        (3, "RoCE v2", "::ffff:a00:1"),
    ]
    slots = [card.slot for card in facts.cards]
    assert slots == ["0000:01:00", "0000:01:00", "0002:01:00", "0002:01:00"]
    assert all(card.pcie_gbps == pytest.approx(32 * 4 * 128 / 130) for card in facts.cards)
    assert facts.cards[0].pcie_text == "32.0 GT/s x4"


def test_the_ports_of_an_ordinary_card_are_two(tree: Path) -> None:
    functions = [
        Function(f"0000:81:00.{n}", f"eno{n}", f"mlx5_{n}", f"p{n}", width=16, best_width=16)
        for n in range(2)
    ]
    add_card(tree, "b8ce:f603:0011:2200", functions)
    assert physical_port("eno0") != physical_port("eno1")


def test_two_cards_in_two_domains_are_two_ports(tree: Path) -> None:
    add_card(tree, "b8ce:f603:0011:2200", [Function("0000:01:00.0", "a", "mlx5_0", "p0")])
    add_card(tree, "b8ce:f603:0011:9900", [Function("0002:01:00.0", "b", "mlx5_1", "p0")])
    assert physical_port("a") != physical_port("b")


def test_a_driver_may_say_which_port_it_is(tree: Path) -> None:
    for name in ("a", "b"):
        folder = tree / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "phys_port_id").write_text("0011223344556677\n")
    assert physical_port("a") == physical_port("b") is not None


def test_a_box_without_rdma_has_nothing(tree: Path) -> None:
    plain = tree / "class/net/eth0"
    plain.mkdir(parents=True)
    facts = read_rdma(["eth0", "none"])
    assert (facts.ports, facts.cards, facts.libraries_missing) == ((), (), ())
    assert physical_port("eth0") is None


def test_what_packets_of_roce_carry() -> None:
    assert [roce_mtu(mtu) for mtu in (1280, 1500, 4096, 4192, 9000)] == [
        1024,
        1024,
        2048,
        4096,
        4096,
    ]


def test_flow_control_in_the_kernels_words() -> None:
    pfc = struct.pack("=BBB", 8, 0b1000, 0) + bytes(133)
    inner = struct.pack("=HH", 4 + len(pfc), 2) + pfc
    outer = struct.pack("=HH", 4 + len(inner), 13 | 0x8000) + inner
    name = struct.pack("=HH", 8, 1) + b"eth\0"
    body = struct.pack("=BBH", 0, 21, 0) + name + outer
    answer = struct.pack("=IHHII", 16 + len(body), 78, 0, 1, 0) + body
    assert parse_pfc(answer) == (3,)
    assert parse_pfc(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -95)) is None
    assert parse_pfc(answer[:30]) is None
    assert read_pfc("lo") is None
    assert read_pause("lo") is None


def _with_cards(site: Site, **changes: object) -> Site:
    """Every host as one with a card of two functions of one port."""
    for server, facts in site.facts.items():
        ports, cards = [], []
        for number, interface in enumerate(facts.interfaces):
            gids = (GidFacts(3, "RoCE v2", _mapped(interface.ips[0]), interface.name),)
            port = RdmaPortFacts(
                f"rdma{number}", 1, interface.name, "ACTIVE", "Ethernet", 200.0, None, gids
            )
            card = CardFacts(
                *(interface.name, "card 1 p0", f"000{number}:01:00", "32.0 GT/s x4"),
                *(126.0, 126.0, None, True, None),
            )
            if server == "h0" and number == 0:
                named = {field.name for field in dataclasses.fields(RdmaPortFacts)}
                port = dataclasses.replace(port, **{k: v for k, v in changes.items() if k in named})
                card = dataclasses.replace(
                    card, **{k: v for k, v in changes.items() if k not in named}
                )
            ports.append(port)
            cards.append(card)
        site = changed(site, server, rdma=RdmaFacts(tuple(ports), tuple(cards), (), None))
        for interface in facts.interfaces:
            site = changed_interface(site, server, interface.name, mtu=9000, gbps=200.0)
    assert site.file is not None
    servers = tuple(
        dataclasses.replace(
            entry,
            ports=tuple(dataclasses.replace(p, mtu=9000, gbps=100.0) for p in entry.ports),
        )
        for entry in site.file.servers
    )
    return dataclasses.replace(site, file=dataclasses.replace(site.file, servers=servers))


def _mapped(ip: str) -> str:
    import ipaddress

    return str(ipaddress.IPv6Address(f"::ffff:{ip}"))


@pytest.fixture
def site(ring_plan: RingPlan) -> Site:
    return healthy(cluster_of(ring_plan(3)))


def _only(site: Site) -> Finding:
    (found,) = diagnose(site)
    return found


def test_nothing_is_said_where_all_is_well(site: Site) -> None:
    well = _with_cards(site)
    assert diagnose(well) == []
    facts = well.facts["h0"]
    assert HostFacts.from_json(facts.to_json()) == facts


@pytest.mark.parametrize(
    ("changes", "check", "what"),
    [
        ({"state": "DOWN"}, "rdma-state", "port 1 of the RDMA device rdma0 is DOWN"),
        ({"gids": ()}, "rdma-gid", "rdma0 has no RoCE v2 entry (GID) for an address of p0"),
        ({"mtu": 1024}, "rdma-mtu", "packets of RDMA carry 1024 bytes"),
        ({"pause": False, "ecn": False}, "rdma-flow-control", "neither pause frames nor"),
        ({"pcie_gbps": 63.0, "pcie_text": "32.0 GT/s x2"}, "pcie", "runs at 32.0 GT/s x2"),
    ],
)
def test_one_fault_of_a_device(
    site: Site, changes: dict[str, object], check: str, what: str
) -> None:
    finding = _only(_with_cards(site, **changes))
    assert finding.check == check
    assert what in finding.what
    assert finding.where == "h0:p0"
    assert finding.repair or finding.advice


def test_an_mtu_of_1500_is_a_note_with_its_repair(site: Site) -> None:
    low = changed_interface(_with_cards(site), "h0", "p0", mtu=1500)
    note = next(finding for finding in diagnose(low) if finding.check == "rdma-mtu")
    assert note.level == "note"
    assert note.repair == ("ip link set dev p0 mtu 9000",)


def test_priority_flow_control_will_do(site: Site) -> None:
    assert diagnose(_with_cards(site, pause=False, pfc=(3,))) == []


def test_little_lockable_memory_and_missing_libraries(site: Site) -> None:
    well = _with_cards(site)
    rdma = dataclasses.replace(
        well.facts["h1"].rdma, memlock_bytes=8 << 20, libraries_missing=("ibverbs",)
    )
    found = diagnose(changed(well, "h1", rdma=rdma, root=False))
    assert [(f.check, f.server) for f in found] == [
        ("rdma-memlock", "h1"),
        ("rdma-libraries", "h1"),
    ]


def test_what_links_get(site: Site) -> None:
    """Two functions share the port's 200 Gb/s, and each has a PCIe link of its own."""
    rates = link_rates(_with_cards(site))
    assert len(rates) == 3
    for rate in rates:
        assert rate.carrier == "verbs"
        assert rate.gbps == pytest.approx(100.0)
        assert "200 Gb/s shared by 2 links" in rate.limit
    slow = {rate.link: rate for rate in link_rates(_with_cards(site, pcie_gbps=63.0))}
    narrow = [rate for link, rate in slow.items() if "h0:p0" in link]
    assert [(rate.gbps, rate.limit) for rate in narrow] == [(63.0, "PCIe 32.0 GT/s x4 of h0 p0")]
    without = {rate.link: rate for rate in link_rates(_with_cards(site, gids=()))}
    assert {rate.carrier for link, rate in without.items() if "h0:p0" in link} == {"tcp"}
    assert {rate.carrier for link, rate in without.items() if "h0:p0" not in link} == {"verbs"}


def test_links_without_rdma_go_over_tcp_at_the_rate_of_their_interfaces(site: Site) -> None:
    rates = link_rates(site)
    assert {(rate.carrier, rate.gbps) for rate in rates} == {("tcp", 1.0)}


def test_the_host_alone_as_json(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--no-probes", "--json"]) in (0, 1)
    assert '"links": []' in capsys.readouterr().out
