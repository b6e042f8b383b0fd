"""benchmarks/torus_collectives.py: its model, its crossings, and one small run as root."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torus_collectives
from support.fabric.netns_fixtures import require_namespaces

from torch_topoopt.plan.network import rings_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_model_is_that_of_the_paper() -> None:
    """p = 16: 32 steps of a ring, 16 of rows and columns, which move 9 / 16 of the bytes."""
    seconds = {
        name: torus_collectives.model_seconds(name, 1600, alpha_s=1.0, beta_s=1.0)
        for name in ("one ring", "both ways", "two rings", "torus", "trees")
    }
    assert seconds == {
        "one ring": 32 + 3200,
        "both ways": 32 + 1600,
        "two rings": 32 + 800,
        "torus": 16 + 900,
        "trees": None,
    }


def test_a_crossing_lies_where_two_lines_meet_on_logarithmic_axes() -> None:
    crossing = torus_collectives.crossing_bytes
    assert crossing({1: (1.0, 2.0), 4: (2.0, 1.0)}) == pytest.approx(2.0)
    assert crossing({1: (2.0, 1.0), 4: (2.0, 1.0)}) == 0.0
    assert crossing({1: (1.0, 2.0), 4: (1.0, 2.0)}) is None
    assert crossing({4: (1.0, 2.0), 1: (2.0, 1.0)}) is None  # faster, but no longer


def test_both_plans_have_the_same_links_and_other_rings() -> None:
    both, one = torus_collectives.plans(0.02)
    assert both.network.links == one.network.links
    everyone, single = both.network.groups[0], one.network.groups[0]
    assert len(everyone.rings) == 4
    assert everyone.grid == single.grid
    assert single.rings == tuple(rings_of([everyone.rings[0].servers], both_ways=True))


def test_hosts_of_four_links_have_four_rings() -> None:
    plan = torus_collectives.plan_of_hosts(0.02)
    (everyone,) = plan.network.groups
    assert len(plan.network.links) == 12 * 4
    assert sum(ring.share for ring in everyone.rings) == pytest.approx(1)
    assert len(everyone.rings) == 4
    assert everyone.grid == ()


def test_a_quick_run_checks_every_algorithm_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_namespaces()
    words = ["--quick", "--rounds", "1", "--networks", "2x2 Hx2Mesh", "--bandwidth", "50Mbps"]
    words += ["-J", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.png")]
    options = torus_collectives.parse_arguments(words)
    monkeypatch.setattr(options, "sizes", [1024, 8192])
    torus_collectives.benchmark(options)
    (found,) = json.loads((tmp_path / "found.json").read_text())["results"]
    assert all(len(times) == 2 for times in found["seconds"].values())
    assert len(found["seconds"]) == 7
    assert "two rings faster than torus" in capsys.readouterr().out
    assert (tmp_path / "found.svg").exists()
