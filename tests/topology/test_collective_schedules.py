"""Candidates for collectives against closed forms, and their schedules in a replay of its own.

The replay follows every byte: who holds which part of a shard, and whose values a sum has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
from scipy.optimize import linprog
from support.refusals import refused

from torch_topoopt.plan import Cluster, Ring
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.topology.best.network_search import NetworkSearch
from torch_topoopt.topology.collectives.candidates import (
    ALPHA_S,
    HOP_S,
    LinkGraph,
    NotOverLinksError,
    bound_bytes,
)
from torch_topoopt.topology.collectives.graph import GraphFile, pair_rates
from torch_topoopt.topology.collectives.schedule_file import Collective, CollectiveScheduleFile
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Rates = dict[tuple[int, int], float]

COLLECTIVES = get_args(Collective)
GBPS = 100.0
BYTES_PER_S = GBPS * 1e9 / 8
OLD = ("ring", "multi_ring", "both_ways", "tree", "doubling", "torus")


def circulant(servers: int, *strides: int) -> Rates:
    """Links from every server to the one each stride further on."""
    return {(i, (i + p) % servers): GBPS for i in range(servers) for p in strides}


def torus(rows: int, columns: int) -> Rates:
    rates = {}
    for i in range(rows):
        for j in range(columns):
            for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                other = (i + down) % rows * columns + (j + right) % columns
                rates[i * columns + j, other] = GBPS
    return rates


def slower_back(servers: int) -> Rates:
    """A ring whose links have half the rate in one direction."""
    return circulant(servers, 1) | dict.fromkeys(circulant(servers, servers - 1), 50.0)


GRAPHS: dict[str, tuple[int, Rates]] = {
    "ring": (6, circulant(6, 1, 5)),
    "one-way ring": (5, circulant(5, 1)),
    "torus": (16, torus(4, 4)),
    "circulant": (13, circulant(13, 1, 5, 8, 12)),
    "one-way circulant": (12, circulant(12, 1, 5)),
    "unequal rates": (5, slower_back(5)),
    "a hub": (4, {pair: GBPS for i in (1, 2, 3) for pair in ((0, i), (i, 0))}),
}


# name: steps and shards on the busiest link, relative to the slowest, of an all_gather
CLOSED_FORMS = {
    "ring": (3, 5 / 2),
    "one-way ring": (4, 4.0),
    "torus": (4, 15 / 4),
    "circulant": (2, 3.0),
    "one-way circulant": (None, 11 / 2),
    "unequal rates": (None, 4 / 3),
    "a hub": (2, 3.0),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_bound_and_the_best_schedule_have_their_closed_forms(name: str) -> None:
    servers, rates = GRAPHS[name]
    steps, shards = CLOSED_FORMS[name]
    size = servers * 10**6
    graph = LinkGraph(servers, rates)
    for collective, times in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        priced = graph.priced(collective, size)  # type: ignore[arg-type]
        found = {each.algorithm: each for each in priced.candidates}
        slowest = min(rates.values()) * 1e9 / 8
        for each in found.values():
            assert each.bound_bytes == pytest.approx(times * shards * 1e6)
            assert each.bound_seconds == pytest.approx(times * shards * 1e6 / slowest)
            assert each.seconds > each.bound_seconds
        # On the hub, the phases of an all_reduce are limited by links of other directions.
        if (name, collective) != ("a hub", "all_reduce"):
            packed = found["packing"].busiest_link_bytes
            assert packed == pytest.approx(times * shards * 1e6, rel=1e-3)
            assert all(each.busiest_link_bytes > packed * 0.999 for each in found.values())
        if steps is not None:
            assert found["breadth_first"].steps == times * steps
        assert found[priced.auto].seconds == min(each.seconds for each in found.values())


def test_seconds_are_latencies_and_bytes() -> None:
    """Breadth-first on a torus: 4 steps of latency, and 15 / 4 shards on every link."""
    servers, rates = GRAPHS["torus"]
    size = 1 << 20
    for alpha_s, hop_s in ((ALPHA_S, HOP_S), (5e-6, 0.0)):
        priced = LinkGraph(servers, rates, alpha_s=alpha_s, hop_s=hop_s).priced("all_gather", size)
        assert priced.auto == "breadth_first"
        (found,) = (each for each in priced.candidates if each.algorithm == "breadth_first")
        expected = 4 * (alpha_s + hop_s) + 15 / 4 * size / servers / BYTES_PER_S
        assert found.seconds == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", GRAPHS)
def test_schedules_deliver_everything(name: str, collective: Collective) -> None:
    servers, rates = GRAPHS[name]
    graph = LinkGraph(servers, rates)
    priced = graph.priced(collective, servers * 4096)
    written = []
    for each in priced.candidates:
        try:
            schedule = graph.schedule(collective, priced.size_bytes, each.algorithm)
        except NotOverLinksError:
            continue
        text = schedule.to_json()
        assert CollectiveScheduleFile.from_json(text) == schedule
        delivers(json.loads(text))
        assert schedule.steps == each.steps
        assert schedule.busiest_link_bytes() == pytest.approx(each.busiest_link_bytes, rel=2e-3)
        assert bound_bytes(schedule) == pytest.approx(each.bound_bytes)
        assert schedule.phase_bytes() >= each.bound_bytes * (1 - 1e-6)
        written.append(each.algorithm)
    assert {"breadth_first", "packing"} <= set(written)
    assert ("flooding" in written) == (collective == "all_reduce")
    assert ("ring" in written) == (name not in ("torus", "a hub"))  # whose rings use relays


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_several_rings_carry_their_shares(collective: Collective) -> None:
    rings = [Ring((0, 1, 2, 3, 4), 0.75), Ring((0, 2, 4, 1, 3), 0.25)]
    graph = LinkGraph(5, circulant(5, 1, 2), rings)
    schedule = graph.schedule(collective, 5 * 4096, "multi_ring")
    delivers(json.loads(schedule.to_json()))
    phases = {"all_reduce": 2, "broadcast": 5 / 4}.get(collective, 1)
    assert schedule.busiest_link_bytes() == pytest.approx(phases * 0.75 * 4 * 4096)
    assert schedule.steps == (8 if collective == "all_reduce" else 4)


def delivers(file: dict[str, Any]) -> None:
    """Replays a file as anybody's script can; asserts that its collective is done."""
    linked = {(source, target) for source, target, _ in file["links"]}
    for phase in file["phases"]:
        rows = [(*ends, Fraction(part).limit_denominator(5000), step)
                for *ends, part, step in phase["steps"]]  # fmt: skip
        assert {(source, target) for source, target, *_ in rows} <= linked
        units = lcm(*(row[3].denominator for row in rows))
        if phase["collective"] == "reduce_scatter":
            sums_up(rows, units, file["servers"])
        else:
            origins = [0] if phase["collective"] == "broadcast" else range(file["servers"])
            spreads(rows, units, file["servers"], origins)
    expected = file["bytes"] * (
        1 if file["collective"] == "broadcast" or file["algorithm"] == "flooding"
        else 1 / file["servers"]
    )  # fmt: skip
    assert all(phase["shard_bytes"] == pytest.approx(expected) for phase in file["phases"])


