"""`topoopt hamiltonian`: output and errors."""

from __future__ import annotations

import json

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles


def test_json_has_the_two_cycles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hamiltonian", "12", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["columns"]) == (12, 4)
    assert [tuple(cycle) for cycle in found["cycles"]] == list(disjoint_cycles(12, 4))


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 4), (2, 6), (6, 2)])
def test_the_drawing_has_half_of_the_cables_in_heavy_lines(
    rows: int, columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hamiltonian", str(rows), str(columns)]) == 0
    *drawn, empty, first, second = capsys.readouterr().out.splitlines()
    assert not empty
    for name, line, cycle in zip(
        ("first", "second"), (first, second), disjoint_cycles(rows, columns), strict=True
    ):
        assert line == f"{name}: {' '.join(map(str, cycle))}"
    along = [line[:2] + line[5:] for line in drawn[1::2]]  # without the first server's own place
    heavy = sum(line.count("━━━") + line.endswith("━━") for line in along)
    heavy += sum(line.count("┃") for line in drawn[2::2])
    assert heavy == rows * columns
    assert drawn[0] == drawn[-1]  # what leaves below comes back above
    assert all(line[:2] == line[-2:] for line in drawn[1::2])


def test_a_large_torus_is_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hamiltonian", "3", "30"]) == 0
    assert "o" not in capsys.readouterr().out.replace("second", "")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["2", "5"], (2, 5, "even")),
        (["1", "9"], (2, "dimension", "leaves")),
        (["99999", "99999"], ("rows", "columns", 9999800001)),
        (["4", "x"], ("invalid int value",)),
        (["4"], ("required", "C")),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hamiltonian", *arguments]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1
