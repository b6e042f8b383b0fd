"""Runs all ranks of a script at once, without its messages, and records the times of its steps.

`python -m torch_topoopt.profile.script.timed_child FOLDER`, started by step_timing.py from a fork
server. FOLDER/job.json says what to run; rank r leaves FOLDER/r.json, {"steps": ..., "buckets":
..., "events": ...} or {"error": "one line"}. Every process group is PyTorch's fake one, as in
child.py: nothing is sent, and received tensors are ones.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_topoopt.processes.rank_main import die_with
from torch_topoopt.profile.script import checkpoints, child
from torch_topoopt.profile.script.integer_messages import Broker, Rank, RankChannel
from torch_topoopt.profile.script.rank_time import read_clocks
from torch_topoopt.profile.script.recorder import READERS, group_of
from torch_topoopt.profile.script.step_clock import StepClock
from torch_topoopt.profile.script.step_events import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEY = "CPU"


def main(folder: Path) -> None:
    """Starts the ranks and waits for all of them; the parent process limits the time."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    world_size, parent = len(job["environments"]), os.getpid()
    numbered = [Rank(job["script"], rank) for rank in range(world_size)]
    broker = Broker(numbered)
    live: dict[Rank, int] = {}
    for rank, environment in enumerate(job["environments"]):
        channel = broker.connect(numbered[rank])
        pid = os.fork()
        if pid == 0:
            die_with(parent)
            log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(environment)
            try:
                run(job, rank, channel, folder / f"{rank}.json")
            finally:
                os._exit(0)  # without waiting for threads that the script left behind
        live[numbered[rank]] = os.pidfd_open(pid)
    while live:
        _advance(live, broker)


def _advance(live: dict[Rank, int], broker: Broker) -> None:
    """Serves ranks that have a request, and forgets those that have ended."""
    active = [rank for rank in live if rank not in broker.waiting]
    if not active:
        broker.give_up()
        return
    ready = wait([*live.values(), *map(broker.connection, active)])
    for rank in active:
        if broker.connection(rank) in ready and broker.serve(rank):
            continue
        if live[rank] in ready:
            os.close(live.pop(rank))
            broker.ended(rank)


def run(job: dict[str, Any], rank: int, channel: RankChannel, result: Path) -> None:
    """Runs the script as one rank, up to the last step that is timed."""

    def finish(steps: list[Any], buckets: Any) -> None:
        child.write_result(result, {"steps": steps, "buckets": buckets, "events": log.steps})
        os._exit(0)

    script = str(job["script"])
    child._fake_process_groups(rank, len(job["environments"]))
    checkpoints.write_none()
    log = EventLog(rank, read_clocks)
    library = _without_messages(log, channel)
    sys.addaudithook(child._no_network)
    clock = StepClock(finish, read_clocks, log)
    clock.install()
    sys.argv = [script, *job["arguments"]]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
        clock.script_ended()
        error = "it ended after too few optimizer steps"
    except SystemExit as stop:
        clock.script_ended()
        error = f"it called sys.exit({stop.code!r}) after too few optimizer steps"
    except BaseException as raised:  # a script may raise anything
        error = child._one_line(raised, script)
    child.write_result(result, {"error": error})
    del library  # it has to live as long as the script runs


def _without_messages(log: EventLog, channel: RankChannel) -> Any:
    """Replaces the operators of c10d by ones that send integers only, and record their calls.

    A dispatch mode, as the Recorder is, would take longer than many an operator of a small model.
    """
    library = torch.library.Library("c10d", "IMPL")
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("c10d::") and schema.name in READERS:
            name = schema.name.removeprefix("c10d::")
            library.impl(name, _operator(schema, log, channel), _KEY, allow_override=True)
    return library


def _operator(schema: Any, log: EventLog, channel: RankChannel) -> Callable[..., Any]:
    names = [argument.name for argument in schema.arguments]
    read = READERS[schema.name]
    fill = _FILLS.get(schema.name.removeprefix("c10d::"), _fill_with_own)

    def operator(*args: Any, **kwargs: Any) -> Any:
        log.pause()
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        members = tuple(dist.get_process_group_ranks(group_of(values)))
        changed = args[0]
        with torch.no_grad():
            fill(changed, args[1])
            channel.deliver(schema.name, values, members, changed)
        work = log.called(read(values, len(members)), members, list(_tensors(changed)))
        log.resume()
        if not schema.returns:
            return work.wait() and None
        return work.boxed() if len(schema.returns) == 1 else (changed, work.boxed())

    return operator


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Of a tensor, or of a list (of lists) of them."""
    if isinstance(value, torch.Tensor):
        yield value.detach()
    else:
        for item in value:
            yield from _tensors(item)


def _leave(changed: Any, given: Any) -> None:
    """The sum of ranks that are not there, and the tensor of a root."""


def _fill_with_ones(changed: Any, given: Any) -> None:
    for tensor in _tensors(changed):
        tensor.fill_(1)


def _fill_with_own(changed: Any, given: Any) -> None:
    """Every received part is this rank's own, repeated or cut; else ones."""
    parts = [part.reshape(-1).clone() for part in _tensors(given)]  # may be views of the other
    for i, tensor in enumerate(_tensors(changed)):
        part = parts[i % len(parts)]
        if part.numel() and tensor.numel() % part.numel() == 0 and tensor.is_contiguous():
            tensor.view(-1, part.numel()).copy_(part)
        elif tensor.numel() <= part.numel():
            tensor.copy_(part[: tensor.numel()].view_as(tensor))
        else:
            tensor.fill_(1)


_FILLS = {
    **dict.fromkeys(("broadcast_", "reduce_", "send", "barrier", "monitored_barrier_"), _leave),
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), _leave),
    **dict.fromkeys(("recv_", "recv_any_source_"), _fill_with_ones),
}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
