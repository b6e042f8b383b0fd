"""`topoopt cluster` starts a real `topoopt run --cluster` on every host of a job, in namespaces."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from plain_hosts import Hosts, make_hosts
from support.launcher import forked
from support.plain_namespaces import Namespaces

from torch_topoopt.fabric.cluster_file.entries import SwitchEntry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.launcher import Launcher

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group()
total = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {dist.get_backend()}: {total[7]:g}")
dist.destroy_process_group()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Namespaces() as namespaces:
        yield make_hosts(2, [(0, 1)], Hosts(namespaces))


def _shared(hosts: Hosts) -> ClusterFile:
    """The hosts as if the two ends of their cable were sockets of a switch."""
    file = hosts.cluster(gbps=0.1)
    servers = tuple(
        replace(s, name=name, ports=(replace(s.ports[0], switch=f"ocs0:{i + 1}"),))
        for i, (s, name) in enumerate(zip(file.servers, hosts.names, strict=True))
    )
    switch = SwitchEntry("ocs0", "memory", "-", sockets=("1", "2"))
    return replace(file, servers=servers, cables=(), switches=(switch,)).validate()


def test_a_job_trains_on_its_hosts_over_its_circuits(
    hosts: Hosts, launcher: Launcher, tmp_path: Path
) -> None:
    _shared(hosts).save(tmp_path / "lab.yaml")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "topoopt"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(forked())} "$@"\n')
    command.chmod(0o755)
    reach = f"ip netns exec {{server}} env PATH={tmp_path}/bin:{os.environ['PATH']}"
    where = ("--cluster", "lab.yaml", "--state", "state")
    shape = ("--servers", "2", "--degree", "1", "--model", "none")
    done = launcher.run(
        *("cluster", "submit", *where, *shape, "--launch", "hosts", "--reach", reach, "train.py")
    )
    assert done.returncode == 0, done.stderr
    daemon = launcher.run("cluster", "daemon", *where, "--until-idle")
    assert daemon.returncode == 0, daemon.stderr
    folder = tmp_path / "state" / "jobs" / "1"
    logs = [(folder / f"host-{name}.log").read_text() for name in hosts.names]
    assert "job 1: done; " in daemon.stdout, (daemon.stdout, logs)
    for rank, log in enumerate(logs):
        assert f"rank {rank} of 2 on topoopt: 3\n" in log
        assert "2 links on static, each verified from both ends" in log
