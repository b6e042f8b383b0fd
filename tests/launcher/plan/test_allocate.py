"""`topoopt allocate`: output and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named, refused

from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from pathlib import Path

JOBS = [
    {"name": "a", "shape": "2x3"},
    {"name": "b", "boards": 4},
    {"name": "c", "shape": "1x4"},
    {"name": "d", "shape": "3x3"},
]


def written(folder: Path, value: object) -> str:
    path = folder / "jobs.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def allocated(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["allocate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("scheme", ["greedy", "ruin-recreate"])
@pytest.mark.parametrize("options", [(), ("--transpose", "--aspect", "--sort"), ("--locality",)])
def test_every_job_has_its_boards_or_is_said_not_to_fit(
    scheme: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = written(tmp_path, JOBS)
    words = ("--boards", "5x4", "--jobs", jobs, "--failed", "1", "--scheme", scheme, *options)
    found = allocated(capsys, *words)
    [failed] = found["failed_boards"]
    used = []
    for entry in found["placement"]:
        places = [[r, c] for r in entry["rows"] for c in entry["columns"]]
        assert entry["shape"] == f"{len(entry['rows'])}x{len(entry['columns'])}"
        assert [one["board"] for one in entry["virtual"]] == places
        for one in entry["virtual"]:
            row, column = one["is"]
            assert one["board"] == [entry["rows"][row], entry["columns"][column]]
        used += places
    assert failed not in used
    assert len({tuple(board) for board in used}) == len(used) == found["allocated_boards"]
    assert found["utilisation"] == len(used) / found["working_boards"] == len(used) / 19
    names = {job["name"] for job in (*found["placement"], *found["not_placed"])}
    assert names == {"a", "b", "c", "d"}
    again = allocated(capsys, *words)
    assert {**again, "seconds": 0} == {**found, "seconds": 0}


def test_the_placement_is_a_file_of_running_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = allocated(capsys, "--boards", "4x4", "--jobs", written(tmp_path, JOBS[:2]))
    running = [*first["placement"], {"name": "e", "boards": 2}]
    found = allocated(capsys, "--boards", "4x4", "--jobs", written(tmp_path, running))
    assert found["placement"][:2] == first["placement"]
    assert found["placement"][2]["name"] == "e"


def test_defragmentation_says_moves_and_what_they_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        {"name": "a", "shape": "1x2", "rows": [0], "columns": [0, 1]},
        {"name": "b", "shape": "1x2", "rows": [1], "columns": [2, 3]},
        {"name": "c", "shape": "2x2"},
    ]
    words = ("--boards", "4x2", "--jobs", written(tmp_path, jobs), "--defragment")
    found = allocated(capsys, *words)
    assert [job["name"] for job in found["not_placed"]] == ["c"]
    moved = found["defragmentation"]
    assert moved["after"]["utilisation"] == 1
    assert moved["jobs_moved"] == 1
    assert [[move["name"] for move in step] for step in moved["steps"]][-1] == ["c"]
    seconds = 64 * 2**30 / 80e9
    assert moved["seconds"] == moved["transfer_seconds"] == pytest.approx(seconds)
    assert moved["sent_bytes"] == 2 * 4 * 64 * 2**30
    cheap = ("--checkpoint-bytes", "64GB", "--global-share", "1", "--restart-time", "20ms")
    found = allocated(capsys, *words, *cheap, "--board", "4x4")
    assert found["defragmentation"]["seconds"] == pytest.approx(0.1)
    assert found["defragmentation"]["sent_bytes"] == 2 * 16 * 64e9
    assert main(["allocate", *words]) == 0
    text = capsys.readouterr().out
    assert "1 job did not fit: c (2x2)" in text
    assert "1 job moved in 2 steps: 550 GB in 859 ms; utilisation 100.0% afterwards" in text


def test_people_see_tables_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, picture = written(tmp_path, JOBS), tmp_path / "boards.png"
    words = ["--boards", "5x5", "--jobs", jobs, "--failed-boards", "0:0,4:4"]
    assert main(["allocate", *words, "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "of 23 working boards, 2 failed (ruin-recreate)" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("jobs", "tokens"),
    [
        ("[", ("jobs", "jobs.json", "JSON")),
        ({}, ("jobs.json", "JSON")),
        ([3], ("jobs[0]", 3, "name", "shape", "boards")),
        ([{"name": "a"}], ("jobs[0]", "object")),
        ([{"name": "a", "shape": "1x1", "boards": 1}], ("jobs[0]", "object")),
        ([{"name": "", "boards": 1}], ("jobs[0].name", 1, 64)),
        ([{"boards": 1}], ("jobs[0].name", "null")),
        ([{"name": "a", "boards": 0}], ("jobs[0].boards", 0, 1)),
        ([{"name": "a", "boards": True}], ("jobs[0].boards", "true")),
        ([{"name": "a", "shape": "2"}], ("jobs[0].shape", 2, "ROWSxCOLUMNS")),
        ([{"name": "a", "shape": "0x2"}], ("jobs[0].shape", "0x2", "ROWSxCOLUMNS")),
        ([{"name": "a", "shape": [2, 3]}], ("jobs[0].shape", "[2, 3]", "ROWSxCOLUMNS")),
        ([{"name": "a", "size": 2}], ("jobs[0]", "size")),
        ([{"name": "a", "boards": 1}] * 2, ("jobs[1].name", "a", "twice")),
        ([{"name": "a", "boards": 1, "rows": [0]}], ("jobs[0].columns", "missing")),
        (
            [{"name": "a", "boards": 2, "rows": [0], "columns": [0]}],
            ("jobs[0]", 1, 2),
        ),
        (
            [{"name": "a", "boards": 2, "rows": [1, 0], "columns": [0]}],
            ("jobs[0].rows", "[1, 0]"),
        ),
        (
            [{"name": "a", "boards": 1, "rows": ["x"], "columns": [0]}],
            ("jobs[0].rows", '["x"]'),
        ),
        (
            [{"name": "a", "boards": 1, "rows": [4], "columns": [0]}],
            ("a", "[4]", "[0]", 4),
        ),
        (
            [{"name": n, "boards": 1, "rows": [0], "columns": [0]} for n in "ab"],
            ("b", "[0, 0]"),
        ),
    ],
)
def test_bad_files_are_refused_in_a_line(
    jobs: object, tokens: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["allocate", "--boards", "4x4", "--jobs", written(tmp_path, jobs)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    with refused(ValueError, *tokens):
        raise ValueError(said.err)


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (("--boards", "4"), ("boards", 4, "COLUMNSxROWS", "16x16")),
        (("--failed-boards", "1:2,3"), ("failed-boards", 3, "ROW:COLUMN")),
        (("--failed-boards", "4:0"), ("failed", "[4, 0]", 4)),
        (("--failed", "17"), ("failed", 17, 0, 16)),
        (("--failed", "-1"), ("failed", -1, 0, 16)),
        (("--aspect", "0.5"), ("aspect", 0.5, 1)),
        (("--aspect", "nan"), ("aspect", 1, "nan")),
        (("--boards-per-leaf", "0"), ("boards per leaf", 0, 1)),
        (("--board", "2"), ("board", 2, "AxB")),
        (("--global-share", "2"), ("global-share", 2, 0, 1)),
        (("--restart-time", "3"), ("restart-time", 3)),
        (("--plot", "a.txt"), ("plot", "a.txt")),
    ],
)
def test_bad_options_are_refused_in_a_line(
    words: tuple[str, ...],
    tokens: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = written(tmp_path, JOBS)
    assert main(["allocate", "--boards", "4x4", "--jobs", jobs, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert named(said.err, *tokens)
