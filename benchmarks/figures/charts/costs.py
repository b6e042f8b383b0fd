"""Tables 1 and 2, and Figure 10: what parts and networks cost."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any

from figures import plots
from figures.cell import Cell
from figures.figure import Figure, Made, Quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from figures.figure import Results

_RATES = (10, 25, 40, 100, 200)
# Table 2, by rate, in dollars.
_TABLE_2 = {
    "transceiver": (20, 39, 39, 99, 198),
    "nic": (185, 185, 354, 678, 815),
    "switch_port": (94, 144, 144, 187, 374),
}
_FIXED = {"panel_port": 100, "ocs_port": 520, "selector": 25}
_OCS_DELAY_S = 0.01  # Table 1, 3D MEMS
# Figure 10: panels d = 4, B = 100 and d = 8, B = 200; servers of fat-trees of k = 8 ... 26.
_PANELS = ((4, 100.0), (8, 200.0))
_SIZES = (128, 432, 1024, 2000, 4394)
_PAPER_OCS, _PAPER_IDEAL, _PAPER_IDEAL_4394 = 1.33, 3.2, 3.0
_PAPER_DISCOUNTED = 3.6  # as 3.0, with bulk discounts and patch panels at half price
_OPEN = (
    "the table does not say of what a link of d x B to a server is made: lanes of 100 Gb/s and "
    "NICs of 200, as priced here, make the ideal switch dear at d = 8, B = 200"
)


def _parts_cells(quick: bool) -> list[Cell]:
    return [Cell.of("figures.cells.prices:of_parts", rates=list(_RATES))]


def _table_1(results: Results, quick: bool) -> Made:
    row = results[0][1]
    ours = {
        "Optical patch panel": row["fixed"]["panel_port"],
        "3D MEMS (OCS)": row["fixed"]["ocs_port"],
    }
    paper = {"Optical patch panel": 100.0, "3D MEMS (OCS)": 520.0}

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        series = {"paper": list(paper.values()), "here": list(ours.values())}
        plots.bars(axes, list(ours), series, "price of a port (US dollars)")
        axes.legend(loc="upper left")

    quantities = [Quantity(f"{name}: dollars a port", ours[name], paper[name]) for name in ours]
    delay = Quantity("3D MEMS (OCS): reconfiguration (s)", row["ocs_delay_s"], _OCS_DELAY_S)
    csv = [{"technology": name, "dollars_a_port": ours[name]} for name in ours]
    return Made(csv, draw, [*quantities, delay], (5.0, 3.4))


def _table_2(results: Results, quick: bool) -> Made:
    row = results[0][1]
    labels = {"transceiver": "transceiver", "nic": "NIC", "switch_port": "electrical switch port"}
    fixed = {"panel_port": "patch panel port", "ocs_port": "OCS port", "selector": "1x2 switch"}

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        curves = {
            labels[part]: list(zip(_RATES, prices, strict=True))
            for part, prices in row["by_rate"].items()
        }
        flat = {fixed[part]: [(r, price) for r in _RATES] for part, price in row["fixed"].items()}
        plots.lines(
            *(axes, {**curves, **flat}, "link rate (Gb/s)", "price of a part (US dollars)"), log="x"
        )
        canvas.legend(loc="outside right center")

    csv: list[dict[str, Any]] = []
    quantities = []
    for part, prices in row["by_rate"].items():
        csv += [
            {"part": labels[part], "gbps": rate, "dollars": price, "paper": paper}
            for rate, price, paper in zip(_RATES, prices, _TABLE_2[part], strict=True)
        ]
        worst = max(
            zip(prices, _TABLE_2[part], _RATES, strict=True), key=lambda p: abs(p[0] / p[1] - 1)
        )
        what = f"{labels[part]} at {worst[2]} Gb/s, the farthest of five ($)"
        quantities.append(Quantity(what, worst[0], worst[1]))
    for part, price in row["fixed"].items():
        csv.append({"part": fixed[part], "gbps": "", "dollars": price, "paper": _FIXED[part]})
        quantities.append(Quantity(f"{fixed[part]} ($)", price, _FIXED[part]))
    return Made(csv, draw, quantities)


def _cost_cells(quick: bool) -> list[Cell]:
    networks = [
        Cell.of("figures.cells.prices:of_networks", servers=n, degree=d, gbps=b)
        for d, b in _PANELS
        for n in _SIZES
    ]
    large = Cell.of("figures.cells.prices:at_4394", degree=4, gbps=100.0)
    readings = Cell.of("figures.cells.prices:readings", points=[list(p) for p in _PANELS])
    return [*networks, large, readings]


def _figure_10(results: Results, quick: bool) -> Made:
    costs, large, readings = results[:-2], results[-2][1], results[-1][1]

    def near(reading: dict[str, Any]) -> float:
        ocs = abs(reading["ocs_over_panels"] / _PAPER_OCS - 1)
        return ocs + abs(reading["ideal_over_topoopt"] / _PAPER_IDEAL - 1)

    nearest = min(readings, key=near)

    def draw(canvas: Canvas) -> None:
        for axes, (degree, gbps) in zip(canvas.subplots(1, 2), _PANELS, strict=True):
            here = [(p, row) for p, row in costs if (p["degree"], p["gbps"]) == (degree, gbps)]
            curves = {
                name: [(p["servers"], row[name] / 1e6) for p, row in here] for name in here[0][1]
            }
            plots.lines(axes, curves, "servers", "cost (million US dollars)", log="xy")
            axes.set_title(f"d = {degree}, B = {gbps:g} Gb/s", fontsize=9)
        plots.legend_below(canvas, axes)

    ocs = mean(row["TopoOpt, OCS"] / row["TopoOpt, patch panels"] for _, row in costs)
    ideal = mean(row["Ideal Switch"] / row["TopoOpt, patch panels"] for _, row in costs)
    own, tree = large["TopoOpt"], large["Ideal Switch"]
    read = f"reading of Table 2: {nearest['reading']}"
    quantities = [
        Quantity("OCS / patch panels, mean", ocs, _PAPER_OCS, mode="as priced here"),
        Quantity("OCS / patch panels, mean", nearest["ocs_over_panels"], _PAPER_OCS, mode=read),
        Quantity(
            *("Ideal Switch / TopoOpt, mean", ideal, _PAPER_IDEAL),
            mode="as priced here",
            reason=_OPEN,
        ),
        Quantity(
            *("Ideal Switch / TopoOpt, mean", nearest["ideal_over_topoopt"], _PAPER_IDEAL),
            mode=read,
        ),
        Quantity(
            *("Ideal Switch / TopoOpt, 4394 servers, d = 4",),
            *(tree["dollars_full"] / own["dollars_full"], _PAPER_IDEAL_4394),
            mode="as priced here",
            reason=_OPEN,
        ),
        Quantity(
            *("Ideal Switch / TopoOpt, 4394 servers, d = 4, discounted",),
            *(tree["dollars_half"] / own["dollars_half"], _PAPER_DISCOUNTED),
            mode="patch panels at half price; other discounts not stated",
            reason=_OPEN,
        ),
    ]
    for name, row in large.items():
        for part, label in (("switch_ports", "electrical switch ports"), ("transceivers",) * 2):
            quantity = f"{label} of a server, which take power, 4394 servers, d = 4"
            quantities.append(Quantity(quantity, row[part], mode=name))
    csv = [{**p, "network": name, "dollars": row[name]} for p, row in costs for name in row]
    csv += [{"network": "reading", **reading} for reading in sorted(readings, key=near)]
    return Made(csv, draw, quantities, (8.0, 4.4))


FIGURES = (
    Figure(
        *("table-1", "optical switching technologies"),
        about="prices and delays that the product computes with (section 3)",
        cells=_parts_cells,
        make=_table_1,
    ),
    Figure(
        *("table-2", "cost of network components"),
        about="prices that `topoopt compare` computes with, beside the paper's (Appendix G)",
        cells=_parts_cells,
        make=_table_2,
    ),
    Figure(
        *("10", "interconnect cost over servers"),
        about="cost of networks, and 48 readings of Table 2 (section 5.2)",
        cells=_cost_cells,
        make=_figure_10,
    ),
)