def numbered(rows: Iterable[Any], units: int, end: int) -> dict[int, list[Any]]:
    """Step -> (source, target, origin, units of the part); `end` is the column that counts them."""
    place: dict[tuple[int, int], int] = defaultdict(int)
    by_step: dict[int, list[Any]] = defaultdict(list)
    for source, target, origin, fraction, step in rows:
        first = place[(source, target)[end], origin]
        place[(source, target)[end], origin] = last = first + int(fraction * units)
        by_step[step].append((source, target, origin, range(first, last)))
    return by_step


def spreads(rows: list[Any], units: int, servers: int, origins: Iterable[int]) -> None:
    held: list[dict[int, set[int]]] = [defaultdict(set) for _ in range(servers)]
    for origin in origins:
        held[origin][origin] = set(range(units))
    for _, moves in sorted(numbered(rows, units, 1).items()):
        assert all(set(part) <= held[source][origin] for source, _, origin, part in moves)
        for _, target, origin, part in moves:
            assert not held[target][origin] & set(part)
            held[target][origin] |= set(part)
    for has in held:
        assert all(has[origin] == set(range(units)) for origin in origins)


def sums_up(rows: list[Any], units: int, servers: int) -> None:
    """Sums have bits of the servers whose values are in them, by origin, unit and holder."""
    sums = np.zeros((servers, servers, units), dtype=object)
    for server in range(servers):
        sums[server] = 1 << server
    for _, moves in sorted(numbered(rows, units, 0).items()):
        sent = [sums[source, origin, list(part)].copy() for source, _, origin, part in moves]
        for (source, _, origin, part), _ in zip(moves, sent, strict=True):
            sums[source, origin, list(part)] = 0
        for (_, target, origin, part), values in zip(moves, sent, strict=True):
            assert not (sums[target, origin, list(part)] & values).any()
            sums[target, origin, list(part)] += values
    for origin in range(servers):
        assert (sums[origin, origin] == (1 << servers) - 1).all()


def changed(
    file: dict[str, Any], row: int, column: int, value: Callable[[Any], Any]
) -> dict[str, Any]:
    step = file["phases"][0]["steps"][row]
    step[column] = value(step[column])
    return file


