"""Measured route control: the tables, what collides, and a run whose connections are where they
are said to be. The last two need root."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING

import pytest
from route_control_measured import Collided, Disturbed, _disturbed, collided_table, cut
from shared_clos.collision import find_collision, hold, let_go, shared_links
from shared_clos.jobs import JobTimes, Shape, shared_clos
from support.fabric.netns_fixtures import own_state, require_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared_clos.jobs import Progress, SharedClos

SHAPE = Shape(leaves=2, spines=2, jobs=2, gbps=0.1, size_bytes=40_000)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedClos]:
    require_namespaces()
    with pytest.MonkeyPatch.context() as patch:
        own_state(tmp_path_factory.mktemp("state"), patch)
        with shared_clos(SHAPE, 0) as built:
            yield built


def test_ratios_are_those_of_medians_to_a_job_alone() -> None:
    rows = [
        Collided(0, 1.0, (1.0, 1.0, 9.0), (2.0, 2.0, 2.0), (1.0, 1.1, 1.2)),
        Collided(1, 1.0, (2.0, 2.0, 2.0), (3.0, 3.0, 3.0), (2.0, 2.1, 2.0)),
    ]
    _, first, second, worst = collided_table(rows)
    assert [float(word) for word in first.replace(" s", "").split()] == [0, 1, 1, 2, 1.1, 2, 1.1]
    assert [float(word) for word in second.replace(" s", "").split()] == [1, 1, 2, 3, 2, 1.5, 1]
    assert worst.endswith(": 1.100")


def test_a_job_has_recovered_after_its_last_slow_step() -> None:
    def found(*took: float) -> Disturbed:
        ends = tuple(itertools.accumulate((0.0, 1.0, 1.0, 1.0, *took)))
        (row,) = _disturbed("cut", [JobTimes((ends, ends))], 3.5)
        return row

    row = found(2.0, 1.5, 1.0, 1.0)
    assert (row.before_s, row.longest_s, row.stall_s, row.after_s) == (1.0, 2.0, 1.0, 1.0)
    assert row.recovered_s == pytest.approx(3.0)
    assert found(1.0, 1.2, 1.0).recovered_s == 0.0
    assert found(1.0, 2.0).recovered_s is None


def test_hosts_that_are_held_to_ports_collide(shared: SharedClos) -> None:
    collision = find_collision(shared, 0)
    assert collision == find_collision(shared, 0)
    flows = {ends: number for number, job in enumerate(shared.jobs) for ends in job.flows}
    assert {job for jobs in collision.loads.values() for job in jobs} == {0, 1}
    taken = {}

    def until(progress: Progress) -> None:
        progress.wait_for(2)
        taken.update(shared.paths_taken())

    hold(shared, collision.ports)
    shared.run([0, 1], until)
    let_go(shared)
    assert taken == collision.paths
    assert shared_links(flows, collision.paths) == collision.loads


def test_after_a_cut_connections_are_where_the_controller_says(shared: SharedClos) -> None:
    rows, deeds = cut(shared, argparse.Namespace(steps=3))
    assert len(rows) == 2
    assert deeds.spine in ("spine0", "spine1")
    assert deeds.on_path == deeds.flows > 0
