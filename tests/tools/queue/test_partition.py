"""Partitions: the sockets of a job, the cluster file that it sees, and what can never run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from shared_cluster import make_cluster, program
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.tools.queue.jobs import JobLayout, JobSpec, QueuedJob
from torch_topoopt.tools.queue.launching import commands_of
from torch_topoopt.tools.queue.partition import (
    cables_of,
    check_fits,
    job_cluster,
    lay_out,
    partition,
    selected_ports,
    sides_of,
    unheld,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch_topoopt.plan import Plan


def test_a_partition_has_the_sockets_of_its_servers_on_one_side_and_no_other() -> None:
    cluster = make_cluster(4)
    near = partition(cluster, ("h2", "h1"), "switch")
    assert [server.name for server in near.servers] == ["h2", "h1"]
    assert near.switches[0].sockets == ("3", "4", "5", "6")
    far = partition(cluster, ("h2", "h1"), "lookahead")
    assert far.switches[0].sockets == ("11", "12", "13", "14")


def test_what_no_job_holds_is_the_rest() -> None:
    cluster = make_cluster(2)
    rest = unheld(cluster, [("h0", "switch"), ("h1", "lookahead")])
    assert rest is not None
    assert rest.switches[0].sockets == ("3", "4", "5", "6")
    everything = [(h, side) for h in ("h0", "h1") for side in ("switch", "lookahead")]
    assert unheld(cluster, everything) is None  # type: ignore[arg-type]


def test_every_cable_of_the_plan_gets_sockets_of_one_switch_within_the_partition(
    ring_plan: Callable[..., Plan],
) -> None:
    cluster = make_cluster(6, addresses=("", ""))
    names = ("h5", "h1", "h2", "h4")
    layout = lay_out(ring_plan(4), cluster, names, "lookahead")
    assert JobLayout.from_json(layout.to_json()) == layout
    pairs = {frozenset(end.split(":")[0] for end in c.ends) for c in layout.connections}
    ring = {frozenset((names[i], names[(i + 1) % 4])) for i in range(4)}
    assert pairs == ring
    used = [end for c in layout.connections for end in c.ends]
    assert len(used) == len(set(used)) == 8
    for connection in layout.connections:
        for end, socket in zip(connection.ends, connection.sockets, strict=True):
            assert cluster.ports[end][1].lookahead == f"{connection.switch}:{socket}"


def test_the_jobs_own_cluster_file_has_its_cables_and_no_others(
    ring_plan: Callable[..., Plan],
) -> None:
    cluster = make_cluster(4)
    layout = lay_out(ring_plan(2), cluster, ("h3", "h0"), "switch")
    seen = job_cluster(cluster, layout, "lab-job1")
    assert [server.name for server in seen.servers] == ["h3", "h0"]
    assert [set(cable) for cable in seen.cables] == [{"h3:p0", "h0:p0"}]
    assert (seen.switches, seen.selector) == ((), None)
    assert cables_of(layout) == {"ocs0": [("7", "1")]}


def test_servers_and_sides_as_the_scheduler_sees_them() -> None:
    assert sides_of(make_cluster(1))[0].ports == {"switch": 2, "lookahead": 2}
    assert sides_of(make_cluster(1, lookahead=False))[0].ports == {"switch": 2, "lookahead": 0}
    assert selected_ports(make_cluster(2), ("h1",)) == ["h1:p0", "h1:p1"]
    assert selected_ports(make_cluster(2, lookahead=False), ("h1",)) == []


@pytest.mark.parametrize(
    ("servers", "have", "tokens"),
    [
        (5, 4, (5, 4)),
        (3, 4, ("ports",)),  # a ring of three on two switches
    ],
)
def test_what_could_never_run_is_refused(
    servers: int, have: int, tokens: tuple[object, ...], ring_plan: Callable[..., Plan]
) -> None:
    with refused(FabricError, *tokens):
        check_fits(ring_plan(servers), make_cluster(have, addresses=("", "")))


def test_too_few_ports_and_simplex_plans_are_refused(ring_plan: Callable[..., Plan]) -> None:
    cluster = make_cluster(4)
    bare = replace(cluster.servers[0], ports=cluster.servers[0].ports[:1])
    with refused(FabricError, "4 servers", "2 ports"):
        check_fits(ring_plan(4), replace(cluster, servers=(bare, *cluster.servers[1:])))
    with refused(FabricError, "simplex"):
        check_fits(ring_plan(4, ports="simplex"), cluster)


def _job(tmp_path: Path, plan: Plan, **spec: object) -> QueuedJob:
    layout = lay_out(plan, make_cluster(4), ("h3", "h1"), "switch")
    whole = replace(program(tmp_path), arguments=("--epochs", "5 or so"), **spec)
    return QueuedJob(
        7, "job", "starting", 0, 0, 2, 1, "", whole, False, layout, 1, None, None, None, 0, 0
    )


def test_each_launch_starts_what_it_says(tmp_path: Path, ring_plan: Callable[..., Plan]) -> None:
    cluster, script = make_cluster(4), str(tmp_path / "job.sh")
    tail = (script, "--epochs", "5 or so")
    job = _job(tmp_path, ring_plan(2))
    assert commands_of(tmp_path, job, cluster, ("topoopt",))[0].argv == tail
    [run] = commands_of(tmp_path, _job(tmp_path, ring_plan(2), launch="run"), cluster, ("topoopt",))
    assert run.argv[:2] == ("topoopt", "run")
    assert run.argv[-3:] == tail
    reach = ("ip", "netns", "exec", "lab-{server}")
    job = _job(tmp_path, ring_plan(2), launch="hosts", reach=reach)
    hosts = commands_of(tmp_path, job, cluster, ("topoopt",))
    assert [host.name for host in hosts] == ["host-h3", "host-h1"]
    assert hosts[1].argv[:7] == (*reach[:3], "lab-h1", "topoopt", "run", "--cluster")
    assert hosts[1].argv[hosts[1].argv.index("--node-rank") + 1] == "1"
    assert hosts[1].argv[-3:] == tail


def test_over_ssh_the_command_is_quoted_for_the_shell_there(
    tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    job = _job(tmp_path, ring_plan(2), launch="hosts", reach=("ssh", "{management}"))
    first = commands_of(tmp_path, job, make_cluster(4), ("topoopt",))[0]
    assert first.argv[:2] == ("ssh", "10.0.0.4")
    assert first.argv[2] == f"cd {tmp_path} &&"
    assert first.argv[3].startswith("topoopt run --cluster ")
    assert first.argv[3].endswith("--epochs '5 or so'")


def test_a_name_that_ssh_would_take_for_an_option_starts_nothing(
    tmp_path: Path, ring_plan: Callable[..., Plan]
) -> None:
    job = _job(tmp_path, ring_plan(2), launch="hosts", reach=("ssh", "{management}"))
    cluster = make_cluster(4)
    hostile = [replace(s, management="-oProxyCommand=touch hacked") for s in cluster.servers]
    unchecked = replace(cluster, servers=tuple(hostile))
    with refused(ValueError, "name", "address"):
        commands_of(tmp_path, job, unchecked, ("topoopt",))


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"launch": "hosts"}, ("launch hosts",)),
        ({"reach": ("ssh",)}, ("no other",)),
        ({"launch": "hosts", "reach": ("ssh", "{rank}")}, ("reach[1]", "{rank}")),
        ({"environment": ("NAME",)}, ("environment[0]", "NAME", "NAME=value")),
        ({"script": ""}, ("script", "missing")),
    ],
)
def test_a_wrong_spec_is_an_error_with_its_field(
    changes: dict[str, object], tokens: tuple[object, ...], tmp_path: Path
) -> None:
    spec: JobSpec = replace(program(tmp_path), **changes)  # type: ignore[arg-type]
    with refused(DocumentError, *tokens):
        spec.validate()