def without_half(file: dict[str, Any]) -> dict[str, Any]:
    """Without a part that no other server gets from its receiver (of sums: its sender)."""
    rows = file["phases"][0]["steps"]
    rows.remove(next(row for row in rows if row[3] == 0.5))
    return file


def shorter(file: dict[str, Any], row: int) -> dict[str, Any]:
    file["phases"][0]["steps"][row].pop()
    return file


def with_field(file: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return file | {name: value}


def with_shard(file: dict[str, Any], size: float) -> dict[str, Any]:
    file["phases"][0]["shard_bytes"] = size
    return file


# On a ring of 6: servers receive (or send) the shards of 5 others each, one of these in halves.
FAULTS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], tuple[object, ...]]] = {
    "no such link": (lambda f: changed(f, 7, 0, lambda s: (s + 3) % 6), ("phases[0].steps[7]",)),
    "no such server": (lambda f: changed(f, 3, 1, lambda _: 6), ("phases[0].steps[3].target", 6)),
    "no such origin": (lambda f: changed(f, 3, 2, lambda _: -1), ("phases[0].steps[3].origin", -1)),
    "too early": (lambda f: changed(f, 2, 4, lambda _: -1), ("phases[0].steps[2].step", -1)),
    "nothing": (lambda f: changed(f, 4, 3, lambda _: 0.0), ("phases[0].steps[4].fraction", 0)),
    "a word": (lambda f: changed(f, 4, 3, lambda _: "half"), ("phases[0].steps[4].fraction",)),
    "a short row": (lambda f: shorter(f, 5), ("phases[0].steps[5]", "fraction")),
    "half a shard is missing": (without_half, ("phases[0].steps:", 0.5)),
    "other bytes": (lambda f: with_shard(f, 7.0), ("phases[0].shard_bytes", 7)),
    "no phase": (lambda f: with_field(f, "phases", []), ("phases", "none")),
    "another collective": (lambda f: with_field(f, "collective", "all_reduce"), ("phases",)),
    "too many bytes": (lambda f: with_field(f, "bytes", 10**30), ("bytes",)),
    "no bytes": (lambda f: with_field(f, "bytes", 0), ("bytes", 0)),
}


def written(collective: Collective, algorithm: str = "breadth_first") -> dict[str, Any]:
    servers, rates = GRAPHS["ring"]
    schedule = LinkGraph(servers, rates).schedule(collective, servers * 4096, algorithm)
    file: dict[str, Any] = json.loads(schedule.to_json())
    return file


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_wrong_schedule_is_refused_with_its_row(collective: Collective, fault: str) -> None:
    spoil, tokens = FAULTS[fault]
    with refused(DocumentError, *tokens):
        CollectiveScheduleFile.from_json(json.dumps(spoil(written(collective))))


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_part_is_sent_on_only_after_it_arrives(collective: Collective) -> None:
    """Every row of a later (or, of sums, an earlier) step fails once it is in the step of all."""
    original = written(collective)
    rows = original["phases"][0]["steps"]
    relayed = [i for i, (s, t, o, *_) in enumerate(rows) if o not in (s, t)]
    assert len(relayed) == 6 * 4  # of 5 others, two are neighbours; one of the rest has two parts
    for i in relayed:
        file = json.loads(json.dumps(original))
        changed(file, i, 4, lambda _: 0 if collective == "all_gather" else 2)
        with pytest.raises(DocumentError) as error:
            CollectiveScheduleFile.from_json(json.dumps(file))
        assert f"phases[0].steps[{i}]:" in str(error.value)


def test_a_part_twice_is_refused() -> None:
    file = written("all_gather")
    rows = file["phases"][0]["steps"]
    rows.insert(1, list(rows[0]))
    with refused(DocumentError, "phases[0].steps[1].fraction"):
        CollectiveScheduleFile.from_json(json.dumps(file))


def test_the_root_of_a_broadcast_is_server_0() -> None:
    file = changed(written("broadcast"), 1, 2, lambda _: 3)
    with refused(DocumentError, "phases[0].steps[1].origin", 3):
        CollectiveScheduleFile.from_json(json.dumps(file))


def test_messages_over_routes_have_no_schedule_of_parts() -> None:
    servers, rates = GRAPHS["ring"]
    with refused(NotOverLinksError, "tree"):
        LinkGraph(servers, rates).schedule("all_reduce", 1000, "tree")
    servers, rates = GRAPHS["a hub"]
    with refused(NotOverLinksError, 1, 2):
        LinkGraph(servers, rates).schedule("all_gather", 1000, "ring")


