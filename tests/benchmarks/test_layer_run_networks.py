"""Layers in runs on every second or fourth server, as the figure has them."""

from __future__ import annotations

from figures.cells.layer_runs import iteration


def test_runs_help_where_any_servers_have_the_full_rate_and_not_on_rings_of_all() -> None:
    """NCF's AllReduce is shared by two halves; TopoOpt's ports are wired for rings."""
    times = iteration(model="ncf", servers=16, degree=4, gbps=10.0, costs="estimated", seed=0)
    alone, runs = (
        times["iteration_s"][name]
        for name in ("tables one a server", "tables one a server, 2 runs")
    )
    for network in ("Ideal Switch", "Fat-tree, d B' = B"):
        assert runs[network] < 0.9 * alone[network]
    assert runs["TopoOpt"] > alone["TopoOpt"]
