"""The price lists of `advise` and `compare`, of which --prices names the one to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_topoopt.comparison.cabling.advice import CablingOption
    from torch_topoopt.comparison.compare import Compared
    from torch_topoopt.comparison.same_time import SameTime


@dataclass(frozen=True)
class PriceList:
    """`field` is that of a priced network with its cost by this list, in dollars."""

    name: str
    field: str
    legend: str

    def cost(self, priced: CablingOption | Compared | SameTime) -> float | None:
        """Of a whole network; None where the list lacks its parts."""
        dollars: float | None = getattr(priced, self.field)
        return dollars

    @property
    def heading(self) -> str:
        """Of a column or row of costs."""
        return f"cost, {self.name}"


LISTS = {
    "topoopt": PriceList(
        "TopoOpt prices",
        "cost",
        "TopoOpt prices: NICs, transceivers, switch ports, and 500 m of fibre for each cable "
        "(Table 2 of that paper); --prices hammingmesh shows another list",
    ),
    "hammingmesh": PriceList(
        "HammingMesh prices",
        "cable_cost",
        "HammingMesh prices: copper or optical cables and switch ports, without NICs (section "
        "III-C of that paper); they cannot be compared with those of --prices topoopt",
    ),
}
