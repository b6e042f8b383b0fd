"""A job that hangs or fails leaves dumps that PyTorch's analyzer reads, and by which the culprit is
named; and while it runs, its ranks say what they do."""

from __future__ import annotations

import argparse
import functools
import os
import re
import signal
import stat
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support.backend import contract_operations
from support.backend.contract_operations import OPERATIONS, Case, Members
from support.backend.ranks import make_plan, run_bare_ranks, run_ranks, values
from support.launcher import wait_for
from support.limits import limit_s
from support.refusals import named, refused
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components import builder, loader
from torch.distributed.flight_recorder.components.config_manager import JobConfig

from torch_topoopt.plan.result_json import plain
from torch_topoopt.supervision.culprits import Blame, find_culprits
from torch_topoopt.supervision.dumps import Dump, read_dump, read_dumps
from torch_topoopt.supervision.job_files import JobFolder
from torch_topoopt.supervision.statuses import read_statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHORT_S = 1.0  # the limit of an operation that is not to end


def begin() -> None:
    dist.init_process_group("topoopt", timeout=timedelta(seconds=limit_s(60)))
    for _ in range(3):
        dist.all_reduce(torch.ones(10))


def end_soon() -> None:
    """From here on operations have a short time limit."""
    # _set_pg_timeout of torch 2.11 sets the limits of gloo and nccl alone
    dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=SHORT_S))


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(dist.DistBackendError) as raised:
        call()
    return str(raised.value)


def announce(rank: int) -> None:
    """This rank has made the call that fails."""
    dist.distributed_c10d._get_default_store().set(f"called/{rank}", "")


def wait_for_calls(*ranks: int) -> None:
    """Until these have made the call that fails: a failure finds it in their dumps."""
    store = dist.distributed_c10d._get_default_store()
    store.wait([f"called/{rank}" for rank in ranks], timedelta(seconds=limit_s(60)))


def time_out(rank: int, ranks: Sequence[int], call: Callable[[], dist.Work]) -> str:
    """The error of a call that all of `ranks` make, and whose limit the last of them reaches."""
    last = max(ranks)
    if rank == last:
        wait_for_calls(*(other for other in ranks if other != last))
        end_soon()
    work = call()
    announce(rank)
    return error_of(work.wait)


def dumps_of(folder: Path) -> dict[int, Dump]:
    found = JobFolder(folder).last_dumps()
    assert found is not None
    return read_dumps(found)


def findings_of(folder: Path) -> list[Blame]:
    return find_culprits(dumps_of(folder))


# ---- PyTorch's analyzer ------------------------------------------------------------------------


def analysed(folder: Path) -> Any:
    """The database that PyTorch's own analyzer makes of the dumps."""
    arguments = JobConfig().parse_args([str(folder)])
    assert isinstance(arguments, argparse.Namespace)
    details, version = loader.read_dir(arguments)
    return builder.build_db(details, arguments, version)


def call_everything(rank: int, world: int) -> None:
    dist.init_process_group("topoopt")
    members = Members(dist.group.WORLD, tuple(range(world)), rank)
    # The analyzer knows neither messages, which are no calls of all ranks, nor uneven blocks.
    collectives = [n for n in OPERATIONS if not re.search("send|receive|uneven", n)]
    for number, name in enumerate(collectives):
        reduction = "SUM" if name in contract_operations.REDUCING else ""
        case = Case(name, torch.float32, reduction, 24, "flat", True, number)
        OPERATIONS[name](members, case).finish()
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR1)
    path = JobFolder(Path(os.environ["TOPOOPT_RUN_DIR"])).dump(0, rank)
    wait_for(path.exists, "the dump", 30)
    dist.barrier()


def test_pytorchs_analyzer_matches_every_collective(tmp_path):
    values(run_ranks(make_plan(3, 2), tmp_path, call_everything))
    folder = JobFolder(tmp_path).dumps(0)
    database = analysed(folder)
    assert [of.collective_name for of in database.collectives if not of.pass_check] == []
    names = {of.collective_name.rpartition(":")[2] for of in database.collectives}
    assert {"all_reduce", "_all_gather_base", "reduce_scatter", "all_to_all", "gather"} <= names
    assert len(database.collectives) >= 15
    assert not any(of.missing_ranks for of in database.collectives)
    assert all(dump.why == "SIGUSR1" for dump in dumps_of(tmp_path).values())
    assert findings_of(tmp_path) == []


# ---- culprits ----------------------------------------------------------------------------------


def hang(rank: int, world: int) -> str:
    begin()
    if rank == 1:
        folder = JobFolder(Path(os.environ["TOPOOPT_RUN_DIR"])).dumps(0)
        wait_for((folder / "stacks-1.json").exists, "the failure of the others", 60)
        return ""
    return time_out(rank, (0, 2), lambda: dist.all_reduce(torch.ones(3, 4), async_op=True))


