"""`topoopt run --nccl`: what it refuses, and ranks that reach each other through the plugin.

There is no GPU here. The launcher is told that there are some, and the script becomes the program
that calls the plugin as NCCL does.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from plain_hosts import Hosts, make_hosts
from support.commands import shared_server
from support.fabric.netns_fixtures import require_namespaces
from support.launcher import LIMIT_S
from support.limits import limit_s
from support.nccl_harness import compiled
from support.plain_namespaces import Namespaces
from support.plans import renumbered

from torch_topoopt.launcher import main
from torch_topoopt.links.nccl_wiring import LIBRARY, ring_order

if TYPE_CHECKING:
    from pathlib import Path

    from support.launcher import Launcher
    from support.plans import RingPlan

SMALL = ("--servers", "4", "--degree", "2", "--model", "none")

_COMMAND = """\
import sys
import torch, torch.distributed
from torch_topoopt.launcher.main import main
torch.cuda.device_count = lambda: int(sys.argv[1])
torch.distributed.is_nccl_available = lambda: True
sys.exit(main(sys.argv[2:]))
"""

_SCRIPT = """\
import json, os, subprocess, sys
harness, exchange, *scenario = sys.argv[1:]
here = json.loads(subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True).stdout)
names = ("NCCL_NET", "NCCL_TUNER_PLUGIN", "NCCL_SOCKET_IFNAME", "TOPOOPT_PLAN", "LOCAL_RANK",
         "NCCL_HOSTID", "CUDA_VISIBLE_DEVICES")
facts = {name: os.environ.get(name) for name in names}
facts["addresses"] = {i["ifname"]: i["addr_info"][0]["local"] for i in here}
with open(f"facts{os.environ['RANK']}", "w") as file:
    json.dump(facts, file)
plugin, rank, ranks = (os.environ[n] for n in ("NCCL_NET_PLUGIN", "RANK", "WORLD_SIZE"))
os.execv(harness, [harness, plugin, "11", exchange, rank, ranks, *scenario])
"""


class Job:
    """Starts `topoopt run --nccl` on as many GPUs as it is told that there are."""

    def __init__(self, launcher: Launcher, harness: Path) -> None:
        self._launcher = launcher
        self._harness = harness
        self.folder = launcher.folder
        (self.folder / "command.py").write_text(_COMMAND)
        (self.folder / "train.py").write_text(_SCRIPT)

    def start(
        self, *options: str, gpus: int = 64, folder: str = ".", inside: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        there = replace(self._launcher, folder=self.folder / folder)
        there.folder.mkdir(exist_ok=True)
        return there.start(
            *(self.folder / "command.py", str(gpus), "run", "--nccl", "--no-measure-steps"),
            *("--run-dir", "run", *options, self.folder / "train.py"),
            *(self._harness, self.folder / "exchange", "mesh", "1000"),
            command=(*inside, *shared_server().command("python")),
        )

    def run(self, *options: str, gpus: int = 64) -> subprocess.CompletedProcess[str]:
        return _end_of(self.start(*options, gpus=gpus))

    def facts(self, ranks: int) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"facts{rank}").read_text()) for rank in range(ranks)]


def _end_of(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=limit_s(LIMIT_S))
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def job(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(launcher, compiled("nccl_net_harness", tmp_path_factory))


def test_ranks_use_the_plugin_and_nothing_of_ours(job: Job) -> None:
    done = job.run(*SMALL, "--accelerators-per-server", "2", "--encrypt", gpus=6)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all pairs connected") == 8
    for rank, facts in enumerate(job.facts(8)):
        assert facts["NCCL_NET"] == "topoopt"
        assert facts["NCCL_TUNER_PLUGIN"] == str(LIBRARY)
        assert facts["NCCL_SOCKET_IFNAME"] == "lo"
        assert facts["TOPOOPT_PLAN"] is None  # so init_process_group() is NCCL's
        assert facts["LOCAL_RANK"] == str(rank % 2)
        assert facts["NCCL_HOSTID"] == f"topoopt-server-{rank // 2}"
    # the fourth server shares the GPUs of the first
    gpus = [facts["CUDA_VISIBLE_DEVICES"] for facts in job.facts(8)[::2]]
    assert gpus == ["0,1", "2,3", "4,5", "0,1"]
    assert "carried nothing" not in done.stderr


def test_ranks_are_where_their_ring_has_cables(job: Job, ring_plan: RingPlan) -> None:
    require_namespaces()
    plan = renumbered(ring_plan(4), (0, 2, 1, 3))
    plan.save(job.folder / "plan.json")
    done = job.run("--plan", "plan.json", "--fabric", "netns")
    assert done.returncode == 0, done.stderr
    last = [int(f["addresses"]["management"].rpartition(".")[2]) for f in job.facts(4)]
    assert ring_order(plan) in ((0, 2, 1, 3), (0, 3, 1, 2))
    assert tuple(number - last[0] for number in last) == ring_order(plan)


def test_hosts_of_a_cluster_are_numbered_along_their_ring(job: Job) -> None:
    require_namespaces()
    with Namespaces() as namespaces:
        hosts = make_hosts(4, [(0, 2), (2, 1), (1, 3), (3, 0)], Hosts(namespaces))
        hosts.cluster().save(job.folder / "cluster.yaml")
        options = ("--cluster", str(job.folder / "cluster.yaml"), "--model", "none")
        started = [
            job.start(*options, gpus=1, folder=f"{k}", inside=("ip", "netns", "exec", name))
            for k, name in enumerate(hosts.names)
        ]
        ended = [_end_of(process) for process in started]
    assert [done.returncode for done in ended] == [0] * 4, "\n".join(d.stderr for d in ended)
    texts = {(job.folder / f"{k}" / "run" / "wiring.nccl").read_text() for k in range(4)}
    assert len(texts) == 1
    files = [next(job.folder.glob(f"?/facts{rank}")) for rank in range(4)]
    order = [int(file.parent.name) for file in files]
    assert order in ([0, 2, 1, 3], [0, 3, 1, 2])


def test_without_gpus_it_says_what_is_missing(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text("raise SystemExit('it has run')\n")
    done = launcher.run("run", "--nccl", *SMALL, "train.py")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no GPU here, for the 1 rank of each emulated server" in done.stderr
    assert not (launcher.folder / "runs").exists()


def test_too_few_gpus_are_counted(job: Job) -> None:
    done = job.run(*SMALL, "--accelerators-per-server", "4", gpus=3)
    assert done.returncode == 2
    assert "nccl: 3 GPUs here, for the 4 ranks of each emulated server" in done.stderr
    assert not (job.folder / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--transport", "auto"), "transport: NCCL's plugin has links over TCP"),
        (("--take-over", "nccl"), "take-over: puts topoopt in NCCL's place"),
        (("--alltoall", "reconfigure"), "alltoall: "),
    ],
)
def test_options_that_exclude_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert main.main(["run", "--nccl", *SMALL, *options, str(script)]) == 2
    assert message in capsys.readouterr().err
