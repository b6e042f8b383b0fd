"""Boards of a HammingMesh, whose cables to others run through packet switches; needs root."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import run_bare_ranks, values
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces
from support.refusals import refused

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.board_switches import board_switches
from torch_topoopt.fabric.netns.fabric import NetnsFabric
from torch_topoopt.fabric.netns.options import NetnsOptions
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Demand, GroupDemand, Plan
from torch_topoopt.topology.finder.torus_network import torus_cluster, torus_network

if TYPE_CHECKING:
    from pathlib import Path

GBPS = 0.2
COUNT = 1 << 16


def torus_plan(rows: int, columns: int) -> Plan:
    cluster = torus_cluster(rows, columns, GBPS)
    demand = Demand((GroupDemand(tuple(range(cluster.servers)), 1 << 20),), ())
    return Plan.of_network(cluster, torus_network(cluster, rows, columns), demand, model="none")


@pytest.mark.parametrize(
    ("rows", "columns", "board"), [(4, 4, (2, 2)), (4, 6, (3, 2)), (6, 4, (1, 3)), (4, 3, (3, 2))]
)
def test_each_board_has_four_cables_at_the_ends_of_its_rows_and_columns(
    rows: int, columns: int, board: tuple[int, int]
) -> None:
    plan = torus_plan(rows, columns)
    switches = board_switches(plan, *board)
    wide, high = board
    at = Counter(switches.values())
    board_rows = rows // high
    assert set(at) == set(range(board_rows + columns // wide))
    for switch, ports in at.items():  # two for each line of a board in that direction
        rows_of_boards = switch < board_rows
        lines, boards = (high, columns // wide) if rows_of_boards else (wide, board_rows)
        assert ports == 2 * lines * boards
    for link, switch in switches.items():
        assert switches[link.reverse] == switch


@pytest.mark.parametrize(
    ("board", "tokens"),
    [((3, 2), ("boards", "3 x 2", 4)), ((0, 2), ("boards", "0 x 2"))],
)
def test_boards_that_do_not_tile_the_torus_are_refused(
    board: tuple[int, int], tokens: tuple[object, ...]
) -> None:
    with refused(FabricError, *tokens):
        board_switches(torus_plan(4, 4), *board)


def test_a_plan_without_a_grid_has_no_boards() -> None:
    cluster = torus_cluster(3, 3, GBPS)
    whole = torus_network(cluster, 3, 3)
    demand = Demand((), ())
    network = type(whole)(whole.links, whole.groups[1:], whole.routes)
    plan = Plan.of_network(cluster, network, demand, model="none")
    with refused(FabricError, "boards", "grid"):
        board_switches(plan, 1, 1)


def reduce(rank: int, world: int) -> bool:
    os.environ["TOPOOPT_ALGORITHM"] = "torus"
    dist.init_process_group("topoopt")
    tensor = torch.full((COUNT,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return bool((tensor == world * (world + 1) / 2).all())


def switch_bytes(fabric: NetnsFabric, switch: int) -> dict[str, int]:
    """Port -> bytes that the switch has sent to that host."""
    namespace = fabric.layout.packet_switch_namespace(switch)
    with netns_kernel.open_route(namespace) as route:
        sent = {
            link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_STATS64")["tx_bytes"]
            for link in route.get_links()
        }
    return {name: count for name, count in sent.items() if name.startswith("host")}


def test_an_all_reduce_along_rows_and_columns_passes_the_switches_between_boards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    plan = torus_plan(2, 4)
    fabric = NetnsFabric(a_name(), NetnsOptions(gbps=GBPS), boards=(2, 1))
    try:
        fabric.connect(plan).save(tmp_path / "wiring.json")
        plan.save(tmp_path / "plan.json")
        before = [switch_bytes(fabric, switch) for switch in range(4)]
        outcomes = run_bare_ranks(
            8,
            reduce,
            namespaces=[fabric.layout.namespace(server) for server in range(8)],
            store_address=fabric.management_address,
            TOPOOPT_PLAN=str(tmp_path / "plan.json"),
            TOPOOPT_WIRING=str(tmp_path / "wiring.json"),
            XDG_CACHE_HOME=str(tmp_path / "cache"),
        )
        assert values(outcomes) == [True] * 8
        after = [switch_bytes(fabric, switch) for switch in range(4)]
    finally:
        fabric.close()
    assert [len(ports) for ports in after] == [4, 4, 8, 8]
    # Less than what any link of it carries: a quarter of the bytes goes each way, and lines of two
    # servers send half of that to each other, twice.
    for old, new in zip(before, after, strict=True):
        for port, count in new.items():
            assert count - old[port] >= COUNT * 4 / 4 / 2, port
