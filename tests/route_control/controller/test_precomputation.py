"""Assignments that are computed ahead: the same answers as without, and there in time."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from route_control.controller.test_route_state import leaf_spine_file, path_names, report
from support.refusals import refused

from torch_topoopt import _core
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.route_control.controller.precomputation import Precomputation
from torch_topoopt.route_control.controller.precomputed import StateNode
from torch_topoopt.route_control.controller.prediction import TrafficPrediction
from torch_topoopt.route_control.controller.request_handler import (
    AssignmentOptions,
    RequestHandler,
)
from torch_topoopt.route_control.controller.state import RouteState
from torch_topoopt.route_control.controller.store import RouteStore
from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)

LEAVES, SPINES, HOSTS = 4, 3, 2
Request = tuple[str, str, dict[str, Any]]


def three_tiers() -> NetworkFile:
    """Two pods of two leaves and two spines each, and two cores."""
    pods = [
        ([f"leaf{2 * p + i}" for i in (0, 1)], [f"spine{2 * p + i}" for i in (0, 1)])
        for p in (0, 1)
    ]
    cables = [ends for leaves, spines in pods for ends in itertools.product(leaves, spines)]
    cables += [(f"spine{i}", f"core{i % 2}") for i in range(4)]
    names = sorted({name for ends in cables for name in ends})
    return NetworkFile(
        1,
        tuple(map(NamedSwitch, names)),
        tuple(NamedHost(f"h{i}", f"leaf{i // HOSTS}") for i in range(LEAVES * HOSTS)),
        tuple(SwitchCable(ends, 1e8) for ends in cables),
    ).validate()


class Controllers:
    """One that computes ahead after each request, and one that does not and is loaded anew."""

    def __init__(self, file: NetworkFile, scheme: str, *, limits_rates: bool) -> None:
        self.now_s = 0.0
        self.handlers = [
            RequestHandler(
                RouteStore(":memory:", file),
                scheme,
                lambda hosts: None,
                AssignmentOptions(1e9, limits_rates, precomputed),
                0.0,
            )
            for precomputed in (200, 0)
        ]
        ahead = self.handlers[0]
        self.precomputation = Precomputation(ahead.learn, ahead.prediction, 200, lambda: self.now_s)

    def send(self, request: Request, number: int) -> None:
        method, path, body = request
        text = json.dumps({"request": str(number), **body}).encode()
        answers: list[bytes | str] = []
        for handler in self.handlers:
            try:
                answers.append(handler.change(method, path, text, self.now_s))
            except DocumentError as error:
                answers.append(str(error))
        ahead, other = self.handlers
        assert answers[0] == answers[1]
        assert ahead.state.flows == other.state.flows
        assert list(ahead.state.flows) == list(other.state.flows)
        self.precomputation.run_now()


def flow(i: int) -> dict[str, Any]:
    """The i-th of those that there may be."""
    pairs = list(itertools.permutations(range(LEAVES * HOSTS), 2))
    source, target = pairs[7 * i % len(pairs)]
    return {"id": f"f{i}", "source": f"h{source}", "target": f"h{target}", "bytes": 10**7 * (1 + i)}


def flows_of(job: int) -> list[dict[str, Any]]:
    return [flow(5 * job + i) for i in range(5)]


def phase(job: int) -> list[Request]:
    flows = flows_of(job)
    return [
        ("POST", "/v1/flows", {"job": f"j{job}", "flows": flows}),
        ("POST", "/v1/flows/end", {"ids": [f["id"] for f in flows]}),
    ]


@st.composite
def requests(draw: st.DrawFn, file: NetworkFile) -> Request:
    what = draw(st.sampled_from(["start", "end", "link", "bad", "ports"]))
    if what in ("start", "end"):
        return phase(draw(st.integers(0, 3)))[what == "end"]
    if what == "link":
        way = draw(st.sampled_from(["down", "up"]))
        cables = [list(cable.ends) for cable in file.links]
        switch = draw(st.sampled_from(file.switches)).name
        one = [draw(st.sampled_from(cables))]
        return (
            "POST",
            "/v1/links",
            {way: draw(st.sampled_from([one, [c for c in cables if switch in c]]))},
        )
    if what == "bad":
        return "POST", "/v1/paths/degraded", {"flow": flow(draw(st.integers(0, 19)))["id"]}
    report_ = flow(draw(st.integers(0, 19)))
    network, numbers, names = file.network(), file.tor_of, file.numbered
    paths = network.paths(numbers[report_["source"]], numbers[report_["target"]])
    some = draw(st.lists(st.sampled_from(paths), max_size=3))
    table = {str(4000 + i): [names[s] for s in path] for i, path in enumerate(some)}
    return "PUT", f"/v1/hosts/{report_['source']}", {"ports": {report_["target"]: table}}


NETWORKS = {"leaves": leaf_spine_file(LEAVES, SPINES, HOSTS), "tiers": three_tiers()}


@pytest.mark.parametrize("limits_rates", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_answers_are_the_same_with_and_without(network: str, limits_rates: bool) -> None:
    file = NETWORKS[network]

    @settings(
        max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.lists(
            st.one_of(
                st.integers(0, 1).map(phase), st.lists(requests(file), min_size=1, max_size=2)
            ),
            min_size=4,
            max_size=12,
        ),
        st.sampled_from(["local-search", "local-search", "greedy", "ecmp"]),
        st.integers(0, 20),
    )
    def run(parts: list[list[Request]], scheme: str, reloaded: int) -> None:
        controllers = Controllers(file, scheme, limits_rates=limits_rates)
        for number, request in enumerate(itertools.chain(*parts)):
            if number == reloaded:
                controllers.handlers[1]._forget()  # as after a restart
            controllers.now_s += 1
            controllers.send(request, number)

        hits.append(controllers.handlers[0].counts.hits)

    hits: list[int] = []
    run()
    assert sum(hits) > len(hits) / 2


def test_phases_and_failures_that_were_predicted_are_there() -> None:
    file = leaf_spine_file(LEAVES, SPINES, HOSTS)
    controllers = Controllers(file, "local-search", limits_rates=False)
    handler = controllers.handlers[0]
    number = itertools.count()
    hits = []

    def send(method: str, path: str, **body: Any) -> None:
        before = handler.counts.hits
        controllers.now_s += 1
        controllers.send((method, path, body), next(number))
        hits.append(handler.counts.hits - before)

    for _ in range(4):
        for job in (0, 1):
            send("POST", "/v1/flows", job=f"j{job}", flows=flows_of(job))
        for job in (0, 1):
            send("POST", "/v1/flows/end", ids=[f["id"] for f in flows_of(job)])
    # First and second starts have no period yet; ends are known from the first phase on.
    assert hits == [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    send("POST", "/v1/flows", job="j0", flows=flows_of(0))
    path = next(f.path for f in handler.state.flows.values() if f.path and len(f.path) == 3)
    names = [file.numbered[switch] for switch in path]
    send("POST", "/v1/links", down=[names[:2]])
    send("POST", "/v1/links", down=[list(c.ends) for c in file.links if names[1] in c.ends])
    send("POST", "/v1/links", down=[])  # which nobody expects
    assert hits[-4:] == [1, 1, 1, 0]


def test_only_the_state_that_it_was_computed_for_takes_a_result() -> None:
    state = RouteState(leaf_spine_file(2, 2, 2))
    precomputed = state.precomputed
    state.start("j", [report("f", "h0", "h2")])
    operation = state.ending(["f"])
    copy = state.copied()
    result = copy.change(_core.AssignmentChange(*operation), 1)
    precomputed.node.after[operation] = result, StateNode()
    assert precomputed.size() == 1
    state.start("j", [report("g", "h1", "h3")])
    assert precomputed.size() == 0
    hits = precomputed.hits
    state.end(["f"])
    assert precomputed.hits == hits
    with refused(ValueError, "flow"):
        copy.change(_core.AssignmentChange(*operation), 1)  # it has ended there


def test_memory_and_work_are_bounded() -> None:
    file = leaf_spine_file(LEAVES, SPINES, HOSTS)
    state = RouteState(file)
    random_ = random.Random(5)
    precomputation = Precomputation(lambda: state, TrafficPrediction(), 7, lambda: 0.0)
    names = [f"h{i}" for i in range(LEAVES * HOSTS)]
    state.start("j", [report(str(i), *random_.sample(names, 2)) for i in range(30)])
    precomputation.run_now()
    assert state.precomputed.size() == 7
    state.end(["3"])
    assert state.precomputed.size() == 0
    precomputation.run_now()
    assert state.precomputed.size() == 7


def test_detours_are_the_same_whoever_was_there_first() -> None:
    """A pair whose usual paths are dead takes longer ones."""
    for first in (True, False):
        state = RouteState(leaf_spine_file(3, 2, 2))
        if first:
            state.start("j", [report("f", "h0", "h2")])
        state.set_links([("leaf0", "spine0"), ("leaf1", "spine1")], [])
        if not first:
            state.start("j", [report("f", "h0", "h2")])
        assert path_names(state, "f") == ["leaf0", "spine1", "leaf2", "spine0", "leaf1"]
        state.set_links([], [("leaf0", "spine0")])
        assert path_names(state, "f") == ["leaf0", "spine0", "leaf1"]
