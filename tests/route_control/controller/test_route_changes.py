"""Flows that come and go for long: where they are, how even links are, and what rates they have."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from route_control.controller.test_route_state import busiest, leaf_spine_file, report
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.route_control.controller.state import RouteState
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.rates import fair_shares

LEAVES, SPINES, HOSTS = 5, 3, 3


def change(state: RouteState, random_: random.Random, step: int) -> list[str]:
    """Flows start or end; the ids of those that have another path or rate."""
    if state.flows and random_.random() < 0.45:
        return state.end(random_.sample(list(state.flows), min(4, len(state.flows))))
    names = [f"h{i}" for i in range(LEAVES * HOSTS)]
    new = [report(f"{step}-{i}", *random_.sample(names, 2)) for i in range(random_.randint(1, 8))]
    return state.start("j", new)


def crossing(state: RouteState) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, f.path) for name, f in state.flows.items() if f.path and len(f.path) > 1]


@pytest.mark.parametrize("seed", range(4))
def test_links_are_as_even_as_can_be_after_every_change(seed: int) -> None:
    """Koenig's theorem: the busiest link has the most flows at a leaf over spines, rounded up."""
    state, random_ = RouteState(leaf_spine_file(LEAVES, SPINES, HOSTS)), random.Random(seed)
    for step in range(60):
        change(state, random_, step)
        paths = [path for _, path in crossing(state)]
        ends = [Counter(path[0] for path in paths), Counter(path[-1] for path in paths)]
        most = max((count for of_leaf in ends for count in of_leaf.values()), default=0)
        assert busiest(state) == -(-most // SPINES)


@pytest.mark.parametrize("scheme", ["local-search", "greedy", "ecmp", "annealing"])
def test_paths_are_live_and_reported_when_they_change(scheme: str) -> None:
    file = leaf_spine_file(LEAVES, SPINES, HOSTS)
    state, random_ = RouteState(file, scheme), random.Random(3)
    for step in range(60):
        before = {name: flow.path for name, flow in state.flows.items()}
        if random_.random() < 0.2:
            (cable,) = random_.sample(sorted(map(sorted, file.cables)), 1)
            dead = frozenset(cable) in state.dead
            changed = state.set_links(*([], [cable]) if dead else ([cable], []))
        else:
            changed = change(state, random_, step)
        live = file.network(state.dead)
        for name, flow in state.flows.items():
            ends = state.file.tor_of[flow.report.source], state.file.tor_of[flow.report.target]
            among = live.paths(*ends)
            assert flow.path in among if among else flow.path is None
            assert (name in changed) == (name not in before or before[name] != flow.path)
            assert flow.changed == state.epoch if name in changed else flow.changed < state.epoch


@pytest.mark.parametrize("seed", range(3))
def test_published_rates_are_within_five_percent_of_the_shares(seed: int) -> None:
    file = leaf_spine_file(LEAVES, SPINES, HOSTS)
    state, random_ = RouteState(file, limits_rates=True), random.Random(seed)
    network = file.network()
    unchanged = 0
    for step in range(60):
        before = {name: flow.rate_bits_per_s for name, flow in state.flows.items()}
        changed = change(state, random_, step)
        flows = crossing(state)
        problem = RoutingProblem(network, [SwitchedFlow(p[0], p[-1]) for _, p in flows])
        choice = [network.paths(p[0], p[-1]).index(p) for _, p in flows]
        for (name, _), share in zip(flows, fair_shares(problem, choice).rates, strict=True):
            rate = state.flows[name].rate_bits_per_s
            assert rate is not None
            assert abs(share - rate) <= 0.05 * rate * (1 + 1e-9)
            if name in before and rate == before[name]:
                unchanged += name not in changed
            else:
                assert name in changed
                assert rate == pytest.approx(share)
    assert unchanged > 100


def test_a_small_change_of_a_share_is_not_published() -> None:
    """21 flows of a link get 1 / 21 each; of 22 each has 4.5 % less, of 23 8.7 %."""
    state = RouteState(leaf_spine_file(2, 1, 30), limits_rates=True)
    state.start("j", [report(f"{i}", f"h{i}", f"h{30 + i}") for i in range(21)])
    assert state.flows["0"].rate_bits_per_s == pytest.approx(1e8 / 21)
    assert state.start("j", [report("21", "h21", "h51")]) == ["21"]
    assert len(state.start("j", [report("22", "h22", "h52")])) == 22  # but 21 has 4.3 % less
    assert state.flows["0"].rate_bits_per_s == pytest.approx(1e8 / 23)


def test_hosts_of_one_leaf_and_flows_without_a_path_have_no_rate() -> None:
    state = RouteState(leaf_spine_file(2, 1, 2), limits_rates=True)
    state.start("j", [report("near", "h0", "h1"), report("far", "h0", "h2")])
    assert state.flows["near"].rate_bits_per_s is None
    assert state.flows["far"].rate_bits_per_s == 1e8
    assert state.set_links([("leaf0", "spine0")], []) == ["far"]
    assert state.flows["far"].rate_bits_per_s is None


def test_few_flows_move_to_make_room() -> None:
    """Chains of changes, where an assignment afresh would move almost all."""
    random_ = random.Random(1)
    state = RouteState(leaf_spine_file(LEAVES, SPINES, HOSTS))
    names = [f"h{i}" for i in range(LEAVES * HOSTS)]
    state.start("j", [report(f"{i}", *random_.sample(names, 2)) for i in range(600)])
    moved = 0
    for step in range(40):
        new = report(f"new-{step}", *random_.sample(names, 2))
        moved += len(set(state.start("j", [new])) - {new.id})
    assert moved < 40 * 30


@pytest.mark.parametrize(
    ("operation", "tokens"),
    [
        (((7,), (), (), None), ("flow", 7)),
        (((0, 0), (), (), None), ("time", 0)),
        (((), (5,), (), None), ("kind", 5)),
        (((), (), ((0, 9),), None), ("kind", 9)),
        (((), (), (), (99,)), ("dead", "link", 99)),
    ],
)
def test_changes_of_what_is_not_there(
    operation: tuple[object, ...], tokens: tuple[object, ...]
) -> None:
    assignment = _core.PathAssignment(2, 1, [(0, 2), (2, 1)], [1.0, 1.0], "local-search", False)
    assert assignment.add_kind(0, 1, [[0, 1]]) == 0
    first = assignment.change(_core.AssignmentChange((), (0,), (), None), 1)
    assert first.moved == [(0, 0)]
    with refused(ValueError, *tokens):
        assignment.change(_core.AssignmentChange(*operation), 1)  # type: ignore[arg-type]
    assert list(assignment.loads) == [1, 1]


def test_a_flow_keeps_its_path_among_other_choices() -> None:
    links = list(itertools.chain(*(((0, s), (s, 1)) for s in (2, 3))))
    assignment = _core.PathAssignment(2, 2, links, [1.0] * 4, "greedy", False)
    assignment.add_kind(0, 1, [[0, 1], [2, 3]])
    assignment.add_kind(0, 1, [[2, 3]])
    assignment.change(_core.AssignmentChange((), (0, 0), (), None), 1)
    result = assignment.change(_core.AssignmentChange((), (), ((1, 1),), None), 1)
    assert list(assignment.loads) == [1, 1, 1, 1]
    assert result.moved == [(1, 2)]  # the same links by another number
