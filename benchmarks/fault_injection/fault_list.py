"""The faults of benchmarks/faults.py: how each is injected and undone, and what is promised."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fault_injection.broken_cables import (
    INPUT_HOOK,
    REFUSED,
    Cable,
    CheckedSums,
    Down,
    Duplicated,
    End,
    Reordered,
    Rules,
    Slow,
    SmallMtu,
    Swapped,
    cables_of,
    is_connected,
    reset_a_connection,
    some_that_may_fail,
)
from fault_injection.strangers import BEHAVIOURS, Strangers, StrangersAtTheStart

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from fault_injection.checked_job import CheckedJob

SILENCE_LIMIT_S = 5.0  # TOPOOPT_SILENCE_LIMIT_S of the jobs
_SHORT_STOP_S = 1.5
_SMALL_MTU = 900
_QUEUE_S = 0.1  # what was sent before has arrived by then
_NOTICE_LIMIT_S = 10.0
_SECOND_S = 2.0  # at most, between two faults
_LOSS_S = 5.0
_FLAPS, _FLAP_S = 10, 0.2
_CGROUPS = Path("/sys/fs/cgroup/memory")
_CGROUP_SPARE_BYTES = 64 << 20
_CORRUPT = "IN meta length > 200 numgen random mod 100 < 3 @th,800,8 set 0x62"
_CORRUPT_ALL = "IN meta length > 52 @th,256,8 set 0x62"


class UnavailableError(Exception):
    """This machine lacks what a fault needs; the message names it."""


class Undo(Protocol):
    """A fault that lasts until it is repaired."""

    def repair(self) -> None: ...


@dataclass
class Scene:
    """Where a fault happens: the job, its cables, and chance."""

    job: CheckedJob
    chance: random.Random
    cables: list[Cable] = field(init=False)
    victim: int = field(init=False)
    dying: set[int] = field(default_factory=set)  # ranks whose processes the fault itself ends
    injected_at: float = 0.0  # time.monotonic(), where the fault does not begin with inject()
    chosen: str = ""  # of several faults

    def __post_init__(self) -> None:
        setting = self.job.setting
        assert setting.fabric is not None
        assert setting.plan is not None
        self.cables = cables_of(setting.fabric.layout, setting.plan)
        self.victim = self.chance.randrange(setting.ranks)

    def cable(self) -> Cable:
        return self.chance.choice(self.cables)

    def ends_at(self, server: int) -> list[End]:
        """The ports of a server."""
        return [
            end
            for cable in self.cables
            for end, owner in zip(cable.ends, cable.servers, strict=True)
            if owner == server
        ]

    def kill(self, number: signal.Signals) -> None:
        os.kill(self.job.ranks[self.victim].pid, number)


@dataclass
class Repairs:
    """Several faults at once; the last one is repaired first."""

    parts: list[Undo]

    def repair(self) -> None:
        for part in reversed(self.parts):
            part.repair()


@dataclass(frozen=True)
class Fault:
    """`ends`: the job ends with an error on all ranks; otherwise it goes on.

    `notice` is a regular expression for the first line, or error, that must say so; {victim} stands
    for the rank. `limit_s`: the timeout of the collectives of a job of its own. `at_start`: it
    happens while a job starts, not to one that runs.
    """

    name: str
    inject: Callable[[Scene], Undo | None]
    ends: bool = False
    notice: str = ""
    limit_s: float | None = None
    settles_s: float = 0.0  # before "slower" is measured
    most_over_s: float | None = None  # until all ranks have gone on
    leaves_no_trace: bool = True  # after the repair: the job is as new
    at_start: Callable[[list[str]], StrangersAtTheStart] | None = None  # of namespaces


# ---- cables ----


def _down(end: int) -> Callable[[Scene], Undo]:
    return lambda scene: Down(scene.cable().ends[end])


def _rules(ends: slice, *rules: str) -> Callable[[Scene], Undo]:
    return lambda scene: Rules(list(scene.cable().ends)[ends], *rules)


def _several_down(count: int) -> Callable[[Scene], Undo]:
    def inject(scene: Scene) -> Undo:
        servers = scene.job.setting.ranks
        chosen = some_that_may_fail(scene.cables, servers, count, scene.chance)
        return Repairs([Down(scene.chance.choice(cable.ends)) for cable in chosen])

    return inject


def _two_in_turn(scene: Scene) -> Undo:
    """The second while the first is out, one silent and one down."""
    servers = scene.job.setting.ranks
    first, second = some_that_may_fail(scene.cables, servers, 2, scene.chance)
    broken: list[Undo] = [Rules(list(first.ends), "IN drop")]
    scene.job.steps_done(2, _SECOND_S)
    broken.append(Down(second.ends[0]))
    return Repairs(broken)


def _reset(scene: Scene) -> None:
    fabric = scene.job.setting.fabric
    assert fabric is not None
    layout = fabric.layout
    namespace = layout.namespace(scene.victim)
    reset_a_connection(namespace, layout.management_network, scene.chance)


def _flapping(scene: Scene) -> None:
    end = scene.chance.choice(scene.cable().ends)
    for _ in range(5):
        down = Down(end)
        scene.job.pause(scene.chance.uniform(0.02, 0.3))
        down.repair()
        scene.job.pause(scene.chance.uniform(0.02, 0.4))


def _corrupted(rule: str) -> Callable[[Scene], Undo]:
    """Bytes change under way; what TCP's checksums find is as good as lost."""

    def inject(scene: Scene) -> Undo:
        ends = list(scene.cable().ends)
        checked = CheckedSums(ends)
        scene.job.pause(_QUEUE_S)
        return Repairs([checked, Rules(ends, rule)])

    return inject


