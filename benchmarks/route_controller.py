"""How long the controller of a switched network takes to answer (the paper's section 5.3).

    python benchmarks/route_controller.py schemes     # each scheme, of all flows at once
    python benchmarks/route_controller.py answers     # what a change costs inside the controller
    python benchmarks/route_controller.py service     # the same over HTTP

64 ToRs, 32 spines, 2048 hosts. Around a job whose flows start and end there are 100 to 100 000
others (`--flows`). `answers` has, in milliseconds: the change of the state alone, without a right
prediction and with one, and with one the whole answer (JSON is read, the state is stored, JSON is
written), for the starts and the ends of the job's flows and for a cable that dies. Medians of
`--repeat`, of processor time; `service` is by the wall clock, so let nothing else run.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx

from torch_topoopt.route_control.clos_network import leaf_spine
from torch_topoopt.route_control.controller.client import ControllerClient
from torch_topoopt.route_control.controller.messages import FlowReport
from torch_topoopt.route_control.controller.precomputation import Precomputation
from torch_topoopt.route_control.controller.prediction import TrafficPrediction
from torch_topoopt.route_control.controller.request_handler import (
    AssignmentOptions,
    RequestHandler,
)
from torch_topoopt.route_control.controller.store import RouteStore
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)
from torch_topoopt.route_control.schemes import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TORS, SPINES, HOSTS_PER_TOR = 64, 32, 32
BITS_PER_S = 100e9
TOKEN = "only-for-this-benchmark"
SLOW = {"annealing": 10_000, "exact": 1_000}  # schemes that are left out above so many flows


def network_file() -> NetworkFile:
    leaves, spines = [f"leaf{i}" for i in range(TORS)], [f"spine{i}" for i in range(SPINES)]
    hosts = range(TORS * HOSTS_PER_TOR)
    return NetworkFile(
        1,
        tuple(map(NamedSwitch, (*leaves, *spines))),
        tuple(NamedHost(f"h{i}", f"leaf{i // HOSTS_PER_TOR}") for i in hosts),
        tuple(SwitchCable(ends, BITS_PER_S) for ends in itertools.product(leaves, spines)),
    ).validate()


def drawn(name: str, count: int, size_bytes: int, random_: random.Random) -> list[FlowReport]:
    """Flows between hosts of two ToRs."""
    found: list[FlowReport] = []
    while len(found) < count:
        a, b = random_.sample(range(TORS * HOSTS_PER_TOR), 2)
        if a // HOSTS_PER_TOR != b // HOSTS_PER_TOR:
            found.append(FlowReport(f"{name}-{len(found)}", f"h{a}", f"h{b}", size_bytes))
    return found


def milliseconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    call()
    return (clock() - begin) * 1e3


def schemes(counts: list[int], repeat: int) -> None:
    """Milliseconds of each scheme for unit demands and no dead link; congestion over the bound."""
    names = ["greedy", "ecmp", "colouring", "annealing", "local-search", "exact"]
    print(f"{'flows':>7}" + "".join(f"{name:>18}" for name in names))
    network = leaf_spine(TORS, SPINES)
    for count in counts:
        random_ = random.Random(count)
        ends = [random_.sample(range(TORS), 2) for _ in range(count)]
        problem = RoutingProblem(network, [SwitchedFlow(*pair) for pair in ends])
        problem.prepare()
        bound = problem.bound()
        row = f"{count:7}"
        for name in names:
            cell = "-"
            if count <= SLOW.get(name, count):
                choice: list[int] = []
                times = []
                for _ in range(1 if name in SLOW else repeat):
                    begin = time.process_time()
                    choice = SCHEMES[name](problem, 0)
                    times.append((time.process_time() - begin) * 1e3)
                cell = f"{median(times):.2f} ({problem.max_link_load(choice) / bound:.3f})"
            row += f"{cell:>18}"
        print(row, flush=True)


def answers(counts: list[int], repeat: int, job_flows: int, scheme_names: list[str]) -> None:
    columns = [f"{what} {how}" for what in ("start", "end", "cable") for how in HOWS]
    print(f"job of {job_flows} flows, milliseconds")
    print(f"{'flows':>7} {'scheme':>10}" + "".join(f"{name:>16}" for name in columns))
    file = network_file()
    for count, scheme in itertools.product(counts, scheme_names):
        if count > SLOW.get(scheme, count):
            continue
        with tempfile.TemporaryDirectory() as folder:
            cells = _answers(file, Path(folder), scheme, count, repeat, job_flows)
        row = "".join(f"{median(cells[name]):16.3f}" for name in columns)
        print(f"{count:7} {scheme:>10}{row}", flush=True)


ASSIGNMENTS = ("precomputed", "computed")
HOWS = ("computed", "predicted", "answer")


def _answers(
    file: NetworkFile, folder: Path, scheme: str, count: int, repeat: int, job_flows: int
) -> dict[str, list[float]]:
    random_ = random.Random(count)
    store = RouteStore(folder / "state", file)
    handler = RequestHandler(store, scheme, lambda hosts: None, AssignmentOptions(1e9), 0.0)
    state = handler.state
    precomputation = Precomputation(lambda: state, TrafficPrediction(), 1, lambda: 0.0)
    numbers = itertools.count()

    def send(path: str, **body: Any) -> Callable[[], bytes]:
        text = json.dumps({"request": str(next(numbers)), **body}).encode()
        return lambda: handler.change("POST", path, text, 0.0)

    others = [flow._asdict() for flow in drawn("other", count, 10**14, random_)]
    send("/v1/flows", job="others", flows=others)()
    job = drawn("job", job_flows, 10**9, random_)
    ids = [flow.id for flow in job]
    cables = [tuple(cable.ends) for cable in random_.sample(file.links, repeat)]
    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {}
    for i in range(repeat + 1):  # the first finds the paths of pairs
        cable = cables[i % repeat]
        for how in HOWS:
            ahead = how != "computed"
            told = how == "answer"

            def note(what: str, call: Callable[[], object], how: str = how, i: int = i) -> None:
                took = milliseconds(call, time.process_time)
                if i:
                    times.setdefault(f"{what} {how}", []).append(took)

            if ahead:
                precomputation.compute_now(state.starting(job))
            start = send("/v1/flows", job="job", flows=[flow._asdict() for flow in job])
            note("start", start if told else lambda: state.start("job", job))
            if ahead:
                precomputation.compute_now(state.ending(ids))
            end = send("/v1/flows/end", ids=ids)
            note("end", end if told else lambda: state.end(ids))
            if ahead:
                precomputation.compute_now(state.dying([frozenset(cable)]))
            down = send("/v1/links", down=[cable])
            note("cable", down if told else lambda c=cable: state.set_links([c], []))
            (send("/v1/links", up=[cable]) if told else lambda c=cable: state.set_links([], [c]))()
    store.close()
    gc.unfreeze()
    return times


@contextlib.contextmanager
def serving(folder: Path, file: NetworkFile) -> Iterator[str]:
    """`topoopt controller` as a process; its address."""
    file.save(folder / "network.json")
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    command = [sys.executable, "-m", "torch_topoopt.launcher.main", "controller", "--json"]
    command += ["--listen", "127.0.0.1:0", "--network", str(folder / "network.json")]
    command += ["--token-file", str(folder / "token"), "--state-file", str(folder / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = itertools.takewhile(lambda line: line != "}\n", process.stdout)
            yield json.loads("".join([*lines, "}"]))["url"]
        finally:
            process.terminate()


def measured(url: str) -> dict[str, float]:
    """The controller's own numbers, by their names and labels."""
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if line[0] != "#"]
    return {name.removeprefix("topoopt_controller_"): float(value) for name, _, value in lines}


