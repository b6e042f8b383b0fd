"""The AllGather that lost cables leave: of the slowest cut's bound, and of the intact network.

    python benchmarks/lost_cables.py
    python benchmarks/lost_cables.py -n 32 -d 4 --modes paper --draws 20

Each row is the worst of `--draws` draws of lost cables.

intact   bound of the slowest cut before the loss / after it
bound    bound / time of the busiest link of a packing of trees
steps    links from a root to the farthest server
ms       processor time of the packing
"""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING, NamedTuple

from harness.separate_cases import choice_of, numbers
from torch_topoopt import _core
from torch_topoopt.plan import Cluster
from torch_topoopt.topology.find_network import find_network
from torch_topoopt.topology.measures.figures import default_demand

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch_topoopt.plan import Link

SERVERS = (8, 12, 16, 32, 64, 128)
DEGREES = (4, 8)
MODES = ("paper", "best")
LOST = (1, 2)


class Packing(NamedTuple):
    seconds: float  # of the busiest link, for one shard a second on each link
    bound_s: float
    steps: int
    cpu_s: float


def pack(servers: int, links: Iterable[Link]) -> Packing:
    """A packing of trees over links of one shard a second."""
    ends = [(link.source, link.target, 1.0) for link in links]
    group = _core.GraphGroup(servers, ends, (), 0.0, 0.0)
    started = time.process_time()
    received, units, steps = group.plan("packing", False, None)
    cpu_s = time.process_time() - started
    rates: dict[tuple[int, int], int] = {}
    for source, target, _ in ends:
        rates[source, target] = rates.get((source, target), 0) + 1
    loads = dict.fromkeys(rates, 0)
    for receiver, pieces in enumerate(received):
        for sender, _, first, end, _ in pieces:
            loads[sender, receiver] += end - first
    seconds = max(load / rates[pair] for pair, load in loads.items()) / units
    bound_s = group.candidates("all_gather", servers).bound_seconds
    return Packing(seconds, bound_s, steps, cpu_s)


def without_cables(links: Sequence[Link], lost: int, chooser: random.Random) -> list[Link]:
    """The links without `lost` cables, each of which joins the same ports in both directions."""
    cables = sorted({frozenset(_ports(link)) for link in links}, key=sorted)
    gone = chooser.sample(cables, lost)
    return [link for link in links if frozenset(_ports(link)) not in gone]


def _ports(link: Link) -> tuple[tuple[int, int], tuple[int, int]]:
    return (link.source, link.source_port), (link.target, link.target_port)


def run(options: argparse.Namespace) -> None:
    columns = ("servers", "degree", "mode", "lost", "intact", "bound", "steps", "ms")
    print("".join(f"{column:>9}" for column in columns))
    for servers in options.servers:
        for degree in options.degrees:
            for mode in options.modes:
                cluster = Cluster(servers, degree, 100.0, parallel_links=degree >= servers)
                network = find_network(cluster, default_demand(servers), mode=mode)
                intact_s = pack(servers, network.links).bound_s
                for lost in LOST:
                    chooser = random.Random(options.seed)
                    found = [
                        pack(servers, without_cables(network.links, lost, chooser))
                        for _ in range(options.draws)
                    ]
                    cells = (
                        f"{servers:9}{degree:9}{mode:>9}{lost:9}",
                        f"{min(intact_s / packing.bound_s for packing in found):9.3f}",
                        f"{min(packing.bound_s / packing.seconds for packing in found):9.4f}",
                        f"{max(packing.steps for packing in found):9}",
                        f"{max(packing.cpu_s for packing in found) * 1e3:9.1f}",
                    )
                    print("".join(cells), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--servers", type=numbers, default=SERVERS, help="default: 8 to 128")
    parser.add_argument("-d", "--degrees", type=numbers, default=DEGREES, help="default: 4, 8")
    parser.add_argument("--modes", type=choice_of(MODES), default=MODES, help="default: both")
    parser.add_argument("--draws", type=int, default=5, help="draws of lost cables (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    return parser.parse_args()


if __name__ == "__main__":
    run(parse_arguments())