@pytest.mark.parametrize("engine", ["links", "shared memory"])
def test_a_rank_that_hangs_is_named_by_both_analyzers(engine, tmp_path, caplog):
    local = engine == "shared memory"
    plan = make_plan(1, 1) if local else make_plan(3, 2)
    texts = values(run_ranks(plan, tmp_path, hang, world=3))
    folder = JobFolder(tmp_path).dumps(0)
    for text in (texts[0], texts[2]):
        assert f"topoopt inspect {folder}" in text
    for rank in range(3):
        assert stat.S_IMODE((folder / f"rank_{rank}").stat().st_mode) == 0o600
    found = findings_of(tmp_path)
    assert [(f.kind, f.ranks) for f in found] == [("behind", (1,))]
    assert named(
        found[0].text, "has not called all_reduce", "collective 4", "group 0", "ranks 0 and 2"
    )
    assert "in wait_for" in found[0].text  # where it hangs
    with caplog.at_level("INFO"):
        fr_trace.main([str(folder)])
    assert "missing ranks: {1}" in caplog.text


def disagree(rank: int, world: int) -> None:
    begin()
    if rank == 2:
        wait_for_calls(0, 1)
        dist.broadcast(torch.ones(5), 0)
    else:
        work = dist.all_reduce(torch.ones(5), async_op=True)
        announce(rank)
        work.wait()


def test_a_rank_that_calls_something_else_is_named(tmp_path):
    run_ranks(make_plan(3, 2), tmp_path, disagree)
    found = findings_of(tmp_path)
    assert (found[0].kind, found[0].ranks) == ("mismatch", (2,))
    assert named(found[0].text, "rank 2", "broadcast", "rank 0", "5 of Float")
    assert "ranks 0 and 1 called all_reduce 5 of Float" in found[0].text


def die(rank: int, world: int) -> None:
    begin()
    if rank == 1:
        wait_for_calls(0, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(5), async_op=True)
    announce(rank)
    error_of(work.wait)


def test_a_rank_that_is_killed_is_named(tmp_path):
    run_ranks(make_plan(3, 2), tmp_path, die)
    found = findings_of(tmp_path)
    assert [(f.kind, f.ranks) for f in found] == [("gone", (1,))]


def raise_an_exception(rank: int, world: int) -> None:
    begin()
    if rank == 1:
        raise ArithmeticError("the loss is not a number")
    dist.all_reduce(torch.ones(5))


def test_a_script_that_raises_is_named(tmp_path):
    run_ranks(make_plan(3, 2), tmp_path, raise_an_exception)
    found = findings_of(tmp_path)
    assert (found[0].kind, found[0].ranks) == ("raised", (1,))
    assert "ArithmeticError: the loss is not a number" in found[0].text


def receive_in_a_circle(rank: int, world: int) -> None:
    begin()
    time_out(rank, range(world), lambda: dist.irecv(torch.empty(4), (rank + 1) % world))


def test_ranks_that_receive_from_each_other_are_named(tmp_path):
    run_ranks(make_plan(3, 2), tmp_path, receive_in_a_circle)
    found = findings_of(tmp_path)
    assert [(f.kind, f.ranks) for f in found] == [("deadlock", (0, 1, 2))]


def forget_to_send(rank: int, world: int) -> None:
    begin()
    if rank == 0:
        dist.send(torch.ones(4), 1, tag=3)
    elif rank == 1:
        dist.recv(torch.empty(4), 0, tag=3)
        end_soon()
        error_of(lambda: dist.recv(torch.empty(4), 0, tag=3))
    # The failure of rank 1 has reached a rank when its dump is written; the stacks come last.
    folder = JobFolder(Path(os.environ["TOPOOPT_RUN_DIR"])).dumps(0)
    wait_for((folder / f"stacks-{rank}.json").exists, "the dump", 60)


def test_a_rank_that_has_not_sent_is_named(tmp_path):
    values(run_ranks(make_plan(3, 2), tmp_path, forget_to_send))
    found = findings_of(tmp_path)
    assert [(f.kind, f.ranks) for f in found] == [("message", (0,))]
    assert named(found[0].text, "has not sent", "rank 1", "recv", "tag 3", "group 0")


def refuse_one(rank: int, world: int) -> None:
    """A call that is refused before it starts is no call."""
    begin()
    if rank == 0:
        with refused(ValueError, "output"):
            dist.reduce_scatter_tensor(torch.empty(5), torch.ones(7))
    dist.all_reduce(torch.ones(3))
    os.kill(os.getpid(), signal.SIGUSR1)
    path = JobFolder(Path(os.environ["TOPOOPT_RUN_DIR"])).dump(0, rank)
    wait_for(path.exists, "the dump", 30)
    dist.barrier()


def test_a_call_that_was_refused_does_not_count(tmp_path):
    values(run_ranks(make_plan(2, 1), tmp_path, refuse_one))
    found = dumps_of(tmp_path)
    assert [d.calls[3].number for d in found.values()] == [4, 4]
    assert {d.calls[3].name for d in found.values()} == {"all_reduce"}
    assert findings_of(tmp_path) == []


