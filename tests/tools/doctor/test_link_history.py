"""The doctor compares the last measurement of a cable with the earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import cluster_of
from support.refusals import named, refused
from support.sites import changed_interface, healthy

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.tools.doctor.link_history import (
    KeptMeasurement,
    history_file,
    keep,
    read_history,
    slower_cables,
)

if TYPE_CHECKING:
    from pathlib import Path

    from support.plans import RingPlan

    from torch_topoopt.tools.doctor.findings import Site


def cable(site: Site) -> tuple[str, str]:
    assert site.file is not None
    return site.file.cables[0]


@pytest.fixture
def site(ring_plan: RingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return healthy(cluster_of(ring_plan(3)))


def measured(site: Site, *gbps: float) -> None:
    for day, rate in enumerate(gbps, start=1):
        keep(site, cable(site), KeptMeasurement(f"2026-11-{day:02}T10:00:00+00:00", rate))


def test_a_cable_that_has_become_slow_is_found(site: Site) -> None:
    measured(site, 98.0, 97.0, 99.0)
    assert list(slower_cables(site)) == []
    measured(site, 24.0)
    (finding,) = slower_cables(site)
    assert (finding.level, finding.where) == ("warning", " - ".join(cable(site)))
    assert named(finding.what, "24 Gb/s", "98 Gb/s")


def test_both_directions_of_naming_are_one_cable_and_another_card_is_not(site: Site) -> None:
    measured(site, 98.0)
    assert read_history(site, cable(site)[::-1]) == read_history(site, cable(site))
    other = changed_interface(site, "h0", "p0", mac="02:00:00:00:00:99")
    assert read_history(other, cable(site)) == ()


def test_a_damaged_file_is_named(site: Site) -> None:
    measured(site, 98.0)
    path = history_file(site, cable(site))
    path.write_text('{"measurements": [{"when": 1}]}')
    with refused(DocumentError, path.name):
        read_history(site, cable(site))
