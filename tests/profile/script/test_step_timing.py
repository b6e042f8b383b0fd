"""Steps of a script without its messages: phases, shares of a processor, whole scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.limits import limit_s
from support.refusals import refused
from torch.distributed.checkpoint import save

from torch_topoopt.op_graph import GradientBuckets
from torch_topoopt.processes import fork_server
from torch_topoopt.profile.script import CollectiveCall, TrainingScript, runner
from torch_topoopt.profile.script.rank_time import Reading
from torch_topoopt.profile.script.runner import ScriptError
from torch_topoopt.profile.script.step_clock import LEAST, LEFT_OUT, MOST, StepClock
from torch_topoopt.profile.script.step_events import CallWait, Computation, bytes_by_operation
from torch_topoopt.profile.script.step_timing import summed_up, time_steps, trace_of

if TYPE_CHECKING:
    from pathlib import Path


def test_phases_are_what_passes_between_the_calls_of_modules_and_optimizers() -> None:
    seconds = iter(Reading(float(2**i), 0.0) for i in count())
    found: list[Any] = []
    clock = StepClock(lambda steps, buckets: found.append((steps, buckets)), lambda: next(seconds))
    optimizer, model = torch.nn.Module(), torch.nn.Module()  # anything that can be referred to
    for _ in range(LEFT_OUT + MOST):
        clock.forward_begins(model)
        clock.forward_begins(model)  # a module that it calls
        clock.forward_ends(model)
        clock.forward_ends(model)
        clock.optimizer_begins(optimizer)
        clock.optimizer_ends(optimizer)
    ((steps, buckets),) = found
    assert len(steps) == MOST
    assert buckets is None
    for step in steps:  # readings 2^i: each interval is as long as all before it together
        begin = step["forward"].processor_s
        assert step["backward"].processor_s == 2 * begin
        assert step["rest"].processor_s == begin / 2 + 4 * begin


def test_a_second_forward_pass_of_a_step_follows_a_backward_pass() -> None:
    times = iter(Reading(t, 0.0) for t in (0, 1, 3, 10, 15, 21, 30) * (LEFT_OUT + MOST))
    found: list[Any] = []
    clock = StepClock(lambda steps, buckets: found.append(steps), lambda: next(times))
    optimizer, model = torch.nn.Module(), torch.nn.Module()  # anything that can be referred to
    for _ in range(LEFT_OUT + MOST):
        for _ in range(2):  # micro-batches
            clock.forward_begins(model)
            clock.forward_ends(model)
        with torch.no_grad():
            clock.forward_begins(model)  # an evaluation is no part of it
            clock.forward_ends(model)
        clock.optimizer_begins(optimizer)
        clock.optimizer_ends(optimizer)
        next(times)
    (steps,) = found
    assert steps[0]["forward"].processor_s == (1 - 0) + (10 - 3)
    assert steps[0]["backward"].processor_s == (3 - 1) + (15 - 10)


def test_ranks_share_processors_but_not_what_they_wait_for() -> None:
    def step(forward_s: float, rest: tuple[float, float]) -> dict[str, Any]:
        return {"forward": (forward_s, 0.0), "backward": (1.0, -1e-4), "rest": rest}

    slow, fast = step(3.0, (0.5, 2.0)), step(1.0, (0.5, 0.0))
    answers = [
        {"steps": [slow, slow, slow, slow], "buckets": [100, 200], "events": [[]]},
        {
            "steps": [fast, fast, fast, step(50.0, (9.0, 9.0))],
            "buckets": [100, 200],
            "events": [[]],
        },
    ]
    timing = summed_up(answers * 4, processors=2)
    assert timing.forward_s == 4.0 * (3.0 + 1.0) / 2  # an outlier does not count
    assert timing.backward_s == 4.0
    assert timing.rest_s == ((4.0 * 0.5 + 2.0) + 4.0 * 0.5) / 2
    assert timing.buckets == GradientBuckets(100, 200)
    assert timing.steps == 4
    assert timing.ranks_at_once == 2


SCRIPT = """
    import os, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group()
    with open({seen!r} + os.environ["RANK"], "w") as file:
        file.write(" ".join(os.environ[name] for name in ("WORLD_SIZE", "LOCAL_RANK", "MINE")))
    model = DistributedDataParallel(torch.nn.Linear(8, 8), bucket_cap_mb=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        time.sleep(0.02)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""


def test_all_ranks_of_a_script_are_timed_up_to_enough_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(seen=str(tmp_path / "rank")))
    timing = time_steps(
        str(script), [], world_size=2, ranks_per_server=2, variables={"MINE": "here"}
    )
    assert timing.buckets == GradientBuckets(3 * 2**20, 3 * 2**20)
    assert timing.rest_s > 0.02 > timing.forward_s > 0  # it sleeps, whatever else runs here
    assert timing.step_s == timing.forward_s + timing.backward_s + timing.rest_s
    assert [(tmp_path / f"rank{r}").read_text() for r in (0, 1)] == ["2 0 here", "2 1 here"]


SHAPES = """
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    dist.init_process_group()
    rank, layer = dist.get_rank(), torch.nn.Linear(8, 8)
    stage = PipelineStage(layer, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, torch.nn.MSELoss())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    while True:
        batch = torch.ones(4, 8)
        schedule.step(batch) if rank == 0 else schedule.step(target=batch)
        optimizer.step()
"""


def test_stages_that_send_each_other_shapes_are_timed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SHAPES))
    events = time_steps(str(script), [], world_size=2).events
    for rank in range(2):
        assert bytes_by_operation(events[rank]) == {"Send": 4 * 8 * 4, "Recv": 4 * 8 * 4}


