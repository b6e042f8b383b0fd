"""Plans the schedule of one matrix in a process of its own, which never delays the job.

`python -m torch_topoopt.reconfiguration.matrix_planning PARENT`: the request comes on standard
input, the answer leaves on standard output, both pickled. The process ends with PARENT, and has a
low priority.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_topoopt.processes.rank_main import die_with
from torch_topoopt.reconfiguration.all_to_all.comparison import Option, Sizes, compared
from torch_topoopt.reconfiguration.all_to_all.schedule import PORT, SENDER, SOURCE, TARGET
from torch_topoopt.reconfiguration.all_to_all.uneven import check_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_topoopt.reconfiguration.all_to_all.costs import CircuitCosts
    from torch_topoopt.reconfiguration.all_to_all.schedule import AllToAllSchedule

LIMIT_S = 60.0  # of processor time; afterwards the best schedule so far is used
_PRIORITY = 5  # with 19, ranks that keep all processors busy would starve it


class _OutOfTimeError(Exception):
    pass


def running_s(
    schedule: AllToAllSchedule,
    matrix: NDArray[np.int64],
    costs: CircuitCosts,
    present: Sequence[bool] | None = None,
) -> float:
    """The predicted seconds of a running all-to-all.

    `present` says of each topology whether the plan has its circuits; None: of none. Ranks do not
    wait for slots, so a topology lasts as long as its busiest circuit. Parallel circuits share one
    connection. Infinite if the schedule has no chunk for some of the bytes.
    """
    n, d = schedule.servers, schedule.reconfigurations
    parts = schedule.chunk_counts()
    if np.any((matrix > 0) & (parts == 0)):
        return np.inf
    chunk_bytes = matrix / np.maximum(parts, 1)
    seconds = np.where(matrix > 0, costs.latency_s + chunk_bytes * costs.byte_s, 0.0)
    whole = schedule.whole()
    sends = whole.sends
    topology = whole.topology_of(sends)
    receiver = whole.links[topology, sends[:, SENDER], sends[:, PORT]]
    circuit = (topology * n + sends[:, SENDER]) * n + receiver
    load = np.bincount(circuit, seconds[sends[:, SOURCE], sends[:, TARGET]], d * n * n)
    busiest = load.reshape(d, n * n).max(axis=1)
    return float(costs.moving_s(present or [False] * d) + busiest.sum())


def planned(
    matrix: NDArray[np.int64], degree: int, costs: CircuitCosts, *, limit_s: float = LIMIT_S
) -> AllToAllSchedule:
    """The fastest schedule of `topoopt alltoall --matrix` for ranks that run it.

    Main thread only. Raises ValueError if none is found in `limit_s` of processor time.
    """
    options: list[Option] = []
    sizes = Sizes.of_matrix(check_matrix(matrix.astype(np.float64), len(matrix)))

    def stop(*_: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        compared(
            len(matrix), degree, costs, sizes, on_option=lambda option, _: options.append(option)
        )
    except _OutOfTimeError:
        if not options:
            raise ValueError(f"planning took more than {limit_s:g} s of processor time") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    schedules = [option.strategy.schedule for option in options]
    return min(schedules, key=lambda schedule: running_s(schedule, matrix, costs))


class MatrixPlanning:
    """A process that plans one matrix. Raises OSError if it cannot be started."""

    def __init__(self, matrix: NDArray[np.int64], degree: int, costs: CircuitCosts) -> None:
        self.matrix = matrix
        with tempfile.TemporaryFile() as request, ExitStack() as stack:
            self._answer = stack.enter_context(tempfile.TemporaryFile())
            pickle.dump((matrix, degree, costs), request)
            request.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid())],
                stdin=request,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            stack.pop_all()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> AllToAllSchedule | str:
        """After its end: the schedule, or why there is none."""
        code = self._process.wait()
        if code != 0:
            return f"the planner ended with code {code}"
        self._answer.seek(0)
        found: AllToAllSchedule | str = pickle.load(self._answer)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answer.close()


def main(parent: int) -> None:
    die_with(parent)
    os.nice(_PRIORITY)
    matrix, degree, costs = pickle.load(sys.stdin.buffer)
    try:
        found: AllToAllSchedule | str = planned(matrix, degree, costs)
    except (ValueError, MemoryError) as error:
        found = str(error) or type(error).__name__
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
