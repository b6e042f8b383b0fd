"""`topoopt run --alltoall` and `--collectives`: circuits of an emulated switch that move for a
script."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import mesh_training
import numpy as np
import pytest
from support.backend.ranks import run_bare_ranks, values
from support.fabric.netns_fixtures import make_plan, own_state, require_namespaces
from support.fabric.switched_clusters import switched_file
from support.refusals import refused

from torch_topoopt.fabric.cluster import host_forwarding
from torch_topoopt.fabric.cluster.switched_plan import with_cables
from torch_topoopt.launcher.console import Terminal
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import alltoall, fabrics
from torch_topoopt.plan import Cluster
from torch_topoopt.reconfiguration.choice import Choice
from torch_topoopt.reconfiguration.requested_calls import MovedCollective, MovedExchange
from torch_topoopt.runtime.metrics import MetricsWriter

if TYPE_CHECKING:
    from pathlib import Path

    from support.launcher import Launcher

SERVERS, CALLS = 4, 2  # with two circuits each, which join no server to all others
MESH = {"tensor": 2, "hidden": 32, "batch": 8, "steps": 2}
SCRIPT = f"""
import torch
import torch.distributed as dist

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
for size in [{CALLS} * [20_000], {CALLS} * [10]]:
    for elements in size:
        own = torch.arange(world * elements) * world + rank
        into = torch.empty_like(own)
        dist.all_to_all_single(into, own)
        for source, part in enumerate(into.view(world, -1)):
            first = rank * elements
            assert torch.equal(part, torch.arange(first, first + elements) * world + source)
