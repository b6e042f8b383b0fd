"""Which links are reported to the controller, as what, and when."""

from __future__ import annotations

import dataclasses

from support.backend.ranks import make_plan
from support.refusals import refused

from torch_topoopt.links.wiring import PortAddress, Wiring
from torch_topoopt.plan import Link, Plan, Prediction
from torch_topoopt.route_control.host.link_flows import LinkFlow, job_name, link_flows
from torch_topoopt.route_control.host.reports import FlowReports
from torch_topoopt.route_control.network_file import NamedHost, NamedSwitch, NetworkFile

NETWORK = NetworkFile(
    1,
    (NamedSwitch("leaf"),),
    tuple(NamedHost(f"h{i}", "leaf", (f"10.0.0.{i}",)) for i in range(3)),
    (),
)
LINKS = [Link(0, port, server, 0) for port, server in enumerate((1, 2, 9))]


def flow(link: Link, planned_bytes: int | None, target: str = "") -> LinkFlow:
    return LinkFlow(
        f"j/{link.target}", link, "10.0.0.0", target or f"10.0.0.{link.target}", planned_bytes
    )


def reports(flows: list[LinkFlow], host: str = "") -> tuple[FlowReports, list[str]]:
    said: list[str] = []
    return FlowReports(flows, host, 100, lambda link, address: said.append(address)), said


def test_flows_below_the_threshold_are_left_out() -> None:
    made, _ = reports([flow(LINKS[0], 99), flow(LINKS[1], 100)])
    assert made.name_ends(NETWORK) == "h0"
    assert [(r.source, r.target, r.bytes) for r in made.new({})] == [("h0", "h2", 100)]
    assert made.new({}) == []
    assert not made.counted


def test_reports_have_the_period_of_the_iterations() -> None:
    timed = dataclasses.replace(flow(LINKS[0], 500), period_s=0.25)
    made, _ = reports([timed, flow(LINKS[1], 500)])
    made.name_ends(NETWORK)
    assert [r.period_s for r in made.new({})] == [0.25, None]


def test_flows_of_unknown_size_are_reported_once_they_have_sent_enough() -> None:
    made, _ = reports([flow(LINKS[0], None)])
    made.name_ends(NETWORK)
    assert made.new({LINKS[0]: 99}) == []
    assert made.counted
    assert [r.bytes for r in made.new({LINKS[0]: 150})] == [150]
    assert made.new({LINKS[0]: 900}) == []
    assert made.made[LINKS[0]].bytes == 150
    assert not made.counted


def test_addresses_of_no_host_are_said_once_and_links_within_a_host_never_reported() -> None:
    made, said = reports([flow(LINKS[2], 500), flow(LINKS[0], 500, target="10.0.0.0")])
    assert made.name_ends(NETWORK) is None
    assert made.name_ends(NETWORK) is None
    assert said == ["10.0.0.9"]
    assert made.new({}) == []


def test_a_given_name_stands_above_addresses() -> None:
    made, _ = reports([flow(LINKS[0], 500)], host="h2")
    assert made.name_ends(NETWORK) == "h2"
    assert [r.source for r in made.new({})] == ["h2"]


def test_a_server_at_addresses_of_two_hosts_is_refused() -> None:
    other = dataclasses.replace(flow(LINKS[1], 500), source_address="10.0.0.1")
    made, _ = reports([flow(LINKS[1], 500), other])
    assert made.name_ends(NETWORK) == "h1"
    made, _ = reports([dataclasses.replace(other, link=LINKS[0]), flow(LINKS[1], 500)])
    with refused(ValueError, "h0", "h1"):
        made.name_ends(NETWORK)


def planned(ports: str) -> tuple[Plan, Wiring]:
    plan = make_plan(3, 1 if ports == "simplex" else 2, ports=ports)
    sizes = tuple(range(1, len(plan.network.links) + 1))
    plan = dataclasses.replace(plan, prediction=Prediction(0.0, 0.0, 0.0, 0.0, sizes))
    ends = sorted({end for k in plan.network.links for end in ((k.source, k.source_port),)})
    ends = sorted({*ends, *((k.target, k.target_port) for k in plan.network.links)})
    places = tuple(PortAddress(s, p, f"10.0.{p}.{s}", None) for s, p in ends)
    return plan, Wiring(1, "static", plan.digest(), 7000, places).validate()


def test_flows_carry_what_the_plan_predicts_for_their_links() -> None:
    plan, wiring = planned("simplex")
    flows = link_flows("j", plan, wiring, plan.network.links)
    assert [f.planned_bytes for f in flows] == list(plan.prediction.link_bytes)
    assert len({f.id for f in flows}) == len(flows)
    assert {f.period_s for f in flows} == {None}
    timed = dataclasses.replace(plan, prediction=Prediction(0.5, 0.1, 0.1, 1.0, (1,) * len(flows)))
    assert {f.period_s for f in link_flows("j", timed, wiring, plan.network.links)} == {
        timed.prediction.iteration_s
    }
    nothing = dataclasses.replace(
        plan, prediction=Prediction(0.0, 0.0, 0.0, 0.0, (0,) * len(plan.network.links))
    )
    assert {f.planned_bytes for f in link_flows("j", nothing, wiring, plan.network.links)} == {None}


def test_a_duplex_connection_counts_its_larger_direction() -> None:
    plan, wiring = planned("duplex")
    sizes = dict(zip(plan.network.links, plan.prediction.link_bytes, strict=True))
    for found in link_flows("j", plan, wiring, plan.network.links):
        assert found.planned_bytes == max(sizes[found.link], sizes[found.link.reverse])


def test_jobs_of_one_plan_have_different_names_at_other_places_and_in_other_lives() -> None:
    _, wiring = planned("simplex")
    moved = dataclasses.replace(wiring, tcp_port=7001)
    names = [job_name(wiring, 1), job_name(wiring, 2), job_name(moved, 1)]
    assert len(set(names)) == 3
    assert job_name(dataclasses.replace(wiring, fabric="other"), 1) == names[0]
