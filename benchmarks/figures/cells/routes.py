"""Jobs on a leaf-spine network under schemes of route control (docs/guides/routes.md)."""

from __future__ import annotations

import itertools
import random
import time
from functools import lru_cache
from typing import Any

import torch

from figures.papers.computing import iteration_compute_s
from torch_topoopt.models.gpt import GPT, GPTSize
from torch_topoopt.profile.profiling import profile
from torch_topoopt.route_control.clos_network import leaf_spine
from torch_topoopt.route_control.exact import exact_paths
from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow
from torch_topoopt.route_control.schemes import SCHEMES
from torch_topoopt.shared_networks.routed.host_fabric import HostFabric
from torch_topoopt.shared_networks.routed.ring_jobs import MODELS, PlacedBy, RingJob, draw_jobs
from torch_topoopt.shared_networks.routed.run_jobs import SpineFailure, run_jobs

DEPENDS_ON = ("csrc/route_control", "torch_topoopt/route_control", "torch_topoopt/shared_networks")

# Two blocks of each, of one sequence: the others are equal. LLaMA2's are GPT's of its width here.
_SHAPES = {
    "bloom": GPTSize(2, 14336, 112, 2048, 250880, 1),
    "gpt-3": GPTSize(2, 12288, 96, 2048, 50304, 1),
    "llama2-70b": GPTSize(2, 8192, 64, 4096, 32000, 1),
}
_FABRIC = HostFabric()
_METRICS = ("all_reduce_s", "completion_s", "flow_gbps")


@lru_cache
def compute_s(model: str) -> float:
    """Seconds that an iteration of `model` computes on A100s in BF16, as many micro-batches of one
    sequence as its pipeline has stages."""
    size = _SHAPES[model]
    tokens = torch.zeros(1, size.sequence, dtype=torch.long)
    graph = profile(lambda: GPT(size), tokens, name=model)
    split = MODELS[model]
    return iteration_compute_s(graph, split, micro_batches=split.pipeline)


# parameters: the jobs, the network, and what of them is repeated
def job_times(
    *,
    model: str,
    jobs: int,
    copies: int,
    placed_by: PlacedBy,
    failed_spines: int,
    fail_at_s: float,
    schemes: list[str],
    draws: int,
    iterations: int,
    in_rounds: bool,
    seed: int,
) -> Any:
    """Means of the first job, which is of `model`, over its iterations: seconds of AllReduce and of
    a flow, and Gb/s of a flow, by scheme and draw. The other jobs' models, all places, arrivals and
    the spines that fail at `fail_at_s` are drawn; all schemes get the same."""
    found: dict[str, list[list[float]]] = {scheme: [] for scheme in schemes}
    for draw in range(draws):
        drawn = drawn_jobs(model, jobs, copies, placed_by, seed + draw)
        spines = random.Random(f"{seed + draw} spines").sample(range(_FABRIC.spines), failed_spines)
        failures = [SpineFailure(fail_at_s, spine) for spine in spines]
        for scheme in schemes:
            outcome = run_jobs(
                *(_FABRIC, drawn, scheme),
                **{"iterations": iterations, "failures": failures},
                **{"in_rounds": in_rounds, "seed": seed + draw},
            ).jobs[0]
            found[scheme].append([outcome.mean(name) for name in _METRICS])
    return {"schemes": found, "compute_s": compute_s(model)}


def drawn_jobs(model: str, jobs: int, copies: int, placed_by: PlacedBy, seed: int) -> list[RingJob]:
    """A job of `model`, and others of any that fit beside it."""
    random_ = random.Random(f"{seed} models")
    chosen = [MODELS[model]]
    smallest = min(split.parts for split in MODELS.values())
    for left in range(jobs - 2, -1, -1):
        room = _FABRIC.hosts // copies - sum(split.parts for split in chosen) - left * smallest
        chosen.append(random_.choice([s for s in MODELS.values() if s.parts <= room]))
    seconds = {split.name: compute_s(split.name) for split in chosen}
    return draw_jobs(_FABRIC, chosen, copies, seconds, placed_by=placed_by, seed=seed)


def dead_link_loads(*, jobs: int, copies: int, dead: int, draws: int, seed: int) -> Any:
    """`max_link_load` by scheme of all AllReduces at once with `dead` random dead links of a ToR
    and a spine: "bound" is below that of any assignment."""
    found: dict[str, list[float]] = {
        name: [] for name in ("ecmp", "greedy", "local-search", "exact")
    }
    found["bound"] = []
    for draw in range(draws):
        drawn = drawn_jobs("bloom", jobs, copies, "racks", seed + draw)
        every = list(itertools.product(range(_FABRIC.tors), range(_FABRIC.spines)))
        gone = random.Random(f"{seed + draw} links").sample(every, dead)
        network = leaf_spine(_FABRIC.tors, _FABRIC.spines, dead_links=gone)
        problem = RoutingProblem(network, flows_of(drawn))
        for name in found:
            load = (
                problem.bound()
                if name == "bound"
                else problem.max_link_load(SCHEMES[name](problem, seed + draw))
            )
            found[name].append(load)
    return found


def flows_of(jobs: list[RingJob]) -> list[SwitchedFlow]:
    """The flows of all AllReduces between ToRs."""
    tor_of = _FABRIC.tor_of
    return [
        SwitchedFlow(tor_of(source), tor_of(target), job=number)
        for number, job in enumerate(jobs)
        for ring in job.rings
        for source, target in zip(ring, (*ring[1:], ring[0]), strict=True)
        if tor_of(source) != tor_of(target)
    ]


def scheme_times(*, flows: int, scheme: str, repeats: int, exact_limit_s: float, seed: int) -> Any:
    """Processor seconds of `scheme` alone for `flows` random flows, the least of `repeats`, and its
    `max_link_load`; null where an exact solution was not there within `exact_limit_s`."""
    random_ = random.Random(seed)
    ends = [random_.sample(range(_FABRIC.tors), 2) for _ in range(flows)]
    problem = RoutingProblem(_FABRIC.whole, [SwitchedFlow(*pair) for pair in ends])
    problem.prepare()
    took, choice = [], None
    for _ in range(repeats):
        began = time.process_time()
        try:
            if scheme == "exact":
                choice = exact_paths(problem, limit_s=exact_limit_s)
            else:
                choice = SCHEMES[scheme](problem, seed)
        except ValueError:  # the limit
            return {"scheme_s": None, "max_link_load": None}
        took.append(time.process_time() - began)
    assert choice is not None
    return {"scheme_s": min(took), "max_link_load": problem.max_link_load(choice)}