total = torch.ones(1000)
dist.all_reduce(total)
assert bool((total == world).all())
dist.destroy_process_group()
"""


def test_choices_of_one_kind_are_printed_once_for_each_power_of_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = MetricsWriter(tmp_path / "metrics.jsonl", 0.0)
    all_to_alls = alltoall.AllToAlls(Terminal(), metrics, tmp_path)
    for size, why, kind in [
        (600, "moving is faster: 6 s", "moving"),
        (601, "moving is faster: 6.01 s", "moving"),
        (602, "moving is faster: 4 s", "moving; schedule 1"),
        (6000, "moving is faster: 60 s", "moving"),
    ]:
        choice = Choice(None, why, kind=kind)
        all_to_alls.add(MovedExchange(np.array([[0, size], [0, 0]]), choice, 1.0, 0.5))
    all_to_alls.add(MovedCollective("all_reduce", 600, 2, choice, 1.0, 0.5, "no light"))
    printed = [line.strip().split(": ", 1) for line in capsys.readouterr().out.splitlines()]
    assert [why for _, why in printed] == [
        f"moving is faster: {seconds} s" for seconds in ("6", "4", "60", "60")
    ]
    assert printed[-1][0] == "all_reduce of 600 B by 2 ranks"
    assert all_to_alls.counts == alltoall.MoveCounts(stayed=4)
    assert all_to_alls.others == alltoall.MoveCounts(stopped=1)


@pytest.mark.parametrize(("choice", "moved"), [("reconfigure", 2 * CALLS), ("static", 0)])
def test_circuits_move_as_it_was_asked_for_and_the_report_shows_it(
    launcher: Launcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    moved: int,
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    (tmp_path / "script.py").write_text(SCRIPT)
    options = ("--fabric", "netns", "--servers", str(SERVERS), "--degree", "2", "--bandwidth")
    options += ("50Mbps", "--relay", "kernel", "--switch-delay", "0.005", "--alltoall", choice)
    done = launcher.run("run", *options, "--collectives", choice, "--json", "script.py")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    matrix = summary["alltoall"].pop("matrix")
    assert summary["alltoall"] == {"moved": moved, "stayed": 0, "stopped": 0}
    assert summary["collectives"] == {"moved": min(moved, 1), "stayed": 0, "stopped": 0}
    assert (matrix is not None) is (moved > 0)
    if matrix is not None:
        check_measured(launcher, tmp_path / matrix)
    page = (tmp_path / summary["report"]).read_text()
    assert ("reconfigure was requested" in page) is (moved > 0)
    assert "are not shown" not in page


def in_gloo(rank: int, world: int) -> list[float]:
    return mesh_training.train(**MESH, backend="gloo")[0]


def test_tensor_and_data_groups_train_on_circuits_that_move(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    make_plan(4, 2).save(tmp_path / "ring.json")
    options = ("--fabric", "netns", "--plan", "ring.json", "--relay", "kernel")
    options += ("--switch-delay", "0.005", "--collectives", "reconfigure")
    script = [mesh_training.__file__, *(f"--{name}={value}" for name, value in MESH.items())]
    done = launcher.run("run", *options, "--json", *script, "--output", "losses.json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    # In each step: all groups add results of both layers, forward, and gather and scatter. The
    # ring has circuits between the ranks of a tensor group, and none between those of a data group.
    counts = summary["collectives"]
    assert counts["moved"] + counts["stayed"] >= 4 * 3 * MESH["steps"]
    assert counts["moved"] >= 2 * MESH["steps"]
    assert counts["stopped"] == 0
    losses = json.loads((tmp_path / "losses.json").read_text())["losses"]
    expected = values(run_bare_ranks(4, in_gloo))[0]
    assert losses == pytest.approx(expected, abs=1e-5)
    page = (tmp_path / summary["report"]).read_text()
    assert "reduce_scatter" in page


def check_measured(launcher: Launcher, file: Path) -> None:
    """The mean of both sizes, eight bytes an element; it can be planned for."""
    measured = np.load(file)
    assert measured.shape == (SERVERS, SERVERS)
    assert np.all(measured[~np.eye(SERVERS, dtype=bool)] == 8 * (20_000 + 10) // 2)
    planned = launcher.run("alltoall", "--matrix", str(file), "--chunk", "10kB", "--json")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize(
    ("switch_delay", "relay", "accelerators", "why"),
    [
        (None, "kernel", 1, "switch"),
        (0.01, "user", 1, "forward"),
        (0.01, "kernel", 2, "2 ranks"),
    ],
)
def test_where_circuits_cannot_move_it_is_refused_with_the_reason(
    switch_delay: float | None, relay: str, accelerators: int, why: str
) -> None:
    cluster = Cluster(4, 2, 1.0, accelerators_per_server=accelerators)
    for option in ("alltoall", "collectives"):
        choices = {"alltoall": "auto", "collectives": "auto", option: "reconfigure"}
        arguments = argparse.Namespace(switch_delay=switch_delay, relay=relay, **choices)
        if accelerators == 1 or option == "alltoall":
            with refused(InputError, option, "reconfigure", why):
                alltoall.check(arguments, cluster)
        else:
            alltoall.check(arguments, cluster)
        setattr(arguments, option, "auto")
        alltoall.check(arguments, cluster)


@pytest.mark.parametrize(
    ("kinds", "relay", "why"),
    [
        ((), "kernel", "cluster file"),
        (("memory", "manual"), "kernel", "ocs1 (manual)"),
        (("telescent",), "kernel", "ocs0 (telescent)"),
        (("sonic-ocs", "polatis-restconf"), "user", "--relay kernel"),
        (("sonic-ocs", "polatis-restconf"), "kernel", ""),
    ],
)
def test_on_a_cluster_circuits_move_on_switches_of_one_way_circuits(
    kinds: tuple[str, ...], relay: str, why: str
) -> None:
    file = switched_file(4, [1] * max(1, len(kinds)))
    if kinds:
        found = zip(file.switches, kinds, strict=True)
        file = replace(file, switches=tuple(replace(one, kind=kind) for one, kind in found))
    else:
        file = with_cables(file, [])
    arguments = argparse.Namespace(
        switch_delay=None, relay=relay, alltoall="auto", collectives="reconfigure"
    )
    cluster = Cluster(4, 2, 1.0)
    if not why:
        return alltoall.check(arguments, cluster, file)
    with refused(InputError, "collectives", "reconfigure", why):
        alltoall.check(arguments, cluster, file)
    arguments.collectives = "auto"
    alltoall.check(arguments, cluster, file)


def test_only_hosts_whose_ports_are_on_switches_forward_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = argparse.Namespace(relay="kernel", switch_delay=None)
    file = switched_file(4, [1])
    monkeypatch.setattr(host_forwarding, "require_rights", lambda: None)
    fabrics.check("loopback", arguments, file)
    for other in (None, with_cables(file, [])):
        with refused(InputError, "relay", "kernel", "--cluster"):
            fabrics.check("loopback", arguments, other)
