"""Readings of the TopoOpt paper's Table 2, from its cost ratios.

    python benchmarks/cost_readings.py
    python benchmarks/cost_readings.py --show 20

The paper states two means: TopoOpt with optical circuit switches costs 1.33 times what it costs
with patch panels, and the ideal switch 3.2 times (section 5.2; Figure 10 has d = 4, B = 100 Gb/s
and d = 8, B = 200). Its table leaves open how many ports share a NIC, how many 1x2 switches a
circuit needs, and of what a link of d x B to a server consists. Every reading is priced per server
of a full-bisection fat-tree of three levels (1 NIC, 6 transceivers, 5 switch ports and 3 fibres of
150 dollars a server), and listed by how far both means are from the paper's, together.
"""

from __future__ import annotations

import argparse
import itertools
from statistics import mean

from torch_topoopt.comparison.cost import FIBRE_M, TABLE_2, price_at

PAPER_OCS, PAPER_IDEAL = 1.33, 3.2
FIGURE_10 = ((4, 100), (8, 200))
ALL = tuple(itertools.product((4, 8), (10, 25, 40, 100, 200)))
_FIBRE = TABLE_2.fibre_per_m * FIBRE_M

PORTS_PER_NIC = (1, 2)
SELECTORS = (0, 1, 2)  # 1x2 switches per port on a patch panel
IDEAL_NICS = {
    "one of at most 200G": lambda d, b: price_at(TABLE_2.nic, min(d * b, 200)),
    "as many of 200G": lambda d, b: price_at(TABLE_2.nic, d * b),
    "d of B": lambda d, b: d * price_at(TABLE_2.nic, b),
    "d / 2 of B": lambda d, b: d / 2 * price_at(TABLE_2.nic, b),
}
# Ports, transceivers and fibres of a link of d x B: its lanes, and their rate.
IDEAL_LANES = {
    "d lanes of B": lambda d, b: (d, b),
    "lanes of 100G": lambda d, b: (max(1.0, d * b / 100), min(d * b, 100)),
}


def topoopt(d: int, b: float, ports_per_nic: int, selectors: int | None) -> float:
    """Dollars a server; `selectors` None: optical circuit switches."""
    optics = d * TABLE_2.ocs_port
    if selectors is not None:
        optics = d * (2 * TABLE_2.panel_port + selectors * TABLE_2.selector)
    ports = d * (price_at(TABLE_2.transceiver, b) + _FIBRE)
    return d / ports_per_nic * price_at(TABLE_2.nic, b) + ports + optics


def ideal(d: int, b: float, nics: str, lanes: str) -> float:
    count, rate = IDEAL_LANES[lanes](d, b)
    port, transceiver = price_at(TABLE_2.switch_port, rate), price_at(TABLE_2.transceiver, rate)
    return IDEAL_NICS[nics](d, b) + count * (5 * port + 6 * transceiver + 3 * _FIBRE)


def readings(points: tuple[tuple[int, int], ...]) -> list[tuple[float, str, float, float, str]]:
    """Nearest first: distance, reading, mean OCS ratio, mean ideal ratio, ideal ratio by point."""
    found = []
    for ports, selectors, nics, lanes in itertools.product(
        PORTS_PER_NIC, SELECTORS, IDEAL_NICS, IDEAL_LANES
    ):
        panels = [topoopt(d, b, ports, selectors) for d, b in points]
        ocs = [topoopt(d, b, ports, None) / p for (d, b), p in zip(points, panels, strict=True)]
        ratios = [ideal(d, b, nics, lanes) / p for (d, b), p in zip(points, panels, strict=True)]
        distance = abs(mean(ocs) / PAPER_OCS - 1) + abs(mean(ratios) / PAPER_IDEAL - 1)
        reading = f"{ports} ports a NIC, {selectors} 1x2; ideal: NICs {nics}, {lanes}"
        found.append(
            (distance, reading, mean(ocs), mean(ratios), " ".join(f"{r:.2f}" for r in ratios))
        )
    return sorted(found)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--show", type=int, default=5, help="readings a list (default: 5)")
    arguments = options.parse_args()
    for title, points in (("the two of Figure 10", FIGURE_10), ("all", ALL)):
        print(f"(d, B): {title}: {', '.join(f'{d}x{b}' for d, b in points)}")
        for _, reading, ocs, ratio, by_point in readings(points)[: arguments.show]:
            print(f"  OCS/panels {ocs:.3f}  ideal/TopoOpt {ratio:.2f} ({by_point})  {reading}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
