"""`TopoOptConfig` on real Ray clusters: of one machine, and of hosts that cables join."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from client_jobs import LIMIT_S, SCRIPTS, run
from support.limits import limit_s
from support.plain_namespaces import Namespaces
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip(
    "ray.train", reason="`make test-clients` installs Ray Train (requirements-clients.txt)"
)
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "ray.md"
QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(4 * LIMIT_S)]


def test_the_script_of_the_page(tmp_path: Path) -> None:
    script = re.search(r"```python\n(# fit\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert script is not None
    (tmp_path / "fit.py").write_text(script[1])
    printed = run(tmp_path, "fit.py", **QUIET)
    assert "topoopt: 4 servers, 1 rank each; plan " in printed
    assert "8 links on loopback, each verified from both ends" in printed
    assert "topoopt: loss " in printed


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of sessions and the cluster's address, with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield folder


@pytest.fixture
def hosts() -> Iterator[Namespaces]:
    with Namespaces() as namespaces:
        namespaces.add_managed(4)
        yield namespaces


@pytest.mark.usefixtures("ray_folder")
def test_ranks_follow_the_cables_of_four_hosts(hosts: Namespaces, tmp_path: Path) -> None:
    """The cables make the ring 0, 2, 1, 3; each host runs a node of one Ray cluster."""
    (tmp_path / "lab.yaml").write_text(_cluster(hosts, [(0, 2), (2, 1), (1, 3), (3, 0)]).to_yaml())
    address = f"{hosts.network}.0.1:6379"
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for host in range(4):  # one by one: on one machine they would choose the same socket names
            nodes.append(_start_node(hosts, host, address, tmp_path))
            _wait_for_start(tmp_path / f"node{host}.log", nodes[-1])
        script = [str(SCRIPTS / "ray_topoopt.py"), str(tmp_path / "lab.yaml"), address]
        done = subprocess.run(
            ["ip", "netns", "exec", hosts.names[0], sys.executable, *script, str(tmp_path)],
            env={**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=limit_s(LIMIT_S),
            check=False,
        )
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(limit_s(30))
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "4 servers, 1 rank each" in done.stderr + done.stdout
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert [one["host"] for one in found] in (["0", "2", "1", "3"], ["0", "3", "1", "2"])
    assert [one["ray_rank"] for one in found] == [0, 1, 2, 3]
    assert {one["sum"] for one in found} == {6.0}
    for rank, one in enumerate(found):
        ends = {(source, target) for source, target, _ in one["links"]}
        assert ends == {(rank, (rank + 1) % 4), (rank, (rank - 1) % 4)}
        sent = [size for _, _, size in one["links"]]
        assert sum(sent) >= 2 * 4 * 250_000 * 3 / 4, "an all_reduce's bytes, on cables"


def _cluster(hosts: Namespaces, cables: list[tuple[int, int]]) -> ClusterFile:
    ports: list[list[PortEntry]] = [[] for _ in hosts.names]
    plugged = []
    for ends in hosts.add_cables(cables, "nic"):
        for host, interface, address in ends:
            ports[host].append(PortEntry(interface, address, None))
        plugged.append((f"h{ends[0][0]}:{ends[0][1]}", f"h{ends[1][0]}:{ends[1][1]}"))
    servers = tuple(
        ServerEntry(f"h{host}", f"{hosts.network}.0.{host + 1}", ports=tuple(own))
        for host, own in enumerate(ports)
    )
    return ClusterFile(1, "lab", servers, tuple(plugged)).validate()


def _start_node(hosts: Namespaces, host: int, address: str, logs: Path) -> subprocess.Popen[bytes]:
    own = f"{hosts.network}.0.{host + 1}"
    role = (
        ["--head", "--port=6379", "--include-dashboard=false"]
        if host == 0
        else [f"--address={address}"]
    )
    return subprocess.Popen(
        [
            *(
                "ip",
                "netns",
                "exec",
                hosts.names[host],
                sys.executable,
                "-m",
                "ray.scripts.scripts",
            ),
            *("start", *role, f"--node-ip-address={own}", "--num-cpus=1", "--block"),
            "--disable-usage-stats",
        ],
        env={**os.environ, **QUIET, "RAY_TEST_HOST": str(host), "OMP_NUM_THREADS": "1"},
        stdout=(logs / f"node{host}.log").open("wb"),
        stderr=subprocess.STDOUT,
    )


def _wait_for_start(log: Path, node: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + limit_s(60)
    while "Ray runtime started" not in (said := log.read_text()):
        assert node.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"backend": "gloo"}, ("backend", "gloo", "topoopt")),
        ({"cluster": "lab.yaml", "degree": 2}, ("degree", "cluster file")),
        ({"cluster": "nowhere.yaml"}, ("nowhere.yaml",)),
        ({"bandwidth": "1Gbps"}, ("bandwidth", "degree")),
        ({"degree": 2, "bandwidth": "fast"}, ("bandwidth",)),
        ({"degree": 2, "workers_per_server": 0}, ("workers_per_server", 0, 1)),
        ({"degree": 2, "batch_size": 8}, ("batch_size", "model")),
        ({"degree": 2, "plan": "a.json", "model": "vgg"}, ("model", "plan")),
        ({"degree": 2, "plan": "nowhere.json"}, ("nowhere.json",)),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(
    options: dict[str, object], tokens: tuple[object, ...]
) -> None:
    from torch_topoopt.ray_train import TopoOptConfig

    with refused(ValueError, *tokens):
        TopoOptConfig(**options)


def test_workers_are_pinned_to_clusters_only() -> None:
    from torch_topoopt.ray_train import TopoOptConfig

    with refused(ValueError, "cluster file", "order"):
        TopoOptConfig(degree=2).scaling_config()
