"""`topoopt assign`: output and errors."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from support.refusals import named, refused

from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from pathlib import Path

NETWORK = ("--tors", "3", "--spines", "2")


def written(folder: Path, name: str, value: object) -> str:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


@pytest.mark.parametrize(
    "scheme", ["greedy", "ecmp", "colouring", "annealing", "exact", "local-search"]
)
def test_every_flow_gets_a_spine_and_the_busiest_link_is_said(
    scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [[0, 1], [0, 1, 2], [0, 2], [2, 1]]
    flows = written(tmp_path, "flows.json", ends)
    assert main(["assign", *NETWORK, "--flows", flows, "--scheme", scheme, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    loads: Counter[tuple[str, int, int]] = Counter()
    for (source, target, *demand), spine in zip(ends, found["assignment"], strict=True):
        loads["up", source, spine] += sum(demand) or 1
        loads["down", target, spine] += sum(demand) or 1
    assert found["max_link_load"] == max(loads.values()) >= found["bound"] == 2
    assert found["scheme"] == scheme
    assert found["seconds"] >= 0


def test_dead_links_are_avoided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flows = written(tmp_path, "flows.json", [[0, 1]] * 4)
    dead = written(tmp_path, "dead.json", [[1, 0]])
    assert main(["assign", *NETWORK, "--flows", flows, "--dead-links", dead]) == 0
    assert "4 flows over 1 spine, local-search: 4 on the busiest link" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flows", "dead", "tokens"),
    [
        ("[[0, 1]", [], ("flows", "flows.json", "JSON")),
        ({"a": 1}, [], ("flows.json", "JSON")),
        ([[0, 1], [0]], [], ("flows[1]", "[0]")),
        ([[0, 1.5]], [], ("flows[0]",)),
        ([[0, True]], [], ("flows[0]",)),
        ([[0, 1, -2]], [], ("flows[0]", -2, 0)),
        ([[0, 3]], [], ("flows[0]", "[0, 3]", 3, "ToRs")),
        ([[0, 1]], [[0, 2]], ("dead-links", "[0, 2]", 3, "ToRs", 2)),
        ([[0, 1]], [[0]], ("dead-links[0]", "[0]")),
        ([[0, 1]], [[0, 0], [0, 1]], ("flows[0]", 0, 1)),
    ],
)
def test_bad_files_are_refused_in_a_line(
    flows: object,
    dead: object,
    tokens: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [written(tmp_path, "flows.json", flows), written(tmp_path, "dead.json", dead)]
    assert main(["assign", *NETWORK, "--flows", paths[0], "--dead-links", paths[1]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    with refused(ValueError, *tokens):
        raise ValueError(said.err)


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["assign", *NETWORK, "--flows", str(tmp_path / "none.json")]) == 2
    assert named(capsys.readouterr().err, "none.json", "No such file")
