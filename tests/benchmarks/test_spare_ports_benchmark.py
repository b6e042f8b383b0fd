"""benchmarks/spare_ports.py: its phases, and its table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import spare_ports

if TYPE_CHECKING:
    import pytest

# since the fault, seconds, lost, after the fault
ROWS = [
    (0.0, 1.0, False, False),
    (0.0, 1.0, False, False),
    (0.1, 9.0, False, True),  # not noticed yet
    (1.0, 9.0, True, True),
    (3.0, 2.0, True, True),
    (5.0, 9.0, False, True),
    (6.0, 1.0, False, True),
]


def test_calls_belong_to_phases_and_those_of_a_change_to_none() -> None:
    assert spare_ports.phases(ROWS) == {
        "planned": [(0.0, 1.0), (0.0, 1.0)],
        "lost": [(3.0, 2.0)],
        "spare": [(6.0, 1.0)],
    }


def test_the_table_has_rates_and_leaves_out_phases_without_calls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {1: spare_ports.phases(ROWS), 0: spare_ports.phases(ROWS[:5])}
    monkeypatch.setattr(spare_ports, "measure", lambda options, spares: measured[spares])
    spare_ports.run(argparse.Namespace(servers=4, bytes=1_000_000_000))
    _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [(row[0], row[1], float(row[3])) for row in rows] == [
        ("1", "planned", 12.0),
        ("1", "lost", 6.0),
        ("1", "spare", 12.0),
        ("0", "planned", 12.0),
        ("0", "lost", 6.0),
    ]
