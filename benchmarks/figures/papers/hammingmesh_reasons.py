"""Why numbers of Table II of the HammingMesh paper are not ours, a line each.

tests/benchmarks/test_hammingmesh_causes.py computes these reasons, and docs/planning/hammingmesh.md
has a line for each. Our values are those of the flow level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRICE = "the paper's has the price of AoCs for what its text calls DACs"
_FORWARDING = (
    "four ports of accelerators that forward leave {most} %; the paper's takes a switch of its own "
    "for each accelerator, as its simulator's HyperX has, which its cost has not"
)
_LEAVES = (
    "{printed} % is what leaves of 32 + {uplinks} ports leave, used evenly; Appendix C's, of which "
    "the cost is, have more cables to some of their {spines} spines than to others, and an even "
    "split uses those less"
)
_LOCAL = (
    "links inside of groups leave {left} % where a source takes the link to another group that has "
    "its number, or the next (SST's adaptive-local); here all shortest paths, split evenly"
)
_SHIFTS = "all shifts at once; one after the other, in dimension order, leave {left} %"
_STEPS = (
    "of 16 GiB, a seventh goes to 2 (p - 1) steps of 100 ns a cable; 256 GiB reach 99 % on the "
    "nonblocking tree"
)

REASONS: Mapping[tuple[str, str, str], str] = {
    ("small", "2D torus", "cost_mdollar"): _PRICE,
    ("large", "2D torus", "cost_mdollar"): _PRICE,
    ("small", "2D HyperX (Hx1Mesh)", "global_percent"): _FORWARDING.format(most=51.6),
    ("large", "2D HyperX (Hx1Mesh)", "global_percent"): _FORWARDING.format(most=50.4),
    ("small", "50 % tapered fat tree", "global_percent"): _LEAVES.format(
        printed=51.2, uplinks=16, spines=9
    ),
    ("small", "75 % tapered fat tree", "global_percent"): _LEAVES.format(
        printed=25.7, uplinks=8, spines=5
    ),
    ("large", "75 % tapered fat tree", "global_percent"): (
        "the first uplink of every switch of a pod is dealt to core switches before the second; "
        "dealt switch by switch the same parts have 15.7 %, and the paper does not say which"
    ),
    ("small", "Dragonfly", "global_percent"): _LOCAL.format(left=63.9),
    ("large", "Dragonfly", "global_percent"): _LOCAL.format(left=72.2),
    ("small", "2D torus", "global_percent"): _SHIFTS.format(left=2.3),
    ("large", "2D torus", "global_percent"): _SHIFTS.format(left=0.58)
    + "; the paper's is between the two",
    (
        "large",
        "Hx4Mesh",
        "global_percent",
    ): "split evenly; the best split that was found has 12.9 %",
    ("small", "Dragonfly", "diameter"): (
        "two cables of accelerators, one between groups and one inside of one"
    ),
    ("small", "Hx4Mesh", "diameter"): (
        "one switch joins all rows of a board; the formula assumes one each"
    ),
} | {
    ("large", name, "allreduce_percent"): _STEPS
    for name in (
        "nonblocking fat tree",
        "50 % tapered fat tree",
        "75 % tapered fat tree",
        "Dragonfly",
        "2D HyperX (Hx1Mesh)",
    )
}
