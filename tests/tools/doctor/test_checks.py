"""Checks over made-up facts: silent where all is well, exact about the one thing that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import cluster_of
from support.sites import changed, changed_interface, healthy

from torch_topoopt.links.addresses import without_zone
from torch_topoopt.tools.doctor.cluster_checks import reach_matrix
from torch_topoopt.tools.doctor.diagnosis import diagnose
from torch_topoopt.tools.doctor.facts import (
    Answer,
    CableProbe,
    ChainFacts,
    FirewallFacts,
    HostFacts,
    KernelFacts,
)
from torch_topoopt.tools.doctor.findings import Finding, Site
from torch_topoopt.tools.doctor.link_rates import link_rates

if TYPE_CHECKING:
    from support.plans import RingPlan

    from torch_topoopt.plan import Plan


@pytest.fixture
def site(ring_plan: RingPlan) -> Site:
    return healthy(cluster_of(ring_plan(4)))


def _only(site: Site) -> Finding:
    found = diagnose(site)
    assert len(found) == 1, "\n".join(f"{f.check} {f.where}: {f.what}" for f in found)
    return found[0]


def test_nothing_is_said_where_all_is_well(site: Site) -> None:
    assert diagnose(site) == []


def test_facts_survive_their_json(site: Site) -> None:
    facts = site.facts["h0"]
    assert HostFacts.from_json(facts.to_json()) == facts


@pytest.mark.parametrize(
    ("changes", "check", "what", "repair"),
    [
        ({"up": False}, "link", "p0 is down", ("ip link set dev p0 up",)),
        ({"carrier": False}, "carrier", "p0 has no carrier", ()),
        ({"mac": "02:00:00:00:00:01"}, "mac", "not 02:00:5e:00:00:00", ()),
        (
            {"addresses": ()},
            "address",
            "does not have the address 10.77.0.1/30",
            ("ip address add 10.77.0.1/30 dev p0",),
        ),
        (
            {"rp_filter": 1},
            "rp_filter",
            "is strict",
            ("echo 2 >/proc/sys/net/ipv4/conf/p0/rp_filter",),
        ),
        (
            {"forwarding": False},
            "forwarding",
            "forwarding is off on p0",
            ("echo 1 >/proc/sys/net/ipv4/conf/p0/forwarding",),
        ),
        ({"lro": True}, "lro", "large receive offload", ("ethtool -K p0 lro off",)),
        ({"gbps": 0.1}, "speed", "p0 runs at 100Mbps, but the cluster file says 1Gbps", ()),
        ({"mtu": 9000}, "mtu", "9000, not 1500", ("ip link set dev p0 mtu 1500",)),
    ],
)
def test_one_fault_of_a_port(
    site: Site, changes: dict[str, object], check: str, what: str, repair: tuple[str, ...]
) -> None:
    finding = _only(changed_interface(site, "h0", "p0", **changes))
    assert (finding.check, finding.where) == (check, "h0:p0")
    assert what in finding.what
    assert finding.repair == repair
    assert finding.why
    assert finding.repair or finding.advice


def test_a_port_that_is_much_faster_than_the_file_says(site: Site) -> None:
    assert diagnose(changed_interface(site, "h0", "p0", gbps=1.9)) == []
    finding = _only(changed_interface(site, "h0", "p0", gbps=10.0))
    assert (finding.level, finding.check, finding.where) == ("warning", "speed", "h0:p0")
    assert finding.what == "p0 runs at 10Gbps, but the cluster file says 1Gbps"
    assert "bandwidth" in finding.advice


def test_a_link_gets_no_more_than_the_file_says(ring_plan: RingPlan) -> None:
    site = healthy(cluster_of(ring_plan(4), gbps=0.05))
    for server in site.facts:
        for name in ("p0", "p1"):
            site = changed_interface(site, server, name, gbps=10.0)
    assert {(rate.gbps, rate.limit) for rate in link_rates(site)} == {
        (0.05, f"the cluster file's bandwidth of h{n}:p0") for n in (0, 1, 2)
    } | {(0.05, "the cluster file's bandwidth of h0:p1")}


def link_local_site(plan: Plan) -> Site:
    """Healthy hosts whose ports have the addresses that the kernel gave them."""
    file = cluster_of(plan)
    servers = []
    for number, server in enumerate(file.servers):
        ports = [
            replace(port, address=f"fe80::{number}:{port.name[1:]}%{port.interface}/64")
            for port in server.ports
        ]
        servers.append(replace(server, ports=tuple(ports)))
    site = healthy(replace(file, servers=tuple(servers)).validate())
    for server, facts in site.facts.items():
        cables = tuple(
            replace(c, answers=tuple(Answer(without_zone(a.address), "") for a in c.answers or ()))
            for c in facts.cables
        )
        site = changed(site, server, cables=cables, reached=())
    return site


def test_a_link_local_address_that_has_changed(ring_plan: RingPlan) -> None:
    """h0:p0 is cabled to h1:p1, which has another address than when its cluster was discovered."""
    site = link_local_site(ring_plan(4))
    assert diagnose(site) == []
    site = changed_interface(site, "h1", "p1", addresses=("fe80::99%p1/64",))
    answers = (Answer("fe80::99", ""),)
    cables = site.facts["h0"].cables
    site = changed(site, "h0", cables=(replace(cables[0], answers=answers), *cables[1:]))
    finding = _only(site)
    assert (finding.level, finding.check, finding.where) == ("error", "address", "h1:p1")
    assert "fe80::99%p1" in finding.what
    assert "topoopt discover" in finding.advice
    assert finding.repair == ()
    alone = _only(Site({"h0": site.facts["h0"]}, site.file))
    assert (alone.check, alone.where) == ("cabling", "h0:p0")
    assert alone.what.startswith("fe80::99 answers at the other end")
    assert "h1:p1" in alone.what
    assert "topoopt discover" in alone.advice


def test_a_port_without_a_link_local_address(ring_plan: RingPlan) -> None:
    site = changed_interface(link_local_site(ring_plan(4)), "h1", "p1", addresses=())
    assert "disable_ipv6" in _only(site).advice


def test_a_strict_filter_of_ports_in_one_subnet(ring_plan: RingPlan) -> None:
    """Also where nobody relays: packets of all ports but one come in where no route leads back."""
    site = healthy(cluster_of(ring_plan(3), address="169.254.{cable}.{last}/16"))
    site = changed_interface(site, "h0", "p0", rp_filter=1)
    finding = _only(site)
    assert (finding.check, finding.where) == ("rp_filter", "h0:p0")
    assert "its subnet is that of other ports" in finding.why


def test_self_assigned_addresses_are_of_one_cable(ring_plan: RingPlan) -> None:
    site = healthy(cluster_of(ring_plan(4), address="169.254.{cable}.{last}/16"))
    for server in site.facts:
        site = changed(site, server, reached=())
    assert diagnose(site) == []
    assert reach_matrix(site)["h0"] == {"h1": "direct", "h2": "ranks", "h3": "direct"}


def test_a_missing_interface_is_named_with_those_that_are_here(site: Site) -> None:
    finding = _only(changed(site, "h0", interfaces=site.facts["h0"].interfaces[1:], cables=()))
    assert finding.what == "there is no interface p0 (there are: p1)"


def test_an_address_on_another_interface_is_moved(site: Site) -> None:
    moved = changed_interface(site, "h0", "p0", addresses=())
    moved = changed_interface(moved, "h0", "p1", addresses=("10.77.0.1/30", "10.77.3.1/30"))
    finding = next(f for f in diagnose(moved) if f.where == "h0:p0")
    assert "p1 has it" in finding.what
    assert finding.repair == (
        "ip address del 10.77.0.1/30 dev p1",
        "ip address add 10.77.0.1/30 dev p0",
    )


def test_a_cable_in_a_wrong_port_is_found_with_the_port_that_it_reaches(site: Site) -> None:
    cables = list(site.facts["h0"].cables)
    cables[0] = replace(cables[0], answers=(Answer("10.77.2.1", "02:00:5e:00:02:00"),))
    finding = _only(changed(site, "h0", cables=tuple(cables)))
    assert finding.check == "cabling"
    assert finding.what == "the cable reaches h2:p0; the cluster file says h1:p1"


def test_silence_at_the_other_end_is_found(site: Site) -> None:
    cables = list(site.facts["h0"].cables)
    cables[0] = replace(cables[0], answers=())
    finding = _only(changed(site, "h0", cables=tuple(cables)))
    assert finding.what == "no port answers at the other end; h1:p1 should be there"


def test_a_cable_that_the_file_does_not_have_is_found(site: Site) -> None:
    assert site.file is not None
    file = replace(site.file, cables=site.file.cables[1:])
    checks = {f.where: f.what for f in diagnose(Site(site.facts, file)) if f.check == "cabling"}
    assert checks["h0:p0"] == "the cable reaches h1:p1; the cluster file says nothing"
    assert checks["h1:p1"] == "the cable reaches h0:p0; the cluster file says nothing"


def test_a_cluster_file_without_cables_is_an_error(site: Site) -> None:
    assert site.file is not None
    file = replace(
        site.file, cables=(), servers=tuple(replace(s, ports=()) for s in site.file.servers)
    )
    facts = {
        name: replace(facts, cables=(), reached=(), firewall=FirewallFacts((), False, ()))
        for name, facts in site.facts.items()
    }
    found = diagnose(Site(facts, file))
    assert [f.check for f in found if f.level == "error"] == ["no-cables"]
    assert "names neither cables nor switches" in found[0].what
    assert not any("as root" in f.advice for f in found), "these hosts were asked as root"


def test_without_root_it_says_what_it_could_not_ask(site: Site) -> None:
    cables = tuple(replace(c, answers=None) for c in site.facts["h0"].cables)
    finding = _only(changed(site, "h0", cables=cables))
    assert (finding.level, finding.check) == ("note", "cabling-unknown")
    assert "as root" not in finding.advice, "this host was asked as root"
    user = changed(site, "h0", cables=cables, root=False)
    assert "run the doctor as root" in _only(user).advice


def test_a_host_that_sent_no_probes_says_so(site: Site) -> None:
    finding = _only(changed(site, "h0", cables=(), reached=()))
    assert (finding.level, finding.check) == ("note", "reach-unknown")
    assert finding.advice == "run the doctor without --no-probes"
    assert reach_matrix(changed(site, "h0", reached=()))["h0"]["h2"] == "?"


def test_a_path_that_takes_less_than_both_ends(site: Site) -> None:
    cables = list(site.facts["h0"].cables)
    cables[1] = CableProbe("p1", "p1", cables[1].answers, 1500, 1400)
    finding = _only(changed(site, "h0", cables=tuple(cables)))
    assert finding.check == "mtu-path"
    assert finding.what == "packets of 1500 bytes do not get across, those of 1400 do"


def test_unequal_ends_where_the_file_says_no_mtu(ring_plan: RingPlan) -> None:
    site = healthy(cluster_of(ring_plan(4), mtu=None))
    finding = _only(changed_interface(site, "h0", "p0", mtu=9000))
    assert finding.what == "the MTU of p0 is 9000, but that of h1:p1 at the other end is 1500"
    assert finding.repair == ("ip link set dev p0 mtu 1500",)


def test_an_address_that_two_have_is_taken_from_the_wrong_one(site: Site) -> None:
    own = site.facts["h2"].interfaces[0].addresses
    finding = _only(changed_interface(site, "h2", "p0", addresses=(*own, "10.77.0.1/30")))
    assert finding.check == "duplicate"
    assert finding.server == "h2"
    assert "has the address 10.77.0.1, which h0 (p0) has, too" in finding.what
    assert finding.repair == ("ip address flush dev p0 to 10.77.0.1",)


def test_docker_bridges_may_have_one_address_on_all_hosts(site: Site) -> None:
    bridge = replace(site.facts["h0"].interfaces[0], name="docker0", mac=None)
    bridge = replace(bridge, addresses=("172.17.0.1/16",))
    for server in ("h0", "h1"):
        site = changed(site, server, interfaces=(*site.facts[server].interfaces, bridge))
    assert diagnose(site) == []


def test_a_stranger_with_our_address_is_named_by_its_mac(site: Site) -> None:
    claimed = (Answer("10.77.0.1", "02:99:99:99:99:99"),)
    finding = _only(changed(site, "h0", claimed=claimed))
    assert finding.what == "a host with MAC 02:99:99:99:99:99 says that it has this address, too"


def _firewall(*drops: ChainFacts, docker: bool = True) -> FirewallFacts:
    return FirewallFacts(("iptables",), docker, drops)


def test_what_docker_drops_and_how_to_let_it_through(site: Site) -> None:
    chain = ChainFacts("forward", "iptables chain FORWARD", ("p1",), "iptables -I DOCKER-USER {}")
    finding = _only(changed(site, "h0", firewall=_firewall(chain)))
    assert finding.what == "drops by default (Docker sets that), and accepts nothing from p0"
    assert finding.repair == ("iptables -I DOCKER-USER -i p0 -j ACCEPT",)
    assert finding.level == "error"


def test_relays_by_tc_do_not_meet_the_firewall(site: Site) -> None:
    chain = ChainFacts("forward", "iptables chain FORWARD", (), "iptables -I FORWARD {}")
    site = changed(site, "h0", firewall=_firewall(chain, docker=False))
    second = replace(site.facts["h0"].interfaces[0], name="topofwd0", mac=None, addresses=())
    site = changed(site, "h0", interfaces=(*site.facts["h0"].interfaces, second))
    assert _only(site).level == "note"


def test_nothing_is_forwarded_where_all_have_cables(ring_plan: RingPlan) -> None:
    site = healthy(cluster_of(ring_plan(3)))
    site = changed_interface(site, "h0", "p0", forwarding=False, rp_filter=1)
    chain = ChainFacts("forward", "iptables chain FORWARD", (), "iptables -I FORWARD {}")
    assert diagnose(changed(site, "h0", firewall=_firewall(chain))) == []


def test_small_buffers(site: Site) -> None:
    kernel = KernelFacts(212992, 10**9, 200000, 10**9, True, "cubic", ())
    found = diagnose(changed(site, "h0", kernel=kernel))
    assert [f.where for f in found] == ["h0 core.rmem_max", "h0 ipv4.tcp_rmem"]
    assert found[0].repair == ("echo 250000 >/proc/sys/net/core/rmem_max",)
    assert found[1].repair == (
        "echo $(cut -f 1,2 /proc/sys/net/ipv4/tcp_rmem) 250000 >/proc/sys/net/ipv4/tcp_rmem",
    )
    found = diagnose(changed(site, "h0", kernel=replace(kernel, core_writable=False)))
    assert found[0].repair == ()
    assert "on the machine" in found[0].advice


def test_bbr_and_slow_governors_are_notes(site: Site) -> None:
    kernel = replace(site.facts["h0"].kernel, congestion="bbr", governors=("powersave",))
    found = diagnose(changed(site, "h0", kernel=kernel))
    assert [(f.level, f.check) for f in found] == [("note", "congestion"), ("note", "governor")]


def test_offloads_matter_on_fast_links_only(ring_plan: RingPlan, site: Site) -> None:
    assert diagnose(changed_interface(site, "h0", "p0", gro=False, tso=False)) == []
    fast = healthy(cluster_of(ring_plan(4), gbps=100))
    finding = _only(changed_interface(fast, "h0", "p0", gro=False, tso=False))
    assert (finding.level, finding.what) == ("note", "off at p0: tso, gro")
    assert finding.repair == ("ethtool -K p0 tso on", "ethtool -K p0 gro on")
    assert diagnose(changed_interface(fast, "h0", "p0", gro=None, tso=None)) == []


def test_two_ports_in_one_subnet_that_answer_for_each_other(site: Site) -> None:
    assert site.file is not None
    servers = []
    for server in site.file.servers:
        ports = [replace(p, address=p.ip + "/16") for p in server.ports]
        servers.append(replace(server, ports=tuple(ports)))
    wide = Site(site.facts, replace(site.file, servers=tuple(servers)))
    for server in wide.facts:
        for name in ("p0", "p1"):
            mine = next(i for i in wide.facts[server].interfaces if i.name == name)
            wide = changed_interface(wide, server, name, addresses=(mine.ips[0] + "/16",))
    assert diagnose(wide) == []
    finding = _only(changed_interface(wide, "h0", "p0", arp_ignore=0))
    assert finding.check == "arp_ignore"
    assert len(finding.repair) == 2


def test_the_matrix_says_how_every_host_is_reached(site: Site) -> None:
    facts = site.facts["h0"]
    reached = tuple(
        replace(r, answered=False) if r.server == "h2" and r.address == "10.77.1.2" else r
        for r in facts.reached
    )
    site = changed(site, "h0", reached=reached)
    lost = tuple(replace(r, answered=r.server != "h3") for r in site.facts["h1"].reached)
    site = changed(site, "h1", reached=lost)
    outside = tuple(replace(r, source="192.168.0.9") for r in site.facts["h2"].reached)
    site = changed(site, "h2", reached=outside)
    site = Site({name: facts for name, facts in site.facts.items() if name != "h3"}, site.file)
    assert reach_matrix(site) == {
        "h0": {"h1": "direct", "h2": "part", "h3": "direct"},
        "h1": {"h0": "direct", "h2": "direct", "h3": "none"},
        "h2": {"h0": "management", "h1": "direct", "h3": "direct"},
        "h3": {"h0": "?", "h1": "?", "h2": "?"},
    }
    found = {f.where: f.what for f in diagnose(site) if f.check == "reach"}
    assert found == {
        "h0 -> h2": "reaches some addresses of h2 only: not 10.77.1.2",
        "h1 -> h3": "does not reach h3",
        "h2 -> h0": "reaches h0 through another network than the fabric",
    }


def test_without_a_file_it_looks_at_the_host_alone(site: Site) -> None:
    facts = replace(site.facts["h0"], server="box", cables=(), reached=())
    kernel = replace(facts.kernel, rmem_max=1000, congestion="bbr")
    found = diagnose(Site({"box": replace(facts, kernel=kernel)}))
    assert [f.check for f in found] == ["buffers", "congestion"]
