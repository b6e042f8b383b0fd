"""One simulated iteration: the load of every link, and the times of computing and collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_topoopt.sim import run_program
from torch_topoopt.sim.plan_program import named_plan_program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_topoopt import _core
    from torch_topoopt.op_graph import OpGraph
    from torch_topoopt.plan import Plan
    from torch_topoopt.sim.flow_names import FlowName
    from torch_topoopt.sim.flows import FlowsResult

BINS = 96  # time bins of the iteration
_MOST_FLOWS = 1_000_000
_MOST_CARGOES = 11  # named one by one; the smaller ones are added up


@dataclass(frozen=True)
class Cargo:
    """The load of flows of one kind ("AllReduce", "activations" or "gradients") of operators whose
    names differ only in numbers. They last from `start_s` to `end_s`."""

    kind: str
    label: str
    operators: int
    size_bytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class SimulatedIteration:
    """`link_bytes[i, c]` of cargo c on `network.links[i]`. Per bin of the iteration: the share of
    the servers that compute, and `utilisation[i, bin]` of each link, both from 0 to 1."""

    iteration_s: float
    cargoes: tuple[Cargo, ...]
    link_bytes: NDArray[np.float64]
    computing: NDArray[np.float64]
    utilisation: NDArray[np.float64]


def simulate(op_graph: OpGraph, plan: Plan) -> SimulatedIteration | None:
    """Simulates at flow level; None without links, or with too many flows for a page.

    Raises ValueError like `plan_program`.
    """
    servers = plan.cluster.servers
    if not plan.network.links or len(plan.demand.pairs) * 8 > _MOST_FLOWS:
        return None
    program, names = named_plan_program(op_graph, plan, schedules=True)
    if program.flow_count > _MOST_FLOWS:
        return None
    result = run_program(program)
    tasks = [task for task in program.flow_tasks if np.isfinite(result.finish_s[task])]
    flows = _CarriedFlows.of(program, names, tasks)
    cargoes = _cargoes(flows, result, tasks)
    link_bytes = np.zeros((len(program.links), len(cargoes)))
    kept = _kept(flows)
    entry_cargo = np.array([kept[flows.cargo[f]] for f in flows.flow_of_entry], dtype=np.int64)
    np.add.at(link_bytes, (flows.link_of_entry, entry_cargo), flows.size[flows.flow_of_entry])
    edges = np.linspace(0.0, result.completion_s, BINS + 1)
    between = slice(len(plan.network.links))  # those inside servers come after them
    return SimulatedIteration(
        result.completion_s,
        cargoes,
        link_bytes[between],
        _computing(program, result, servers, edges),
        _utilisation(program, result, flows, tasks, edges)[between],
    )


@dataclass(frozen=True)
class _CarriedFlows:
    """Flows in order of their tasks; an entry is a flow on one of its links."""

    labels: list[tuple[str, str]]
    members: list[set[str]]
    cargo: NDArray[np.int64]
    size: NDArray[np.float64]
    flow_of_entry: NDArray[np.int64]
    link_of_entry: NDArray[np.int64]

    @classmethod
    def of(
        cls, program: _core.FlowProgram, names: dict[int, FlowName], tasks: list[int]
    ) -> _CarriedFlows:
        known: dict[tuple[str, str], int] = {}
        by_name: dict[int, int] = {}
        members: list[set[str]] = []
        cargo, size, hops, links = [], [], [], []
        for task in tasks:
            name = names[task]
            number = by_name.get(id(name))
            if number is None:
                label = (name.what, operators_text(name.operators))
                number = known.setdefault(label, len(known))
                by_name[id(name)] = number
                if number == len(members):
                    members.append(set())
                members[number].update(name.operators)
            flow = program.flow(task)
            cargo.append(number)
            size.append(flow.size_bytes)
            hops.append(len(flow.links))
            links.extend(flow.links)
        return cls(
            list(known),
            members,
            np.array(cargo, dtype=np.int64),
            np.array(size, dtype=np.float64),
            np.repeat(np.arange(len(tasks)), hops),
            np.array(links, dtype=np.int64),
        )

    def totals(self) -> NDArray[np.float64]:
        """Bytes on all links by cargo."""
        sums = np.zeros(len(self.labels))
        np.add.at(sums, self.cargo[self.flow_of_entry], self.size[self.flow_of_entry])
        return sums


def operators_text(operators: tuple[str, ...]) -> str:
    """Names that differ only in numbers become one, as "tables.*"; of others, first and last."""
    patterns = dict.fromkeys(re.sub(r"\d+", "*", name) for name in operators)
    if len(patterns) == 1:
        return next(iter(patterns))
    return f"{operators[0]} … {operators[-1]}"


def _kept(flows: _CarriedFlows) -> dict[int, int]:
    """Cargo -> its index among the named ones; the smaller ones share the last."""
    order = np.argsort(-flows.totals(), kind="stable").tolist()
    most = len(order) if len(order) <= _MOST_CARGOES + 1 else _MOST_CARGOES
    return {number: min(place, most) for place, number in enumerate(order)}


def _cargoes(flows: _CarriedFlows, result: FlowsResult, tasks: list[int]) -> tuple[Cargo, ...]:
    kept, totals = _kept(flows), flows.totals()
    start, end = result.start_s[tasks], result.finish_s[tasks]
    found = []
    for place in range(max(kept.values(), default=-1) + 1):
        numbers = [number for number, at in kept.items() if at == place]
        mine = np.isin(flows.cargo, numbers)
        first = numbers[0]
        operators = set().union(*(flows.members[number] for number in numbers))
        kind, label = flows.labels[first] if len(numbers) == 1 else ("other", "all smaller ones")
        if len(operators) == 1:
            (label,) = operators
        found.append(
            Cargo(
                kind, label, len(operators), float(totals[numbers].sum()),
                float(start[mine].min()), float(end[mine].max()),
            )
        )  # fmt: skip
    return tuple(found)


def _computing(
    program: _core.FlowProgram, result: FlowsResult, servers: int, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The share of computing servers."""
    tasks = [computation.task for computation in program.compute_tasks]
    start, end = result.start_s[tasks], result.finish_s[tasks]
    lasting = np.isfinite(end) & (end > start)
    start, end = start[lasting], end[lasting]
    share = np.zeros(BINS)
    for i in range(BINS):
        overlap = np.minimum(end, edges[i + 1]) - np.maximum(start, edges[i])
        share[i] = overlap[overlap > 0].sum()
    width = (edges[-1] / BINS) or 1.0
    return np.clip(share / (width * servers), 0.0, 1.0)


def _utilisation(
    program: _core.FlowProgram,
    result: FlowsResult,
    flows: _CarriedFlows,
    tasks: list[int],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Utilisation per bin, if every flow had its mean rate from start to end."""
    links = program.links
    start = result.start_s[tasks]
    lasts = np.maximum(result.finish_s[tasks] - start, 1e-15)
    sent = np.zeros((len(links), BINS + 1))
    for i, edge in enumerate(edges):
        part = np.clip((edge - start) / lasts, 0.0, 1.0) * flows.size
        sent[:, i] = np.bincount(
            flows.link_of_entry, weights=part[flows.flow_of_entry], minlength=len(links)
        )
    width = (edges[-1] / BINS) or 1.0
    possible = np.array([link.bits_per_s / 8 for link in links]) * width
    return np.clip(np.diff(sent, axis=1) / possible[:, None], 0.0, 1.0)