def service(counts: list[int], repeat: int, job_flows: int, pause_s: float) -> None:
    """A job whose phases come every `pause_s`: half of it its flows are there."""
    print(f"phases of a job of {job_flows} flows over loopback, milliseconds until the answer,")
    print("and of these inside the controller, on average")
    print(f"{'flows':>7}{'start':>10}{'end':>10}{'inside':>10}{'hits':>8}{'misses':>8}")
    file = network_file()
    for count in counts:
        random_ = random.Random(count)
        others = drawn("other", count, 10**14, random_)
        job = drawn("job", job_flows, 10**9, random_)
        ids = [flow.id for flow in job]
        starts, ends = [], []
        before: dict[str, float] = {}
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(Path(folder), file) as url,
            ControllerClient(url, TOKEN, limit_s=600) as client,
        ):
            for first in range(0, count, 10_000):
                client.start(f"others{first}", others[first : first + 10_000])
            gc.collect()
            gc.freeze()
            for i in range(repeat + 2):  # a period is known from the second start on
                if i == 2:
                    before = measured(url)
                starts.append(milliseconds(partial(client.start, "job", job), time.perf_counter))
                time.sleep(pause_s / 2)
                ends.append(milliseconds(partial(client.end, ids), time.perf_counter))
                time.sleep(pause_s / 2)
            change = {name: value - before[name] for name, value in measured(url).items()}
        gc.unfreeze()
        inside_s, answered = (
            sum(change[f'answer_seconds_{what}{{assignment="{how}"}}'] for how in ASSIGNMENTS)
            for what in ("sum", "count")
        )
        hits, misses = (int(change[f"precomputed_{what}_total"]) for what in ("hits", "misses"))
        print(
            f"{count:7}{median(starts[2:]):10.2f}{median(ends[2:]):10.2f}"
            f"{inside_s / answered * 1e3:10.2f}{hits:8}{misses:8}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("schemes", "answers", "service"))
    parser.add_argument("--flows", default="100,1000,10000,100000", help="(default: %(default)s)")
    parser.add_argument("--job", type=int, default=300, help="flows of it (default: 300)")
    parser.add_argument("--repeat", type=int, default=15, help="(default: 15)")
    parser.add_argument(
        "--schemes", default="local-search,greedy,ecmp,annealing", help="of answers"
    )
    parser.add_argument("--pause", type=float, default=1.0, help="seconds of a period of service")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.flows.split(",")]
    if arguments.what == "schemes":
        schemes(counts, arguments.repeat)
    elif arguments.what == "answers":
        answers(counts, arguments.repeat, arguments.job, arguments.schemes.split(","))
    else:
        service(counts, arguments.repeat, arguments.job, arguments.pause)


if __name__ == "__main__":
    main()