def test_a_module_that_looks_for_unused_parameters_is_timed(tmp_path: Path) -> None:
    """Its reducer waits in C++ for a call that the end of the backward pass has waited for."""
    script = tmp_path / "train.py"
    wrap = "(lambda model: DistributedDataParallel(model, find_unused_parameters=True))"
    script.write_text(textwrap.dedent(CALLING).format(wrap=wrap))
    timing = time_steps(str(script), [], world_size=2, limit_s=limit_s(30))
    assert bytes_by_operation(timing.events[0])["AllReduce"] == 8 * 8 * 4 + 4


def call_event(size_bytes: int) -> list[Any]:
    return ["call", asdict(CollectiveCall(0, 0, "forward", "AllReduce", size_bytes, (0, 1)))]


def test_the_typical_step_is_the_most_frequent_with_the_middle_of_its_times() -> None:
    def step(processor_s: float, size_bytes: int) -> list[Any]:
        return [["computation", processor_s, -1e-4], call_event(size_bytes), ["wait", 0]]

    steps = [step(9.0, 8), *(step(seconds, 4) for seconds in (1.0, 3.0, 2.0, 2.0, 50.0, 0.0))]
    answer = json.loads(json.dumps({"steps": [{}], "buckets": None, "events": steps}))
    (events,) = summed_up([answer], processors=2).events
    assert events == (
        Computation(2.0, 0.0),
        CollectiveCall(0, 0, "forward", "AllReduce", 4, (0, 1)),
        CallWait(0),
    )


CALLING = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group()
    model = {wrap}(torch.nn.Linear(8, 8, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gathered, counts = torch.empty(2, 4), torch.empty(2)
    while True:
        work = dist.all_gather_into_tensor(gathered, torch.full((4,), 3.0), async_op=True)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        work.wait()
        work.wait()
        assert gathered.eq(3).all()
        dist.all_to_all_single(counts, torch.full((2,), 5.0))
        assert counts.eq(5).all()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("wrap", "calls"),
    [
        ("DistributedDataParallel", ["backward AllReduce 256 of 2", "wait 1"]),
        (
            "fully_shard",
            ["forward AllGather 256 of 2", "wait 1", "backward ReduceScatter 256 of 2", "wait 2"],
        ),
    ],
)
def test_calls_and_waits_of_a_step_are_recorded_in_their_order(
    tmp_path: Path, wrap: str, calls: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(CALLING).format(wrap=wrap))
    timing = time_steps(str(script), [], world_size=2)
    found = []
    for event in timing.events[1]:
        if isinstance(event, CollectiveCall):
            assert event.rank == 1
            text = f"{event.phase} {event.operation} {event.size_bytes} of {len(event.group)}"
            found.append(text)
        elif isinstance(event, CallWait):
            found.append(f"wait {event.call}")
        else:
            assert event.processor_s > 0
    last = 1 + sum(text.startswith(("forward", "backward")) for text in calls)
    exchange = ["forward AllToAll 8 of 2", f"wait {last}"]
    assert found == ["forward AllGather 32 of 2", *calls, "wait 0", *exchange]
    trace = trace_of(TrainingScript(str(script)), timing)
    assert [call.operation for call in trace.calls if call.rank == 0][-1] == "AllToAll"
    assert trace.world_size == 2
    assert bytes_by_operation(timing.events[0])["AllToAll"] == 8


SAVING = """
    import io, os
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint import async_save, load, save

    dist.init_process_group()
    model = torch.nn.Linear(8, 8)
    load(model.state_dict(), checkpoint_id="good")
    assert model.weight[0, 0] == 7
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        torch.save(model.state_dict(), "new.pt")
        save(model.state_dict(), checkpoint_id="good")
        async_save(model.state_dict(), checkpoint_id="new").result()
        memory = io.BytesIO()
        torch.save(model.state_dict(), memory)
        assert memory.tell() > 0
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""


def test_a_script_that_is_timed_loads_its_checkpoint_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = torch.nn.Linear(8, 8)
    torch.nn.init.constant_(good.weight, 7.0)
    save(good.state_dict(), checkpoint_id="good", no_dist=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    script = tmp_path.with_suffix(".py")
    script.write_text(textwrap.dedent(SAVING))
    assert time_steps(str(script), [], world_size=2).steps > 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)"])
def test_a_script_of_few_steps_is_timed_to_its_end(tmp_path: Path, ending: str) -> None:
    script = tmp_path / "train.py"
    text = textwrap.dedent(SCRIPT).format(seen=str(tmp_path / "rank")) + ending
    script.write_text(text.replace("while True", f"for _ in range({LEFT_OUT + LEAST})"))
    timing = time_steps(str(script), [], world_size=1, variables={"MINE": ""})
    assert timing.steps == LEAST
    assert timing.buckets == GradientBuckets(3 * 2**20, 3 * 2**20)
    script.write_text(text.replace("while True", f"for _ in range({LEFT_OUT + LEAST - 1})"))
    with refused(ScriptError, "optimizer"):
        time_steps(str(script), [], world_size=1, variables={"MINE": ""})


def test_a_script_that_cannot_be_timed_is_named_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('no data')")
    with refused(ScriptError, "train.py", "rank 0", "ValueError") as error:
        time_steps(str(script), [], world_size=1)
    assert len(str(error.value).splitlines()) == 1


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("while True: pass")
    started: list[subprocess.Popen[Any]] = []
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(runner, "shared", fork_server.shared)  # with a server of its own
    with refused(ScriptError, 0.5, "steps"):
        time_steps(str(script), [], world_size=1, limit_s=0.5)
    assert [process.poll() for process in started] == [-signal.SIGKILL]