# ---- settings ----------------------------------------------------------------------------------


def fail(rank: int, world: int, **variables: str) -> str:
    os.environ.update(variables)
    begin()
    return time_out(rank, range(world), lambda: dist.irecv(torch.empty(4), 1 - rank))


def test_the_size_of_the_ring_and_where_dumps_go_are_pytorchs_variables(tmp_path):
    prefix = str(tmp_path / "elsewhere" / "trace_")
    texts = values(
        run_ranks(
            make_plan(2, 1),
            tmp_path,
            functools.partial(
                fail, TORCH_NCCL_TRACE_BUFFER_SIZE="2", TORCH_FR_DUMP_TEMP_FILE=prefix
            ),
        )
    )
    assert f"topoopt inspect {tmp_path}/elsewhere" in texts[0]
    dump = read_dump(Path(f"{prefix}0"))
    assert [call.name for call in dump.calls] == ["all_reduce", "recv"]
    assert dump.called == {"0": 3}
    assert [f.kind for f in find_culprits(read_dumps(tmp_path / "elsewhere"))] == ["deadlock"]


@pytest.mark.parametrize(
    "variables", [{"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_FR_DUMP_ON_TIMEOUT": "0"}]
)
def test_a_recorder_that_is_turned_off_dumps_nothing(variables, tmp_path):
    texts = values(run_ranks(make_plan(2, 1), tmp_path, functools.partial(fail, **variables)))
    assert "inspect" not in texts[0]
    assert JobFolder(tmp_path).last_dumps() is None


def test_a_wrong_size_is_refused_in_one_line(tmp_path):
    wrong = functools.partial(fail, TORCH_FR_BUFFER_SIZE="many")
    for outcome in run_ranks(make_plan(2, 1), tmp_path, wrong):
        assert outcome.error == (
            "RuntimeError: TORCH_FR_BUFFER_SIZE: 'many' is not a number from 0 to 1048576"
        )


def test_without_a_run_folder_dumps_are_in_the_users_runtime_folder(tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    texts = values(run_bare_ranks(2, fail, XDG_RUNTIME_DIR=str(runtime)))
    match = re.search(r"topoopt inspect (\S+)\)", texts[0])
    assert match is not None
    folder = Path(match[1])
    assert folder.is_relative_to(runtime / "torch_topoopt" / "jobs")
    assert sorted(read_dumps(folder)) == [0, 1]
    assert list((runtime / "torch_topoopt" / "running").iterdir()) == []


# ---- signals -----------------------------------------------------------------------------------


def with_a_handler_of_its_own(rank: int, world: int) -> int:
    """Installed before the job, or after it."""
    came = threading.Event()
    if rank == 0:
        signal.signal(signal.SIGUSR1, lambda *_: came.set())
    begin()
    if rank == 1:
        signal.signal(signal.SIGUSR1, lambda *_: came.set())
    os.kill(os.getpid(), signal.SIGUSR1)
    wait_for(came.is_set, "the signal", 30)
    dist.destroy_process_group()
    return signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL


def test_a_scripts_own_handler_of_sigusr1_stays(tmp_path):
    assert values(run_ranks(make_plan(2, 1), tmp_path, with_a_handler_of_its_own)) == [True, True]
    assert JobFolder(tmp_path).last_dumps() is None


# ---- status ------------------------------------------------------------------------------------


def look_at_each_other(rank: int, world: int) -> Any:
    begin()
    job = JobFolder(Path(os.environ["TOPOOPT_RUN_DIR"]))
    if rank == 0:
        dist.all_reduce(torch.ones(6))
        return None
    seen = {}

    def rank_0_waits() -> bool:
        nonlocal seen
        seen = read_statuses(job)
        return 0 in seen and bool(seen[0].calls)

    wait_for(rank_0_waits, "rank 0 in all_reduce", 30)
    mode = stat.S_IMODE(job.status(0).stat().st_mode)
    dumped = job.dump(0, rank)
    job.ask_for_dumps("asked for")
    wait_for(dumped.exists, "the dump that was asked for", 30)
    dist.all_reduce(torch.ones(6))
    return mode, plain(seen[0])


def test_a_running_rank_says_what_it_waits_in(tmp_path):
    mode, status = values(run_ranks(make_plan(2, 1), tmp_path, look_at_each_other))[1]
    assert mode == 0o600
    call = status["calls"][0]
    assert (call["name"], call["group"], call["number"], call["state"]) == (
        "all_reduce",
        "0",
        4,
        "started",
    )
    assert (call["bytes"], status["called"], status["unfinished"]) == (24, 4, 1)
    assert [link["link"]["target"] for link in status["links"]] == [1]
    assert read_dump(JobFolder(tmp_path).dump(0, 1)).why == "asked for"
    assert not JobFolder(tmp_path).statuses.exists()
    assert not JobFolder(tmp_path).request.exists()
