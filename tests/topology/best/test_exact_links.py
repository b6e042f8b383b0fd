"""Exact matchings with several ports a server: against all sets of links and the paper's rounds."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.plan import Cluster, Pair
from torch_topoopt.topology.best.exact_links import exact_links
from torch_topoopt.topology.finder.matching import (
    maximum_weight_assignment,
    maximum_weight_matching,
    wire_matchings,
)
from torch_topoopt.topology.finder.port_allocator import PortAllocator

Weights = dict[Pair, int]


@st.composite
def problems(draw: st.DrawFn, most: int = 9) -> tuple[Weights, list[int], bool]:
    """Weights of some pairs, the free ports of every server, and whether a port is duplex."""
    servers = draw(st.integers(2, most))
    pair = st.tuples(st.integers(0, servers - 1), st.integers(0, servers - 1))
    ends = pair.filter(lambda p: p[0] != p[1])
    weights = draw(st.dictionaries(ends, st.integers(0, 10**9), max_size=3 * servers))
    free = draw(st.lists(st.integers(0, 3), min_size=servers, max_size=servers))
    return weights, free, draw(st.booleans())


def worth(links: tuple[Pair, ...], weights: Weights, *, duplex: bool) -> float:
    total = 0.0
    for (a, b), times in Counter(links).items():
        weight = weights.get((a, b), 0) + (weights.get((b, a), 0) if duplex else 0)
        total += sum(weight / 2**k for k in range(times))
    return total


@settings(max_examples=60, deadline=None)
@given(problems())
def test_no_port_is_used_twice_and_every_link_is_asked_for(
    problem: tuple[Weights, list[int], bool],
) -> None:
    weights, free, duplex = problem
    links = exact_links(weights, free, duplex=duplex)
    assert links == exact_links(weights, free, duplex=duplex)
    sent = Counter(source for source, _ in links)
    received = Counter(target for _, target in links)
    for server, ports in enumerate(free):
        if duplex:
            assert sent[server] + received[server] <= ports
        else:
            assert max(sent[server], received[server]) <= ports
    asked = {p for p, weight in weights.items() if weight}
    for a, b in links:
        assert a != b
        assert (a, b) in asked or (duplex and a < b and (b, a) in asked)
    assert max(Counter(links).values(), default=0) <= 2


@settings(max_examples=40, deadline=None)
@given(problems(most=5))
def test_it_is_the_best_of_all_sets_of_links(problem: tuple[Weights, list[int], bool]) -> None:
    weights, free, duplex = problem
    pairs = sorted({(min(p), max(p)) if duplex else p for p, weight in weights.items() if weight})

    @cache
    def best(i: int, sent: tuple[int, ...], received: tuple[int, ...]) -> float:
        """Of pairs[i:] with these ports; on duplex `sent` counts both ends."""
        if i == len(pairs):
            return 0.0
        a, b = pairs[i]
        found = best(i + 1, sent, received)
        for times in (1, 2):
            s, r = list(sent), list(received)
            s[a] -= times
            (s if duplex else r)[b] -= times
            if min(s[a], s[b] if duplex else r[b]) >= 0:
                more = worth(((a, b),) * times, weights, duplex=duplex)
                found = max(found, more + best(i + 1, tuple(s), tuple(r)))
        return found

    links = exact_links(weights, free, duplex=duplex)
    least = best(0, tuple(free), tuple(free))
    assert worth(links, weights, duplex=duplex) == pytest.approx(least, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(problems())
def test_with_one_port_each_it_is_a_maximum_weight_matching(
    problem: tuple[Weights, list[int], bool],
) -> None:
    weights, free, duplex = problem
    links = exact_links(weights, [1] * len(free), duplex=duplex, copies=1)
    if duplex:
        both: Weights = {}
        for (a, b), weight in weights.items():
            both[min(a, b), max(a, b)] = both.get((min(a, b), max(a, b)), 0) + weight
        matched = maximum_weight_matching(both)
    else:
        matched = maximum_weight_assignment(weights)
    assert worth(links, weights, duplex=duplex) == pytest.approx(
        worth(matched, weights, duplex=duplex), rel=1e-6
    )


def test_it_beats_the_papers_rounds_where_the_first_round_is_greedy() -> None:
    """Algorithm 1 takes (1, 2) alone (9), then (0, 1) with (2, 3) (7): 16. A triangle has 18."""
    weights = {(0, 1): 6, (0, 2): 3, (1, 2): 9, (1, 3): 2, (2, 3): 1}
    wiring = PortAllocator(Cluster(4, 2, 100.0))
    wire_matchings(wiring, weights)
    rounds = tuple((link.source, link.target) for link in wiring.links)
    rounds = tuple((a, b) for a, b in rounds if a < b)
    assert worth(rounds, weights, duplex=True) == 16
    links = exact_links(weights, [2] * 4, duplex=True)
    assert links == ((0, 1), (0, 2), (1, 2))
    assert worth(links, weights, duplex=True) == 18


@settings(max_examples=30, deadline=None)
@given(problems(), st.integers(1, 3))
def test_it_is_never_below_the_papers_rounds(
    problem: tuple[Weights, list[int], bool], degree: int
) -> None:
    weights, free, duplex = problem
    wiring = PortAllocator(Cluster(len(free), degree, 100.0, "duplex" if duplex else "simplex"))
    wire_matchings(wiring, weights)
    links = tuple((link.source, link.target) for link in wiring.links)
    rounds = tuple((a, b) for a, b in links if a < b or not duplex)
    found = exact_links(weights, [degree] * len(free), duplex=duplex, copies=degree)
    least = worth(rounds, weights, duplex=duplex)
    assert worth(found, weights, duplex=duplex) >= least * (1 - 1e-9)


@pytest.mark.parametrize(
    ("weights", "free", "copies", "tokens"),
    [
        ({(1, 1): 2}, [1, 1], 1, ("weights", "server 1", "itself")),
        ({(0, 2): 2}, [1, 1], 1, ("weights", "(0, 2)", "0..1")),
        ({(0, 1): 2}, [1, -1], 1, ("free", -1, "server 1")),
        ({(0, 1): 2}, [1, 1], 0, ("copies", 0, 1)),
    ],
)
def test_arguments_out_of_range_are_named(
    weights: Weights, free: list[int], copies: int, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        exact_links(weights, free, duplex=True, copies=copies)
