"""Which networks carry data, by their rates; and what is measured to know them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from support.discovered_servers import SWITCH, answer, make_servers
from support.refusals import refused

from torch_topoopt.discovery import kept_rates
from torch_topoopt.discovery.choice import describe_choice
from torch_topoopt.discovery.floods import FloodRate
from torch_topoopt.discovery.interfaces import Interface
from torch_topoopt.discovery.kept_rates import MeasuredPort
from torch_topoopt.discovery.network_choice import (
    NetworkChoice,
    choose_networks,
    floods_to_send,
    measured_ports,
    with_rates,
)
from torch_topoopt.discovery.reach import Server, rounds, still_worth_sending
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SHAPES = {
    "line": ((0, 1), (1, 2), (2, 3)),
    "star": ((0, 1), (0, 2), (0, 3)),
    "paw": ((0, 1), (1, 2), (0, 2), (2, 3)),
    "ring": ((0, 1), (1, 2), (2, 3), (0, 3)),
    "triangle": ((0, 1), (1, 2), (0, 2)),
}


def shaped(shape: str, switch_gbps: float, *, is_card: bool = True) -> list[Server]:
    cables = [(a, b, 0.1) for a, b in SHAPES[shape]]
    hosts = 1 + max(max(cable) for cable in SHAPES[shape])
    return make_servers(hosts, cables, switch_gbps=switch_gbps, is_card=is_card)


def pairs_over(choice: NetworkChoice, interfaces: Iterable[str]) -> set[tuple[int, int]]:
    """The pairs of servers with a connection over one of those."""
    ports = choice.wiring.by_port()
    return {
        (link.source, link.target)
        for link in choice.plan.network.links
        if link.source < link.target
        and ports[link.source, link.source_port].interface in set(interfaces)
    }


def cables_and_switch(choice: NetworkChoice) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    names = {port.interface for port in choice.wiring.ports}
    return pairs_over(choice, names - {SWITCH}), pairs_over(choice, {SWITCH})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_slow_network_carries_no_data(shape: str) -> None:
    servers = shaped(shape, 0.01)
    choice = choose_networks(servers, answer(servers))
    assert cables_and_switch(choice) == (set(SHAPES[shape]), set())
    assert choice.reason.startswith(f"not used: {SWITCH} (10 Mb/s), for an all_")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_network_as_fast_as_cables_joins_what_no_cable_does(shape: str) -> None:
    servers = shaped(shape, 0.1)
    choice = choose_networks(servers, answer(servers))
    count = len(servers)
    others = {(a, b) for a in range(count) for b in range(a + 1, count)} - {*SHAPES[shape]}
    assert cables_and_switch(choice) == (set(SHAPES[shape]), others)
    verb = "also used" if others else "not used"
    assert choice.reason.startswith(f"{verb}: {SWITCH} (100 Mb/s), for an all_")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_network_much_faster_than_cables_is_used_alone(shape: str) -> None:
    servers = shaped(shape, 1.0)
    cables, switch = cables_and_switch(choose_networks(servers, answer(servers)))
    assert not cables
    assert len(switch) == len(servers) * (len(servers) - 1) / 2


def test_a_slow_network_joins_what_nothing_else_does() -> None:
    servers = make_servers(4, [(0, 1, 100.0), (2, 3, 100.0)], switch_gbps=1.0)
    choice = choose_networks(servers, answer(servers))
    assert cables_and_switch(choice) == (
        {(0, 1), (2, 3)},
        {(0, 2), (0, 3), (1, 2), (1, 3)},
    )


def test_a_cable_that_is_much_slower_than_the_others_is_left_out() -> None:
    cables = [(a, b, 0.1) for a, b in SHAPES["ring"][:3]]
    servers = make_servers(4, [*cables, (0, 3, 0.005)])
    choice = choose_networks(servers, answer(servers))
    assert cables_and_switch(choice)[0] == set(SHAPES["line"])
    half = make_servers(4, [*cables, (0, 3, 0.06)])
    assert cables_and_switch(choose_networks(half, answer(half)))[0] == set(SHAPES["ring"])


def test_without_an_alternative_nothing_is_explained_or_measured() -> None:
    servers = make_servers(3, [(0, 1, 10.0), (1, 2, 10.0)], is_card=False)
    reached = answer(servers)
    assert choose_networks(servers, reached).reason == ""
    assert floods_to_send(servers, reached) == []
    alone = make_servers(3, [], switch_gbps=10.0, is_card=False)
    assert floods_to_send(alone, answer(alone)) == []


def test_what_was_measured_decides_and_is_said() -> None:
    """Virtual interfaces say 10 Gb/s whatever they carry."""
    cables = [(a, b, 10.0) for a, b in SHAPES["line"]]
    servers = make_servers(4, cables, switch_gbps=10.0, is_card=False)
    reached = answer(servers)
    measured = [
        MeasuredPort(host, i.name, 0.0095 if i.name == SWITCH else 0.095, 20e-6)
        for host, server in enumerate(servers)
        for i in server.interfaces
    ]
    choice = choose_networks(servers, reached, measured)
    assert cables_and_switch(choice) == (set(SHAPES["line"]), set())
    assert choice.plan.cluster.link_gbps == 0.095
    assert {port.speed_gbps for port in choice.wiring.ports} == {0.095}
    assert f"not used: {SWITCH} (measured 9.5 Mb/s), for an all_" in describe_choice(
        servers, choice
    )


def test_a_network_that_takes_long_to_answer_carries_no_small_messages() -> None:
    """Wi-Fi of the cables' rate."""
    servers = shaped("ring", 0.1)
    reached = answer(servers)
    late = [MeasuredPort(host, SWITCH, 0.1, 3e-3) for host in range(4)]
    assert cables_and_switch(choose_networks(servers, reached, late))[1] == set()


