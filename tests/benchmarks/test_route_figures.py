"""Figures of route control: what their cells compute, and what is made of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from figures.cells import route_topoopt, routes
from figures.registry import all_figures

if TYPE_CHECKING:
    from figures.figure import Made

SLOWER = {"ecmp": 4.0, "annealing": 2.0, "greedy": 1.5, "local-search": 1.0, "exact": 1.0}


def row_of(function: str, parameters: dict[str, Any]) -> Any:
    """Every scheme is slower by its factor, and everything by 1 for each dead spine."""
    if function == "dead_link_loads":
        return {scheme: [slower] for scheme, slower in SLOWER.items()}
    if function == "scheme_times":
        return {"scheme_s": SLOWER.get(parameters["scheme"], 1.0), "max_link_load": 1.0}
    if function == "one_shot":
        return {"all_reduce_s": 1.5, "servers": 12, "group_ports": 6}
    if function == "figure_9":
        return {"one circuit": [0.5, 0.5], "two spines": [1.0, 1.0]}
    if function == "dollars":
        return {"TopoOpt": 1.0, "Clos": 2.0}
    slower = 1 + parameters["failed_spines"]
    draws = {
        scheme: [[SLOWER[scheme] * slower, SLOWER[scheme], 100 / SLOWER[scheme]]]
        for scheme in parameters["schemes"]
    }
    return {"schemes": draws, "compute_s": 2.0}


def made(name: str, *, quick: bool = False) -> Made:
    figure = all_figures()[name]
    cells = figure.cells(quick)
    rows = [(c.parameters, row_of(c.function.partition(":")[2], c.parameters)) for c in cells]
    return figure.make(rows, quick)


@pytest.mark.parametrize("quick", [False, True])
def test_schemes_stand_beside_the_exact_optimum(quick: bool) -> None:
    for number, greedy in ((4, 1.5), (5, 1.5), (6, 1 / 1.5)):
        found = made(f"route-{number}", quick=quick)
        over = {(q.quantity, q.mode): q.ours for q in found.quantities if "/ exact" in q.quantity}
        assert len({scheme for _, scheme in over}) == 4
        for (what, scheme), ratio in over.items():
            if scheme == "greedy":
                assert ratio == pytest.approx(greedy), what
            if scheme == "local-search":
                assert ratio == pytest.approx(1), what
        assert {row["scheme"] for row in found.csv} == set(SLOWER)


def test_numbers_of_the_authors_code_stand_beside_ours() -> None:
    beside = [q for q in made("route-4").quantities if q.paper is not None]
    assert len(beside) == 15
    for quantity in beside:
        assert quantity.ours == SLOWER[quantity.mode]
        assert quantity.reason


def test_dead_spines_are_held_against_none() -> None:
    found = made("route-8")
    ratios = {q.quantity: q.ours for q in found.quantities if q.mode == "annealing"}
    assert {what for what in ratios if "jobs: 3" in what} == {
        f"AllReduce / exact optimum, {dead} spines dead, jobs: 3, rings of 4"
        for dead in (0, 1, 4, 8)
    }
    assert list(ratios.values()) == pytest.approx([2.0] * len(ratios))
    links = [q for q in found.quantities if "dead links" in q.quantity]
    assert {(q.mode, q.ours) for q in links} == {("ecmp", 4), ("greedy", 1.5), ("local-search", 1)}


def test_latency_and_other_fabrics_have_their_rows() -> None:
    ratios = [q.ours for q in made("route-7").quantities if "local-search / greedy" in q.quantity]
    assert ratios == [pytest.approx(1 / 1.5)] * 4
    found = made("route-topoopt").quantities
    assert {q.mode for q in found if q.mode} == {
        *("TopoOpt, paper", "TopoOpt, best", "Clos, ecmp, 3 jobs", "Clos, local-search, 3 jobs"),
    }
    assert [q.ours for q in found if "Figure 9" in q.quantity] == [0.5, 1.0]
    assert found[-1].ours == 2.0


def test_a_cell_gives_the_first_jobs_means_under_every_scheme() -> None:
    parameters: dict[str, Any] = {
        **{"model": "bloom", "jobs": 2, "copies": 2, "placed_by": "racks", "failed_spines": 0},
        **{"fail_at_s": 0.0, "schemes": ["greedy", "local-search", "exact"], "draws": 2},
        **{"iterations": 1, "in_rounds": True, "seed": 4},
    }
    row = routes.job_times(**parameters)
    assert row == routes.job_times(**parameters)
    assert row["compute_s"] > 1
    for draw in range(2):
        greedy, ours, exact = (row["schemes"][name][draw] for name in parameters["schemes"])
        assert ours[0] == pytest.approx(exact[0])
        assert exact[0] <= greedy[0] * (1 + 1e-9) <= 2 * exact[0] * (1 + 1e-9)


def test_jobs_beside_the_first_fit() -> None:
    for seed in range(10):
        jobs = routes.drawn_jobs("llama2-70b", 3, 8, "racks", seed)
        assert jobs[0].model.name == "llama2-70b"
        assert sum(8 * job.model.parts for job in jobs) <= 2048


def test_a_one_shot_topology_gives_rings_the_ports_that_lead_into_their_group() -> None:
    found = route_topoopt.one_shot(model="bloom", copies=2, mode="best", seed=0)
    alone_s = 176e9 * 4 / 48 * 8 / 100e9  # with all eight ports of a server
    assert found["all_reduce_s"] == pytest.approx(alone_s * 8 / found["group_ports"])


def test_exact_solutions_have_a_limit() -> None:
    row = routes.scheme_times(flows=200, scheme="exact", repeats=1, exact_limit_s=1e-3, seed=0)
    assert row == {"scheme_s": None, "max_link_load": None}
