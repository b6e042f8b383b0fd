"""One `topoopt run` on emulated hosts whose cables are cut and repaired while it trains."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fault_injection.cable_faults import KINDS, CableFaults
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fault_injection.cable_faults import Turn
    from torch_topoopt.fabric.netns.layout import NetnsLayout

Result = TypeVar("Result")

_HERE = Path(__file__).resolve().parent
_START_LIMIT_S = 300.0
_SAMPLE_EVERY_S = 5.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Job:
    """What runs where. `script` is in this folder and makes the file READY (in its environment)
    when all ranks have begun; `folder` is for the run's results and its output."""

    script: str
    arguments: Sequence[str]
    folder: Path
    servers: int = 8
    degree: int = 4
    bandwidth: str | None = "25Mbps"
    fabric: str = "netns"
    plan: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    @property
    def output(self) -> Path:
        """What the run and its ranks printed."""
        return self.folder / "output"

    def command(self) -> list[str]:
        size = ["--model", "none", "--servers", str(self.servers), "--degree", str(self.degree)]
        bandwidth = [] if self.bandwidth is None else ["--bandwidth", self.bandwidth]
        return [
            *(sys.executable, "-m", "torch_topoopt.launcher.main", "run"),
            *("--fabric", self.fabric, "--no-measure-steps"),
            *("--run-dir", str(self.folder / "run")),
            *(size if self.plan is None else ["--plan", str(self.plan)]),
            *bandwidth,
            str(_HERE / self.script),
            *self.arguments,
        ]


@dataclass
class Outcome:
    """`exit_code` of the run; how many `faults` in which `turns`, and the `problem` that ended them
    (with the run, its hosts end); per process of a rank, samples of its own memory
    (time.monotonic, bytes)."""

    exit_code: int = -1
    faults: int = 0
    problem: str = ""
    turns: list[Turn] = field(default_factory=list)
    memory: dict[int, list[tuple[float, int]]] = field(default_factory=dict)


def run(
    job: Job,
    *,
    limit_s: float,
    every_s: float | None = None,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    log: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Runs `job` to its end, with a turn of faults every `every_s` seconds (None: without).

    The run has ended when this returns, and is killed after `limit_s`; raises FabricError if it
    ends before its ranks begin.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **job.variables, "READY": str(job.ready)}
    outcome = Outcome()
    deadline = time.monotonic() + limit_s
    with job.output.open("wb") as output:
        process = subprocess.Popen(
            job.command(),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_ready(job, process)
            with contextlib.ExitStack() as beside:
                if job.fabric == "netns":
                    _watch(beside, process.pid, outcome, every_s, seed, kinds, log)
                outcome.exit_code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log(f"the run has not ended within {limit_s:.0f} s")
        finally:
            _end(process)
    return outcome


def in_folder(folder: Path | None, name: str, run: Callable[[Path], Result]) -> Result:
    """What `run` returns of a folder that is kept, or of one that goes with the benchmark."""
    if folder is not None:
        return run(folder)
    with tempfile.TemporaryDirectory(prefix=f"topoopt-{name}-") as temporary:
        return run(Path(temporary))


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)  # it removes the fabric
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_ready(job: Job, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not job.ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            last = "".join(job.output.read_text(errors="replace").splitlines()[-1:])
            raise FabricError(f"the run did not start: {last}")
        time.sleep(_POLL_S)


def _watch(
    beside: contextlib.ExitStack,
    launcher: int,
    outcome: Outcome,
    every_s: float | None,
    seed: int,
    kinds: Sequence[str],
    log: Callable[[str], None],
) -> None:
    """Starts the threads beside a run that is ready; `beside` ends them."""
    record, plan, _ = netns_state.load(f"run-{launcher}")
    over = threading.Event()
    threads = [
        threading.Thread(target=_sample, args=(record.layout, record.servers, outcome, over))
    ]
    if every_s is not None:
        faults = CableFaults(record.layout, plan, seed=seed, kinds=kinds, log=log)
        outcome.turns = faults.turns
        threads.append(threading.Thread(target=_cut, args=(faults, every_s, outcome, over)))
    for thread in threads:
        thread.start()
        beside.callback(thread.join)
    beside.callback(over.set)


def _cut(faults: CableFaults, every_s: float, outcome: Outcome, over: threading.Event) -> None:
    try:
        faults.run(every_s, over)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        outcome.problem = str(error)
    outcome.faults = faults.count


def _sample(layout: NetnsLayout, servers: int, outcome: Outcome, over: threading.Event) -> None:
    hosts = [layout.namespace(server) for server in range(servers)]
    while True:
        for pid in netns_kernel.processes(hosts):
            if (size := _own_memory(pid)) is not None:
                outcome.memory.setdefault(pid, []).append((time.monotonic(), size))
        if over.wait(_SAMPLE_EVERY_S):
            return


def _own_memory(pid: int) -> int | None:
    """Bytes in RAM that are no file's; None if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), None)
