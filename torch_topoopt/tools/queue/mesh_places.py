"""Servers of a HammingMesh for jobs: virtual sub-meshes (docs/planning/allocation.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.shared_networks.allocation.allocation import Allocation
from torch_topoopt.shared_networks.allocation.board_job import (
    DEFAULT_MOST_ASPECT,
    BoardJob,
    ShapeRules,
)
from torch_topoopt.shared_networks.allocation.boards import Boards, SubMesh
from torch_topoopt.shared_networks.allocation.defragment import (
    DefragmentationPlan,
    MoveCost,
    defragment,
)
from torch_topoopt.shared_networks.allocation.schemes import Heuristics, greedy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile


@dataclass(frozen=True)
class MeshPlaces:
    """The boards of a cluster, of `across` x `down` servers each; `names` in the file's order."""

    boards: Boards
    across: int
    down: int
    boards_per_leaf: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, cluster: ClusterFile) -> MeshPlaces | None:
        """Those of a cluster file; None if it is no HammingMesh."""
        mesh = cluster.hammingmesh
        if mesh is None:
            return None
        names = tuple(server.name for server in cluster.servers)
        return cls(Boards(*mesh.boards), *mesh.board, mesh.boards_per_leaf, names)

    @property
    def servers_per_board(self) -> int:
        """a * b."""
        return self.across * self.down

    @property
    def heuristics(self) -> Heuristics:
        """Any shape up to the usual aspect, where its all-to-all crosses the trees least."""
        return Heuristics(
            ShapeRules(True, DEFAULT_MOST_ASPECT),
            locality=True,
            boards_per_leaf=self.boards_per_leaf,
        )

    def choose(self, free: Collection[str], servers: int) -> frozenset[str] | None:
        """The servers of a sub-mesh of whole boards, all of them `free`; None if there is none."""
        if servers % self.servers_per_board:
            return None
        idle = set(free)
        width = self.across * self.boards.columns
        busy = {
            (number // width // self.down, number % width // self.across)
            for number, name in enumerate(self.names)
            if name not in idle
        }
        job = BoardJob.square("job", servers // self.servers_per_board)
        boards = self.boards.with_failed(frozenset(busy))
        own = greedy(boards, [job], self.heuristics).placed.get(job)
        return None if own is None else frozenset(self.names_of(own))

    def names_of(self, own: SubMesh) -> list[str]:
        """The servers of a sub-mesh, in the order of its accelerators."""
        width = self.across * self.boards.columns
        return [
            self.names[(row * self.down + i) * width + column * self.across + j]
            for row in own.rows
            for i in range(self.down)
            for column in own.columns
            for j in range(self.across)
        ]

    def sub_mesh(self, servers: Iterable[str]) -> SubMesh:
        """The boards of the servers of a job."""
        width = self.across * self.boards.columns
        numbers = {name: number for number, name in enumerate(self.names)}
        places = [numbers[name] for name in servers]
        return SubMesh(
            tuple(sorted({place // width // self.down for place in places})),
            tuple(sorted({place % width // self.across for place in places})),
        )

    def moves_for(
        self, holding: Mapping[int, Collection[str]], job: int, servers: int
    ) -> DefragmentationPlan:
        """Moves of jobs that hold servers, by number, after which `job` has a place, or none."""
        placed = {}
        for number, names in sorted(holding.items()):
            own = self.sub_mesh(names)
            placed[BoardJob(str(number), *own.shape)] = own
        wanted = BoardJob.square(str(job), servers // self.servers_per_board)
        return defragment(Allocation(self.boards, placed, (wanted,)), self.heuristics)

    def cost(self) -> MoveCost:
        """With the paper's accelerators (section IV-A b)."""
        return MoveCost(accelerators_per_board=self.servers_per_board)


def boards_text(own: SubMesh) -> str:
    """For people: "2x3 boards, rows 0-1, columns 0, 2-3"."""
    return f"{len(own.rows)}x{len(own.columns)} boards, {own.text()}"