def test_rates_that_cards_say_are_not_measured() -> None:
    servers = shaped("ring", 0.01)
    assert floods_to_send(servers, answer(servers)) == []


def test_every_interface_sends_one_flood_and_receives_one() -> None:
    servers = shaped("line", 0.1, is_card=False)
    floods = floods_to_send(servers, answer(servers))
    addresses = {(h, i.address) for h, server in enumerate(servers) for i in server.interfaces}
    assert {(p.source, p.source_address) for p in floods} == addresses
    assert {(p.target, p.target_address) for p in floods} == addresses
    assert len(floods) == len(addresses)
    listening = {
        (host, i.address): port
        for host, server in enumerate(servers)
        for i, port in zip(server.interfaces, server.tcp_ports, strict=True)
    }
    names = {(h, i.address): i.name for h, s in enumerate(servers) for i in s.interfaces}
    for probe in floods:
        assert probe.target_tcp_port == listening[probe.target, probe.target_address]
        if probe.source > probe.target:  # the others are as they were answered
            assert probe.source_interface == names[probe.source, probe.source_address]


def test_measured_rates_are_of_interfaces_and_alike_ones_are_equal() -> None:
    servers = shaped("line", 0.1, is_card=False)
    reached = answer(servers)
    floods = floods_to_send(servers, reached)
    noise = [0.9, 1.0, 1.1]
    flows = []
    for number, probe in enumerate(floods):
        gbps = 0.1 * noise[number % 3]
        if probe.source_address.startswith("10.0.0."):
            gbps = 0.001 if 3 in (probe.source, probe.target) else 0.01 * noise[number % 3]
        flows.append(FloodRate(probe, gbps, 30e-6, limited_by_link=True))
    found = {of.port: of.gbps for of in measured_ports(servers, reached, flows)}
    cables = {gbps for (_, name), gbps in found.items() if name != SWITCH}
    assert len(cables) == 1
    assert 0.09 <= cables.pop() <= 0.11
    assert found[0, SWITCH] == found[1, SWITCH] == pytest.approx(0.01, rel=0.2)
    assert found[3, SWITCH] == 0.001, "the host behind a slow port, not those that send to it"


