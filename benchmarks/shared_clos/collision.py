"""Source ports whose hashes put flows of several jobs on one link, found reproducibly.

A kernel takes the source port of a connection from a range at random. Here ports are drawn from it
with a seed, until the paths of some draw meet such that every job has to share; then each host is
held to ports that take the drawn path. So connections are made as ever, and collide in every run.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared_clos.jobs import hold_to_ports
from torch_topoopt.route_control.probing.kernel_paths import kernel_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared_clos.jobs import SharedClos

    Ends = tuple[str, str]
    Path = tuple[str, ...]

PORTS = range(40_000, 40_256)
DRAWS = 1000
_DEFAULT_PORTS = range(32_768, 61_000)


@dataclass(frozen=True)
class Collision:
    """`draw` is the first one, from 0, that collides as it should; `collided` of all `DRAWS` do.
    `paths` are those of the flows, `ports` what leads each flow over its path."""

    draw: int
    collided: int
    paths: dict[Ends, Path]
    ports: dict[Ends, tuple[int, ...]]
    loads: dict[Ends, tuple[int, ...]]  # link that several jobs share -> their numbers

    def describe(self, seed: int) -> str:
        shared = ", ".join(
            f"{a} - {b} (jobs {' and '.join(map(str, jobs))})"
            for (a, b), jobs in self.loads.items()
        )
        return (
            f"# source ports {PORTS[0]}..{PORTS[-1]}, drawn for each flow with seed {seed}: of "
            f"{DRAWS} draws {self.collided} make every job share a link; the first is draw "
            f"{self.draw}: {shared}"
        )


def find_collision(shared: SharedClos, seed: int) -> Collision:
    """Raises ValueError if no draw collides."""
    flows = {ends: number for number, job in enumerate(shared.jobs) for ends in job.flows}
    asked = [shared.flow(ends, port) for ends in flows for port in PORTS]
    answers = kernel_paths(shared.clos.names, asked)
    path_of = {
        (flow.source, flow.target, flow.source_port): path
        for flow, path in zip(asked, answers, strict=True)
        if path is not None
    }
    draw_port = random.Random(seed)
    first: tuple[int, dict[Ends, Path]] | None = None
    collided = 0
    for draw in range(DRAWS):
        paths = {ends: path_of[(*ends, draw_port.choice(PORTS))] for ends in flows}
        meeting = shared_links(flows, paths)
        if {job for jobs in meeting.values() for job in jobs} == set(range(len(shared.jobs))):
            collided += 1
            first = first or (draw, paths)
    if first is None:
        raise ValueError(f"seed: none of {DRAWS} draws of source ports makes every job share")
    draw, paths = first
    ports = {
        ends: tuple(port for port in PORTS if path_of[(*ends, port)] == path)
        for ends, path in paths.items()
    }
    return Collision(draw, collided, paths, ports, shared_links(flows, paths))


def shared_links(
    flows: Mapping[Ends, int], paths: Mapping[Ends, Path]
) -> dict[Ends, tuple[int, ...]]:
    """Links that flows of several jobs take -> these jobs."""
    jobs: dict[Ends, set[int]] = defaultdict(set)
    for ends, path in paths.items():
        for hop in itertools.pairwise(path):
            jobs[hop].add(flows[ends])
    return {hop: tuple(sorted(on)) for hop, on in sorted(jobs.items()) if len(on) > 1}


def hold(shared: SharedClos, ports: Mapping[Ends, Sequence[int]]) -> None:
    """Hosts take these source ports only, until `let_go`."""
    for (source, _), allowed in ports.items():
        hold_to_ports(shared.clos.names.namespace(source), PORTS, allowed)


def let_go(shared: SharedClos) -> None:
    for host in shared.hosts:
        hold_to_ports(shared.clos.names.namespace(host), _DEFAULT_PORTS, _DEFAULT_PORTS)
