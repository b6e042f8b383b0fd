"""The controller's decisions: fresh paths, failures, probed ports, and refusals."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.route_control.controller.leases import Leases
from torch_topoopt.route_control.controller.messages import FlowReport
from torch_topoopt.route_control.controller.state import ConflictError, RouteState
from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)


def path_names(state: RouteState, flow: str) -> list[str] | None:
    path = state.flows[flow].path
    return None if path is None else [state.file.numbered[switch] for switch in path]


def leaf_spine_file(leaves: int, spines: int, hosts: int) -> NetworkFile:
    names = [f"leaf{i}" for i in range(leaves)], [f"spine{i}" for i in range(spines)]
    return NetworkFile(
        1,
        tuple(NamedSwitch(name) for name in (*names[1], *names[0])),
        tuple(
            NamedHost(f"h{i * hosts + j}", f"leaf{i}") for i in range(leaves) for j in range(hosts)
        ),
        tuple(SwitchCable(ends, 1e8) for ends in itertools.product(*names)),
    ).validate()


def busiest(state: RouteState) -> int:
    """Flows on the link that has most."""
    hops: Counter[tuple[int, int]] = Counter()
    for flow in state.flows.values():
        hops.update(itertools.pairwise(flow.path or ()))
    return max(hops.values(), default=0)


def report(name: str, source: str, target: str) -> FlowReport:
    return FlowReport(name, source, target, 10**9)


def two_hosts_a_leaf() -> RouteState:
    return RouteState(leaf_spine_file(2, 2, 2))


def test_flows_of_two_jobs_do_not_meet() -> None:
    state = two_hosts_a_leaf()
    state.start("a", [report("a", "h0", "h2")])
    assert state.start("b", [report("b", "h1", "h3")]) == ["b"]  # a stays where it is
    assert busiest(state) == 1


def test_flows_move_when_that_is_better_and_only_then() -> None:
    state = two_hosts_a_leaf()
    names = ["a", "b", "c", "d"]
    state.start("j", [report(n, "h0", "h2") for n in names])
    assert busiest(state) == 2
    on_one = [n for n in names if path_names(state, n) == path_names(state, "a")]
    others = [n for n in names if n not in on_one]
    moved = state.end(others)  # two are left on one path
    assert len(moved) == 1
    assert set(moved) < set(on_one)
    assert busiest(state) == 1
    assert state.end(moved) == []


def test_a_dead_link_is_left_and_no_path_is_none() -> None:
    state = two_hosts_a_leaf()
    state.start("j", [report("f", "h0", "h2")])
    path = path_names(state, "f")
    assert path is not None
    assert state.set_links([path[:2]], []) == ["f"]
    other = path_names(state, "f")
    assert other is not None
    assert other != path
    state.set_links([other[1:]], [])
    assert path_names(state, "f") is None
    assert state.set_links([], [path[:2]]) == ["f"]
    assert path_names(state, "f") == path


def test_only_paths_that_have_a_source_port_are_taken() -> None:
    state = two_hosts_a_leaf()
    path = ("leaf0", "spine1", "leaf1")
    state.set_ports("h0", {"h2": {4000: path, 3999: path}})
    state.start("j", [report("f", "h0", "h2"), report("g", "h0", "h2")])
    assert path_names(state, "f") == path_names(state, "g") == list(path)
    assert state.source_ports("f") == [3999, 4000]


def test_a_flow_whose_path_has_other_ports_now_is_notified() -> None:
    state = two_hosts_a_leaf()
    paths = [("leaf0", spine, "leaf1") for spine in ("spine0", "spine1")]
    state.set_ports("h0", {"h2": dict(zip((4000, 4001), paths, strict=True))})
    state.start("j", [report("f", "h0", "h2"), report("g", "h0", "h2")])
    before = {flow: path_names(state, flow) for flow in "fg"}
    swapped = dict(zip((4001, 4000, 4002), [*paths, paths[1]], strict=True))
    assert set(state.set_ports("h0", {"h2": swapped})) == {"f", "g"}
    assert {flow: path_names(state, flow) for flow in "fg"} == before
    assert {flow.changed for flow in state.flows.values()} == {state.epoch}
    assert not state.set_ports("h0", {"h2": swapped})


def test_a_degraded_path_is_avoided_until_all_are() -> None:
    state = two_hosts_a_leaf()
    state.start("j", [report("f", "h0", "h2")])
    first = path_names(state, "f")
    assert state.degrade("f") == ["f"]
    assert path_names(state, "f") != first
    assert state.flows["f"].avoided
    state.degrade("f")
    assert path_names(state, "f") is not None
    assert not state.flows["f"].avoided


def test_hosts_of_one_leaf_need_no_spine() -> None:
    state = two_hosts_a_leaf()
    state.start("j", [report("f", "h0", "h1")])
    assert path_names(state, "f") == ["leaf0"]
    for again in "gh":  # the pairs are known the second time
        flows = [("1", "h0", "h2"), ("2", "h3", "h2"), ("3", "h3", "h1")]
        state.start("j", [report(again + name, *ends) for name, *ends in flows])
        assert path_names(state, f"{again}2") == ["leaf1"]
        crossing = [path_names(state, again + name) for name in "13"]
        assert [(path[0], path[2]) for path in crossing if path] == [
            ("leaf0", "leaf1"),
            ("leaf1", "leaf0"),
        ]
        assert state.numbers.keys() >= {f"{again}1", f"{again}3"}
        assert f"{again}2" not in state.numbers


def test_flows_between_switches_that_nothing_joins_have_no_path() -> None:
    switches, hosts = ("a", "b", "c"), (("h0", "a"), ("h1", "b"), ("h2", "c"))
    cables = (SwitchCable(("b", "c"), 1e8),)
    file = NetworkFile(
        1, tuple(map(NamedSwitch, switches)), tuple(NamedHost(*host) for host in hosts), cables
    ).validate()
    for pairs in ((("h0", "h1"),), (("h0", "h1"), ("h1", "h2"))):
        state = RouteState(file)
        for again in "fg":
            state.start("j", [report(f"{again}{ends}", *ends) for ends in pairs])
            found = [path_names(state, f"{again}{ends}") for ends in pairs]
            assert found == [None, ["b", "c"]][: len(pairs)]


@pytest.mark.parametrize(
    ("flows", "tokens"),
    [
        ([report("new", "h0", "h9")], ("flows[0].target", "h9")),
        ([report("new", "h0", "h0")], ("flows[0].target", "h0")),
        ([report("new", "h0", "h2"), report("new", "h0", "h2")], ("flows[1].id", "twice")),
        ([report("old", "h0", "h3")], ("flows[0].id", "old")),
    ],
)
def test_refused_flows_change_nothing(flows: list[FlowReport], tokens: tuple[object, ...]) -> None:
    state = two_hosts_a_leaf()
    state.start("j", [report("old", "h0", "h2")])
    before = state.epoch, dict(state.flows)
    with refused(DocumentError, *tokens):
        state.start("j", flows)
    assert (state.epoch, state.flows) == before


def test_a_report_of_a_flow_that_is_there_changes_nothing() -> None:
    state = two_hosts_a_leaf()
    first = report("f", "h0", "h2")
    state.start("j", [first])
    before = state.epoch, dict(state.flows)
    assert state.start("j", [first]) == []
    assert (state.epoch, state.flows) == before
    assert state.start("j", [first, report("g", "h1", "h3")]) == ["g"]
    with pytest.raises(ConflictError):
        state.start("another", [first])


def test_a_silent_host_has_no_lease() -> None:
    leases = Leases(60, ["restored"], 1000)
    leases.heard(["a"], 1030)
    leases.begin_wait("polling")
    hosts = ["restored", "a", "polling"]
    assert leases.ended(hosts, 1060) == []
    assert leases.ended(hosts, 1061) == ["restored"]
    assert leases.ended(hosts, 2000) == ["restored", "a"]
    leases.begin_wait("polling")
    leases.end_wait("polling", 2000)
    assert leases.ended(["polling"], 3000) == []
    leases.end_wait("polling", 3000)
    assert leases.ended(["polling"], 3060) == []
    assert leases.ended(["polling"], 3061) == ["polling"]


def test_the_last_of_many_requests_of_a_host_renews_its_lease() -> None:
    leases = Leases(60, [], 0)
    leases.begin_wait("polling")
    for now_s in range(3000):
        leases.heard(["a", "polling"], now_s)
    leases.end_wait("polling", 3000)
    assert leases.ended(["a", "polling"], 3059) == []
    assert leases.ended(["a", "polling"], 3060) == ["a"]


def test_new_flows_are_flows_of_their_hosts_until_they_end() -> None:
    state = two_hosts_a_leaf()
    state.start("j", [report("f", "h0", "h2"), report("g", "h1", "h3")])
    state.start("j", [report("i", "h0", "h3")])
    assert {host: [*ids] for host, ids in state.flows_of.items()} == {"h0": ["f", "i"], "h1": ["g"]}
    state.start("j", [report("k", "h1", "h2")])
    state.end(["k", "f", "g"])
    assert {host: [*ids] for host, ids in state.flows_of.items()} == {"h0": ["i"]}
    assert state.numbers.keys() == {"i"}


@pytest.mark.parametrize(
    ("path", "tokens"),
    [(("leaf0", "leaf1"), ("path",)), (("leaf1", "spine0", "leaf0"), ("path",))],
)
def test_probed_paths_must_be_there(path: tuple[str, ...], tokens: tuple[object, ...]) -> None:
    state = two_hosts_a_leaf()
    with refused(DocumentError, *tokens):
        state.set_ports("h0", {"h2": {4000: path}})
    assert not state.ports


def test_a_network_file_is_what_it_was() -> None:
    file = leaf_spine_file(3, 2, 1)
    assert NetworkFile.from_json(file.to_json()) == file
    assert file.numbered == ("leaf0", "leaf1", "leaf2", "spine0", "spine1")
    assert file.network().spines == 2


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        ('"spine0"}', '"spine1"}', ("twice",)),
        ('"switch": "leaf0"', '"switch": "x"', ("hosts[0].switch", "x")),
        ("100000000.0", "-1.0", ("links[0].bits_per_s", -1.0, 0)),
        ('["leaf0", "spine0"]', '["leaf0", "leaf0"]', ("links[0].ends",)),
    ],
)
def test_bad_network_files(old: str, new: str, tokens: tuple[object, ...]) -> None:
    text = leaf_spine_file(2, 2, 1).to_json()
    text = text.replace('"name": "spine0", "addresses": []', '"name": "spine0"')
    assert old in text
    with refused(DocumentError, *tokens):
        NetworkFile.from_json(text.replace(old, new, 1))