def test_a_flood_that_no_link_limits_leaves_the_rate_as_it_is() -> None:
    servers = shaped("line", 0.1, is_card=False)
    reached = answer(servers)
    for gbps, limited in ((7.0, True), (0.02, False)):
        flows = [FloodRate(p, gbps, 30e-6, limited) for p in floods_to_send(servers, reached)]
        measured = measured_ports(servers, reached, flows)
        assert {of.gbps for of in measured} == {None}
        assert with_rates(servers, measured) == servers


def test_a_network_that_answers_no_flood_carries_no_data() -> None:
    servers = shaped("line", 10.0, is_card=False)
    reached = answer(servers)
    floods = floods_to_send(servers, reached)
    flows = [
        FloodRate(probe, 0.1, 30e-6, limited_by_link=True)
        for probe in floods
        if not probe.source_address.startswith("10.0.0.")
    ]
    measured = measured_ports(servers, reached, flows)
    choice = choose_networks(servers, reached, measured)
    assert cables_and_switch(choice) == (set(SHAPES["line"]), set())
    assert measured_ports(servers, reached, []) == [], "nothing was measured"


def test_a_fast_radio_has_the_rate_that_was_measured() -> None:
    """It reports none, and 10 Gb/s would be taken for it."""
    servers = [
        dataclasses.replace(
            server,
            interfaces=tuple(
                dataclasses.replace(i, wireless=True, gbps=None, is_card=False)
                if i.name == SWITCH
                else dataclasses.replace(i, gbps=2.5)
                for i in server.interfaces
            ),
        )
        for server in shaped("triangle", 1.0)
    ]
    reached = answer(servers)
    flows = [FloodRate(probe, 1.2, 3e-3, True) for probe in floods_to_send(servers, reached)]
    measured = measured_ports(servers, reached, flows)
    assert {(of.interface, of.gbps) for of in measured} == {(SWITCH, 1.2)}
    assert cables_and_switch(choose_networks(servers, reached, measured))[1] == set()


def test_measured_rates_are_kept_for_the_same_interfaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    servers = shaped("line", 0.1, is_card=False)
    reached = answer(servers)
    path = kept_rates.path_of(servers, reached)
    assert kept_rates.read(path) is None
    ports = (MeasuredPort(0, "nic1", 0.095, 2e-5), MeasuredPort(1, "nic1", None, 2e-5))
    kept_rates.keep(path, ports)
    assert kept_rates.read(path) == ports
    other_ports = [dataclasses.replace(s, tcp_ports=(9,) * len(s.tcp_ports)) for s in servers]
    assert kept_rates.path_of(other_ports, answer(other_ports)) == path
    assert kept_rates.path_of(servers, reached[1:]) != path
    path.write_text("[]")
    assert kept_rates.read(path) is None
    kept_rates.keep(path, ports)
    monkeypatch.setenv("TOPOOPT_COST_MODEL", "measure")
    assert kept_rates.read(path) is None
    monkeypatch.setenv("TOPOOPT_COST_MODEL", "often")
    with refused(DocumentError, "TOPOOPT_COST_MODEL", "often"):
        kept_rates.read(path)


def test_cables_in_different_subnets_are_tried_beside_a_slow_network() -> None:
    def server(host: int) -> Server:
        radio = Interface("wlan0", f"10.0.0.{host}", 24, None, True, False)
        cable = Interface("nic1", f"{host}.{host}.{host}.{host}", 32, 10.0, False, False)
        return Server(f"node{host}", f"machine{host}", (host - 1,), (radio, cable), (1, 2))

    servers = [server(1), server(2)]
    first, *others = rounds(servers)
    assert [probe.target_address for probe in first] == ["10.0.0.2"]
    tried = [p for probes in others for p in still_worth_sending(probes, servers, first)]
    assert [(p.source_address, p.target_address) for p in tried] == [("1.1.1.1", "2.2.2.2")]