@pytest.mark.parametrize(
    ("file", "tokens"),
    [
        ({"servers": 1, "links": []}, ("servers", 1)),
        ({"servers": 10**9, "links": []}, ("servers", 10**9)),
        ({"servers": 3, "links": [[0, 3, 1.0]]}, ("links[0].target", 3)),
        ({"servers": 3, "links": [[0, 1, 1.0], [-1, 2, 1.0]]}, ("links[1].source", -1)),
        ({"servers": 3, "links": [[0, 0, 1.0]]}, ("links[0]", 0)),
        ({"servers": 2, "links": [[0, 1, 1.0], [1, 0, 0]]}, ("links[1].gbps", 0)),
        ({"servers": 2, "links": [[0, 1, 1.0], [1, 0, "1"]]}, ("links[1].gbps",)),
        ({"servers": 2, "links": [[0, 1, 1.0], [1, 0, 2e4]]}, ("links[0].gbps", 1, "links[1]")),
        ({"servers": 2, "links": [[0, 1, 1.0], [1, 0]]}, ("links[1]", "gbps")),
        ({"servers": 2, "links": [[0, 1, 1.0]]}, ("links", 0, 1)),
        ({"servers": 3, "links": [[0, 1, 1.0], [1, 0, 1.0]]}, ("links", 2)),
        ({"servers": 2, "links": 7}, ("links",)),
        ({"servers": 2}, ("links",)),
        ({"version": 2, "servers": 2, "links": []}, ("version", 2)),
        ({"servers": 2, "links": [], "ports": 3}, ("ports",)),
    ],
)
def test_a_graph_that_is_none_is_refused(file: dict[str, Any], tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        GraphFile.from_json(json.dumps(file))


def test_rates_of_repeated_links_add_up() -> None:
    file = GraphFile.from_json('{"servers": 2, "links": [[0, 1, 1], [1, 0, 3], [0, 1, 2.5]]}')
    assert pair_rates(file.links) == {(0, 1): 3.5, (1, 0): 3.0}
    assert GraphFile.from_json(file.to_json()) == file


@pytest.mark.parametrize(
    ("servers", "mode", "steps", "over_bound"), [(16, "paper", 4, 1.0), (64, "best", 4, 1.06)]
)
def test_auto_against_the_breadth_first_formula_and_the_old_algorithms(
    servers: int, mode: Any, steps: int, over_bound: float
) -> None:
    """At most 1.02 times the published formula, and never slower than rings and trees."""
    cluster = Cluster(servers=servers, degree=4, link_gbps=GBPS)
    search = NetworkSearch(budget_s=0.5 if mode == "best" else None)
    network = find_network(cluster, default_demand(servers), mode=mode, search=search)
    rates = cluster.pair_gbps(network.links)
    graph = LinkGraph(servers, rates, network.groups[0].rings)
    shards = breadth_first_shards(servers, rates)
    assert len(shards) == steps
    assert sum(shards) <= over_bound * (servers - 1) / 4 + 1e-9
    for collective, phases in (("all_reduce", 2), ("all_gather", 1)):
        for size in (1 << k for k in range(10, 29, 6)):
            priced = graph.priced(collective, size)  # type: ignore[arg-type]
            seconds = {each.algorithm: each.seconds for each in priced.candidates}
            transfer_s = sum(shards) * size / servers / BYTES_PER_S
            formula_s = phases * (steps * (ALPHA_S + HOP_S) + transfer_s)
            assert seconds[priced.auto] <= 1.02 * formula_s, (collective, size)
            old_s = min(value for name, value in seconds.items() if name in OLD)
            assert seconds[priced.auto] <= old_s, (collective, size)


def breadth_first_shards(servers: int, rates: Any) -> list[float]:
    """For every step of an all_gather, shards on the busiest link: a linear program for each
    receiver splits the shards that it receives over its links."""
    into: dict[int, list[int]] = defaultdict(list)
    for source, target in rates:
        into[target].append(source)
    distance = np.full((servers, servers), servers)  # from a source to a target
    np.fill_diagonal(distance, 0)
    for _ in range(servers):
        for target, near in into.items():
            distance[:, target] = np.minimum(distance[:, target], distance[:, near].min(1) + 1)
    shards = []
    for step in range(1, int(distance.max()) + 1):
        most = 0.0
        for target, near in into.items():
            origins = np.flatnonzero(distance[:, target] == step)
            pairs = [(o, u) for o in origins for u in near if distance[o, u] == step - 1]
            covers = np.array([[float(o == pair[0]) for pair in pairs] + [0.0] for o in origins])
            loads = np.array([[float(u == pair[1]) for pair in pairs] + [-1.0] for u in near])
            if len(origins):
                cost = np.zeros(len(pairs) + 1)
                cost[-1] = 1
                solved = linprog(cost, loads, np.zeros(len(near)), covers, np.ones(len(origins)))
                most = max(most, float(solved.fun))
        shards.append(most)
    return shards
