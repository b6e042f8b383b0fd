"""MSCCL XML: what is exported moves the right data, and the interpreter sees what does not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.refusals import refused

from torch_topoopt.plan import Cluster, Group, Plan, Ring, Route
from torch_topoopt.tools.export import msccl
from torch_topoopt.tools.export.errors import ExportError
from torch_topoopt.tools.export.msccl_check import check_text, read_algorithm
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

SHAPES = [(2, 1), (2, 3), (3, 2), (4, 2), (4, 3), (5, 3), (8, 2), (12, 4)]

# An AllGather on a ring of two, written by hand from the format.
GATHER = """\
<algo name="hand" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
 <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
  <tb id="0" send="1" recv="1" chan="0">
   <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
   <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb>
  <tb id="1" send="-1" recv="-1" chan="0">
   <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb>
 </gpu>
 <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
  <tb id="0" send="0" recv="0" chan="0">
   <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
   <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb>
  <tb id="1" send="-1" recv="-1" chan="0">
   <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb>
 </gpu>
</algo>
"""  # noqa: E501


def plan_of(servers: int, degree: int, mode: str = "paper") -> Plan:
    cluster = Cluster(servers, degree, 10.0, parallel_links=degree > servers - 1).validate()
    demand = default_demand(servers)
    network = find_network(cluster, demand)
    return Plan.of_network(cluster, network, demand, model="", mode=mode)


@pytest.mark.parametrize(("servers", "degree"), SHAPES)
def test_all_reduce_adds_every_rank_once(servers: int, degree: int) -> None:
    plan = plan_of(servers, degree)
    checked = check_text(msccl.all_reduce(plan).xml())
    rings = plan.network.groups[0].rings
    assert checked.algorithm.channels == len(rings)
    assert checked.messages == len(rings) * servers * 2 * (servers - 1)


@pytest.mark.parametrize(("servers", "degree"), SHAPES)
def test_all_to_all_goes_over_cables_only(servers: int, degree: int) -> None:
    plan = plan_of(servers, degree)
    algorithm = check_text(msccl.all_to_all(plan).xml()).algorithm
    adjacent = {(link.source, link.target) for link in plan.network.links}
    for rank, gpu in enumerate(algorithm.gpus):
        for block in gpu.blocks:
            assert block.send < 0 or (rank, block.send) in adjacent
            assert block.receive < 0 or (block.receive, rank) in adjacent


def test_shares_of_rings_are_chunks() -> None:
    plan = plan_of(4, 2)
    everyone = plan.network.groups[0].servers
    rings = (Ring((0, 1, 2, 3), 0.75), Ring((0, 3, 2, 1), 0.25))
    network = replace(plan.network, groups=(Group(everyone, rings),))
    algorithm = check_text(msccl.all_reduce(replace(plan, network=network)).xml()).algorithm
    assert [gpu.chunks["i"] for gpu in algorithm.gpus] == [16] * 4
    counts = {b.channel: b.steps[0].chunks for gpu in algorithm.gpus for b in gpu.blocks}
    assert counts == {0: 3, 1: 1}


def relayed(*through: int) -> Plan:
    """A ring 0, 1, 3, 2 on the cables 0-1-2-3-0: 1 reaches 3, and 2 reaches 0, over the servers
    `through`."""
    plan = plan_of(4, 2)
    group = Group(plan.network.groups[0].servers, (Ring((0, 1, 3, 2), 1.0),))
    a, b = through
    ways = {(1, 3): (1, a, 3), (2, 0): (2, b, 0), (3, 1): (3, 0, 1), (0, 2): (0, 1, 2)}
    routes = tuple(Route(way, 1.0) for way in ways.values())
    return replace(plan, network=replace(plan.network, groups=(group,), routes=routes))


def test_neighbours_without_a_cable_are_joined_through_scratch() -> None:
    checked = check_text(msccl.all_reduce(relayed(0, 3)).xml())
    assert checked.scratch_chunks == 2
    assert checked.messages == 6 * 6  # four hops with a cable, or two with two


def test_a_ring_that_passes_a_link_twice_is_refused() -> None:
    with refused(ExportError, "server 2", 3, "twice"):
        msccl.all_reduce(relayed(2, 3))


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        ([0.5, 0.5], ([1, 1], 2)),
        ([1 / 3] * 3, ([1, 1, 1], 3)),
        ([0.75, 0.25], ([3, 1], 4)),
    ],
)
def test_shares_are_whole_parts(shares: list[float], parts: tuple[list[int], int]) -> None:
    assert msccl.apportioned(shares) == parts


def test_other_shares_are_rounded() -> None:
    shares = [0.41234, 0.3291, 0.25856]
    parts, total = msccl.apportioned(shares)
    assert sum(parts) == total
    assert [part / total for part in parts] == pytest.approx(shares, abs=1 / 64)


def test_more_rings_than_channels_are_refused() -> None:
    plan = plan_of(4, 2)
    rings = tuple(Ring((0, 1, 2, 3), 1 / 40) for _ in range(40))
    group = Group(plan.network.groups[0].servers, rings)
    with refused(ExportError, 40, "NCCL", 32):
        msccl.all_reduce(replace(plan, network=replace(plan.network, groups=(group,)))).xml()


def test_several_accelerators_of_a_server_are_refused() -> None:
    plan = plan_of(4, 2)
    several = replace(plan, cluster=replace(plan.cluster, accelerators_per_server=2))
    with refused(ExportError, 2, "accelerators"):
        msccl.all_reduce(several)


def test_a_file_written_by_hand_is_right() -> None:
    checked = check_text(GATHER)
    assert (checked.algorithm.name, checked.steps, checked.messages) == ("hand", 6, 2)


@pytest.mark.parametrize(
    ("pattern", "text", "tokens"),
    [
        (r'type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1"', 'type="nop" srcbuf="i" '
         'srcoff="0" dstbuf="o" dstoff="1"', ("gpu[1]", "chunk 1", "rank 1")),
        (r'type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1"', 'type="rrc" srcbuf="i" '
         'srcoff="0" dstbuf="o" dstoff="1"', ("chunk 1", "too much")),
        (r'o_chunks="2"', 'o_chunks="1"', ("chunks 1 to 1", "o")),
        (r'send="1" recv="1" chan="0"', 'send="1" recv="-1" chan="0"', ("peer",)),
        (r'send="1" recv="1" chan="0"', 'send="0" recv="1" chan="0"', (0, "GPU")),
        (r'ngpus="2"', 'ngpus="3"', ("algo.ngpus", 3, 2)),
        (r'coll="allgather"', 'coll="gather"', ("algo.coll", "gather")),
        (r'type="cpy"', 'type="copy"', ("copy",)),
        (r'cnt="1"', 'cnt="x"', ("x", "number")),
        (r"<tb id", "<block id", ("XML",)),
        (r'depid="-1" deps="-1"', 'depid="1" deps="-1"', ("contradict",)),
        (r'depid="-1" deps="-1"', 'depid="1" deps="7"', ("step 7", "tb 1")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(pattern: str, text: str, tokens: tuple[object, ...]) -> None:
    wrong, count = re.subn(pattern, text, GATHER, count=1)
    assert count == 1
    with refused(ExportError, *tokens):
        check_text(wrong)


def test_steps_that_wait_for_each_other_are_found() -> None:
    """Both GPUs receive before they send."""
    first = re.compile(r'<step s="0" (type="s".*)/>\n(.*)<step s="1" (type="r".*)/>')
    swapped, count = first.subn(r'<step s="0" \3/>\n\2<step s="1" \1/>', GATHER)
    assert count == 2
    with refused(ExportError, "for ever", 1):
        check_text(swapped)


def test_a_rank_that_is_added_twice_is_found() -> None:
    text = msccl.all_reduce(plan_of(4, 2)).xml()
    wrong = re.sub(r'type="rrs" srcbuf="i" srcoff="\d+"', 'type="rrs" srcbuf="i" srcoff="0"', text)
    with pytest.raises(ExportError, match=r"lacks|too much|twice"):
        check_text(wrong)


def test_sends_and_receives_must_agree() -> None:
    text = msccl.all_to_all(plan_of(4, 2)).xml()
    algorithm = read_algorithm(text)
    assert algorithm.collective == "alltoall"
    cut = re.sub(r'(<step s="\d+" type="r" .*) cnt="1"', r'\1 cnt="2"', text, count=1)
    with pytest.raises(ExportError, match=r"sizes|which has"):
        check_text(cut)
