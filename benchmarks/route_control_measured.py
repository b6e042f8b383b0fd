"""Jobs that share an emulated switched network, with ECMP and with the controller, as root.

    sudo .venv/bin/python benchmarks/route_control_measured.py

Every job has one host on each leaf of a leaf-spine network and sums around a ring of them, through
the "topoopt" backend. Switches are kernels that hash addresses and ports. Source ports are drawn
until hashes make every job share a link with another; how often that is so is printed.

collide: seconds of an AllReduce (medians; the slowest rank's) with ECMP and those ports, with the
controller, and alone: each job with the network for itself, where its paths do not meet. `bound` is
bytes over the rate of a link, less headers and acknowledgements. Variants take turns.

cut: all cables of a spine that carries flows are cut while jobs train. Switches withdraw routes as
a routing protocol does; then which ports take which path is probed anew, and the controller
notified. `stall` is how much longer the longest AllReduce took than those before, and `recovered`
the seconds from the cut to the end of the last one that took more than 1.25 times as long.

kill: the controller is killed (SIGKILL) while jobs train, and started again later, with its state
file; once all hosts follow it again, a spine is cut as above.

In the end the paths of the jobs' connections are found out from their source ports, and compared
with those that the controller has assigned.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shared_clos.collision import find_collision, hold, let_go
from shared_clos.controller import ControllerProcess
from shared_clos.jobs import Shape, shared_clos

from harness.rank_processes import exit_code_of
from torch_topoopt.plan.units import format_bytes, format_gbps, parse_bytes, parse_gbps
from torch_topoopt.route_control.controller.client import ControllerRefused, ControllerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shared_clos.jobs import JobTimes, Progress, SharedClos

MODES = ("collide", "cut", "kill")
_RESTART = ("serves again", "all hosts follow it")  # after it was started anew
_CUT = ("routes withdrawn", "ports probed", "controller notified")
_USUAL = 1.25  # times the median: an AllReduce as before


@dataclass(frozen=True)
class Collided:
    """One job: seconds of an AllReduce, a median for each round."""

    job: int
    bound_s: float
    alone_s: tuple[float, ...]
    ecmp_s: tuple[float, ...]
    controller_s: tuple[float, ...]

    def ratio(self, variant: str) -> float:
        """To the job alone."""
        return statistics.median(getattr(self, variant)) / statistics.median(self.alone_s)


@dataclass
class Disturbed:
    """One job that was disturbed: seconds of AllReduces before, of the longest one afterwards and
    of those at the end, and from the disturbance to the end of the last slow one (0: none was
    slow; None: all were, to the end)."""

    what: str
    job: int
    before_s: float = 0.0
    longest_s: float = 0.0
    recovered_s: float | None = 0.0
    after_s: float = 0.0

    @property
    def stall_s(self) -> float:
        return self.longest_s - self.before_s


@dataclass
class Deeds:
    """What was done meanwhile: when (time.monotonic()), and how long parts of it took."""

    at: dict[str, float] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    spine: str = ""
    on_path: int = 0  # connections that are where the controller says, in the end
    flows: int = 0


def collide(shared: SharedClos, options: argparse.Namespace) -> tuple[list[Collided], str]:
    """All variants, in turns; and how the collision was found."""
    collision = find_collision(shared, options.seed)
    found = collision.describe(options.seed)
    print(found, flush=True)
    everyone = range(len(shared.jobs))
    alone: list[list[float]] = [[] for _ in everyone]
    ecmp: list[list[float]] = [[] for _ in everyone]
    controlled: list[list[float]] = [[] for _ in everyone]

    def until(progress: Progress) -> None:
        progress.wait_for(options.steps)

    for _ in range(options.rounds):
        hold(shared, collision.ports)
        _append(ecmp, shared.run(everyone, until))
        let_go(shared)
        for job in everyone:
            _append([alone[job]], shared.run([job], until))
        with _controller(shared) as controller:
            _append(controlled, shared.run(everyone, until, controller.environment))
    return [
        Collided(job, shared.shape.bound_s, tuple(alone[job]), tuple(ecmp[job]), tuple(times))
        for job, times in enumerate(controlled)
    ], found


def cut(shared: SharedClos, options: argparse.Namespace) -> tuple[list[Disturbed], Deeds]:
    deeds = Deeds()
    with _controller(shared) as controller:

        def until(progress: Progress) -> None:
            progress.wait_for(options.steps)
            _cut_spine(shared, controller, deeds)
            progress.wait_for(progress.least + 2 * options.steps)
            deeds.on_path, deeds.flows = controller.on_path()

        times = shared.run(range(len(shared.jobs)), until, controller.environment)
    shared.clos.restore(shared.clos.cables_of(deeds.spine))
    return _disturbed("cut", times, deeds.at["cut"]), deeds


def kill(shared: SharedClos, options: argparse.Namespace) -> tuple[list[Disturbed], Deeds]:
    deeds = Deeds()
    with _controller(shared) as controller:

        def until(progress: Progress) -> None:
            progress.wait_for(options.steps)
            deeds.at["kill"] = time.monotonic()
            controller.kill()
            progress.wait_for(progress.least + options.steps)
            deeds.at["restart"] = time.monotonic()
            controller.start()
            deeds.took_s["serves again"] = time.monotonic() - deeds.at["restart"]
            progress.wait(lambda: controller.connections() >= 2 * len(shared.hosts))
            deeds.took_s["all hosts follow it"] = time.monotonic() - deeds.at["restart"]
            progress.wait_for(progress.least + options.steps)
            _cut_spine(shared, controller, deeds)
            progress.wait_for(progress.least + 2 * options.steps)
            deeds.on_path, deeds.flows = controller.on_path()

        times = shared.run(range(len(shared.jobs)), until, controller.environment)
    shared.clos.restore(shared.clos.cables_of(deeds.spine))
    ends = deeds.at["restart"], deeds.at["cut"]
    found = _disturbed("kill", times, deeds.at["kill"], ends[0])
    found += _disturbed("restart", times, ends[0], ends[1])
    return found + _disturbed("cut", times, ends[1]), deeds


class _controller:  # noqa: N801 - reads as a word
    """A controller with nothing in its state but ports."""

    def __init__(self, shared: SharedClos) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="topoopt-controller-")
        self._process = ControllerProcess(shared, self._folder.name)

    def __enter__(self) -> ControllerProcess:
        try:
            return self._process.__enter__()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._folder.cleanup()


def _append(rows: Sequence[list[float]], times: Sequence[JobTimes]) -> None:
    for row, of_job in zip(rows, times, strict=True):
        row.append(of_job.median_s)


def _cut_spine(shared: SharedClos, controller: ControllerProcess, deeds: Deeds) -> None:
    """The spine that most flows take, and the first of equals."""
    taken = [path[1] for path in controller.paths().values() if path is not None and len(path) > 1]
    if not taken:
        raise RuntimeError("the controller has no flows: ranks do not follow it")
    deeds.spine = max(sorted(set(taken)), key=taken.count)
    cables = shared.clos.cables_of(deeds.spine)
    deeds.at["cut"] = time.monotonic()
    deeds.took_s["routes withdrawn"] = shared.clos.cut(cables)
    controller.report_ports(cables)
    deeds.took_s["ports probed"] = time.monotonic() - deeds.at["cut"]
    with controller.client() as client:
        client.set_links(down=cables)
    deeds.took_s["controller notified"] = time.monotonic() - deeds.at["cut"]


def _disturbed(
    what: str, times: Sequence[JobTimes], at: float, until: float = float("inf")
) -> list[Disturbed]:
    """Of each job, what its AllReduces took that ended before `at`, and from then `until`."""
    found = []
    for job, of_job in enumerate(times):
        steps = list(zip(of_job.step_ends[1:], of_job.step_s, strict=True))
        before = statistics.median([took for end, took in steps if end <= at])
        later = [(end, took) for end, took in steps if at < end <= until]
        if not later:
            raise ValueError(f"steps: no AllReduce of job {job} ended after the {what}; try more")
        slow = [end - at for end, took in later if took > _USUAL * before]
        recovered = max(slow, default=0.0)
        last = later[-max(1, len(later) // 2) :]
        found.append(
            Disturbed(
                what,
                job,
                before,
                max(took for _, took in later),
                None if recovered == later[-1][0] - at else recovered,
                statistics.median([took for _, took in last]),
            )
        )
    return found


def collided_table(rows: Sequence[Collided]) -> Iterator[str]:
    yield (
        f"# {'job':>3} {'bound':>9} {'alone':>9} {'ECMP':>9} {'controller':>10} {'ECMP/alone':>11} "
        f"{'controller/alone':>17}"
    )
    for row in rows:
        alone, ecmp, controlled = (
            statistics.median(times) for times in (row.alone_s, row.ecmp_s, row.controller_s)
        )
        yield (
            f"  {row.job:>3} {row.bound_s:>7.3f} s {alone:>7.3f} s {ecmp:>7.3f} s "
            f"{controlled:>8.3f} s {row.ratio('ecmp_s'):>11.3f} {row.ratio('controller_s'):>17.3f}"
        )
    worst = max(row.ratio("controller_s") for row in rows)
    yield f"# controller / alone, the larger of the jobs': {worst:.3f}"


def disturbed_table(rows: Sequence[Disturbed], deeds: Deeds) -> Iterator[str]:
    for what, names in (
        ("the controller was started again", _RESTART),
        (f"{deeds.spine} was cut", _CUT),
    ):
        took = [
            f"{name} after {deeds.took_s[name]:.3f} s" for name in names if name in deeds.took_s
        ]
        if took:
            yield f"# {what}: {', '.join(took)}"
    yield (
        f"# at the end {deeds.on_path} of {deeds.flows} connections are on the path that the "
        "controller has assigned"
    )
    yield (
        f"# {'':>7} {'job':>3} {'before':>9} {'longest':>9} {'stall':>9} {'recovered':>11} "
        f"{'at the end':>11}"
    )
    for row in rows:
        recovered = "not yet" if row.recovered_s is None else f"{row.recovered_s:.3f} s"
        yield (
            f"  {row.what:>7} {row.job:>3} {row.before_s:>7.3f} s {row.longest_s:>7.3f} s "
            f"{row.stall_s:>7.3f} s {recovered:>11} {row.after_s:>9.3f} s"
        )


def benchmark(options: argparse.Namespace) -> None:
    shape = Shape(
        options.leaves,
        options.spines,
        options.jobs,
        parse_gbps(options.bandwidth),
        round(parse_bytes(options.size)),
    )
    print(
        f"# {shape.leaves} leaves, {shape.spines} spines, links of {format_gbps(shape.gbps)}, "
        f"{shape.jobs} jobs of {shape.leaves} ranks, AllReduce of {format_bytes(shape.size_bytes)}",
        flush=True,
    )
    kept: dict[str, object] = {"shape": asdict(shape)}
    with shared_clos(shape, options.seed) as shared:
        for mode in options.modes:
            print(f"# {mode}", flush=True)
            if mode == "collide":
                collided, found = collide(shared, options)
                print("\n".join(collided_table(collided)), flush=True)
                kept[mode] = {"collision": found, "jobs": [asdict(row) for row in collided]}
            else:
                disturbed, deeds = (cut if mode == "cut" else kill)(shared, options)
                print("\n".join(disturbed_table(disturbed, deeds)), flush=True)
                kept[mode] = {"jobs": [asdict(row) for row in disturbed], **asdict(deeds)}
    if options.json:
        Path(options.json).write_text(json.dumps(kept, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "modes", nargs="*", metavar="MODE", help=f"{', '.join(MODES)} (default: all)"
    )
    parser.add_argument("--leaves", type=int, default=4, metavar="N", help="and ranks of a job")
    parser.add_argument("--spines", type=int, default=3, metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="and hosts of a leaf")
    parser.add_argument("--bandwidth", default="30Mbps", help="of a link")
    parser.add_argument("--size", default="2MB", help="of what an AllReduce sums")
    parser.add_argument("--steps", type=int, default=8, help="AllReduces of a phase, at least")
    parser.add_argument("--rounds", type=int, default=3, help="of all variants (collide)")
    parser.add_argument("--seed", type=int, default=0, help="of source ports and switches' hashes")
    parser.add_argument("-J", "--json", metavar="FILE", help="keeps every number")
    options = parser.parse_args()
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"mode: {mode!r} is not one of {', '.join(MODES)}")
    for name, least in (("leaves", 2), ("spines", 1), ("jobs", 2), ("steps", 3), ("rounds", 1)):
        if getattr(options, name) < least:
            parser.error(f"{name}: {getattr(options, name)} is not at least {least}")
    options.modes = options.modes or list(MODES)
    return options


def main() -> int:
    options = parse_arguments()
    errors = ControllerRefused, ControllerUnavailable, RuntimeError
    return exit_code_of("route_control_measured", lambda: benchmark(options), *errors)


if __name__ == "__main__":
    sys.exit(main())
