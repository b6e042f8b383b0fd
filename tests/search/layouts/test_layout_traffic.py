"""The demand of layouts: sums in closed form, and the servers of every group."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.small_op_graphs import decoder, graph, operator

from torch_topoopt.op_graph import Split
from torch_topoopt.plan import AllToAll, Demand, GroupDemand, PairTable
from torch_topoopt.plan.layout import Layout
from torch_topoopt.search.accelerators import accelerator
from torch_topoopt.search.layouts.links import PORT_EFFICIENCY, Boxes, RankGroup
from torch_topoopt.search.layouts.prices import LayoutPrice, LayoutPrices
from torch_topoopt.search.layouts.server_groups import server_sets
from torch_topoopt.search.layouts.state import ADAMW, ADAMW_FP32_GRADIENTS
from torch_topoopt.search.layouts.traffic import layout_demand, layout_placements

BLOCKS, PARAMETERS, OUTPUT, BATCH = 4, 10**8, 10**7, 16
GRAPH = decoder(BLOCKS, parameters=PARAMETERS, output=OUTPUT, batch_size=BATCH)
ALL_PARAMETERS = PARAMETERS * (2 * BLOCKS + 2)
SAMPLE = OUTPUT / BATCH  # bytes of a tensor


def priced(layout: Layout, box: int = 1) -> LayoutPrice:
    device = accelerator("h100:bf16")
    found = LayoutPrices(GRAPH, device, Boxes(box, device.peer_bytes_per_s, 50e9)).price(layout)
    assert found is not None
    return found


def demand(layout: Layout, box: int = 1) -> Demand:
    return layout_demand(priced(layout, box), box, ADAMW)


def listed(found: Demand) -> dict[tuple[int, int], int]:
    return {(pair.source, pair.target): pair.size_bytes for pair in found.pairs}


def test_copies_reduce_all_gradients_once() -> None:
    found = demand(Layout(data=8, micro_batch=2))
    assert found.groups == (GroupDemand(tuple(range(8)), ALL_PARAMETERS),)
    assert len(found.pairs) == 0


def test_gradients_in_32_bits_are_twice_as_many_bytes() -> None:
    price = priced(Layout(data=8, micro_batch=2))
    (group,) = layout_demand(price, 1, ADAMW_FP32_GRADIENTS).groups
    assert group.size_bytes == 2 * ALL_PARAMETERS


def test_sharded_parameters_are_gathered_for_both_passes_of_each_micro_batch() -> None:
    def sharded(**more: object) -> Layout:
        return Layout(
            data=8, sharding="parameters", state_shards=8, micro_batches=2, **more  # type: ignore[arg-type]
        )  # fmt: skip

    (again,) = demand(sharded()).groups
    (kept,) = demand(sharded(reshard=False)).groups
    assert again.size_bytes == 2 * 1.5 * ALL_PARAMETERS
    assert kept.size_bytes == 2 * ALL_PARAMETERS
    (some,) = demand(sharded(reshard_blocks=(1,))).groups
    assert some.size_bytes == again.size_bytes - (BLOCKS - 1) * 2 * PARAMETERS


@pytest.mark.parametrize(("sharding", "scatters"), [("optimizer", 1), ("gradients", 2)])
def test_sharded_gradients_are_scattered_by_each_micro_batch_and_parameters_gathered_once(
    sharding: Any, scatters: int
) -> None:
    layout = Layout(data=8, sharding=sharding, state_shards=4, micro_batches=2)
    found = {group.servers: group.size_bytes for group in demand(layout).groups}
    assert found[0, 1, 2, 3] == ALL_PARAMETERS * (1 + scatters) / 2
    assert found[0, 4] == ALL_PARAMETERS / 4


def test_replicas_of_shards_reduce_their_parts() -> None:
    """Two boxes of four: shards in a box, replicas between them."""
    layout = Layout(data=8, sharding="parameters", state_shards=4, micro_batch=2)
    found = demand(layout, 4)
    # four accelerators of each box have a quarter each
    assert found.groups == (GroupDemand((0, 1), ALL_PARAMETERS),)


def test_tensor_groups_between_servers_exchange_activations_of_both_passes() -> None:
    found = demand(Layout(tensor=2, micro_batch=1, micro_batches=BATCH))
    # Per sample and pass: the norm is gathered, the output scattered. Table and head have
    # positions: the gradients of their parameters are summed. The head makes the whole output.
    (group,) = found.groups
    assert group.servers == (0, 1)
    assert group.size_bytes == BATCH * (2 * BLOCKS * SAMPLE + 2 * PARAMETERS)
    recomputed = demand(Layout(tensor=2, micro_batches=BATCH, recompute="full")).groups[0]
    assert recomputed.size_bytes == group.size_bytes + BATCH * BLOCKS * SAMPLE / 2
    one = Layout(tensor=2, micro_batches=BATCH, recompute="full", recompute_blocks=(1,))
    assert demand(one).groups[0].size_bytes == group.size_bytes + BATCH * SAMPLE / 2


def test_a_tensor_group_in_a_box_needs_no_network() -> None:
    assert demand(Layout(tensor=2, micro_batches=BATCH), 2).groups == ()


def test_context_groups_pass_keys_and_values_and_twice_their_gradients() -> None:
    found = demand(Layout(context=2, micro_batches=BATCH))
    (group,) = found.groups
    keys_and_values = BLOCKS * BATCH * 2 * SAMPLE
    output = BATCH * SAMPLE
    assert group.size_bytes == 1.5 * keys_and_values + ALL_PARAMETERS + output / 2


@pytest.mark.parametrize("interleave", [1, 2])
def test_neighbouring_stages_send_activations_and_return_gradients(interleave: int) -> None:
    schedule = "1f1b" if interleave == 1 else "interleaved"
    layout = Layout(
        data=2, pipeline=2, micro_batches=8, interleave=interleave, schedule=schedule  # type: ignore[arg-type]
    )  # fmt: skip
    found = demand(layout)
    each = 8 * SAMPLE * (2 * interleave - 1)  # the last chunk of a stage sends to the first stage
    assert listed(found) == dict.fromkeys(((0, 2), (2, 0), (1, 3), (3, 1)), each)
    assert Counter(group.servers for group in found.groups) == {(0, 1): 1, (2, 3): 1}
    assert sum(group.size_bytes for group in found.groups) == ALL_PARAMETERS


def test_operators_are_on_the_servers_of_their_stage() -> None:
    price = priced(Layout(data=2, pipeline=2, micro_batches=8))
    placed = layout_placements(GRAPH, price, 1)
    assert [p.operator for p in placed] == [o.name for o in GRAPH.operators]
    assert placed[0].servers == (0, 1)
    assert placed[-1].servers == (2, 3)
    assert {p.servers for p in placed} == {(0, 1), (2, 3)}


@pytest.mark.parametrize(
    ("group", "box", "expected"),
    [
        (RankGroup(8, 1), 2, {(0, 1, 2, 3): 1}),
        (RankGroup(4, 2), 2, {(0, 1, 2, 3): 2}),
        (RankGroup(2, 4), 2, {(0, 2): 2, (1, 3): 2}),
        (RankGroup(2, 1), 2, {}),
        (RankGroup(3, 1), 2, {(0, 1): 1, (1, 2): 1}),
    ],
)
def test_the_servers_of_groups(
    group: RankGroup, box: int, expected: dict[tuple[int, ...], int]
) -> None:
    assert server_sets(group, range(8), box) == expected


def test_experts_exchange_all_with_all() -> None:
    experts = Split("experts", 8, "part")
    read = (OUTPUT, OUTPUT)
    graph_of_experts = graph(
        operator("in", flops=10**9, output=OUTPUT),
        operator("experts", (0, *read), parameters=PARAMETERS, output=OUTPUT, splits=(experts,)),
        operator("out", (1, *read), flops=10**9, output=OUTPUT),
        batch_size=BATCH,
    )
    device = accelerator("h100:bf16")
    prices = LayoutPrices(graph_of_experts, device, Boxes(1, 1e9, 1e9))
    price = prices.price(Layout(data=4, expert=4, micro_batch=2, micro_batches=2))
    assert price is not None
    found = layout_demand(price, 1, ADAMW)
    # To the experts and back, in both passes: a quarter of each server's four samples to each.
    assert found.pairs == PairTable((AllToAll((0, 1, 2, 3), round(4 * 4 * SAMPLE / 4)),), ())


@pytest.mark.parametrize("tensor", [1, 2])
def test_exchanges_that_cross_servers_at_once_share_their_links(tensor: int) -> None:
    """No iteration is shorter than the bytes of its demand take on the ports of a server."""
    rate = 1e9
    layout = Layout(
        tensor=tensor, context=2, data=2, sharding="parameters", state_shards=4, micro_batches=8
    )
    device = accelerator("h100:bf16")
    long = decoder(BLOCKS, parameters=PARAMETERS, output=3 * 10**9, batch_size=BATCH)
    price = LayoutPrices(long, device, Boxes(1, 1e9, rate)).price(layout)
    assert price is not None
    sent = sum(
        2 * (len(group.servers) - 1) / len(group.servers) * group.size_bytes
        for group in layout_demand(price, 1, ADAMW).groups
        if 0 in group.servers
    )
    assert price.times.step_s >= sent / (rate * PORT_EFFICIENCY)
