"""The contract of fabric drivers: make a Plan's links real, verify them, and release them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch_topoopt.links.wiring import Wiring
    from torch_topoopt.plan import Plan


class FabricDriver(Protocol):
    """Controls one fabric. A driver wires at most one Plan at a time."""

    name: str

    def connect(self, plan: Plan) -> Wiring:
        """Opens exactly the plan's links and verifies each from both ends; raises FabricError."""
        ...

    def close(self) -> None:
        """Releases everything; does nothing if nothing is wired."""
        ...
