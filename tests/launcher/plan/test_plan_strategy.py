"""`topoopt plan --strategy` and `--export-strategy`: native files, plans, and FlexFlow's text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named
from support.small_op_graphs import graph, operator

from torch_topoopt.launcher.main import main
from torch_topoopt.op_graph import Split
from torch_topoopt.plan import Placement, Plan, StrategyFile
from torch_topoopt.sim import predict

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.op_graph import OpGraph

CLUSTER = ("--servers", "4", "--degree", "2", "--bandwidth", "25Gbps", "--no-failures")
PRICED = ("--rounds", "1", "--evaluations", "0")


@pytest.fixture
def op_graph(tmp_path: Path) -> OpGraph:
    columns, rows = Split("columns", 8, "whole"), Split("rows", 8, "part")
    made = graph(
        operator("table", parameters=10**7, output=10**6, splits=(columns,)),
        operator("wide", (0, 10**6, 10**6), flops=10**10, parameters=10**6, splits=(rows,)),
        operator("out", (1, 10**6, 10**6), flops=10**10, output=10**6),
    )
    made.save(tmp_path / "graph.json")
    return made


def plan(folder: Path, *arguments: Any) -> int:
    return main(
        [
            "plan",
            str(folder / "graph.json"),
            *CLUSTER,
            *map(str, arguments),
            "-o",
            f"{folder}/p.json",
        ]
    )


HYBRID = (
    Placement("table", (0, 1, 2, 3), columns=4),
    Placement("wide", (0, 2, 1, 3), rows=2),
    Placement("out", (1, 3)),
)


def test_a_given_strategy_is_kept_wired_and_priced(op_graph: OpGraph, tmp_path: Path) -> None:
    given = StrategyFile(1, "test", 64, 4, HYBRID, micro_batches=2)
    given.save(tmp_path / "given.json")
    assert plan(tmp_path, "--strategy", tmp_path / "given.json", *PRICED) == 0
    made = Plan.load(tmp_path / "p.json")
    assert (made.strategy, made.micro_batches) == (HYBRID, 2)
    estimate = predict(
        op_graph, made.cluster, made.network, HYBRID, micro_batches=2, schedules=True
    )
    assert made.prediction.iteration_s == pytest.approx(estimate.iteration_s, rel=1e-11)
    # the strategy of that plan, of a file of its own, and the same again
    exported = tmp_path / "exported.json"
    assert (
        plan(tmp_path, "--strategy", tmp_path / "p.json", *PRICED, "--export-strategy", exported)
        == 0
    )
    assert StrategyFile.load(exported) == given
    # options override values of the file
    assert plan(tmp_path, "--strategy", exported, "--micro-batches", 1, *PRICED) == 0
    assert Plan.load(tmp_path / "p.json").micro_batches == 1


def test_a_search_goes_on_from_a_given_strategy(op_graph: OpGraph, tmp_path: Path) -> None:
    StrategyFile(1, "test", 64, 4, HYBRID).save(tmp_path / "given.json")
    given = ("--strategy", tmp_path / "given.json", "--rounds", "1")
    assert plan(tmp_path, *given, "--evaluations", 0) == 0
    before = Plan.load(tmp_path / "p.json").prediction.iteration_s
    assert plan(tmp_path, *given, "--evaluations", 300) == 0
    assert Plan.load(tmp_path / "p.json").prediction.iteration_s < before


def test_flexflows_text_is_written_and_read(op_graph: OpGraph, tmp_path: Path) -> None:
    text = tmp_path / "strategy.txt"
    text.write_text("2\ntable 0 2 4 1 4 3 2 1 0\nwide 0 2 1 2 2 0 1\n")
    again = tmp_path / "again.txt"
    assert plan(tmp_path, "--strategy", text, *PRICED, "--export-strategy", again) == 0
    made = Plan.load(tmp_path / "p.json").strategy
    assert made == (
        Placement("table", (3, 2, 1, 0), columns=4),
        Placement("wide", (0, 1)),
        Placement("out", (0, 1, 2, 3)),
    )
    assert plan(tmp_path, "--strategy", again, *PRICED) == 0
    assert Plan.load(tmp_path / "p.json").strategy == made


def test_the_number_of_micro_batches_is_chosen_from_several(
    op_graph: OpGraph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for several, numbers in (("4,2", (2, 4)), ("auto", (1, 2, 4, 8, 16, 32))):
        few = ("--rounds", 2, "--evaluations", 100)
        assert plan(tmp_path, "--micro-batches", several, *few) == 0
        assert Plan.load(tmp_path / "p.json").micro_batches in numbers
        assert "micro-batches  " in capsys.readouterr().out, "a column of the rounds"


def test_a_pipeline_is_found_where_there_are_micro_batches(
    op_graph: OpGraph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, "--micro-batches", 4, "--rounds", 1, "--evaluations", 200, "--json") == 0
    assert Plan.load(tmp_path / "p.json").micro_batches == 4
    figures = json.loads(capsys.readouterr().out)
    assert figures["micro_batches"] == 4
    assert set(figures["splits"]) == {"columns", "rows", "experts", "attribute"}


def test_only_samples_are_split_on_request(op_graph: OpGraph, tmp_path: Path) -> None:
    space = ("--strategy-space", "samples", "--evaluations", 500, "--rounds", 1)
    assert plan(tmp_path, *space) == 0
    made = Plan.load(tmp_path / "p.json")
    assert made.strategy_space == "samples"
    assert all(placement.sample == len(placement.servers) for placement in made.strategy)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (None, ("file",)),
        ("{", ("JSON",)),
        ('{"version": 1}', ("model", "missing")),
        ("1 absent 0 1 1 1 0", ("operator 1", 1)),
        ("1 out 0 2 2 1 2 0 1", ("(out).columns", 2)),
        ("1 out 0 1 1 1 9", ("server 9", "0..3")),
        ("FOREIGN", ("servers", 8, 4)),
        ("OTHER", ("strategy", 3)),
    ],
)
def test_a_bad_strategy_file_is_one_line_and_nothing_is_written(
    text: str | None,
    tokens: tuple[object, ...],
    op_graph: OpGraph,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "given"
    if text in ("FOREIGN", "OTHER"):
        servers = 8 if text == "FOREIGN" else 4
        StrategyFile(1, "test", 64, servers, HYBRID[:1]).save(path)
    elif text is not None:
        path.write_text(text)
    assert plan(tmp_path, "--strategy", path) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(path) in line
    assert named(line, *tokens)
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("--micro-batches", "0"), ("--micro-batches", 1, 0)),
        (("--micro-batches", "1,3"), ("--micro-batches", 3, 64)),
        (("--micro-batches", "1,two"), ("1,two", "1,4,8")),
        (("--micro-batches", "3"), ("--micro-batches", 3, 64)),
        (("--optimizer-state", "-1"), ("optimizer_factor", -1.0, 0)),
        (("--optimizer-state", "1e9"), ("memory", "a100")),
    ],
)
def test_what_does_not_fit_is_named(
    arguments: tuple[str, ...],
    tokens: tuple[object, ...],
    op_graph: OpGraph,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan(tmp_path, *arguments) == 2
    assert named(capsys.readouterr().err, *tokens)


def test_what_flexflow_cannot_say_is_named_and_the_plan_is_kept(
    op_graph: OpGraph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StrategyFile(1, "test", 64, 4, HYBRID).save(tmp_path / "given.json")
    given = ("--strategy", tmp_path / "given.json", *PRICED)
    assert plan(tmp_path, *given, "--export-strategy", tmp_path / "out.txt") == 2
    assert named(capsys.readouterr().err, "wide", "rows", 2)
    several = ("--micro-batches", 2, "--export-strategy", tmp_path / "out.txt")
    assert plan(tmp_path, *given, *several) == 2
    assert named(capsys.readouterr().err, "FlexFlow", "2 micro-batches")
    assert not (tmp_path / "out.txt").exists()
    assert Plan.load(tmp_path / "p.json").strategy == HYBRID
