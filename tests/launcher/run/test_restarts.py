"""`topoopt run --max-restarts`: from the last checkpoint, with the servers that are left."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.fabric.netns_fixtures import require_namespaces
from support.limits import limit_s

from torch_topoopt.launcher.run import elastic_options, ranks, restarts
from torch_topoopt.launcher.run.ranks import RankFailure
from torch_topoopt.plan import AllToAll, Cluster, Demand, GroupDemand, PairDemand, PairTable, Plan
from torch_topoopt.planner.demand_plan import demand_among
from torch_topoopt.report.run_folder import read_run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

HARNESS = (sys.executable, str(Path(__file__).with_name("stage_harness.py")))
EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoint.py"

# Trains examples/checkpoint.py. In attempt K rank R kills itself after it has saved step S, for
# each "K:R:S" of DEATHS. What the ranks have at the end goes to the file END. The digits are noise,
# for scikit-learn takes seconds to import.
TRAIN = f"""
import importlib.util, os, signal, sys, types
import torch, torch.distributed as dist
noise = torch.Generator().manual_seed(1)
images = torch.rand(300, 64, generator=noise).numpy()
labels = torch.randint(10, (300,), generator=noise).numpy()
datasets = types.ModuleType("sklearn.datasets")
datasets.load_digits = lambda return_X_y: (images, labels)
sys.modules.update({{"sklearn": types.ModuleType("sklearn"), "sklearn.datasets": datasets}})
spec = importlib.util.spec_from_file_location("example", {str(EXAMPLE)!r})
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
deaths = [tuple(map(int, death.split(":"))) for death in os.environ["DEATHS"].split()]
save = example.Training.save

def dying(self, folder):
    save(self, folder)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if (attempt, dist.get_rank(), self.step) in deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    if self.step == 12 and dist.get_rank() == 0:
        state = self._state()
        momentum = [entry["exp_avg"] for entry in state["optimizer"]["state"].values()]
        torch.save([*state["model"].values(), *momentum], os.environ["END"])

example.Training.save = dying
sys.argv[1:] = ["--steps", "12", "--every", "4", "--folder", os.environ["END"] + "-checkpoints"]
example.main()
"""

# Says in a file what torchrun's variables are; then, in attempt K, rank 1 fails in the Kth of the
# ways that are its arguments.
FAIL = """
import os, pathlib, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group()
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
stops = sys.argv[1 + attempt :][:1] == ["SIGSTOP"]  # which others find out by their limit alone
group = dist.new_group(timeout=timedelta(seconds=3 if stops else 60))
names = ("RESTART_COUNT", "MAX_RESTARTS", "RUN_ID")
said = " ".join(os.environ["TORCHELASTIC_" + name] for name in names)
pathlib.Path(f"rank{rank}-{attempt}").write_text(f"{dist.get_world_size()} {said}")
dist.barrier()
if rank == 1 and attempt < len(sys.argv) - 1:
    if sys.argv[1 + attempt] == "raise":
        raise ValueError("the disk is full")
    os.kill(os.getpid(), getattr(signal, sys.argv[1 + attempt]))
