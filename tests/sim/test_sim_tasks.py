"""Any task graph at the flow level: an independent reference, invariants, bad input."""

from __future__ import annotations

import math
import random

import pytest
from oracles.reference_simulation import reference_finish
from support.refusals import refused
from support.task_programs import ComputeTask, FlowTask, SimLink, Task, simulate_tasks


def random_tasks(rng: random.Random) -> tuple[list[SimLink], list[Task]]:
    links = [
        SimLink(float(rng.choice([1, 2, 5])), rng.choice([0.0, 0.5]))
        for _ in range(rng.randint(2, 8))
    ]
    tasks: list[Task] = []
    for i in range(rng.randint(2, 30)):
        after = tuple(sorted(rng.sample(range(i), min(i, rng.choice([0, 1, 1, 2])))))
        if rng.random() < 0.3:
            tasks.append(
                ComputeTask(rng.randrange(3), rng.choice([0.0, 1.0, rng.random()]), after, i % 4)
            )
        else:
            hops = tuple(rng.sample(range(len(links)), rng.randint(1, min(3, len(links)))))
            tasks.append(FlowTask(hops, rng.choice([1.0, 4.0, 10 * rng.random() + 0.01]), after))
    return links, tasks


@pytest.mark.parametrize("seed", range(80))
def test_every_finish_time_equals_the_reference_simulation(seed: int) -> None:
    rng = random.Random(seed)
    links, tasks = random_tasks(rng)
    for devices_at_once in (math.inf, rng.choice([0.5, 1.0, 1.5, 2.0])):
        times = simulate_tasks(links, tasks, devices_at_once=devices_at_once)
        reference = reference_finish(links, tasks, devices_at_once)
        assert times.finish_s == pytest.approx(reference, rel=1e-9)
        assert times.end_s == max(times.finish_s)


def test_devices_that_compute_at_once_share_what_there_is_evenly() -> None:
    """Two on one processor: at half the speed, until the shorter one has ended."""
    tasks = [ComputeTask(0, 1.0), ComputeTask(1, 3.0), ComputeTask(1, 2.0)]
    times = simulate_tasks([], tasks, devices_at_once=1)
    assert times.finish_s == pytest.approx([2.0, 4.0, 6.0])
    assert times.device_busy_s == pytest.approx([2.0, 6.0])
    one_after_the_other = [ComputeTask(0, 1.0), ComputeTask(1, 3.0, after=(0,))]
    assert simulate_tasks([], one_after_the_other, devices_at_once=1).end_s == 4.0
    assert simulate_tasks([], tasks, devices_at_once=2) == simulate_tasks([], tasks)
    with refused(ValueError, "devices_at_once"):
        simulate_tasks([], tasks, devices_at_once=0)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_are_conserved_and_no_link_is_beaten(seed: int) -> None:
    links, tasks = random_tasks(random.Random(seed))
    times = simulate_tasks(links, tasks)
    asked = [0.0] * len(links)
    for task in tasks:
        if isinstance(task, FlowTask):
            for link in task.links:
                asked[link] += task.size_bytes
    assert times.link_bytes == pytest.approx(asked, rel=1e-12)
    for link, size_bytes in zip(links, times.link_bytes, strict=True):
        assert times.end_s >= size_bytes / link.bytes_per_s * (1 - 1e-9)
    assert times.end_s >= max(times.device_busy_s) * (1 - 1e-9)
    for task, finish in zip(tasks, times.finish_s, strict=True):
        begin = max((times.finish_s[i] for i in task.after), default=0.0)
        if isinstance(task, FlowTask):
            least = sum(links[i].latency_s for i in task.links) + max(
                task.size_bytes / links[i].bytes_per_s for i in task.links
            )
        else:
            least = task.seconds
        assert finish >= (begin + least) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_the_order_in_which_flows_are_listed_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    links, tasks = random_tasks(rng)
    flows = [FlowTask(t.links, t.size_bytes) for t in tasks if isinstance(t, FlowTask)]
    order = rng.sample(range(len(flows)), len(flows))
    straight = simulate_tasks(links, flows).finish_s
    shuffled = simulate_tasks(links, [flows[i] for i in order]).finish_s
    assert [shuffled[order.index(i)] for i in range(len(flows))] == pytest.approx(
        list(straight), rel=1e-9
    )


def test_two_flows_share_a_link_and_the_longer_one_speeds_up() -> None:
    times = simulate_tasks([SimLink(10.0, 1.0)], [FlowTask((0,), 10.0), FlowTask((0,), 30.0)])
    assert times.finish_s == pytest.approx((3.0, 5.0))


def test_a_device_computes_one_task_at_a_time_by_priority() -> None:
    tasks = [ComputeTask(0, 1.0, priority=2), ComputeTask(0, 1.0, priority=1), ComputeTask(1, 5.0)]
    assert simulate_tasks([], tasks).finish_s == (2.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("tasks", "tokens"),
    [
        ([FlowTask((0,), math.nan)], ("flows[0]", "nan")),
        ([ComputeTask(0, 1.0), FlowTask((0,), 0.0)], ("flows[0]", 0)),
        ([ComputeTask(0, math.inf)], ("tasks[0]", "inf")),
        ([FlowTask((0,), 1.0), ComputeTask(0, -2.0)], ("tasks[1]", -2)),
        ([ComputeTask(-1, 1.0)], ("tasks[0]", "host -1")),
        ([FlowTask((0,), 1.0, (5,))], ("after", "task 5", "0..0")),
        ([ComputeTask(0, 1.0, (1,)), ComputeTask(0, 1.0, (0,))], ("cycle", "after")),
        ([ComputeTask(0, 1.0), ComputeTask(0, 1.0, (1,))], ("cycle", 1)),
    ],
)
def test_bad_tasks_are_named(tasks: list[Task], tokens: tuple[object, ...]) -> None:
    with refused(ValueError, *tokens):
        simulate_tasks([SimLink(1.0)], tasks)
