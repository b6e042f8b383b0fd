"""Maps planned cables to circuits, for clusters with ports on circuit switches.

Pure functions. Servers keep their numbers of the cluster file. A plane is a switch and a subnet; a
cable is possible if both servers have a port on one plane. Planes are assigned so that all cables
fit. Plugged cables are used first, because they need no change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_topoopt.fabric.cluster.static_plan import accelerators_of, check_servers, inside_of
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan import Cluster, Pair
from torch_topoopt.topology.finder.fixed_network import UNKNOWN_GBPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
    from torch_topoopt.fabric.cluster_file.entries import CableEnds
    from torch_topoopt.plan import Plan

Plane = tuple[str, str]  # switch and subnet: any two of its ports can be connected
FreePorts = dict[tuple[int, Plane], list[str]]  # of a server on a plane, in the file's order


@dataclass(frozen=True)
class SwitchedPlan:
    """The circuits of every switch, and the resulting cluster file.

    `cables`: switch -> pairs of its sockets. `file` has a cable for each of them and no ports on
    switches, so code for plugged cables works on it.
    """

    cables: dict[str, tuple[tuple[str, str], ...]]
    file: ClusterFile


def cluster_on_switches(file: ClusterFile) -> Cluster:
    """The servers of `file`, with as many ports as each has on switches; raises FabricError.

    The planner connects two servers at most once, so the number of ports is limited to fit.
    """
    count = len(file.servers)
    attached = [
        [port for port in server.ports if port.switch is not None] for server in file.servers
    ]
    fewest = min(range(count), key=lambda server: len(attached[server]))
    degree = min(len(attached[fewest]), count - 1)
    if count > 2:
        degree -= degree % 2
    if degree < 1:
        raise FabricError(
            f"{file.servers[fewest].name} has {len(attached[fewest])} ports on switches; a plan "
            f"for {count} servers needs {min(2, count - 1)} of each"
        )
    rates = [port.gbps or UNKNOWN_GBPS for own in attached for port in own]
    return Cluster(
        servers=count,
        degree=degree,
        link_gbps=min(rates),
        accelerators_per_server=accelerators_of(file),
        inside_gbps=inside_of(file),
    ).validate()


def place_on_switches(
    plan: Plan, file: ClusterFile, present: Iterable[CableEnds] = ()
) -> SwitchedPlan:
    """Finds a port for both ends of every cable of `plan`; the same input gives the same ports.

    `present` are the cables of the current circuits: planned ones stay as they are, unless the
    others would not fit. Raises FabricError naming the cables that do not fit.
    """
    check_servers(plan, file)
    planned = [(k.source, k.target) for k in plan.network.links if k.source < k.target]
    wanted = _without_plugged(planned, file)
    kept, rest = _keep(wanted, present, file)
    try:
        made = _make(rest, kept, file)
    except FabricError:
        if not kept:
            raise
        kept, made = [], _make(wanted, [], file)
    plugged = sorted(kept + made, key=lambda ends: [file.ports[end][0] for end in ends])
    cables: dict[str, list[tuple[str, str]]] = {switch.name: [] for switch in file.switches}
    for ends in plugged:
        (switch, _, a), (_, _, b) = (
            (file.ports[end][1].switch or "").partition(":") for end in ends
        )
        cables[switch].append((a, b))
    return SwitchedPlan(
        {name: tuple(pairs) for name, pairs in cables.items()}, with_cables(file, plugged)
    )


def with_cables(file: ClusterFile, plugged: Iterable[Sequence[str]]) -> ClusterFile:
    """`file` with cables in place of its switches and these circuits."""
    servers = tuple(
        replace(server, ports=tuple(replace(port, switch=None) for port in server.ports))
        for server in file.servers
    )
    cables = tuple((a, b) for a, b in plugged)
    return replace(file, servers=servers, cables=(*file.cables, *cables), switches=()).validate()


def spare_ports(file: ClusterFile, wired: ClusterFile) -> list[tuple[int, int, str]]:
    """The free ports on switches: server, a number that no planned port has, and port of `file`.

    `wired` is the result of with_cables(). People at a patch panel move no cables during a job.
    """
    used = {end for cable in wired.cables for end in cable}
    by_hand = {switch.name for switch in file.switches if switch.kind == "manual"}
    spares = []
    for number, server in enumerate(file.servers):
        for position, port in enumerate(server.ports):
            end = f"{server.name}:{port.name}"
            on, _, _ = (port.switch or "").partition(":")
            if on and on not in by_hand and end not in used:
                spares.append((number, len(server.ports) + position, end))
    return spares


def _keep(
    wanted: Sequence[Pair], present: Iterable[CableEnds], file: ClusterFile
) -> tuple[list[CableEnds], list[Pair]]:
    """The present cables of `wanted`, and the servers of the missing ones."""
    there: dict[Pair, list[CableEnds]] = {}
    for ends in present:
        low, high = sorted(ends, key=lambda end: file.ports[end][0])
        there.setdefault((file.ports[low][0], file.ports[high][0]), []).append((low, high))
    kept, rest = [], []
    for pair in wanted:
        if there.get(pair):
            kept.append(there[pair].pop(0))
        else:
            rest.append(pair)
    return kept, rest


def _make(wanted: Sequence[Pair], kept: Iterable[CableEnds], file: ClusterFile) -> list[CableEnds]:
    """Ports for `wanted`, none of which is in use by `kept`."""
    free = _free_ports(file, {end for ends in kept for end in ends})
    made = []
    for pair, plane in zip(wanted, _choose_planes(wanted, free, file), strict=True):
        a, b = (free[server, plane].pop(0) for server in pair)
        made.append((a, b))
    return made


def _without_plugged(planned: Sequence[Pair], file: ClusterFile) -> list[Pair]:
    """The cables that switches must make."""
    there: Counter[Pair] = Counter()
    for ends in file.cables:
        low, high = sorted(file.ports[end][0] for end in ends)
        there[low, high] += 1
    wanted = []
    for pair in sorted(planned):
        if there[pair]:
            there[pair] -= 1
        else:
            wanted.append(pair)
    return wanted


def _free_ports(file: ClusterFile, used: Set[str]) -> FreePorts:
    """All ports that are attached to switches, except those in `used`."""
    free: FreePorts = {}
    for end, (server, port) in file.ports.items():
        if port.switch is not None and end not in used:
            plane = port.switch.partition(":")[0], str(port.subnet)
            free.setdefault((server, plane), []).append(end)
    return free


def _choose_planes(wanted: Sequence[Pair], free: FreePorts, file: ClusterFile) -> list[Plane]:
    """A plane for each of `wanted`, such that no server needs more ports of it than it has."""
    planes = list(dict.fromkeys(plane for _, plane in free))
    options = [
        [plane for plane in planes if all((server, plane) in free for server in pair)]
        for pair in wanted
    ]
    for (a, b), possible in zip(wanted, options, strict=True):
        if not possible:
            raise FabricError(
                f"the plan needs a cable between {file.servers[a].name} and "
                f"{file.servers[b].name}, but there is none, and they have no ports on one switch "
                "and in one subnet"
            )
    needed = Counter(server for pair in wanted for server in pair)
    for server, count in sorted(needed.items()):
        have = sum(len(free.get((server, plane), ())) for plane in planes)
        if count > have:
            raise FabricError(
                f"the plan needs {count} ports of {file.servers[server].name} on switches, but "
                f"cluster {file.name} has {have}"
            )
    chosen = [possible[0] for possible in options]
    return chosen if _fits(wanted, chosen, free) else _solve(wanted, options, free)


def _fits(wanted: Sequence[Pair], chosen: Sequence[Plane], free: FreePorts) -> bool:
    used = Counter((s, plane) for pair, plane in zip(wanted, chosen, strict=True) for s in pair)
    return all(count <= len(free[where]) for where, count in used.items())


def _solve(wanted: Sequence[Pair], options: Sequence[list[Plane]], free: FreePorts) -> list[Plane]:
    """Colours the cables with planes: one 0/1 variable for each cable on each of its planes."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    variables = [(cable, plane) for cable, planes in enumerate(options) for plane in planes]
    limits = sorted({(s, plane) for cable, plane in variables for s in wanted[cable]})
    rows = {where: len(wanted) + row for row, where in enumerate(limits)}
    entries = []
    for column, (cable, plane) in enumerate(variables):
        entries += [(cable, column), *((rows[s, plane], column) for s in wanted[cable])]
    matrix = coo_array(
        (np.ones(len(entries)), np.array(entries).T),
        shape=(len(wanted) + len(limits), len(variables)),
    ).tocsr()
    most = np.array([1.0] * len(wanted) + [float(len(free[where])) for where in limits])
    least = np.array([1.0] * len(wanted) + [0.0] * len(limits))
    found = milp(
        np.zeros(len(variables)),
        constraints=LinearConstraint(matrix, least, most),
        integrality=np.ones(len(variables)),
        bounds=Bounds(0, 1),
    )
    if found.x is None:
        raise FabricError(
            f"the {len(wanted)} cables of the plan do not fit on the switches: both ends of a "
            "cable need ports on the same switch and in the same subnet, and no choice leaves "
            "enough ports for all (three servers in a ring cannot share two switches, for one)"
        )
    return [plane for (_, plane), value in zip(variables, found.x, strict=True) if value > 0.5]