dist.all_reduce(torch.ones(10), group=group)
dist.destroy_process_group()
"""


WITHOUT_A_SERVER = [
    "rank 1 of train.py was killed by SIGKILL",
    "restart 1 of 1, without server 1: on 2 of 3 servers (--nnodes needs at least 2), planned "
    "and wired again; servers 0, 2 become 0 to 1",
]


@pytest.fixture
def folder(tmp_path: Path, ring_plan: Callable[[int], Plan]) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fail.py").write_text(FAIL)
    ring_plan(3).save(tmp_path / "plan.json")
    ring_plan(2).save(tmp_path / "plan-of-2.json")
    return tmp_path


def run(
    launcher: Any, *arguments: str, plan: str = "plan.json", **variables: str
) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = launcher.run(
        "run", "--plan", plan, *arguments, **variables
    )
    return done


def warnings_of(err: str) -> list[str]:
    """Without the remarks on where a rank was killed."""
    begin = "topoopt: warning: "
    lines = [line.removeprefix(begin) for line in err.splitlines() if line.startswith(begin)]
    return [line.partition(" on server ")[0] for line in lines]


def test_a_killed_job_goes_on_at_its_checkpoint_and_computes_what_it_would_have(
    launcher: Any, folder: Path
) -> None:
    # of two ranks, for a sum of two has one order, whatever the buckets of DDP
    whole = run(
        launcher, "--run-dir", "a", "train.py", plan="plan-of-2.json", DEATHS="", END="whole"
    )
    assert whole.returncode == 0, whole.stderr
    restarted = run(
        launcher, "--run-dir", "b", "--max-restarts", "2", "train.py", plan="plan-of-2.json",
        DEATHS="0:1:4 1:0:8", END="restarted",
    )  # fmt: skip
    assert restarted.returncode == 0, restarted.stderr
    assert warnings_of(restarted.stderr) == [
        "rank 1 of train.py was killed by SIGKILL",
        "restart 1 of 2, on both servers",
        "rank 0 of train.py was killed by SIGKILL",
        "restart 2 of 2, on both servers",
    ]
    # rank 0, which writes the last file of a checkpoint, may not have done so when rank 1 dies
    starts = [line for line in restarted.stdout.splitlines() if line.startswith("restart ")]
    first, second, third = (int(line.split()[3]) for line in starts)
    assert (first, third) == (0, 8)
    assert second in (0, 4)
    for one, other in zip(
        torch.load(folder / "whole"), torch.load(folder / "restarted"), strict=True
    ):
        assert torch.equal(one, other), "weights and the optimizer's state, bit for bit"
    check_without_a_server(launcher, folder)


def check_smaller(folder: Path) -> None:
    """The run folder of a job that lost server 1 of three."""
    assert Plan.load(folder / "plan-0.json").cluster.servers == 3
    plan = Plan.load(folder / "plan.json")
    assert plan.cluster.servers == 2
    recorded = read_run(folder)
    assert [note for note in recorded.notes if "opgraph.json" not in note] == []
    assert recorded.metrics is not None
    (restart,) = recorded.metrics.restarts
    assert (restart.lost_servers, restart.servers) == ((1,), 2)
    assert [(f.rank, f.exit_code) for f in restart.failed] == [(1, -signal.SIGKILL)]
    assert {link.source for link in recorded.metrics.links} == {0, 1}
    page = (folder / "report.html").read_text()
    assert "rank 1: SIGKILL" in page


def check_without_a_server(launcher: Any, folder: Path) -> None:
    """The job of three servers loses one, and computes what one of two computes."""
    done = run(
        launcher, "--nnodes", "2:3", "--run-dir", "c", "--max-restarts", "1", "train.py",
        DEATHS="0:1:8", END="end",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert warnings_of(done.stderr) == WITHOUT_A_SERVER
    check_smaller(folder / "c")
    assert "restart 1: step " in done.stdout
    assert " of 2 ranks, from end-checkpoints/step-" in done.stdout
    for one, other in zip(torch.load(folder / "whole"), torch.load(folder / "end"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_on_namespaces_a_lost_server_leaves_a_smaller_fabric_and_then_nothing(
    launcher: Any, folder: Path
) -> None:
    require_namespaces()
    process = launcher.start(
        "run", "--plan", "plan.json", "--fabric", "netns", "--nnodes", "2:3", "--run-dir", "b",
        "--max-restarts", "1", "fail.py", "SIGKILL", XDG_STATE_HOME=str(folder / "state"),
    )  # fmt: skip
    _, err = process.communicate(timeout=limit_s(100))
    assert process.returncode == 0, err
    assert warnings_of(err)[1] == WITHOUT_A_SERVER[1]
    check_smaller(folder / "b")
    # which are called after the process that made them: others may run beside this test
    assert list(Path("/run/netns").glob(f"topoopt-run-{process.pid}-*")) == []


def test_the_rank_that_failed_is_named_alone_and_too_few_servers_end_the_job(
    launcher: Any, folder: Path
) -> None:
    options = ("--nnodes", "3:3", "--max-restarts", "3", "--run-dir", "b")
    done = run(launcher, *options, "fail.py", "raise", "SIGSTOP", "SIGKILL")
    assert done.returncode == 1
    assert warnings_of(done.stderr) == [
        "rank 1 of fail.py ended with exit code 1: ValueError: the disk is full",
        "restart 1 of 3, on all 3 servers",
        "rank 1 of fail.py was stopped (SIGSTOP) and did not go on",
        "restart 2 of 3, on all 3 servers",
        "no restart: without server 1 there are 2 of 3 left, and --nnodes needs at least 3",
    ]
    last = done.stderr.splitlines()[-1]
    assert last.startswith("topoopt: error: rank 1 of fail.py was killed by SIGKILL on server 1 ")
    for attempt in range(3):
        texts = [path.read_text().split() for path in sorted(folder.glob(f"rank*-{attempt}"))]
        assert [text[:3] for text in texts] == [["3", str(attempt), "3"]] * 3
    assert len({path.read_text().split()[3] for path in folder.glob("rank*")}) == 1, "one run"


def test_the_last_restart_and_what_is_gone(folder: Path) -> None:
    options = parsed("--nnodes", "1:3", "--max-restarts", "2", folder=folder)
    killed = [RankFailure(1, -signal.SIGKILL, ""), RankFailure(2, 1, "")]
    assert restarts.after(killed, options, 2) is None
    last = restarts.after(killed, options, 1)
    assert last is not None
    assert (last.number, last.lost, last.left) == (2, (1,), (0, 2))
    assert restarts.after([], options, 0) is None
    everywhere = parsed("--max-restarts", "2", folder=folder)
    same = restarts.after(killed, everywhere, 0)
    assert same is not None
    assert same.lost == ()


def parsed(*arguments: str, folder: Path) -> Any:
    from torch_topoopt.launcher.run import options

    plan = str(folder / "plan.json")
    return options.parse(["--plan", plan, *arguments, str(folder / "fail.py")])


def test_ctrl_c_in_the_middle_of_a_restart(launcher: Any, folder: Path, until: Any) -> None:
    marker = folder / "marker"
    options = ("--plan", "plan.json", "--nnodes", "1:3", "--max-restarts", "1", "--run-dir", "b")
    process = launcher.start(
        "restart", marker, "run", *options, "fail.py", "SIGKILL", command=HARNESS
    )
    until(lambda: marker.exists() or process.poll() is not None, "the plan for fewer servers")
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=limit_s(60))
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "topoopt: stopped by SIGINT"
    launcher.wait_for_its_end()
    assert Plan.load(folder / "b" / "plan.json").cluster.servers == 3
    last = (folder / "b" / "metrics.jsonl").read_text().splitlines()[-2:]
    assert [json.loads(line)["event"] for line in last] == ["restart", "end"]


def test_the_demand_among_the_servers_that_are_left() -> None:
    demand = Demand(
        (GroupDemand((0, 1, 2, 3), 100), GroupDemand((0, 1), 50)),
        PairTable((AllToAll((1, 2, 3), 7),), (PairDemand(3, 2, 9), PairDemand(0, 1, 5))),
    )
    assert demand_among(demand, (0, 2, 3)) == Demand(
        (GroupDemand((0, 1, 2), 100),),
        PairTable((AllToAll((1, 2), 7),), (PairDemand(2, 1, 9),)),
    )


def test_fewer_servers_have_no_more_ports_than_others_to_reach() -> None:
    assert elastic_options.cluster_of(Cluster(6, 4, 10.0), 3).degree == 2
    assert elastic_options.cluster_of(Cluster(6, 4, 10.0), 5).degree == 4
    assert elastic_options.cluster_of(Cluster(6, 4, 10.0, parallel_links=True), 3).degree == 4
    assert elastic_options.cluster_of(Cluster(3, 2, 10.0), 1).servers == 1


@pytest.mark.parametrize(
    ("message", "reports"),
    [
        ("DistBackendError: topoopt: all_reduce: rank 2 failed: RuntimeError: boom", True),
        ("DistBackendError: topoopt: barrier: rank 2 has left the job", True),
        ("DistBackendError: topoopt: barrier: ranks 2, 3 are gone: lost the link x", True),
        ("DistBackendError: topoopt: reduce: rank 2 is stopped: its host acknowledges, but", True),
        ("DistBackendError: topoopt: lost the link server 1 port 0 -> server 2 port 1: x", True),
        ("DistBackendError: topoopt: all_reduce (operation 3 of group 0): Timed out", False),
        ("RuntimeError: rank 2 failed: the disk is full", False),
    ],
)
def test_what_only_reports_another_rank(message: str, reports: bool) -> None:
    assert ranks.reports_another(message) == reports
