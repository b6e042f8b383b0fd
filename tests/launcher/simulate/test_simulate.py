"""`topoopt simulate`: figures, files, and one line for what cannot be."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.refusals import named
from support.small_op_graphs import embeddings

from torch_topoopt.launcher.console import Terminal
from torch_topoopt.launcher.main import main
from torch_topoopt.plan import Cluster
from torch_topoopt.planner import alternation as planner
from torch_topoopt.planner.options import PlanningOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FLOWS = """\
nodes 2 hosts 2
link 0 0 1 8e9 1000
link 1 1 0 8e9 1000
flow 0 0 1 1000 path 1 0 deps 0
flow 1 1 0 2000 path 1 1 deps 1 0
"""


@pytest.fixture
def flows(tmp_path: Path) -> str:
    path = tmp_path / "flows.txt"
    path.write_text(FLOWS)
    return str(path)


def test_ctrl_c_shows_how_far_it_came(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal comes from another thread, and most often where no Python runs."""
    path = tmp_path / "flows.txt"
    endless = "flow 2 0 1 1e13 path 1 0 deps 1 0"  # a thousand million packets
    path.write_text(FLOWS + endless)
    threads: list[threading.Timer] = []

    @contextmanager
    def progress(self: Terminal, heading: str) -> Iterator[Callable[[float, str], None]]:
        def once(fraction: float, text: str) -> None:
            if not threads:
                kill = (os.getpid(), signal.SIGINT)
                threads.append(threading.Timer(0.02, os.kill, kill))
                threads[0].start()

        yield once

    monkeypatch.setattr(Terminal, "progress", progress)
    csv = tmp_path / "flows.csv"
    command = ["simulate", "--flows", str(path), "--level", "packet", "--json"]
    assert main([*command, "--flow-csv", str(csv)]) == 130
    threads[0].join()
    figures = json.loads(capsys.readouterr().out)
    assert figures["complete"] is False
    assert figures["packet_hops"] > 2
    rows = [line.split(",") for line in csv.read_text().splitlines()[1:]]
    assert [bool(finish) for *_, finish in rows] == [True, True, False]
    assert float(rows[2][4]) < figures["completion_s"] < 1e4


