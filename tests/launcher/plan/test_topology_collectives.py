"""`topoopt topology --collective`, `--links`, `--schedule` and `--check-schedule`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from pathlib import Path

RING = {"servers": 6, "links": [[i, j % 6, 25] for i in range(6) for j in (i + 1, i + 5)]}


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["topology", *arguments]) == 0
    return capsys.readouterr().out


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(output(capsys, *arguments, "--json"))
    return value


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refusal."""
    assert main(["topology", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    return line


@pytest.fixture
def ring(tmp_path: Path) -> str:
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(RING))
    return str(path)


@pytest.fixture
def schedule(tmp_path: Path, ring: str, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "steps.json"
    output(capsys, "--links", ring, "--collective", "all_gather", "--bytes", "6kB",
           "--schedule", str(path))  # fmt: skip
    return path


def test_a_network_gets_its_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--servers", "16", "--degree", "4", "--bandwidth", "100Gbps", "--mode", "paper")
    found = results(capsys, *shape, "--collective", "all_reduce", "--bytes", "1MB")
    assert (found["collective"], found["bytes"]) == ("all_reduce", 1000000)
    by_name = {each["algorithm"]: each for each in found["candidates"]}
    assert {"ring", "multi_ring", "breadth_first", "packing", "tree"} <= by_name.keys()
    for each in by_name.values():
        assert each["bound_bytes"] == pytest.approx(2 * 15 / 16 * 1e6 / 4)
        assert each["bound_seconds"] == pytest.approx(each["bound_bytes"] / 12.5e9)
        assert each["seconds"] >= by_name[found["auto"]]["seconds"]
    best = by_name["breadth_first"]
    assert found["auto"] == "breadth_first"
    assert best["steps"] == 8
    assert best["seconds"] == pytest.approx(8 * 3e-6 + best["bound_seconds"], rel=1e-3)
    assert by_name["multi_ring"]["steps"] == 30
    assert "candidates" not in results(capsys, *shape)


def test_latencies_are_options(capsys: pytest.CaptureFixture[str], ring: str) -> None:
    asked = ("--links", ring, "--collective", "all_gather", "--bytes", "60kB")
    free = results(capsys, *asked, "--alpha", "0s", "--hop", "0s")
    assert min(c["seconds"] for c in free["candidates"]) == pytest.approx(8e-6, rel=1e-2)
    slow = results(capsys, *asked, "--alpha", "1ms", "--hop", "1ms")
    breadth_first = next(c for c in slow["candidates"] if c["algorithm"] == "breadth_first")
    assert breadth_first["seconds"] == pytest.approx(3 * 2e-3, rel=1e-2)


def test_the_table_marks_the_choice(capsys: pytest.CaptureFixture[str], ring: str) -> None:
    text = output(capsys, "--links", ring, "--collective", "broadcast", "--bytes", "64MB")
    (marked,) = (line for line in text.splitlines() if "(auto)" in line)
    json_result = results(capsys, "--links", ring, "--collective", "broadcast", "--bytes", "64MB")
    assert marked.split()[0] == json_result["auto"]
    assert named(text, "broadcast", "64 MB", "slowest cut")
    assert json_result.keys() == {"servers", "collective", "bytes", "auto", "candidates"}


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_a_schedule_is_written_and_checked(
    collective: str, capsys: pytest.CaptureFixture[str], ring: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "steps.json")
    asked = ("--collective", collective, "--bytes", "64MB", "--schedule", path)
    found = results(capsys, "--links", ring, *asked)
    checked = results(capsys, "--check-schedule", path)
    chosen = next(c for c in found["candidates"] if c["algorithm"] == found["auto"])
    assert checked["algorithm"] == found["auto"]
    assert checked["steps"] == chosen["steps"]
    assert checked["bound_bytes"] == pytest.approx(chosen["bound_bytes"])
    assert checked["busiest_link_bytes"] == pytest.approx(chosen["busiest_link_bytes"], rel=1e-3)
    assert checked["over_bound"] >= 1 - 1e-9
    assert named(output(capsys, "--check-schedule", path), path, "right", collective)


def test_the_schedule_of_a_network(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    asked = ("--servers", "8", "--degree", "4", "--collective", "all_gather", "--bytes", "8MB")
    found = results(capsys, *asked, "--schedule", str(path))
    file = json.loads(path.read_text())
    assert {(s, t) for s, t, _ in file["links"]} == {(s, t) for s, t, *_ in found["links"]}
    assert file["servers"] == 8
    assert file["phases"][0]["shard_bytes"] == 1e6
    assert results(capsys, "--check-schedule", str(path))["over_bound"] == pytest.approx(1)


def test_a_wrong_schedule_ends_with_its_row(
    capsys: pytest.CaptureFixture[str], schedule: Path
) -> None:
    file = json.loads(schedule.read_text())
    file["phases"][0]["steps"][3][0] = file["phases"][0]["steps"][3][1]
    schedule.write_text(json.dumps(file))
    assert named(error(capsys, "--check-schedule", str(schedule)), schedule, "phases[0].steps[3]")


def test_an_algorithm_without_parts_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On a ring of one direction, trees over routes are faster for few bytes."""
    path = tmp_path / "steps.json"
    ring = tmp_path / "one_way.json"
    ring.write_text(json.dumps({"servers": 5, "links": [[i, (i + 1) % 5, 100] for i in range(5)]}))
    asked = ("--links", str(ring), "--collective", "broadcast", "--bytes", "8B")
    assert results(capsys, *asked)["auto"] == "tree"
    refusal = error(capsys, *asked, "--schedule", str(path))
    assert named(refusal, "--schedule", "tree", "--bytes")
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ("--servers 4 --bytes 1MB", ("--bytes", "--collective")),
        ("--servers 4 --alpha 1us", ("--alpha",)),
        ("--servers 4 --hop 1us", ("--hop",)),
        ("--servers 4 --schedule {folder}/s.json", ("--schedule",)),
        ("--servers 4 --collective all_reduce", ("bytes",)),
        ("--servers 4 --collective all_reduce --bytes 0B", ("--bytes", 0)),
        ("--servers 4 --collective all_reduce --bytes 1", ("--bytes",)),
        ("--servers 4 --collective all_reduce --bytes 99999999999GB", ("--bytes",)),
        ("--servers 4 --collective all_reduce --bytes 1MB --alpha 2", ("--alpha",)),
        ("--servers 4 --collective gossip --bytes 1MB", ("--collective", "gossip")),
        ("--links {ring}", ("--links", "--collective")),
        ("--links {ring} --collective all_reduce", ("bytes",)),
        ("--links {ring} --collective all_reduce --bytes 1MB --degree 4", ("--degree", "--links")),
        ("--links {ring} --collective all_reduce --bytes 1MB --failures", ("--failures",)),
        ("--links {folder}/none --collective all_reduce --bytes 1MB", ("none",)),
        ("--links {word} --collective all_reduce --bytes 1MB", ("{word}", "JSON")),
        ("--links {split} --collective all_reduce --bytes 1MB", ("{split}", "links", 2)),
        ("--links {dark} --collective all_reduce --bytes 1MB", ("{dark}", "links[1].gbps", 0)),
        ("--links {stranger} --collective all_reduce --bytes 1MB", ("links[0].target", 5)),
        ("--check-schedule {ring}", ("{ring}", "--links")),
        ("--check-schedule {word}", ("{word}", "JSON")),
        ("--check-schedule {ring} --servers 4", ("--servers", "--check-schedule")),
    ],
)
def test_bad_input_is_one_line(
    arguments: str,
    tokens: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    ring: str,
) -> None:
    files = {
        "word": "hello",
        "split": json.dumps({"servers": 3, "links": [[0, 1, 10], [1, 0, 10]]}),
        "dark": json.dumps({"servers": 2, "links": [[0, 1, 10], [1, 0, 0]]}),
        "stranger": json.dumps({"servers": 3, "links": [[0, 5, 10]]}),
    }
    places = {"folder": str(tmp_path), "ring": ring}
    for name, text in files.items():
        places[name] = str(tmp_path / name)
        (tmp_path / name).write_text(text)
    expected = [str(token).format(**places) for token in tokens]
    assert named(error(capsys, *arguments.format(**places).split()), *expected)
