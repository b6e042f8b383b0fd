"""`topoopt assign`: paths for flows through a leaf-spine network."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import OK, InputError, input_errors
from torch_topoopt.plan.json_list import read_list
from torch_topoopt.plan.units import counted, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.route_control.flows import RoutingProblem, SwitchedFlow

_SCHEMES = ("greedy", "ecmp", "colouring", "annealing", "exact", "local-search")

_DESCRIPTION = """\
Chooses for every flow between ToRs the spine that it goes over, so that the link that carries most
carries as little as possible ("Routing for Large ML Models").

schemes:
  greedy        one flow after the other, over the least congested path so far (the paper's)
  ecmp          a hash of each flow picks its path, as switches do
  colouring     edge colouring: exact where demands are alike; all ToRs need the same spines
  annealing     simulated annealing (Hedera)
  exact         the optimum, as an integer program (HiGHS); up to a minute
  local-search  colouring where that is exact; else largest flows first, and chains of changes

FLOWS is a JSON list of [source ToR, target ToR] or [source, target, demand], DEAD a list of
[ToR, spine], dead in both directions; all are counted from 0."""

_EXAMPLES = """\
  topoopt assign --tors 64 --spines 32 --flows flows.json
  topoopt assign --tors 64 --spines 32 --flows flows.json --dead-links dead.json --scheme exact"""


@dataclass(frozen=True)
class AssignedPaths:
    """The result of `topoopt assign`; `assignment` is the spine of each flow."""

    scheme: str
    max_link_load: float
    bound: float
    seconds: float
    assignment: list[int]


def make_parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    options = parser.Parser("assign", _DESCRIPTION, _EXAMPLES)
    options.add_argument("--tors", type=int, metavar="T", required=True, help="number of ToRs")
    options.add_argument("--spines", type=int, metavar="S", required=True, help="number of spines")
    options.add_argument("--flows", metavar="FILE", required=True, help="flows to route, JSON")
    options.add_argument("--dead-links", metavar="FILE", help="links that are down, JSON")
    options.add_argument("--scheme", choices=_SCHEMES, default="local-search",
                         help="how paths are chosen (default: local-search)")  # fmt: skip
    shared_options.add(options, "seed", "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    from torch_topoopt.route_control.clos_network import leaf_spine
    from torch_topoopt.route_control.flows import RoutingProblem
    from torch_topoopt.route_control.schemes import SCHEMES

    flows = _flows(arguments.flows)
    dead = [] if arguments.dead_links is None else _dead_links(arguments.dead_links)
    with input_errors():
        network = leaf_spine(arguments.tors, arguments.spines, dead_links=dead)
        problem = RoutingProblem(network, flows)
        problem.prepare()  # a controller has this before flows arrive
        began = time.perf_counter()
        choice = SCHEMES[arguments.scheme](problem, arguments.seed)
        seconds = time.perf_counter() - began
    spines = [
        problem.network.paths(flow.source, flow.target)[path][1] - arguments.tors
        for flow, path in zip(problem.flows, choice, strict=True)
    ]
    load = problem.max_link_load(choice)
    results = AssignedPaths(arguments.scheme, load, problem.bound(), seconds, spines)
    if arguments.json:
        console.print_json(results)
    else:
        _show(console.Terminal(), problem, results)
    return OK


def _flows(path: str) -> list[SwitchedFlow]:
    from torch_topoopt.route_control.flows import SwitchedFlow

    flows = []
    for i, row in enumerate(_rows("flows", path)):
        numbers = isinstance(row, list) and all(_is_number(value) for value in row)
        if not numbers or len(row) not in (2, 3) or not all(type(v) is int for v in row[:2]):
            raise InputError(
                f"flows[{i}]: {str(row)[:80]} is neither [source, target] nor "
                "[source, target, demand]"
            )
        flows.append(SwitchedFlow(*row))
    return flows


def _dead_links(path: str) -> list[tuple[int, int]]:
    found = []
    for i, row in enumerate(_rows("dead-links", path)):
        if not isinstance(row, list) or len(row) != 2 or not all(type(v) is int for v in row):
            raise InputError(f"dead-links[{i}]: {str(row)[:80]} is not [ToR, spine]")
        found.append((row[0], row[1]))
    return found


def _rows(name: str, path: str) -> list[Any]:
    with input_errors():
        return read_list(name, path)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(terminal: console.Terminal, problem: RoutingProblem, results: AssignedPaths) -> None:
    flows = Counter(results.assignment)
    terminal.line(
        f"{counted(len(problem.flows), 'flow')} over {counted(len(flows), 'spine')}, "
        f"{results.scheme}: {results.max_link_load:g} on the busiest link "
        f"(no less than {results.bound:g}), {format_seconds(results.seconds)}"
    )
