"""`topoopt plan`, `topoopt profile` of a saved OpGraph, and `topoopt report`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.plans import make_ring_plan
from support.refusals import named

from torch_topoopt.launcher.console import Terminal
from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.plan.plan_tables import network_lines, show_rounds
from torch_topoopt.op_graph import OpGraph
from torch_topoopt.plan import Group, Plan, Ring, Round, Route

if TYPE_CHECKING:
    from collections.abc import Callable

CLUSTER = ("--servers", "6", "--degree", "2", "--bandwidth", "25Gbps")
QUICK = ("--rounds", "2", "--evaluations", "50")


def test_plan_writes_a_valid_plan_and_shows_rounds_rings_and_strategy(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    assert main(["plan", str(op_graph_file), *CLUSTER, *QUICK, "-o", str(output)]) == 0
    plan = Plan.load(output)
    assert (plan.cluster.servers, plan.cluster.degree, plan.cluster.link_gbps) == (6, 2, 25.0)
    assert plan.strategy_space == "full"
    out = capsys.readouterr().out
    for word in ("round", "single ring", "ideal switch", "network: 6 servers", "strategy: "):
        assert word in out
    assert f"plan: {output}" in out
    assert "\x1b" not in out, "no terminal, so no escape sequences"


def test_a_kept_round_shows_the_faster_of_its_two_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = (Round(0.04, 0.05, 1.0, 1.0, True), Round(0.03, 0.02, 1.0, 1.0, True),
              Round(0.01, 0.06, 1.0, 1.0, False))  # fmt: skip
    show_rounds(Terminal(), replace(make_ring_plan(4), rounds=rounds))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " ms " in line]
    assert [row[-2:] for row in rows[:2]] == [["40", "ms"], ["20", "ms"]]
    assert rows[2][-1] == "no"


def test_a_pair_with_two_routes_is_relayed_once() -> None:
    network = make_ring_plan(4).network
    both_ways = [Route((a, (a + turn) % 4, (a + 2) % 4), 0.5) for a in range(4) for turn in (1, 3)]
    plan = replace(make_ring_plan(4), network=replace(network, routes=tuple(both_ways)))
    assert "4 of 12 ordered pairs relayed" in network_lines(plan)[0]


def test_a_long_ring_without_a_stride_shows_its_first_servers() -> None:
    plan = make_ring_plan(20)
    order = (0, 2, 1, *range(3, 20))
    groups = (Group(tuple(range(20)), (Ring(order, 1.0),)),)
    (line,) = network_lines(replace(plan, network=replace(plan.network, groups=groups)))[1:]
    assert "0-2-1-3-..." in line
    assert "19" not in line


def test_the_same_seed_gives_the_same_bytes(op_graph_file: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.json" for i in range(2)]
    for file in files:
        seed = ("--seed", "7")
        assert main(["plan", str(op_graph_file), *CLUSTER, *QUICK, *seed, "-o", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_json_is_one_object_with_the_figures_of_the_plan(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    space = ("--strategy-space", "data-parallel")
    arguments = ["plan", str(op_graph_file), *CLUSTER, *QUICK, *space, "-o", str(output), "--json"]
    assert main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    plan = Plan.load(output)
    assert figures["digest"] == plan.digest()
    assert figures["strategy"] == {
        "all_servers": len(plan.strategy),
        "some_servers": 0,
        "one_server": 0,
    }
    assert figures["predicted"]["iteration_s"] == plan.prediction.iteration_s
    assert [entry["network_s"] for entry in figures["rounds"]] == [
        entry.network_s for entry in plan.rounds
    ]


def test_a_ring_is_named_by_its_stride_only_if_it_has_one() -> None:
    assert Ring((0, 3, 6, 1, 4, 7, 2, 5), 1.0).stride == 3
    assert Ring((0, 1, 2, 4, 3), 1.0).stride is None
    assert Ring((0, 2, 4), 1.0).stride == 1, "within its group, whose servers are 0, 2 and 4"


@pytest.mark.parametrize(
    ("cluster", "tokens"),
    [
        (
            ("--servers", "4", "--degree", "6", "--bandwidth", "1Gbps"),
            ("degree", 6, 3),
        ),
        (
            ("--servers", "8", "--degree", "1", "--bandwidth", "1Gbps"),
            ("degree", 1, 8),
        ),
        (
            ("--servers", "8", "--degree", "2", "--bandwidth", "25"),
            ("bandwidth", 25, "25Gbps", "25Mbps"),
        ),
        (
            ("--servers", "0", "--degree", "2", "--bandwidth", "1Gbps"),
            ("servers", 1),
        ),
        (
            ("--servers", "eight", "--degree", "2", "--bandwidth", "1Gbps"),
            ("--servers", "value", "eight"),
        ),
        ((*CLUSTER, "--accelerator", "abacus"), ("accelerator", "abacus")),
        ((*CLUSTER, "--rounds", "0"), ("rounds", 1)),
        ((*CLUSTER, "--seed", "-1"), ("seed", -1)),
        (
            ("--degree", "2", "--bandwidth", "1Gbps"),
            ("servers", "--servers", 4, "--cluster"),
        ),
    ],
)
def test_a_cluster_that_cannot_be_is_one_line(
    op_graph_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cluster: tuple[str, ...],
    tokens: tuple[object, ...],
) -> None:
    output = tmp_path / "out.json"
    assert main(["plan", str(op_graph_file), *cluster, "-o", str(output)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("topoopt: error: ")
    assert named(captured.err, *tokens)
    assert captured.err.count("\n") == 1
    assert not output.exists()


def _edited(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        (lambda f: f.write_text(f.read_text()[:100]), ("JSON",)),
        (lambda f: _edited(f, version=99), ("version", 99, OpGraph.VERSION)),
        (lambda f: _edited(f, colour="red"), ("colour", "unknown")),
        (lambda f: f.write_bytes(b"\xff\xfe\x00"), ("text file",)),
        (lambda f: f.unlink(), ("OpGraph", "No such file")),
    ],
)
def test_a_file_that_is_no_op_graph_is_named(
    op_graph_file: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    tokens: tuple[object, ...],
) -> None:
    change(op_graph_file)
    for verb in (["plan", str(op_graph_file), *CLUSTER], ["profile", str(op_graph_file)]):
        assert main(verb) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"topoopt: error: {op_graph_file}: ")
        assert named(error, *tokens)
        assert error.count("\n") == 1


def test_an_output_that_cannot_be_written_is_one_line(
    op_graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "no" / "folder" / "opgraph.json"
    assert main(["profile", str(op_graph_file), "-o", str(output)]) == 2
    assert named(capsys.readouterr().err, "--output", output, "folder")


def test_profile_shows_operators_and_totals(
    op_graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", str(op_graph_file)]) == 0
    out = capsys.readouterr().out
    assert "layer5" in out
    assert "chain: 6 operators, 6 GFLOP forward and 12 GFLOP backward per batch of 64" in out
    assert main(["profile", str(op_graph_file), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["parameter_bytes"] == 24_000_000
    assert len(figures["operators"]) == figures["operator_count"] == 6


def test_report_writes_the_page_of_a_run_folder(
    ring_plan: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring_plan(4).save(tmp_path / "plan.json")
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "report.html")}
    assert "<html" in (tmp_path / "report.html").read_text()


def test_report_draws_figures_and_compares_two_plans(
    ring_plan: Callable[..., Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = [str(tmp_path / f"{servers}.json") for servers in (4, 5)]
    for servers, path in zip((4, 5), plans, strict=True):
        ring_plan(servers).save(Path(path))
    figures = tmp_path / "figures"
    assert main(["report", plans[0], "--plots", str(figures)]) == 0
    assert (figures / "topology.svg").is_file()
    assert f"figures: {figures}" in capsys.readouterr().out
    target = tmp_path / "both.html"
    assert main(["report", "--compare", *plans, "-o", str(target), "--no-analysis"]) == 0
    assert "A against B" in target.read_text()


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (("a.json", "--compare", "a.json", "b.json"), ("--compare",)),
        (("a.json", "-o", "page.html"), ("-o", "--compare")),
        (("--compare", "a.json", "b.json", "--plots", "x"), ("--plots",)),
    ],
)
def test_report_refuses_options_that_do_not_go_together(
    options: tuple[str, ...], tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *options]) == 2
    assert named(capsys.readouterr().err, *tokens)


def test_report_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert named(capsys.readouterr().err, "folder", "topoopt run")
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "plan.json" in error
    assert error.count("\n") == 1


def test_a_plan_on_the_cables_of_a_cluster_file_keeps_them(
    launcher: Any, op_graph_file: Path
) -> None:
    ports = [f"      - {{name: p{i}, address: 10.1.{i}.%d/24, bandwidth: 25Gbps}}" for i in (0, 1)]
    (launcher.folder / "lab.yaml").write_text(
        "version: 1\nname: lab\nservers:\n"
        + f"  - name: ann\n    management: 10.0.0.1\n    ports:\n{ports[0] % 1}\n"
        + f"  - name: bob\n    management: 10.0.0.2\n    ports:\n{ports[0] % 2}\n{ports[1] % 1}\n"
        + f"  - name: cid\n    management: 10.0.0.3\n    ports:\n{ports[1] % 2}\n"
        + "cables:\n  - [ann:p0, bob:p0]\n  - [bob:p1, cid:p1]\n"
    )
    done = launcher.run("plan", op_graph_file, "--cluster", "lab.yaml", "--evaluations", "20")
    assert done.returncode == 0, done.stderr
    plan = Plan.load(launcher.folder / "plan.json")
    assert plan.mode == "fixed"
    assert sorted({(link.source, link.target) for link in plan.network.links}) == [
        *((0, 1), (1, 0), (1, 2), (2, 1)),
    ]
    assert plan.cluster.link_gbps == 25.0
    assert plan.cluster.accelerator == "a100"
    refused = launcher.run("plan", op_graph_file, "--cluster", "lab.yaml", "--degree", "2")
    assert refused.stderr == (
        "topoopt: error: --degree: is in the cluster file; leave --degree out\n"
    )
    assert refused.returncode == 2
