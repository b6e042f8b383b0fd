"""benchmarks/lost_cables.py: the links that are left, and a row of its table."""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING

import lost_cables

from torch_topoopt.plan import Link

if TYPE_CHECKING:
    import pytest


def test_a_lost_cable_takes_both_of_its_links_and_no_parallel_ones() -> None:
    links = [Link(0, 0, 1, 0), Link(1, 0, 0, 0), Link(0, 1, 1, 1), Link(1, 1, 0, 1)]
    left = lost_cables.without_cables(links, 1, random.Random(1))
    assert left in (links[:2], links[2:])
    assert lost_cables.without_cables(links, 2, random.Random(1)) == []


def test_the_packing_reaches_the_bound_after_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    lost_cables.run(
        argparse.Namespace(servers=(8,), degrees=(4,), modes=("paper",), draws=2, seed=3)
    )
    header, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [dict(zip(header, row, strict=True))["lost"] for row in rows] == ["1", "2"]
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        assert float(cells["bound"]) == 1
        assert 0.25 <= float(cells["intact"]) < 1
