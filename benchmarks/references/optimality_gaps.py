"""The gap of `plan` to the optimum on instances that are small enough to enumerate.

Each instance is a random job of one of these kinds, in which computing, AllReduce and transfers
take times of the same order:

random    operators of any size that read one or two earlier ones
heavy     a chain that ends in layers of many parameters and small activations, as in VGG
tables    embedding tables beside a dense layer, and what reads all of them: all-to-all, as in DLRM
matmul    linear layers of many parameters that may be split by columns and rows
experts   layers around a mixture of experts, which may be split by experts: all-to-all

The optimum is that of `exhaustive_optimum`: the least time of all strategies of the space that the
planner searches, each on all networks that TopologyFinder makes for any of them, and on those of
the plans. The gap of a plan is its time over the optimum, less one.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.op_graph import Operator, OpGraph

MODES = ("paper", "best")
_BATCH = 60  # every number of servers up to 5 divides it
_SHAPES = {  # kind: (servers, ports, operators)
    "random": ((3, 2, 6), (4, 2, 4), (5, 2, 5), (5, 4, 5)),
    "heavy": ((3, 2, 6), (4, 2, 4), (5, 2, 5), (5, 4, 5)),
    "tables": ((3, 2, 6), (4, 2, 4), (5, 2, 5), (5, 4, 4)),
    "matmul": ((3, 2, 5), (4, 2, 3), (5, 2, 4), (5, 4, 4)),
    "experts": ((3, 2, 5), (4, 2, 4), (5, 2, 4), (5, 4, 4)),
}


def gap_cases(instances: int, evaluations: int) -> Iterator[dict[str, Any]]:
    """All kinds on all their shapes, `instances` of each."""
    for kind, shapes in _SHAPES.items():
        for servers, degree, operators in shapes:
            shape = {"kind": kind, "servers": servers, "degree": degree, "operators": operators}
            for seed in range(instances):
                yield {**shape, "seed": seed, "evaluations": evaluations}


def run_gap(case: dict[str, Any]) -> dict[str, Any]:
    """One instance: the optimum, and the plans of both modes."""
    from references.exhaustive_optimum import optimum_of
    from torch_topoopt.plan import Cluster
    from torch_topoopt.planner.alternation import plan
    from torch_topoopt.planner.options import PlanningOptions
    from torch_topoopt.search.strategy_space import DIMENSIONS

    graph = job_of(case["kind"], case["operators"], case["seed"])
    cluster = Cluster(case["servers"], case["degree"], 10.0, accelerator="a100")
    # The optimum's AllReduces are rings.
    options = PlanningOptions(evaluations=case["evaluations"], schedules=False)
    plans = {m: plan(graph, cluster, replace(options, mode=m)) for m in MODES}
    seconds = {f"{mode}_s": made.prediction.iteration_s for mode, made in plans.items()}
    optimum = optimum_of(
        graph,
        cluster,
        dimensions=DIMENSIONS,
        at_most_s=min(seconds.values()),
        also=[made.network for made in plans.values()],
    )
    return {
        **case,
        **seconds,
        "optimum_s": optimum.iteration_s,
        "optimum": [repr(placement) for placement in optimum.strategy],
        "strategies": optimum.strategies,
        "promising": optimum.promising,
        "networks": optimum.networks,
        "simulated": optimum.simulated,
    }


def job_of(kind: str, operators: int, seed: int) -> OpGraph:
    """The job of `kind` with that number of operators; the same for the same arguments."""
    from torch_topoopt.op_graph import OpGraph

    made = list(_JOBS[kind](random.Random(f"{kind} {seed}"), operators))
    return OpGraph(OpGraph.VERSION, kind, _BATCH, tuple(made)).validate()


def _operator(
    name: str,
    rng: random.Random,
    producers: dict[int, int],
    *,
    parameters: int = 0,
    flops: tuple[int, int] = (10**8, 10**10),
    splits: tuple[tuple[str, str], ...] = (),
) -> Operator:
    """An operator of `flops` in that range, which reads `producers` (bytes by index)."""
    from torch_topoopt.op_graph import Operand, Operator, Split

    forward_flops = rng.randrange(*flops)
    return Operator(
        name=name,
        kind="linear",
        forward_flops=forward_flops,
        backward_flops=2 * forward_flops,
        parameter_bytes=parameters,
        parameter_gradient_bytes=parameters,
        output_bytes=10**6,
        saved_bytes=10**6,
        memory_bytes=0,
        splittable=True,
        operands=tuple(Operand(p, size, size) for p, size in sorted(producers.items())),
        splits=tuple(Split(dimension, _BATCH, needs) for dimension, needs in splits),  # type: ignore[arg-type]
    )


def _some(rng: random.Random, least: int) -> int:
    """A number of bytes: up to two orders of magnitude above `least`, small ones as likely."""
    return int(least * 10 ** rng.uniform(0, 2))


def _random(rng: random.Random, operators: int) -> Iterator[Operator]:
    for i in range(operators):
        parameters = rng.choice([0, _some(rng, 10**5)])
        producers = rng.sample(range(i), min(i, rng.randint(1, 2)))
        reads = {producer: _some(rng, 10**5) for producer in producers}
        yield _operator(f"op{i}", rng, reads, parameters=parameters)


def _heavy(rng: random.Random, operators: int) -> Iterator[Operator]:
    for i in range(operators):
        late = i >= operators // 2
        reads = {i - 1: _some(rng, 10**4 if late else 10**6)} if i else {}
        parameters = _some(rng, 10**6 if late else 10**4)
        yield _operator(f"layer{i}", rng, reads, parameters=parameters)


def _tables(rng: random.Random, operators: int) -> Iterator[Operator]:
    yield _operator("bottom", rng, {}, parameters=_some(rng, 10**4))
    for i in range(operators - 2):
        parameters = _some(rng, 10**7)
        yield _operator(f"table{i}", rng, {}, parameters=parameters, flops=(10**6, 10**8))
    reads = {i: _some(rng, 10**5) for i in range(operators - 1)}
    yield _operator("top", rng, reads, parameters=_some(rng, 10**5))


def _matmul(rng: random.Random, operators: int) -> Iterator[Operator]:
    for i in range(operators):
        reads = {i - 1: _some(rng, 10**4)} if i else {}
        splits = (("columns", "whole"), ("rows", "part"))
        parameters = _some(rng, 10**6)
        yield _operator(f"linear{i}", rng, reads, parameters=parameters, splits=splits)


def _experts(rng: random.Random, operators: int) -> Iterator[Operator]:
    for i in range(operators):
        reads = {i - 1: _some(rng, 10**5)} if i else {}
        experts = i % 2 == 1
        yield _operator(
            f"experts{i}" if experts else f"layer{i}",
            rng,
            reads,
            parameters=_some(rng, 10**7 if experts else 10**5),
            splits=(("experts", "part"),) if experts else (),
        )


_JOBS: dict[str, Callable[[random.Random, int], Iterator[Operator]]] = {
    "random": _random,
    "heavy": _heavy,
    "tables": _tables,
    "matmul": _matmul,
    "experts": _experts,
}


def gap_of(row: dict[str, Any], mode: str) -> float:
    """The time of the plan of `mode` over the optimum, less one; times of a plan are rounded."""
    return round(row[f"{mode}_s"] / row["optimum_s"] - 1, 9) + 0.0


def summary_of_gaps(rows: list[dict[str, Any]]) -> bool:
    """Prints median and worst gap of each mode; whether they are as small as they should be."""
    done = [row for row in rows if "optimum_s" in row]
    small = bool(done)
    for mode in MODES if done else ():
        gaps = [gap_of(row, mode) for row in done]
        median, worst = statistics.median(gaps), max(gaps)
        print(f"{mode}: median {median:.2%}, worst {worst:.2%} of {len(gaps)}")
        small &= median <= 1e-9 and (mode != "best" or worst <= 0.02)
    return small
