"""Plans without a model: bytes of links in closed form, and what goes wrong in a trace."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from torch_topoopt.launcher import documents, script_plan
from torch_topoopt.launcher.console import Terminal
from torch_topoopt.launcher.main import main
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.launcher.run import ranks, requested_groups
from torch_topoopt.launcher.run.folder import RunFolder
from torch_topoopt.launcher.run.in_progress import RunInProgress
from torch_topoopt.launcher.run.requested_groups import RequestedGroups
from torch_topoopt.plan import Cluster, Plan
from torch_topoopt.plan.rank_work import OperationTimes, RankWork
from torch_topoopt.planner import demand_plan
from torch_topoopt.profile.script import CollectiveCall, CommunicationTrace, ScriptError
from torch_topoopt.runtime.metrics import MetricsWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLUSTER = Cluster(4, 2, 10.0)
EVERYONE = (0, 1, 2, 3)


def trace_of(*calls: CollectiveCall) -> CommunicationTrace:
    return CommunicationTrace(1, "train.py", (), 4, (0,), 1, calls).validate()


def plan_of(trace: CommunicationTrace) -> Plan:
    demand = demand_plan.demand_of_trace(trace, CLUSTER)
    return demand_plan.plan_for_demand(CLUSTER, demand, trace, name="train.py", seed=0)


def test_an_allreduce_loads_all_links_of_two_rings_alike() -> None:
    plan = plan_of(trace_of(CollectiveCall(0, 0, "backward", "AllReduce", 4000, EVERYONE)))
    assert plan.prediction.link_bytes == (4000 * 2 * 3 // 4 // 2,) * 8
    assert (plan.predicts_bytes, plan.predicts_time, plan.model) == (True, False, "train.py")


def work_of(rank: int, *operations: OperationTimes) -> RankWork:
    return RankWork(rank, rank, 3, 0.1, 0.01, None, operations)


def test_later_iterations_with_other_collectives_are_reported_with_their_bytes() -> None:
    trace = trace_of(
        CollectiveCall(0, 0, "backward", "AllReduce", 4_000_000, EVERYONE),
        CollectiveCall(0, 0, "forward", "AllGather", 1_000_000, (0, 1)),
        CollectiveCall(0, 0, "forward", "Gather", 7_000, EVERYONE, 1),
        CollectiveCall(0, 0, "forward", "AllReduce", 9_000, (0,)),
    )
    reduced = OperationTimes("all_reduce", 4, 2_000_000, 2.0, 0.01)
    gathered = OperationTimes("all_gather_into_tensor", 2, 1_000_000, 1.0, 0.01)
    asked = OperationTimes("gather", 4, 28_000, 1.0, 0.01)
    loss = OperationTimes("all_reduce", 4, 4, 1.0, 0.01)
    assert script_plan.other_calls(trace, [work_of(0, reduced, gathered, asked, loss)]) == ""
    assert script_plan.other_calls(trace, [work_of(1)]) == "", "rank 1 was not traced"
    assert script_plan.other_calls(trace, []) == ""
    local = OperationTimes("all_reduce", 2, 3_000_000, 1.0, 0.01)
    half = OperationTimes("all_reduce", 4, 4_000_000, 0.5, 0.01)
    found = script_plan.other_calls(trace, [work_of(0, local, half)])
    assert "rank 0 called 3 MB in groups of 2 and 2 MB in groups of 4 per iteration" in found
    assert "and 1 MB in groups of 2 and 4 MB in groups of 4 in the trace" in found
    assert "--trace-iterations" in found
    assert "rank 0 called none per iteration" in script_plan.other_calls(trace, [work_of(0)])


def test_the_mean_of_iterations_that_differ_is_compared_and_explained() -> None:
    calls = [CollectiveCall(0, i, "backward", "AllReduce", 4_000_000, (0, 1)) for i in (1, 2)]
    calls.append(CollectiveCall(0, 2, "backward", "AllReduce", 4_000_000, EVERYONE))
    trace = CommunicationTrace(1, "train.py", (), 4, (0,), 3, tuple(calls), 2).validate()
    assert [group.size_bytes for group in plan_of(trace).demand.groups] == [4_000_000, 2_000_000]
    local = OperationTimes("all_reduce", 2, 4_000_000, 1.0, 0.01)
    half, two_thirds = (OperationTimes("all_reduce", 4, 4_000_000, n, 0.01) for n in (0.5, 0.667))
    assert script_plan.other_calls(trace, [work_of(0, local, half)]) == ""
    found = script_plan.other_calls(trace, [work_of(0, local, two_thirds)])
    assert "the mean of 2 that were traced, and 3 others were measured: rank 0 called" in found
    assert "2.67 MB in groups of 4 per iteration, and 4 MB in groups of 2 and 2 MB in" in found


def test_every_difference_from_ten_percent_on_has_a_cause() -> None:
    call = CollectiveCall(0, 0, "backward", "AllReduce", 4_000_000, EVERYONE)
    one = trace_of(call)
    works = [work_of(0, OperationTimes("all_reduce", 4, 4_000_000, 1.0, 0.01))]
    assert script_plan.cause_of_difference(one, works, 0.009) == ""
    assert script_plan.cause_of_difference(one, works, 0.09) == ""
    for difference in (0.11, None):
        assert "1 of 4 ranks were traced" in script_plan.cause_of_difference(one, works, difference)
    calls = tuple(replace(call, rank=rank) for rank in EVERYONE)
    all_ranks = CommunicationTrace(1, "train.py", (), 4, EVERYONE, 1, calls).validate()
    found = script_plan.cause_of_difference(all_ranks, works, 0.11)
    assert "messages between two ranks, gathers or scatters differ" in found
    other = [work_of(0, OperationTimes("all_reduce", 4, 4_000_000, 2.0, 0.01))]
    assert "rank 0 called 8 MB" in script_plan.cause_of_difference(all_ranks, other, 0.02)


def test_nothing_is_sent_to_the_root_of_a_broadcast_nor_by_that_of_a_reduce() -> None:
    plan = plan_of(trace_of(CollectiveCall(0, 0, "optimizer", "Broadcast", 4000, EVERYONE, 1)))
    sizes = zip(plan.network.links, plan.prediction.link_bytes, strict=True)
    assert all(size == (0 if link.target == 1 else 2000) for link, size in sizes)
    plan = plan_of(trace_of(CollectiveCall(0, 0, "optimizer", "Reduce", 4000, EVERYONE, 1)))
    sizes = zip(plan.network.links, plan.prediction.link_bytes, strict=True)
    assert all(size == (0 if link.source == 1 else 2000) for link, size in sizes)


def test_cables_that_are_plugged_get_rings_for_the_groups_of_the_demand() -> None:
    whole = plan_of(trace_of(CollectiveCall(0, 0, "backward", "AllReduce", 4000, EVERYONE)))
    some = trace_of(CollectiveCall(0, 0, "backward", "AllReduce", 3000, (0, 1, 3)))
    demand = demand_plan.demand_of_trace(some, CLUSTER)
    plan = demand_plan.plan_for_demand(
        CLUSTER, demand, some, name="train.py", seed=0, network=whole.network
    )
    assert plan.network.links == whole.network.links
    assert [group.servers for group in plan.network.groups] == [EVERYONE, (0, 1, 3)]
    assert plan.mode == "fixed"
    # among three servers 2/3 of the bytes each way, 4/3 on the path of two hops around server 2
    assert sum(plan.prediction.link_bytes) == 3 * 3000 * 4 // 3 + 3000 * 4 // 3


@pytest.mark.parametrize("servers", [1, 2, 4, 5])
def test_an_unknown_demand_gets_rings_and_predicts_nothing(servers: int) -> None:
    cluster = Cluster(servers, min(2, max(1, servers - 1)), 10.0)
    demand = demand_plan.unknown_demand(cluster)
    plan = demand_plan.plan_for_demand(cluster, demand, None, name="x", seed=0)
    assert (plan.predicts_bytes, plan.predicts_time) == (False, False)
    assert len(plan.network.groups[0].rings) > 0 or servers == 1
    assert documents.with_failures(plan, lambda *_: None).failures is not None


def make_job(folder: Path, script: str) -> RunInProgress:
    """A run of a script, before its first stage."""
    (folder / "train.py").write_text(script)
    options = run_options.parse(["--servers", "4", str(folder / "train.py")])
    results = RunFolder(folder / "here", 0.0)
    return RunInProgress(
        options, Terminal(), results, MetricsWriter(results / "metrics.jsonl", 0.0)
    )


def test_a_trace_that_fails_is_one_line_and_rings_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ScriptError("train.py, rank 0: it is not its day")

    monkeypatch.setattr("torch_topoopt.profile.script.trace_script", fail)
    job = make_job(tmp_path, "train()\n")
    plan = job.plan()
    said = "rings for an unknown demand, nothing predicted: train.py, rank 0: it is not its day"
    assert [line.strip() for line in capsys.readouterr().out.splitlines()].count(said) == 1
    assert not plan.predicts_bytes
    assert not (job.folder / "trace.json").exists()


def test_a_build_model_that_fails_gives_way_to_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = CollectiveCall(0, 0, "backward", "AllReduce", 4000, EVERYONE)
    monkeypatch.setattr(
        "torch_topoopt.profile.script.trace_script", lambda *_, **__: trace_of(call)
    )
    broken = "def build_model():\n    raise ValueError('no data')\n"
    job = make_job(tmp_path, f"{broken}if __name__ == '__main__':\n    build_model()\n")
    plan = job.plan()
    out = capsys.readouterr().out
    assert "build_model() raised ValueError: no data (line 2); " in out
    assert plan.prediction.link_bytes == (3000,) * 8
    assert CommunicationTrace.load(job.folder / "trace.json").calls == (call,)


def test_other_backends_are_named_at_the_end() -> None:
    gloo = RequestedGroups(("gloo",))
    assert requested_groups.unused_links(gloo, measured=False) == (
        "no rank opened a topoopt group: the planned links carried nothing; the script requested "
        "gloo (--take-over gloo puts topoopt in its place)"
    )
    mixed = requested_groups.unused_links(RequestedGroups(("cpu:gloo,cuda:nccl",)), measured=False)
    assert "(--take-over gloo,nccl puts" in mixed
    nothing = requested_groups.unused_links(RequestedGroups(), measured=False)
    assert nothing.endswith("the script opened no process group")
    both = RequestedGroups.together([gloo, RequestedGroups(("topoopt",), (), opened=True)])
    assert requested_groups.unused_links(both, measured=True) == ""
    assert "groups of gloo" in requested_groups.beside(both)
    assert "byte counters" in requested_groups.unused_links(both, measured=False)
    taken = RequestedGroups(("gloo",), ("gloo",), opened=True)
    assert requested_groups.beside(taken) == ""


@pytest.fixture
def failure(tmp_path: Path) -> Callable[..., Any]:
    """As torch notes one; `code` is its exit code."""

    def make(rank: int, message: str, code: int = 1, second: int = 7) -> Any:
        path = tmp_path / f"{rank}.json"
        path.unlink(missing_ok=True)
        if message:
            path.touch()
        data = {"message": {"message": message}}
        return SimpleNamespace(
            exitcode=code, timestamp=second, error_file=str(path), error_file_data=data
        )

    return make


REPORT = "DistBackendError: topoopt: rank 2 failed: RuntimeError: boom"


def test_a_rank_that_only_reports_another_is_not_the_cause(failure: Callable[..., Any]) -> None:
    failures = {
        0: failure(0, REPORT),
        2: failure(2, "RuntimeError: boom"),
        3: failure(3, REPORT),
    }
    (only,) = ranks._first_failures(failures, ())
    (line,) = ranks.describe([only], "train.py")
    assert line == "rank 2 of train.py ended with exit code 1: RuntimeError: boom"
    del failures[2]
    assert [found.rank for found in ranks._first_failures(failures, ())] == [0, 3]


def test_a_report_that_is_noted_a_second_before_its_cause_is_not_the_cause(
    failure: Callable[..., Any],
) -> None:
    """A killed rank is noted when the agent looks, others when they raised."""
    gone = "DistBackendError: topoopt: all_reduce: rank 1 is gone: lost the link"
    failures = {0: failure(0, gone, second=6), 1: failure(1, "", -signal.SIGKILL)}
    (only,) = ranks._first_failures(failures, ())
    (line,) = ranks.describe([only], "train.py")
    assert line.startswith("rank 1 of train.py was killed by SIGKILL")


def test_a_rank_that_raised_is_the_cause_although_torch_ended_it_before_it_had_ended(
    failure: Callable[..., Any],
) -> None:
    """It was still leaving the interpreter when a rank that it had notified was gone."""
    failures = {
        0: failure(0, REPORT),
        2: failure(2, "RuntimeError: boom", -signal.SIGTERM),
        3: failure(3, "", -signal.SIGTERM),
    }
    (only,) = ranks._first_failures(failures, ())
    (line,) = ranks.describe([only], "train.py")
    assert line == "rank 2 of train.py ended with exit code 1: RuntimeError: boom"


# As in the README: it trains where it is imported.
TRAINS_AT_ONCE = """\
import torch
import torch.distributed as dist
dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 100)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS_AT_ONCE)
    return "train.py"


def test_the_plan_of_a_script_without_a_model_is_for_what_it_communicates(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", script, "--servers", "4", "--degree", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    plan = Plan.load("plan.json")
    assert (plan.model, figures["plan"], figures["op_graph"]) == (script, "plan.json", None)
    assert [group.size_bytes for group in plan.demand.groups] == [4 * (100 * 10 + 10)]
    assert plan.failures is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan train.py --servers 4 --explain", "--explain: needs the model, and train.py has no"),
        ("plan train.py --servers 4 --rounds 2", "--rounds: needs the model, and train.py has no"),
        ("plan train.py --servers 1", "--servers: train.py is traced, which needs at least 2"),
        ("compare train.py --servers 4", "has no build_model(), so there is no model to profile"),
        ("profile train.py", "`topoopt profile --output-demand` trace a few iterations"),
    ],
)
def test_what_needs_a_model_says_which_commands_do_without(
    arguments: str, message: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("topoopt: error: ")
    assert message in error
