"""Cached results of floods, for later jobs on the same interfaces.

A job that measured again could choose other networks, whose rings round sums in another order.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_topoopt.plan.codec import Document, DocumentError
from torch_topoopt.plan.kept_files import kept_file, measures_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch_topoopt.discovery.probe import Probe
    from torch_topoopt.discovery.reach import Server

log = logging.getLogger("torch_topoopt")


@dataclass(frozen=True)
class MeasuredPort:
    """Measured facts of an interface. `gbps` is None if no link limited the floods."""

    server: int
    interface: str
    gbps: float | None
    latency_s: float

    @property
    def port(self) -> tuple[int, str]:
        return self.server, self.interface


@dataclass(frozen=True)
class KeptRates(Document):
    """The file of one set of hosts, in rank 0's cache."""

    KIND: ClassVar[str] = "MeasuredRates"
    VERSION: ClassVar[int] = 1

    version: int
    ports: tuple[MeasuredPort, ...]

    def validate(self) -> Self:
        for i, port in enumerate(self.ports):
            if port.gbps is not None and not port.gbps > 0:
                raise DocumentError(f"ports[{i}].gbps: {port.gbps} is not greater than 0")
        return self


def path_of(servers: Sequence[Server], reached: Iterable[Probe]) -> Path:
    """The file for these interfaces, between which these connections are possible."""
    interfaces = [[server.name, *map(asdict, server.interfaces)] for server in servers]
    ends: list[Any] = [[p.source, p.source_address, p.target, p.target_address] for p in reached]
    return kept_file("rates", [interfaces, ends])


def read(path: Path) -> tuple[MeasuredPort, ...] | None:
    """The cached rates, or None; raises DocumentError for a wrong TOPOOPT_COST_MODEL."""
    if measures_again():
        return None
    try:
        return KeptRates.load(path).ports
    except FileNotFoundError:
        return None
    except (OSError, DocumentError) as error:
        log.warning("%s is not what a job has kept there (%s); measured again", path, error)
        return None


def keep(path: Path, ports: Sequence[MeasuredPort]) -> None:
    """Saves the rates for later jobs."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        KeptRates(KeptRates.VERSION, tuple(ports)).save(path)
    except OSError as error:
        log.warning(
            "the rates that were measured cannot be kept (%s): the next job on these hosts "
            "measures again and may choose other networks",
            error,
        )
