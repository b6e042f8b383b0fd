"""`topoopt alltoall`: output, files and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.reconfiguration.all_to_all.schedule_file import AllToAllScheduleFile
from torch_topoopt.reconfiguration.all_to_all.verification import verify
from torch_topoopt.reconfiguration.collectives.timeline_file import CollectiveTimelineFile

if TYPE_CHECKING:
    from pathlib import Path


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["alltoall", *arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_the_paper_s_example(capsys: pytest.CaptureFixture[str]) -> None:
    """800 Gb/s and 4 MB: a slot takes 40 us, and the delay is 7 slots."""
    example = ("--servers", "8", "--bandwidth", "800Gbps", "--latency", "0us")
    delay = ("--reconfiguration-delay", "280us", "--reconfigurations", "all")
    found = results(capsys, *example, *delay, "--mode", "paper")
    by_d = {option["reconfigurations"]: option for option in found["options"]}
    assert [by_d[d]["lower_bound_slots"] for d in range(1, 8)] == [28, 16, 12, 10, 9, 8, 7]
    assert [by_d[d]["seconds"] for d in (2, 1, 7)] == pytest.approx(
        [30 * 4e-5, 35 * 4e-5, 56 * 4e-5]
    )
    assert by_d[2]["rounds"] == [[1, 2, 3, 4], [1, 2, 3]]
    assert found["best_reconfigurations"] == 2
    ours = results(capsys, *example, *delay)
    assert ours["options"][1]["seconds"] == pytest.approx(28 * 4e-5)
    assert ours["options"][1]["slots"] == ours["options"][1]["carried_bound_slots"] == 14


def test_the_schedule_that_is_written_is_the_fastest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schedule.json"
    found = results(capsys, "--servers", "12", "--degree", "2", "--schedule", str(path))
    document = AllToAllScheduleFile.load(path)
    replay = verify(document.schedule())
    best = min(found["options"], key=lambda option: option["seconds"])
    assert replay.slots == best["slots"]
    assert replay.reconfigurations == best["reconfigurations"] == found["best_reconfigurations"]


def test_a_matrix_is_planned_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bytes.npy"
    np.save(path, np.random.default_rng(0).integers(0, 10**6, (6, 6)))
    schedule = tmp_path / "schedule.json"
    found = results(capsys, "--servers", "6", "--matrix", str(path), "--schedule", str(schedule))
    assert {"permutations"} < {option["base"] for option in found["options"]}
    assert all(o["slots"] >= o["carried_bound_slots"] > 0 for o in found["options"])
    assert AllToAllScheduleFile.load(schedule).servers == 6
    several = tmp_path / "several.npz"
    np.savez(several, a=np.ones(2), b=np.ones(2))
    text = tmp_path / "text.npy"
    text.write_text("not an array")
    for name, message in (
        (several, "has several arrays; save one"),
        (text, "is not a file of numpy.save"),
        (tmp_path / "none.npy", "No such file"),
    ):
        assert main(["alltoall", "--servers", "6", "--matrix", str(name)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_people_see_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alltoall", "--servers", "8", "--reconfiguration-delay", "1s"]) == 0
    text = capsys.readouterr().out
    assert "ring (fastest)" in text
    assert "times as fast" not in text
    assert main(["alltoall", "--servers", "64", "--reconfigurations", "all"]) == 0
    text = capsys.readouterr().out
    assert "circulant (fastest)" in text
    assert "of 63 lines; --json has all" in text
    assert named(text, "times as fast")


def test_packets_stand_beside_slots(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ("--servers", "8", "--bandwidth", "800Gbps", "--reconfigurations", "all")
    found = results(capsys, *setting, "--level", "packet", "--option", "header_bytes=1")
    for option in found["options"]:
        assert option["packet_seconds"] == pytest.approx(option["seconds"], rel=2e-4)
    assert "packet_seconds" not in results(capsys, *setting)["options"][0]
    assert main(["alltoall", *setting, "--level", "packet"]) == 0
    assert "packets" in capsys.readouterr().out


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_other_collectives_say_whether_to_move(
    collective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "timeline.json"
    setting = ["--collective", collective, "--servers", "32", "--bandwidth", "800Gbps"]
    setting += ["--bytes", "100kB", "--schedule", str(path), "--level", "packet"]
    moving = results(capsys, *setting, "--reconfiguration-delay", "100ns")
    assert moving["reconfigure"]
    for option in moving["options"]:
        assert option["seconds"] < option["packet_seconds"] < 1.01 * option["seconds"]
    assert moving["options"][0]["seconds"] == CollectiveTimelineFile.load(path).timeline().seconds
    staying = results(capsys, *setting, "--reconfiguration-delay", "1ms")
    assert not staying["reconfigure"]
    assert 1e-7 < moving["pays_up_to_delay_s"] < 1e-3
    assert staying["pays_up_to_delay_s"] == moving["pays_up_to_delay_s"]
    assert main(["alltoall", *setting, "--reconfiguration-delay", "100ns"]) == 0
    text = capsys.readouterr().out
    assert named(text, "times as fast")
    assert named(text, "pays", "delay")
    assert "packets" in text


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ("", ("servers", "--servers", 16)),
        ("--servers 1", ("servers", 1, 2, 4096)),
        ("--servers 8 --degree 8", ("degree", 8, 1, 7)),
        ("--servers 8 --reconfigurations 0", ("reconfigurations", 0, 1, 7)),
        ("--servers 8 --reconfigurations some", ("some",)),
        ("--servers 8 --reconfiguration-delay 10", (10, "us", "ms")),
        ("--servers 8 --latency fast", ("latency", "fast")),
        ("--servers 8 --bytes-per-pair 4", ("bytes-per-pair", 4, "kB")),
        ("--servers 8 --bytes-per-pair 1MB --matrix x.npy", ("leave", "out")),
        ("--servers 8 --chunk 1MB", ("chunk", "--matrix")),
        ("--servers 8 --bytes 1MB", ("bytes", "--collective")),
        ("--servers 8 --collective gossip", ("choice", "gossip")),
        ("--servers 8 --collective all_reduce --chunk 1MB", ("chunk", "all_to_all")),
        ("--servers 1 --collective all_reduce", ("servers", 1, 2, 512)),
        ("--servers 8 --collective broadcast --bytes 0B", ("bytes", 0)),
        ("--servers 8 --transport dctcp", ("level", "transport", "--level")),
        ("--servers 8 --bytes-per-pair 0B --level packet", ("0 bytes",)),
        ("--servers 8 --mode released", ("choice", "released")),
        ("--servers 4 --degree 3 --mode paper --reconfigurations 2", ("from 1 to 1",)),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    arguments: str, tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["alltoall", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1