def test_json_has_the_figures(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--flows", flows, "--level", "flow", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["completion_s"] == pytest.approx(5e-6)
    assert figures["flows"] == 2
    assert figures["complete"] is True
    assert figures["packet_hops"] == 0
    assert figures["events"] > 0
    assert 0 <= figures["cpu_seconds"] < 60
    assert figures["peak_memory_mb"] > 1


def test_it_writes_csv_and_a_trace(
    flows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: str(tmp_path / name) for name in ("flow-csv", "link-csv", "trace")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert main(["simulate", "--flows", flows, *options]) == 0
    assert "2 flows delivered after 5 µs" in capsys.readouterr().out
    assert (tmp_path / "flow-csv").read_text().splitlines()[0].startswith("flow,source,target")
    assert len((tmp_path / "link-csv").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "trace").read_text())["traceEvents"]


def test_until_ends_it_early(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--flows", flows, "--until", "3e-6"]) == 0
    assert "ended at 3 µs: 1 of 2 tasks done" in capsys.readouterr().out


def test_a_plan_takes_as_long_as_was_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = embeddings(4, table_bytes=10**7)
    made = planner.plan(graph, Cluster(6, 2, 10.0), PlanningOptions(evaluations=50))
    made.save(tmp_path / "plan.json")
    graph.save(tmp_path / "opgraph.json")
    path = str(tmp_path / "plan.json")
    assert main(["simulate", path, "--iterations", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["completion_s"] == pytest.approx(2 * made.prediction.iteration_s, rel=0.02)
    assert main(["simulate", path, "--iterations", "0"]) == 2
    assert named(capsys.readouterr().err, "iterations", 0, 1)
    (tmp_path / "opgraph.json").unlink()
    assert main(["simulate", path]) == 2
    assert named(capsys.readouterr().err, "--model")


def test_a_plan_is_simulated_right_after_it_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = embeddings(4, table_bytes=10**7)
    graph.save("mine.json")
    cluster = ("--servers", "4", "--degree", "3", "--bandwidth", "10Gbps", "--evaluations", "20")
    assert main(["plan", "mine.json", *cluster, "-o", "first.json"]) == 0
    assert "first.opgraph.json" in capsys.readouterr().out
    simulate = ["simulate", "first.json", "--level", "packet", "--transport", "roce"]
    assert main([*simulate, "--trace", "trace.json"]) == 0
    assert "iteration: " in capsys.readouterr().out
    assert "AllReduce of " in (tmp_path / "trace.json").read_text()
    # an OpGraph of something else does not count, and a shipped model is found by its name
    (tmp_path / "first.opgraph.json").unlink()
    embeddings(5).save("opgraph.json")
    assert main(simulate) == 2
    error = capsys.readouterr().err
    assert "neither first.opgraph.json nor opgraph.json is of 'embeddings'" in error
    assert "name what was planned with --model" in error
    assert main(["plan", "vgg:tiny", *cluster, "--no-failures"]) == 0
    (tmp_path / "plan.opgraph.json").unlink()
    assert main(["simulate", "plan.json"]) == 0


def test_a_plan_runs_packet_by_packet_on_another_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = embeddings(4, table_bytes=10**7)
    planner.plan(graph, Cluster(6, 2, 10.0), PlanningOptions(evaluations=10)).save(
        tmp_path / "plan.json"
    )
    graph.save(tmp_path / "opgraph.json")
    completion_s: dict[tuple[str, str], float] = {}
    for name in ("fat-tree", "ideal-switch"):
        for level in ("flow", "packet"):
            arguments = ["--architecture", name, "--level", level, "--json"]
            assert main(["simulate", str(tmp_path / "plan.json"), *arguments]) == 0
            figures = json.loads(capsys.readouterr().out)
            assert figures["complete"]
            assert (figures["packet_hops"] > 0) == (level == "packet")
            completion_s[name, level] = figures["completion_s"]
        # Headers take 64 of 9000 bytes, and packets wait to be whole at every switch.
        assert completion_s[name, "packet"] == pytest.approx(completion_s[name, "flow"], rel=0.02)
        assert completion_s[name, "packet"] > completion_s[name, "flow"]
    assert main(["simulate", str(tmp_path / "plan.json"), "--architecture", "tube"]) == 2
    assert "tube" in capsys.readouterr().err


def test_packets_choose_their_paths_by_the_rule_of_the_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = embeddings(4, table_bytes=10**7)
    planner.plan(graph, Cluster(16, 4, 10.0), PlanningOptions(evaluations=10)).save(
        tmp_path / "plan.json"
    )
    graph.save(tmp_path / "opgraph.json")
    on_boards = ["simulate", str(tmp_path / "plan.json"), "--architecture", "hx2mesh", "--json"]
    seconds = {}
    for choice in ("planned", "adaptive"):
        options = ["--level", "packet", "--path-choice", choice, "--lossless"]
        assert main([*on_boards, *options]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["complete"]
        seconds[choice] = figures["completion_s"]
    assert seconds["adaptive"] < seconds["planned"]
    assert main([*on_boards, "--path-choice", "adaptive"]) == 2
    assert "path_choice needs --level packet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (["--flows", "missing.txt"], ("missing.txt", "No such file")),
        (["--flows", "{flows}", "--level", "atoms"], ("level", "atoms")),
        ([], ("PLAN", "--flows", "FILE", "--jobs", "--routed-jobs")),
        (
            ["plan.json", "--flows", "{flows}"],
            ("PLAN", "--flows", "FILE", "--jobs", "--routed-jobs"),
        ),
        (["--flows", "{flows}", "--iterations", "2"], ("--iterations", "PLAN")),
        (["missing.json"], ("missing.json",)),
        (["--flows", "{flows}", "--until", "0"], ("until", 0.0, 0)),
        (
            ["--flows", "{flows}", "--trace", "/nowhere/t"],
            ("--trace", "/nowhere/t"),
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    flows: str, options: list[str], tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [option.format(flows=flows) for option in options]
    assert main(["simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.startswith("topoopt: error: ")
    assert error.count("\n") == 1


def test_the_packet_level_takes_its_options(flows: str, capsys: pytest.CaptureFixture[str]) -> None:
    packet = ["simulate", "--flows", flows, "--level", "packet", "--json"]
    assert (
        main([*packet, "--transport", "constant", "--mtu", "500", "--option", "header_bytes=50"])
        == 0
    )
    figures = json.loads(capsys.readouterr().out)
    # 2 and 4 packets of 550 bytes at 1 GB/s, 1 us of latency each
    assert figures["completion_s"] == pytest.approx(6 * 0.55e-6 + 2e-6)
    assert figures["packet_hops"] == 6


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["--mtu", "1500"], ("mtu_bytes", "--level")),
        (["--level", "packet", "--mtu", "0"], ("mtu_bytes", 0)),
        (["--level", "packet", "--option", "colour"], ("colour", "NAME=VALUE")),
        (["--level", "packet", "--option", "colour=red"], ("colour",)),
    ],
)
def test_wrong_packet_options_are_one_line(
    flows: str, arguments: list[str], tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--flows", flows, *arguments]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("\n") == 1


JOBS = {
    "version": 1,
    "cluster": {"servers": 12, "degree": 4, "link_gbps": 25},
    "architectures": [{"name": "topoopt"}, {"name": "leaf-spine"}],
    "jobs": [
        {"model": "vgg:tiny", "servers": 8, "iterations": 100},
        {"model": "dlrm:tiny", "servers": 8, "arrival_s": 1, "iterations": 100},
    ],
    "planning": {"evaluations": 20, "rounds": 1},
}


def test_jobs_that_share_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps(JOBS))
    assert main(["simulate", "--jobs", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["architecture"] for entry in found["architectures"]] == ["topoopt", "leaf-spine"]
    for entry in found["architectures"]:
        first, second = entry["jobs"]
        assert second["start_s"] >= first["end_s"]
        assert set(entry["models"]) == {"vgg:tiny", "dlrm:tiny"}
    assert main(["simulate", "--jobs", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "leaf-spine, 100 Gb/s a server" in shown
    assert "all jobs" in shown
    assert "without look-ahead" in shown or "without; jobs would start" in shown


@pytest.mark.parametrize(
    ("changes", "options", "tokens"),
    [
        ({}, ["--level", "packet"], ("level", "packet", "--jobs")),
        ({}, ["--iterations", "3"], ("--iterations",)),
        ({"mix": {}}, [], ("mix.models", "missing")),
        ({"jobs": []}, [], ("jobs",)),
        ({"seed": "x"}, [], ("seed", "x")),
        ({"jobs": [{"model": "none", "servers": 8}]}, [], ("model", "none")),
    ],
)
def test_a_bad_cluster_of_jobs_is_one_line(
    changes: dict[str, object],
    options: list[str],
    tokens: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({**JOBS, **changes}))
    assert main(["simulate", "--jobs", str(path), *options]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert error.count("topoopt: error:") == 1
