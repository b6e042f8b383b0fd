"""All-to-alls of unequal sizes over networks that stay as they are, on loopback."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.moving_circuits import compared
from support.backend.ranks import make_plan, run_ranks, values
from support.matrices import zipf

from torch_topoopt.plan import CostModel
from torch_topoopt.topology.routing.loads import hop_bytes
from torch_topoopt.topology.routing.optimal_routes import link_counts, optimal_routes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from torch_topoopt.plan import Plan

SERVERS = 8
PAIR_BYTES = 100_000
# Links seem so slow that an exchange of sizes always pays, and that ranks wait long.
SLOW = CostModel(1e-6, 1e-6, 1e-9, 1e-3)


def hot() -> NDArray[np.int64]:
    """Two destinations get four times as much as the others."""
    matrix = np.full((SERVERS, SERVERS), PAIR_BYTES) - PAIR_BYTES * np.eye(SERVERS, dtype=np.int64)
    matrix[:, :2] *= 4
    return matrix


def sparse() -> NDArray[np.int64]:
    """Some ranks have nothing for others, one has nothing at all, some have single bytes."""
    matrix = zipf(SERVERS, 1.0, PAIR_BYTES, 3)
    matrix[matrix < PAIR_BYTES // 2] = 0
    matrix[5] = 0
    matrix[2] = np.minimum(matrix[2], 1)
    return matrix + 100 * np.eye(SERVERS, dtype=np.int64)


MATRICES = {
    "Zipf 0.4": zipf(SERVERS, 0.4, PAIR_BYTES),
    "Zipf 1": zipf(SERVERS, 1.0, PAIR_BYTES),
    "two hot destinations": hot(),
    "sparse": sparse(),
}


def slow(plan: Plan) -> Plan:
    return dataclasses.replace(plan, cost_model=SLOW)


def exchange(rank: int, matrix: NDArray[np.int64], **options: Any) -> torch.Tensor:
    sent, received = matrix[rank].tolist(), matrix[:, rank].tolist()
    own = torch.randint(256, (sum(sent),), generator=torch.Generator().manual_seed(rank))
    into = torch.zeros(sum(received), dtype=torch.uint8)
    dist.all_to_all_single(into, own.to(torch.uint8), received, sent, **options)
    return into


def all_exchanges(rank: int, world: int) -> list[torch.Tensor]:
    found = [exchange(rank, matrix) for matrix in (*MATRICES.values(), *MATRICES.values())]
    sizes = MATRICES["Zipf 1"] // 8
    into = [torch.zeros(int(size)) for size in sizes[:, rank]]
    own = [torch.full((int(size),), float(rank)) for size in sizes[rank]]
    if dist.get_backend() == "gloo":  # which has no lists
        for source, tensor in enumerate(into):
            tensor.fill_(float(source))
    else:
        dist.all_to_all(into, own, async_op=True).wait()
    return found + into


def one_exchange(name: str, routes: str, rank: int, world: int) -> bool:
    os.environ["TOPOOPT_ALLTOALL_ROUTES"] = routes
    dist.init_process_group("topoopt")
    exchange(rank, MATRICES[name])
    dist.destroy_process_group()
    return True


def exchange_of_half(rank: int, world: int) -> bool:
    dist.init_process_group("topoopt")
    half = dist.new_group(range(SERVERS // 2))
    if rank < SERVERS // 2:
        exchange(rank, MATRICES["Zipf 1"][: SERVERS // 2, : SERVERS // 2], group=half)
    dist.destroy_process_group()
    return True


def refused(rank: int, world: int) -> str:
    os.environ["TOPOOPT_ALLTOALL_ROUTES"] = "fast"
    try:
        dist.init_process_group("topoopt")
    except RuntimeError as error:
        return str(error)
    return ""


def sent_over_links(folder: Path, plan: Plan) -> NDArray[np.float64]:
    """Of each pair of servers, per parallel link."""
    servers = plan.cluster.servers
    sent = np.zeros((servers, servers))
    for rank in range(SERVERS):
        for link in json.loads((folder / f"links-rank{rank}.json").read_text())["links"]:
            sent[link["source"], link["target"]] += link["sent_bytes"]
    counts = link_counts(servers, plan.network.links)
    return np.divide(sent, counts, out=np.zeros_like(sent), where=counts > 0)


def least_busiest(plan: Plan, matrix: NDArray[np.int64]) -> float:
    """Bytes of the busiest link, by a linear program over all paths."""
    matrix = matrix.astype(np.float64)
    np.fill_diagonal(matrix, 0)
    capacity = link_counts(plan.cluster.servers, plan.network.links)
    return optimal_routes(capacity, matrix, method="exact").utilisation


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_plan(SERVERS, 2),
        lambda: make_plan(SERVERS, 4),
        lambda: make_plan(SERVERS, 2, ports="simplex"),
        lambda: networks.plan_of(SERVERS, networks.ring_with_chord(SERVERS)),
        lambda: make_plan(SERVERS // 2, 2),
    ],
    ids=["ring", "two strides", "one way", "chord", "two ranks on a server"],
)
def test_results_are_those_of_gloo(make: Callable[[], Plan], tmp_path: Path) -> None:
    run = functools.partial(compared, calls=all_exchanges)
    outcomes = values(run_ranks(slow(make()), tmp_path, run, world=SERVERS))
    assert all(all(right) for right in outcomes)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("degree", [2, 4])
def test_the_busiest_link_carries_the_least_possible_bytes(
    degree: int, name: str, tmp_path: Path
) -> None:
    plan = slow(make_plan(SERVERS, degree))
    values(run_ranks(plan, tmp_path, functools.partial(one_exchange, name, "auto")))
    busiest = sent_over_links(tmp_path, plan).max()
    least = least_busiest(plan, MATRICES[name])
    assert 0.999 * least <= busiest <= 1.02 * least


def test_ranks_of_a_server_share_its_links(tmp_path: Path) -> None:
    plan = slow(make_plan(SERVERS // 2, 2))
    run = functools.partial(one_exchange, "Zipf 1", "auto")
    values(run_ranks(plan, tmp_path, run, world=SERVERS))
    half = SERVERS // 2
    of_servers = MATRICES["Zipf 1"].reshape(half, 2, half, 2).sum(axis=(1, 3))
    busiest = sent_over_links(tmp_path, plan).max()
    assert busiest <= 1.02 * least_busiest(plan, of_servers)


@pytest.mark.parametrize(
    ("function", "members", "cost"),
    [
        (functools.partial(one_exchange, "Zipf 1", "plan"), SERVERS, SLOW),
        (exchange_of_half, SERVERS // 2, SLOW),
        (
            functools.partial(one_exchange, "Zipf 1", "auto"),
            SERVERS,
            dataclasses.replace(SLOW, alpha_s=1e3),
        ),
    ],
    ids=["on request", "of some ranks", "that are small"],
)
def test_the_plans_routes_are_kept(
    function: Any, members: int, cost: CostModel, tmp_path: Path
) -> None:
    plan = dataclasses.replace(make_plan(SERVERS, 2), cost_model=cost)
    values(run_ranks(plan, tmp_path, function))
    matrix = np.zeros((SERVERS, SERVERS))
    matrix[:members, :members] = MATRICES["Zipf 1"][:members, :members]
    expected = hop_bytes(plan.network, matrix)
    assert sent_over_links(tmp_path, plan).max() == pytest.approx(expected.max(), rel=0.05)


def test_other_values_of_the_variable_are_refused(tmp_path: Path) -> None:
    messages = values(run_ranks(make_plan(3, 2), tmp_path, refused))
    assert messages == ["TOPOOPT_ALLTOALL_ROUTES: 'fast' is not one of auto, plan"] * 3
