"""The choice of an algorithm, the cost model, and the counters of rings."""

import dataclasses
import json
import os

import torch
import torch.distributed as dist
from support.backend import networks
from support.backend.ranks import make_plan, run_ranks, values

import torch_topoopt
from torch_topoopt.plan import CostModel
from torch_topoopt.plan.codec import decode

ELEMENTS = 240_000


def count_ring_bytes(rank: int, world: int) -> dict[str, list]:
    os.environ["TOPOOPT_ALGORITHM"] = "multi_ring"
    before = torch_topoopt.stats()
    assert before == {"links": [], "rings": [], "memory": [], "device_memory": []}
    dist.init_process_group("topoopt")
    dist.all_reduce(torch.ones(ELEMENTS))
    counters = torch_topoopt.stats()
    dist.destroy_process_group()
    return counters


def test_every_ring_counts_its_share_of_the_bytes(tmp_path):
    """A ring of g servers with share s of S bytes sends 2 (g - 1) / g s S bytes from each."""
    plan = make_plan(5, 4)
    (group,) = plan.network.groups
    for rank, counters in enumerate(values(run_ranks(plan, tmp_path, count_ring_bytes))):
        rings = [entry for entry in counters["rings"] if entry["kind"] == "ring"]
        assert [tuple(entry["ranks"]) for entry in rings] == [r.servers for r in group.rings]
        expected = [round(2 * 4 / 5 * ring.share * 4 * ELEMENTS) for ring in group.rings]
        assert [entry["sent_bytes"] for entry in rings] == expected
        assert all(entry["seconds"] > 0 for entry in rings)
        others = [entry for entry in counters["rings"] if entry["kind"] != "ring"]
        assert [(e["kind"], e["index"], e["sent_bytes"]) for e in others] == [
            ("tree", 0, 0),
            ("tree", 1, 0),
            ("direct", 0, 0),
            ("graph", 0, 0),
        ]
        (memory,) = counters["memory"]
        assert memory["relay_bytes"] == memory["early_bytes"] == 0, "all is done"
        assert memory["relay_peak_bytes"] == 0, "rings between neighbours need no relay"
        assert memory["early_peak_bytes"] + memory["buffer_peak_bytes"] < 192 << 20
        links = counters["links"]
        assert {link["source"] for link in links} == {rank}
        assert sum(link["sent_bytes"] for link in links) == sum(expected)


STEPS = 7


def relay_out_of_step(rank: int, world: int) -> int:
    """Rank 1 of a line has taken all its steps before anything passes through it."""
    dist.init_process_group("topoopt")
    store = dist.distributed_c10d._get_default_store()
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for step in range(STEPS):
        parameter.grad = torch.ones(2)
        if rank != 1:
            store.wait(["stepped"])
            tensor = torch.full((ELEMENTS,), float(step))
            if rank == 0:
                dist.send(tensor, 2)
            else:
                dist.recv(tensor, 0)
        optimizer.step()
    if rank == 1:
        store.set("stepped", "yes")
    dist.destroy_process_group()
    return ELEMENTS * 4


def test_what_a_relay_sends_late_counts_for_the_iteration_that_it_belongs_to(tmp_path):
    """The optimizer of the relay stands still, or has run ahead, while bytes pass: all the same."""
    plan = networks.plan_of(3, networks.line(3))
    (size, *_) = values(run_ranks(plan, tmp_path, relay_out_of_step))
    for rank in (0, 1):
        document = json.loads((tmp_path / f"links-rank{rank}.json").read_text())
        assert document["iterations"]["count"] == STEPS - 3
        for link in document["links"]:
            forward = link["target"] > rank
            assert link["sent_bytes"] == (size * STEPS if forward else 0)
            assert link["iteration_bytes"] == (size if forward else 0)


def create_and_end(rank: int, world: int) -> list[dict]:
    dist.init_process_group("topoopt")
    links = torch_topoopt.stats()["links"]
    dist.destroy_process_group()
    return links


def measure_and_end(rank: int, world: int) -> list[dict]:
    os.environ["TOPOOPT_COST_MODEL"] = "measure"  # not what another test has kept
    return create_and_end(rank, world)


def test_a_job_measures_what_messages_cost_and_writes_it_down(tmp_path):
    links = values(run_ranks(make_plan(3, 2), tmp_path, measure_and_end))
    section = json.loads((tmp_path / "cost_model.json").read_text())
    assert list(section) == ["cost_model"]
    model = decode(CostModel, section["cost_model"]).validate()
    timed = {time.bytes: set[str]() for time in model.all_reduce}
    for time in model.all_reduce:
        timed[time.bytes].add(time.algorithm)
    assert {"ring", "tree"} <= timed[1024] == max(timed.values(), key=len)
    assert all(link["sent_bytes"] == 0 for of_rank in links for link in of_rank)


def test_a_plan_with_a_cost_model_is_not_measured(tmp_path):
    plan = dataclasses.replace(make_plan(3, 2), cost_model=CostModel(1e-5, 1e-5, 1e-10)).validate()
    values(run_ranks(plan, tmp_path, create_and_end))
    assert not (tmp_path / "cost_model.json").exists()


def ask_for_unknown_algorithm(rank: int, world: int) -> None:
    os.environ["TOPOOPT_ALGORITHM"] = "fast"
    dist.init_process_group("topoopt")


def test_an_unknown_algorithm_is_one_clear_error(tmp_path):
    for outcome in run_ranks(make_plan(2, 1), tmp_path, ask_for_unknown_algorithm):
        assert outcome.error == (
            "ValueError: TOPOOPT_ALGORITHM: 'fast' is not one of auto, ring, multi_ring, "
            "both_ways, tree, doubling, torus, swing, breadth_first, packing, flooding, one_shot"
        )