def _slow(scene: Scene) -> Undo:
    gbps = _gbps(scene)
    return Slow(scene.cable(), gbps / 10, gbps)


def _isolated(silently: bool) -> Callable[[Scene], Undo]:
    def inject(scene: Scene) -> Undo:
        if not silently:
            return Repairs([Down(end) for end in scene.ends_at(scene.victim)])
        ends = [
            end for cable in scene.cables if scene.victim in cable.servers for end in cable.ends
        ]
        return Rules(ends, "IN drop")

    return inject


def _at_a_host_for(seconds: float, rule: str) -> Callable[[Scene], None]:
    """All ports of a host have the rule; what follows is measured from its end."""

    def inject(scene: Scene) -> None:
        rules = Rules(scene.ends_at(scene.victim), rule)
        scene.job.pause(seconds)
        rules.repair()
        scene.injected_at = time.monotonic()

    return inject


def _deaf(scene: Scene) -> Undo:
    return Rules(scene.ends_at(scene.victim), "IN drop")


def _small_mtu(scene: Scene) -> Undo:
    return SmallMtu(scene.ends_at(scene.victim), _SMALL_MTU)


def _flaps_regularly(scene: Scene) -> None:
    end = scene.chance.choice(scene.cable().ends)
    for _ in range(_FLAPS):
        down = Down(end)
        scene.job.pause(_FLAP_S)
        down.repair()
        scene.job.pause(_FLAP_S)


