"""Earlier measurements of cables, kept where `topoopt bench link` was run.

A file per pair of cards, by their MAC addresses: another card, or another cable, begins anew.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch_topoopt.plan.codec import DocumentError, decode, json_text, write_text_atomically
from torch_topoopt.plan.kept_files import kept_file
from torch_topoopt.plan.units import format_gbps
from torch_topoopt.tools.doctor.findings import Finding
from torch_topoopt.tools.doctor.link_rates import cable_ends

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch_topoopt.tools.doctor.findings import Site

_MOST = 100  # measurements of a cable
_SLOWER = 0.8  # of the earlier rate: less than measurements vary on a busy host


@dataclass(frozen=True)
class KeptMeasurement:
    """`when` in ISO 8601; `gbps`: of the slower direction."""

    when: str
    gbps: float


def history_file(site: Site, cable: tuple[str, str]) -> Path:
    macs = [
        interface.mac or name
        for name, (_, interface) in zip(cable, cable_ends(site, cable), strict=True)
    ]
    return kept_file("link", sorted(macs))


def read_history(site: Site, cable: tuple[str, str]) -> tuple[KeptMeasurement, ...]:
    """The oldest first; none if an end is unknown. Raises DocumentError for a damaged file."""
    if len(cable_ends(site, cable)) < len(cable):
        return ()
    path = history_file(site, cable)
    try:
        kept: tuple[KeptMeasurement, ...] = decode(
            tuple[KeptMeasurement, ...], json.loads(path.read_text())["measurements"]
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DocumentError(f"{path}: no history of a cable ({error}); remove it") from None
    return kept


def keep(site: Site, cable: tuple[str, str], measured: KeptMeasurement) -> None:
    """Raises OSError, and DocumentError for a damaged file."""
    kept = [*read_history(site, cable), measured][-_MOST:]
    path = history_file(site, cable)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json_text({"measurements": [asdict(one) for one in kept]})
    write_text_atomically(path, text + "\n")


def earlier_gbps(history: tuple[KeptMeasurement, ...]) -> float | None:
    """The usual rate of earlier measurements, if the last one is much slower; else None."""
    if len(history) < 2:
        return None
    usual = statistics.median(one.gbps for one in history[:-1])
    return usual if history[-1].gbps < _SLOWER * usual else None


def slower_cables(site: Site) -> Iterator[Finding]:
    """Cables whose last measurement is much below the earlier ones; reads the kept files."""
    for cable in site.file.cables if site.file else ():
        history = read_history(site, cable)
        earlier = earlier_gbps(history)
        if earlier is not None:
            yield Finding(
                *("warning", "slower", cable[0].partition(":")[0], " - ".join(cable)),
                what=f"carried {format_gbps(history[-1].gbps)} on {history[-1].when[:10]}, and "
                f"{format_gbps(earlier)} before",
                why="every ring waits for its slowest link",
                advice="check card, cable and module, then run `topoopt bench link` again",
            )
