"""A job among strangers, with a plan and without: they are at each listener of it all the time."""

from __future__ import annotations

import re
import socket
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from listening import listeners, local_names
from support.hostile import BEHAVIOURS, Target
from support.limits import limit_s

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 3
DIAL_S = 5.0
# Its ranks listen, and wait for the last one, until the strangers were there. They train until
# these have done all that they do at the listeners of a running job.
TRAIN = """\
import os, resource, time, torch, torch.distributed as dist
from torch_topoopt.runtime.job_network import StoreMeeting
publish = StoreMeeting.publish
def late(self, topic, text):
    while topic == "listening" and self._rank == 2 and not os.path.exists("visited"):
        time.sleep(0.01)
    publish(self, topic, text)
StoreMeeting.publish = late
dist.init_process_group("topoopt")
world, rank = dist.get_world_size(), dist.get_rank()
done = torch.zeros(1)
step = 0
while not done.item():
    step += 1
    total = torch.full((1000,), float(rank + step))
    dist.all_reduce(total)
    assert total[0].item() == sum(range(world)) + step * world
    if step % 100 == 1:
        dist.new_group().size()
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        open(f"running-{rank}", "w").close()
    done = torch.tensor([float(os.path.exists("enough"))])
    dist.all_reduce(done, dist.ReduceOp.MIN)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
print(f"rank {rank} is done, {grown} MiB more", flush=True)
dist.destroy_process_group()
"""


class Strangers:
    """Threads that find the listeners of a job, and do all of BEHAVIOURS at each until stopped."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._stopped = threading.Event()
        self.rounds: dict[str, int] = {}  # of each listener that was found
        self._threads = [threading.Thread(target=self._find)]

    def __enter__(self) -> Strangers:
        self._threads[0].start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def visited(self) -> int:
        """The number of listeners at which they have done everything."""
        return sum(rounds > 0 for rounds in list(self.rounds.values()))

    def _find(self) -> None:
        while not self._stopped.wait(0.05):
            found: dict[str, tuple[socket.AddressFamily, Any]] = {
                name: (socket.AF_UNIX, f"\0{name}") for name in local_names(self._mark)
            }
            for listener in listeners(self._mark):
                where = (str(listener.address), listener.port)
                if not listener.address.is_unspecified:  # torchrun's own store
                    found[f"{where[0]}:{where[1]}"] = (socket.AF_INET, where)
            for name, (family, address) in found.items():
                if name not in self.rounds:
                    self.rounds[name] = 0
                    self._threads.append(
                        threading.Thread(target=self._visit, args=(name, family, address))
                    )
                    self._threads[-1].start()

    def _visit(self, name: str, family: socket.AddressFamily, where: Any) -> None:
        target = Target(lambda: self._dial(family, where), b"TOPOOPT3" + bytes(200))
        while not self._stopped.wait(0.1):
            with ExitStack() as stack:
                for behaviour in BEHAVIOURS.values():
                    try:
                        behaviour(target, stack)
                    except OSError:
                        return  # it listens no longer
            self.rounds[name] += 1

    @staticmethod
    def _dial(family: int, where: Any) -> socket.socket:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(DIAL_S)
            connection.connect(where)
        except BaseException:
            connection.close()
            raise
        return connection


@pytest.mark.exhaustive
@pytest.mark.parametrize("planned", [True, False], ids=["plan", "no plan"])
def test_a_job_trains_among_strangers(
    launcher: Any,
    until: Callable[..., None],
    ring_plan: Callable[[int], Any],
    planned: bool,
) -> None:
    (launcher.folder / "train.py").write_text(TRAIN)
    if planned:
        ring_plan(RANKS).save(launcher.folder / "plan.json")
        process = launcher.start("run", "--plan", "plan.json", "train.py")
    else:
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "train.py")
        process = launcher.start(*torchrun, command=(sys.executable,))
    with Strangers(launcher.mark) as strangers:
        # of each rank the local port, and with a plan data ports, and the store
        doors = 2 * RANKS + 1 if planned else RANKS
        until(lambda: strangers.visited() >= doors, "visits while the ranks meet", 30)
        (launcher.folder / "visited").touch()
        until(lambda: len(list(launcher.folder.glob("running-*"))) == RANKS, "training", 120)
        if planned:  # else nothing listens by then
            begun = max(strangers.rounds.values())
            until(lambda: max(strangers.rounds.values()) >= begun + 2, "visits while it trains", 60)
        (launcher.folder / "enough").touch()
        out, err = process.communicate(timeout=limit_s(60))
    assert process.returncode == 0, err
    launcher.wait_for_its_end()
    growths = [int(mib) for mib in re.findall(r"rank \d is done, (\d+) MiB more", out)]
    assert len(growths) == RANKS, out
    assert max(growths) < 64
    assert err.count("closed a connection from") <= 10 * RANKS