def _halves(scene: Scene) -> Undo:
    """All cables between two connected halves of the hosts are down."""
    servers = scene.job.setting.ranks
    while True:
        half = set(scene.chance.sample(range(servers), servers // 2))
        other = set(range(servers)) - half
        if all(_joined(scene.cables, group) for group in (half, other)):
            break
    between = [cable for cable in scene.cables if len(half & set(cable.servers)) == 1]
    return Repairs([Down(scene.chance.choice(cable.ends)) for cable in between])


def _joined(cables: list[Cable], group: set[int]) -> bool:
    """Whether the cables inside the group connect it."""
    place = {server: i for i, server in enumerate(sorted(group))}
    inside = [cable for cable in cables if set(cable.servers) <= group]
    return is_connected([cable.renumbered(place) for cable in inside], len(group))


def _gbps(scene: Scene) -> float:
    plan = scene.job.setting.plan
    assert plan is not None
    return plan.cluster.link_gbps


def _swapped(scene: Scene) -> Undo:
    servers = scene.job.setting.ranks
    while True:
        first, second = some_that_may_fail(scene.cables, servers, 2, scene.chance)
        if first.ends[1].namespace != second.ends[1].namespace:
            return Swapped(first, second, _gbps(scene))


def _mixed(scene: Scene) -> Undo | None:
    """Any fault that a job survives, one after the other on the same job."""
    fault = scene.chance.choice([fault for fault in FAULTS.values() if _may_be_mixed(fault)])
    scene.chosen = fault.name
    return fault.inject(scene)


def _may_be_mixed(fault: Fault) -> bool:
    return not fault.ends and fault.at_start is None and fault.inject is not _mixed


# ---- processes ----


class _KilledAtLast:
    """A victim that would stay for ever."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def repair(self) -> None:
        if self._scene.job.ranks[self._scene.victim].exit_code is None:
            self._scene.kill(signal.SIGKILL)


def _stopped(scene: Scene) -> Undo:
    scene.dying.add(scene.victim)
    scene.kill(signal.SIGSTOP)
    return _KilledAtLast(scene)


def _killed(scene: Scene) -> None:
    scene.dying.add(scene.victim)
    scene.kill(signal.SIGKILL)


def _stopped_shortly(scene: Scene) -> None:
    scene.kill(signal.SIGSTOP)
    scene.job.pause(_SHORT_STOP_S)
    scene.kill(signal.SIGCONT)


def _ending(deed: str) -> Callable[[Scene], Undo]:
    """The victim does one of DEEDS, with which it ends, or waits for ever."""

    def inject(scene: Scene) -> Undo:
        scene.dying.add(scene.victim)
        _order(scene, deed, [scene.victim])
        return _KilledAtLast(scene)

    return inject


def _calling(deed: str, *, by_all: bool) -> Callable[[Scene], None]:
    """The victim, or every rank, calls something else."""
    return lambda scene: _order(
        scene, deed, list(range(scene.job.setting.ranks)) if by_all else [scene.victim]
    )


def _order(scene: Scene, deed: str, ranks: list[int]) -> None:
    scene.job.order(deed, ranks)
    scene.injected_at = scene.job.ordered_at(ranks, _NOTICE_LIMIT_S)


class _SmallCgroup:
    def __init__(self, scene: Scene) -> None:
        self._folder = _CGROUPS / f"topoopt-faults-{os.getpid()}"
        pid = scene.job.ranks[scene.victim].pid
        used = scene.job.usage().memory_bytes[scene.victim]
        try:
            self._folder.mkdir()
            (self._folder / "memory.limit_in_bytes").write_text(str(used + _CGROUP_SPARE_BYTES))
            (self._folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.repair()
            raise UnavailableError(f"a cgroup of version 1 for memory: {error.strerror}") from None

    def repair(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._folder.rmdir()


def _killed_for_memory(scene: Scene) -> Undo:
    group = _SmallCgroup(scene)
    _ending("fill memory")(scene)
    return group


# ---- strangers ----


def _strangers(behaviour: str) -> Callable[[Scene], Undo]:
    def inject(scene: Scene) -> Undo:
        fabric = scene.job.setting.fabric
        assert fabric is not None
        servers = range(scene.job.setting.ranks)
        strangers = Strangers([behaviour], [fabric.layout.namespace(server) for server in servers])
        strangers.come()
        if not strangers.visited:
            raise RuntimeError("no listener was found")
        scene.injected_at = time.monotonic()
        return strangers

    return inject


_GONE = r"lost the link .*: (its interface is down|.* reset|.* abort|the other end has)"
_SILENT = r"lost the link .*: nothing is acknowledged"
_UNREACHABLE = r"ranks? [\d, ]+ (is|are) unreachable"
_BACK_S = 2.0
_DISAGREE = r"disagree|does not|another|instead|but rank|different"

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("cable down, at the end that connects", _down(0), notice=_GONE),
        Fault("cable down, at the other end", _down(1), notice=_GONE),
        Fault("cable flaps 5 times", _flapping, notice=_GONE),
        Fault("cable silent, both directions", _rules(slice(2), "IN drop"), notice=_SILENT),
        Fault("cable silent, one direction", _rules(slice(1), "IN drop"), notice=_SILENT),
        Fault("two cables, one after the other", _two_in_turn, notice=_SILENT),
        Fault("three cables at once, still connected", _several_down(3), notice=_GONE),
        Fault("connection reset", _reset, notice=_GONE),
        Fault(
            "connections reset and refused",
            lambda scene: Rules(
                list(scene.cable().ends),
                REFUSED,
                hook=INPUT_HOOK,
            ),
            notice=_GONE,
        ),
        Fault("3 % of the packets corrupted", _corrupted(_CORRUPT)),
        Fault("every packet corrupted", _corrupted(_CORRUPT_ALL), notice=_SILENT),
        Fault("1 % of the packets lost", _rules(slice(2), "IN numgen random mod 100 < 1 drop")),
        Fault(
            "10 % of the packets lost",
            _rules(slice(2), "IN numgen random mod 100 < 10 drop"),
            notice="is slow: ",
            settles_s=2.0,
            leaves_no_trace=False,
        ),
        Fault(
            "large packets lost, one direction",
            _rules(slice(1), "IN meta length > 1000 drop"),
            notice="lost the link",
            leaves_no_trace=False,
        ),
        Fault(
            "link at a tenth of its rate",
            _slow,
            notice="is slow: ",
            settles_s=2.0,
            leaves_no_trace=False,  # rings load the link less for some time
        ),
        Fault(
            "server cut off, by carrier",
            _isolated(silently=False),
            ends=True,
            notice="rank {victim} (is|cannot)|rank.* cannot be reached|lost the link",
        ),
        Fault(
            "server cut off, silently",
            _isolated(silently=True),
            ends=True,
            notice=_SILENT,
        ),
        Fault(
            "host deaf for 3 s", _at_a_host_for(3.0, "IN drop"), most_over_s=_BACK_S, notice=_SILENT
        ),
        Fault("host deaf for 10 s", _deaf, ends=True, notice=_UNREACHABLE),
        Fault(
            "30 % lost at all ports of a host, for 5 s",
            _at_a_host_for(_LOSS_S, "IN numgen random mod 100 < 30 drop"),
            leaves_no_trace=False,
        ),
        Fault("MTU of 900 at all ports of a host", _small_mtu, leaves_no_trace=False),
        Fault("hosts in two halves, by carrier", _halves, ends=True, notice=_UNREACHABLE),
        Fault("two cables swapped", _swapped, notice="lost the link"),
        Fault("cable flaps every 200 ms", _flaps_regularly, notice=_GONE),
        Fault(
            "half of the packets twice",
            lambda scene: Duplicated(scene.cable()),
            leaves_no_trace=False,
        ),
        Fault(
            "packets out of order",
            lambda scene: Reordered(scene.cable(), _gbps(scene)),
            leaves_no_trace=False,
        ),
        Fault("mixed: any of those that a job survives", _mixed),
        Fault("rank killed (SIGKILL)", _killed, ends=True, notice="rank {victim} "),
        Fault("rank crashes (SIGSEGV)", _ending("crash"), ends=True, notice="rank {victim} "),
        Fault("rank stopped for 1.5 s", _stopped_shortly),
        Fault(
            "rank stopped for good (SIGSTOP)",
            _stopped,
            ends=True,
            notice="rank {victim} is stopped",
        ),
        Fault(
            "rank raises an exception",
            _ending("raise"),
            ends=True,
            notice="rank {victim} failed: ValueError: the disk is full",
        ),
        Fault("rank ends (os._exit)", _ending("exit at once"), ends=True, notice="rank {victim} "),
        Fault("rank ends (sys.exit)", _ending("sys.exit"), ends=True, notice="rank {victim} "),
        Fault(
            "rank leaves the group early",
            _ending("leave"),
            ends=True,
            notice="rank {victim} has left",
        ),
        Fault(
            "rank out of memory (allocation fails)",
            _ending("out of memory"),
            ends=True,
            notice="rank {victim} failed: ",
        ),
        Fault(
            "rank out of memory (killed by the kernel)",
            _killed_for_memory,
            ends=True,
            notice="rank {victim} ",
        ),
        Fault(
            "rank never calls",
            _ending("never call"),
            ends=True,
            notice="rank {victim} has not called",
            limit_s=3.0,
        ),
        *(
            Fault(f"rank calls {what}", _calling(deed, by_all=by_all), ends=True, notice=_DISAGREE)
            for what, deed, by_all in (
                ("another collective", "other collective", False),
                ("with another reduction", "other reduction", False),
                ("with another shape", "other shape", False),
                ("with another dtype of the same size", "other dtype", False),
                ("with another root", "other root", True),
                ("in another order", "other order", False),
                ("all_to_all with other splits", "other splits", True),
                ("send and recv with other dtypes", "send other dtype", True),
            )
        ),
        *(Fault(f"strangers: {behaviour}", _strangers(behaviour)) for behaviour in BEHAVIOURS),
        Fault(
            "strangers of all kinds while the job starts",
            lambda scene: None,
            at_start=StrangersAtTheStart,
        ),
    )
}
