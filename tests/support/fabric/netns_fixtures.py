"""Fabrics of namespaces for tests: names of their own, and a state folder of their own."""

from __future__ import annotations

import os
import secrets
import shutil
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Cluster, Demand, GroupDemand, Plan
from torch_topoopt.topology.find_network import find_network

if TYPE_CHECKING:
    from pathlib import Path


def make_plan(servers: int, degree: int, gbps: float = 0.05) -> Plan:
    cluster = Cluster(servers, degree, gbps)
    demand = Demand((GroupDemand(tuple(range(servers)), 1 << 20),), ())
    return Plan.of_network(cluster, find_network(cluster, demand), demand, model="none")


def require_namespaces() -> None:
    try:
        netns_kernel.require()
    except FabricError as error:
        pytest.skip(f"no network namespaces here: {error}")


def require_nft() -> None:
    if shutil.which("nft") is None:
        pytest.skip("this needs the program nft (Debian: nftables)")


def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def a_name() -> str:
    return f"test-{os.getpid()}-{secrets.token_hex(3)}"
