"""Every operation of torch.distributed, in every combination of properties, on every network."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from support.backend import contract_cases, networks
from support.backend.contract_operations import OPERATIONS, Case, Members
from support.backend.ranks import make_plan, run_ranks, values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch_topoopt.plan import Plan

# TOPOOPT_TEST_FULL=1 runs the full product instead of the covering sets; it takes hours.
FULL = os.environ.get("TOPOOPT_TEST_FULL") == "1"


@dataclass(frozen=True)
class Setting:
    """The setting of the cases."""

    name: str
    plan: Callable[[], Plan]
    ranks_per_server: int = 1
    algorithm: str = "auto"  # TOPOOPT_ALGORITHM
    every: int = 1  # the group has every so many-th rank
    exhaustive: bool = False


SETTINGS = (
    Setting("1 alone", lambda: make_plan(1, 1)),
    Setting("2 on one cable", lambda: make_plan(2, 1)),
    Setting("3 on a duplex ring", lambda: make_plan(3, 2)),
    Setting("3 on a line", lambda: networks.plan_of(3, networks.line(3)), exhaustive=True),
    Setting("5 on two strides", lambda: make_plan(5, 4)),
    Setting("5 on a single ring", lambda: make_plan(5, 1, ports="simplex"), exhaustive=True),
    Setting(
        "5 on two strides, both ways",
        lambda: make_plan(5, 4),
        algorithm="both_ways",
        exhaustive=True,
    ),
    Setting(
        "5 on a duplex ring, doubling",
        lambda: make_plan(5, 2),
        algorithm="doubling",
        exhaustive=True,
    ),
    Setting("5 on a star, trees", lambda: networks.plan_of(5, networks.star(5)), algorithm="tree"),
    Setting(
        "5 on a line, one ring",
        lambda: networks.plan_of(5, networks.line(5)),
        1,
        "ring",
        exhaustive=True,
    ),
    Setting("5 on two strides, breadth first", lambda: make_plan(5, 4), algorithm="breadth_first"),
    Setting(
        "8 on a ring with a chord, packing",
        lambda: networks.plan_of(8, networks.ring_with_chord(8)),
        algorithm="packing",
        exhaustive=True,
    ),
    Setting("5 on a star, flooding", lambda: networks.plan_of(5, networks.star(5)), 1, "flooding"),
    Setting(
        "5 on a single ring, one shot",
        lambda: make_plan(5, 1, ports="simplex"),
        algorithm="one_shot",
        exhaustive=True,
    ),
    Setting(
        "2 on each server of a line, packing",
        lambda: networks.plan_of(3, networks.line(3)),
        2,
        "packing",
    ),
    Setting("8 on a tree", lambda: networks.plan_of(8, networks.binary_tree(8)), exhaustive=True),
    Setting(
        "8 on a ring with a chord",
        lambda: networks.plan_of(8, networks.ring_with_chord(8)),
        exhaustive=True,
    ),
    Setting("4 on one server", lambda: make_plan(1, 1), 4),
    Setting("2 on each of 2 servers", lambda: make_plan(2, 1), 2),
    Setting(
        "2 on each server of a line",
        lambda: networks.plan_of(3, networks.line(3)),
        2,
        exhaustive=True,
    ),
    Setting("3 on each of 2 servers, trees", lambda: make_plan(2, 1), 3, "tree", exhaustive=True),
    Setting(
        "3 on each of 2 servers, rings", lambda: make_plan(2, 1), 3, "multi_ring", exhaustive=True
    ),
    Setting(
        "every second of 8 on a duplex ring, breadth first",
        lambda: make_plan(8, 2),
        algorithm="breadth_first",
        every=2,
    ),
    Setting(
        "every second of 8 on two strides, packing",
        lambda: make_plan(8, 4),
        algorithm="packing",
        every=2,
        exhaustive=True,
    ),
)
THOROUGH_SETTINGS = (
    Setting("5 on two strides, one ring", lambda: make_plan(5, 4), algorithm="ring"),
    Setting("5 on two strides, all rings", lambda: make_plan(5, 4), algorithm="multi_ring"),
    Setting("8 on a duplex ring", lambda: make_plan(8, 2)),
    Setting("8 on a duplex ring, trees", lambda: make_plan(8, 2), algorithm="tree"),
    Setting("8 on one server", lambda: make_plan(1, 1), 8),
    Setting("2 on each of 4 servers", lambda: make_plan(4, 2), 2),
)
if FULL:
    SETTINGS += THOROUGH_SETTINGS


def run_case(members: Members, case: Case) -> None:
    try:
        OPERATIONS[case.operation](members, case).finish()
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error


def run_cases(
    cases: Iterable[Case], algorithm: str, every: int, rank: int, world: int
) -> tuple[int, float]:
    os.environ["TOPOOPT_ALGORITHM"] = algorithm
    dist.init_process_group("topoopt")
    ranks = tuple(range(0, world, every))
    group = dist.new_group(ranks) if every > 1 else dist.group.WORLD
    start = time.monotonic()
    done = 0
    for case in cases if rank in ranks else ():
        run_case(Members(group, ranks, ranks.index(rank)), case)
        done += 1
    dist.barrier()
    dist.destroy_process_group()
    return done, time.monotonic() - start


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(s, id=s.name, marks=[pytest.mark.exhaustive] if s.exhaustive else [])
        for s in SETTINGS
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(14_400 if FULL else 120)
def test_every_operation_gives_the_values_computed_locally(setting, tmp_path):
    if FULL:
        cases = list(contract_cases.full_product())
    else:
        cases = contract_cases.covering_set(SETTINGS.index(setting))
    plan = setting.plan()
    outcomes = run_ranks(
        plan,
        tmp_path,
        functools.partial(run_cases, cases, setting.algorithm, setting.every),
        world=plan.cluster.servers * setting.ranks_per_server,
        limit_s=14_000 if FULL else 90,
    )
    results = values(outcomes)
    assert [done for done, _ in results[:: setting.every]] == [len(cases)] * (
        len(results) // setting.every
    )
    print(f"{setting.name}: {len(cases)} cases in {results[0][1]:.1f} s")


def test_the_covering_set_has_every_pair_of_properties_once():
    covered = {
        pair for case in contract_cases.covering_set(1) for pair in contract_cases.pairs_of(case)
    }
    assert covered == contract_cases.all_pairs()
