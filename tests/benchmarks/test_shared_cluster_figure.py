"""Figure 16: what is made of the rows of its cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from figures.charts import shared
from figures.registry import all_figures

if TYPE_CHECKING:
    from figures.figure import Quantity

NETWORKS = {
    "Ideal Switch": (800.0, 1.0),
    "TopoOpt": (800.0, 1.0),
    "Fat-tree, Table 2": (250.0, 2.0),
    "Fat-tree, d B' = B": (100.0, 4.0),
    "Oversub. Fat-tree": (800.0, 1.5),
}


def row_of(parameters: dict[str, Any], slower: float) -> Any:
    """Every network takes so many seconds times the load; the tail is twice the mean."""
    if "placement" not in parameters:
        levels = {"Fat-tree, Table 2": 1.0, "TopoOpt": 1.0}
        return {"mean_s": {"flow": levels, "packet": dict.fromkeys(levels, 1.1)}}
    return {
        "points": [
            {
                **{"jobs": jobs, "network": name, "server_gbps": gbps},
                **{"mean_s": factor * jobs * slower, "p99_s": 2 * factor * jobs * slower},
                "models": {"candle:x": {"mean_s": 2.0}, "vgg": {"mean_s": 2.0}},
            }
            for jobs in parameters["jobs"]
            for name, (gbps, factor) in NETWORKS.items()
        ],
        "compute_s": {"candle:x": 1.0, "vgg": 2.0},
    }


@pytest.mark.parametrize("quick", [True, False])
def test_ratios_are_means_over_loads_and_say_what_bounds_them(quick: bool) -> None:
    figure = all_figures()["16"]
    results = [
        (cell.parameters, row_of(cell.parameters, 1.0 + i))
        for i, cell in enumerate(figure.cells(quick))
    ]
    made = figure.make(results, quick)
    found: dict[tuple[str, str], Quantity] = {(q.quantity, q.mode): q for q in made.quantities}
    way = "servers by lot, a path for each flow"
    for tree, (_, factor) in NETWORKS.items():
        if "Fat-tree" not in tree:
            continue
        kind = tree.partition(",")[0]
        mode = way if kind == tree else f"{tree}; {way}"
        mean = found[f"{kind} / TopoOpt, mean, mean over loads", mode]
        tail = found[f"{kind} / TopoOpt, tail, all servers loaded", mode]
        assert mean.ours == tail.ours == pytest.approx(factor)
        assert mean.paper == {"Fat-tree": 1.7, "Oversub. Fat-tree": 1.15}[kind]
        assert ("3.20 times slower" in mean.reason) == (tree == "Fat-tree, Table 2" and not quick)
        assert ("compute 75%" in mean.reason) != quick
    packets = found.get(("packet level over flow level, 19 % load", "TopoOpt"))
    assert (packets is None) == quick
    assert packets is None or packets.ours == pytest.approx(1.1)
    runs = sum("placement" in parameters for parameters, _ in results)
    assert len(made.csv) == runs * len(NETWORKS) * (2 if quick else 5)
    assert figure is shared.FIGURES[0]
