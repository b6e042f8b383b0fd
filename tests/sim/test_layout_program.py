"""Layouts as flow programs, against hand counts and the closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.small_op_graphs import decoder

from torch_topoopt.plan import Cluster
from torch_topoopt.plan.layout import Layout
from torch_topoopt.planner.layout_planning import LayoutPlanning
from torch_topoopt.planner.options import PlanningOptions
from torch_topoopt.search.layouts.memory import micro_batches_kept
from torch_topoopt.sim.flows import run_program
from torch_topoopt.sim.layout_program import layout_program, program_of, with_measured_ranks
from torch_topoopt.sim.pipeline_order import pipeline_order

GRAPH = decoder(4)
CLUSTER = Cluster(4, 2, 200.0, accelerator="h100:bf16")
BOXES = replace(CLUSTER, servers=2, accelerators_per_server=4, parallel_links=True)


def planning(cluster: Cluster) -> LayoutPlanning:
    return LayoutPlanning(GRAPH, cluster, PlanningOptions(strategy_space="layouts"))


@pytest.mark.parametrize("cluster", [CLUSTER, BOXES])
@pytest.mark.parametrize(
    "layout",
    [
        {"data": 4},
        {"data": 4, "sharding": "optimizer", "state_shards": 4},
        {"data": 4, "sharding": "parameters", "state_shards": 4, "recompute": "full"},
        {"tensor": 2, "context": 2, "recompute": "selective"},
        {
            "data": 4, "sharding": "parameters", "state_shards": 4, "reshard_blocks": (1,),
            "recompute": "full", "recompute_blocks": (2,),
        },
        {"data": 4, "sharding": "parameters", "state_shards": 4, "offload": "host"},
        {"data": 4, "sharding": "parameters", "state_shards": 2, "offload": "host"},
        {"data": 4, "sharding": "parameters", "offload": "host"},
        {
            "data": 4, "sharding": "parameters", "state_shards": 4, "offload": "host",
            "micro_batch": 2, "reshard": False,
        },
        {"pipeline": 4, "micro_batch": 2, "sharding": "parameters", "offload": "host"},
        {"pipeline": 4, "micro_batch": 2},
        {"pipeline": 2, "data": 2, "interleave": 2, "schedule": "interleaved"},
    ],
)  # fmt: skip
def test_the_closed_form_is_near(cluster: Cluster, layout: dict[str, object]) -> None:
    made = Layout(**layout)  # type: ignore[arg-type]
    if cluster is BOXES:
        made = replace(made, data=2 * made.data)
    made = replace(made, micro_batches=16 // made.data // made.micro_batch)
    of = planning(cluster)
    wired = of.fastest_wired(made)
    program = program_of(of.prices, cluster, wired.network, made)
    seconds = run_program(program.program).completion_s
    assert seconds == pytest.approx(wired.price.times.step_s, rel=0.15)
    twice = program_of(of.prices, cluster, wired.network, made, 2)
    result = run_program(twice.program)
    assert [float(result.finish_s[end]) for end in twice.ends] == pytest.approx(
        [seconds, 2 * seconds]
    )


@pytest.mark.parametrize("reshard_blocks", [(), (3,), (0,)])
@pytest.mark.parametrize("cluster", [CLUSTER, BOXES])
def test_bytes_on_links_are_those_of_the_demand(
    cluster: Cluster, reshard_blocks: tuple[int, ...]
) -> None:
    """Also if several accelerators of a server are in a group."""
    of = planning(cluster)
    ranks = of.accelerators
    layout = Layout(
        data=ranks, sharding="parameters", state_shards=ranks, micro_batches=16 // ranks,
        reshard_blocks=reshard_blocks,
    )  # fmt: skip
    wired = of.fastest_wired(layout)
    program = program_of(of.prices, cluster, wired.network, layout)
    result = run_program(program.program)
    (group,) = wired.demand.groups
    links = len(wired.network.links)
    assert result.link_bytes[:links].sum() == pytest.approx(
        2 * (cluster.servers - 1) * group.size_bytes
    )
    inside = result.link_bytes[links:].sum()
    if cluster.accelerators_per_server == 1:
        assert inside == 0
    else:  # into one accelerator of each server
        received = (ranks - 1) / ranks * 2 * group.size_bytes
        assert inside == pytest.approx(cluster.servers * received)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)]
)
def test_every_pass_runs_once_and_in_time(
    schedule: str, chunks: int, stages: int, count: int
) -> None:
    layout = Layout(
        pipeline=stages,
        interleave=chunks,
        schedule=schedule,
        micro_batches=count,  # type: ignore[arg-type]
    )
    if chunks > 1 and count % stages:
        return
    for stage, passes in enumerate(pipeline_order(layout)):
        directions = ["forward", "backward"] + ["weights"] * (schedule == "zero-bubble")
        assert len(passes) == len(set(passes)) == len(directions) * chunks * count
        kept = most = 0
        ends = directions[-1]
        for one in passes:
            kept += (one.direction == "forward") - (one.direction == ends)
            most = max(most, kept)
        plain, place = layout, stage
        if schedule == "zero-bubble":  # as many as the first stage of 1F1B
            plain, place = replace(layout, schedule="1f1b"), 0
        limit = micro_batches_kept(plain, place)
        assert most <= limit * chunks


def test_zero_bubble_waits_less_than_one_forward_one_backward() -> None:
    of = LayoutPlanning(decoder(8), CLUSTER, PlanningOptions(strategy_space="layouts"))
    seconds = []
    for schedule in ("gpipe", "1f1b", "zero-bubble"):
        layout = Layout(pipeline=4, schedule=schedule, micro_batches=16)  # type: ignore[arg-type]
        wired = of.fastest_wired(layout)
        program = program_of(of.prices, CLUSTER, wired.network, layout)
        seconds.append(run_program(program.program).completion_s)
    assert seconds[2] < seconds[1] <= seconds[0] * (1 + 1e-9)


@pytest.mark.parametrize(
    "layout", [Layout(data=4, micro_batches=4), Layout(pipeline=4, micro_batches=16)]
)
def test_measured_ranks_share_their_processors(layout: Layout) -> None:
    plan = LayoutPlanning(
        GRAPH, CLUSTER, PlanningOptions(strategy_space="layouts", layout=layout)
    ).plan()
    seconds = {}
    for at_once in (1, 2, 4):
        graph = with_measured_ranks(GRAPH, plan, 8.0, at_once)
        program = layout_program(graph, plan).program
        result = run_program(program)
        seconds[at_once] = result.completion_s
        if at_once == 4:
            assert graph.measured_step is not None
            assert graph.measured_step.servers_at_once is None
            assert result.device_busy_s.sum() == pytest.approx(4 * 8)
    assert seconds[1] == pytest.approx(4 * 8, rel=0.02)  # one rank at a time
    if layout.data == 4:  # all ranks compute all the time
        assert seconds[2] == pytest.approx(2 * seconds[4], rel=0.02)
    else:  # stages wait for each other
        assert seconds[4] < seconds[2] < 1.9 * seconds[4]


def test_messages_of_a_stage_queue() -> None:
    layout = Layout(pipeline=4, schedule="gpipe", micro_batches=8)
    of = planning(replace(CLUSTER, link_gbps=0.01))
    wired = of.fastest_wired(layout)
    program = program_of(of.prices, of.cluster, wired.network, layout).program
    result = run_program(program)
    ends: dict[tuple[int, ...], float] = {}
    for task in sorted(program.flow_tasks, key=lambda task: result.start_s[task]):
        links = tuple(program.flow(task).links)
        assert result.start_s[task] >= ends.get(links, 0.0) * (1 - 1e-9)
        ends[links] = result.finish_s[task]
    assert len(ends) == 2 * 3
