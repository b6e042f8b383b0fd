"""Where Table II's numbers for tapered trees come from, and its AllReduce by rows and columns."""

from __future__ import annotations

import pytest

from torch_topoopt.architectures import hammingmesh, tapered_fat_tree
from torch_topoopt.comparison.hammingmesh import (
    TABLE_II,
    TableNetwork,
    all_reduce_seconds,
    cluster_of,
    shifted_share,
    torus_all_reduce_seconds,
)
from torch_topoopt.comparison.packet_bandwidth import (
    all_to_all_share,
    one_plane,
    ring_seconds,
    torus_seconds,
)

PRINTED = TABLE_II["small"]["nonblocking fat tree"]


def leaf_share(accelerators: int, leaf: int, uplinks: float) -> float:
    """Of injection, where p - 1 shifts wait for each other and a leaf's uplinks are used evenly: a
    shift by k sends min(k, p - k) of a leaf's flows, at most all of them, through its uplinks."""
    crossing = (min(k, accelerators - k, leaf) for k in range(1, accelerators))
    return (accelerators - 1) / sum(max(1.0, count / uplinks) for count in crossing)


def test_single_shifts_of_a_built_tree_take_what_its_uplinks_leave() -> None:
    tree = tapered_fat_tree.build(cluster_of(24), radix=6, taper=0.5)
    network = TableNetwork("tree", tree, PRINTED)
    assert shifted_share(network, shifts=23) == pytest.approx(leaf_share(24, 4, 2))


@pytest.mark.parametrize(
    ("name", "uplinks"),
    [("50 % tapered fat tree", 16), ("75 % tapered fat tree", 8)],
)
def test_the_printed_tapered_trees_have_leaves_of_32_and_shifts_one_by_one(
    name: str, uplinks: int
) -> None:
    """Half and a quarter of 32 cables, as the names say, give the printed digits; the 42 + 22 and
    51 + 13 ports of Appendix C, of which the cost is, do not."""
    printed = TABLE_II["small"][name].global_percent
    assert round(100 * leaf_share(1024, 32, uplinks), 1) == printed
    appendix = {16: (1050, 42, 22), 8: (1071, 51, 13)}[uplinks]
    assert 100 * leaf_share(*appendix) > 1.03 * printed


@pytest.mark.parametrize(
    ("name", "leaf", "most"),
    [
        ("50 % tapered fat tree", (16384, 32, 16), 50.07),
        ("50 % tapered fat tree", (16380, 42, 22), 52.48),
        ("75 % tapered fat tree", (16384, 32, 8), 25.04),
        ("75 % tapered fat tree", (16422, 51, 13), 25.56),
    ],
)
def test_shifts_do_not_explain_the_large_tapered_trees(
    name: str, leaf: tuple[int, int, int], most: float
) -> None:
    """Neither with leaves of 32 nor with those of Appendix C."""
    assert 100 * leaf_share(*leaf) == pytest.approx(most, abs=0.005)
    assert most > 1.04 * TABLE_II["large"][name].global_percent


def test_queues_of_three_levels_do_not_either() -> None:
    """Packets that choose by queues leave what single shifts do, within 1.5 %, where uplinks divide
    evenly; the printed numbers are 4 and 5 % below. Messages four times shorter take 2.5 % more,
    and more than that of a tree that is not tapered, of which 98.9 % are printed."""
    tree = tapered_fat_tree.build(cluster_of(72), radix=6, taper=0.5)
    shifts = leaf_share(72, 4, 2)
    long, short = (all_to_all_share(one_plane(tree), size) for size in (1 << 18, 1 << 16))
    assert 0.985 < long / shifts < 1.0
    whole = tapered_fat_tree.build(cluster_of(54), radix=6, taper=1.0)
    assert all_to_all_share(one_plane(whole), 1 << 16) < short / shifts < long / shifts


def dragonfly_share(per_group: int, groups: int, links: int, at_once: int = 1) -> float:
    """The most that p - 1 shifts, so many of them at once, leave in a Dragonfly of so many `links`
    between two groups: what does not fit on them goes through a third group, twice."""
    servers, out = per_group * groups, links * (groups - 1)

    def share(shifts: range) -> float:
        sent = dict.fromkeys(range(groups), 0.0)
        for further, rest in (divmod(shift, per_group) for shift in shifts):
            sent[further % groups] += (per_group - rest) / len(shifts)
            sent[(further + 1) % groups] += rest / len(shifts)
        sent = {group: count for group, count in sent.items() if group and count}
        low, high = 0.0, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            used = sum(
                min(links, n * middle) + 2 * max(0.0, n * middle - links) for n in sent.values()
            )
            low, high = (middle, high) if used <= out else (low, middle)
        return low

    runs = [range(k, min(k + at_once, servers)) for k in range(1, servers, at_once)]
    return (servers - 1) / sum(len(run) / share(run) for run in runs)


def test_the_printed_dragonflies_are_below_and_above_what_single_shifts_leave() -> None:
    small, large = (TABLE_II[size]["Dragonfly"].global_percent for size in ("small", "large"))
    assert 100 * dragonfly_share(128, 8, 18) == pytest.approx(66.2, abs=0.05)
    assert small < 66.2  # with UGAL-L's detours it is 5 % below the most that there is
    assert 100 * dragonfly_share(544, 30, 17) == pytest.approx(49.6, abs=0.05)
    assert large > 49.6  # so its shifts overlap


def test_the_large_dragonfly_would_need_half_of_its_shifts_at_once() -> None:
    """The small one is below what 64 of 1023 at once leave, so one cause does not explain both."""
    small, large = (TABLE_II[size]["Dragonfly"].global_percent for size in ("small", "large"))
    assert 100 * dragonfly_share(544, 30, 17, 1088) < 0.75 * large
    assert 100 * dragonfly_share(544, 30, 17, 8704) == pytest.approx(large, abs=1.0)
    assert small < 100 * dragonfly_share(128, 8, 18, 64)


@pytest.mark.parametrize(("board", "most"), [(1, 1.35), (2, 1.03)])
def test_all_reduce_at_flow_level_beside_packets_of_long_messages(board: int, most: float) -> None:
    """Both ports of a row lead to one switch in a mesh of single accelerators: packets choose one
    by the queue at hand and meet at the ports of the target, where flows are split evenly."""
    side = 4
    built = hammingmesh.build(
        cluster_of(side**2), board=(board, board), boards=(side // board, side // board)
    )
    plane = one_plane(built)
    traffic = TableNetwork("mesh", plane, PRINTED).traffic
    size_bytes = 64e6
    by_packets = torus_seconds(plane, side, side, size_bytes)
    by_flows = torus_all_reduce_seconds(plane, traffic, side, side, size_bytes)
    assert 0.99 < by_packets / by_flows < most
    rings = ring_seconds(plane, size_bytes).seconds
    assert 0.99 < rings / all_reduce_seconds(plane, traffic, size_bytes) < most


def test_rows_and_columns_that_are_no_grid_are_refused() -> None:
    built = hammingmesh.build(cluster_of(16), board=(2, 2), boards=(2, 2))
    traffic = TableNetwork("mesh", built, PRINTED).traffic
    with pytest.raises(ValueError, match="rows, columns: 3 x 5 is not a torus of 16 servers"):
        torus_all_reduce_seconds(built, traffic, 3, 5, 1e6)
