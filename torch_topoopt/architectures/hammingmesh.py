"""HammingMesh (Hoefler et al., SC 2022): 2D meshes on boards; rows and columns of boards joined by
switches.

`HxMesh` describes one without building it. Its accelerators are the servers of the cluster, each
with four ports (E, W, N, S) in each of several equal, isolated planes. The Topology has one plane,
whose links have the rates of all planes together; costs count every plane. One switch or two-level
fat-tree joins all W and E ports of a row of boards, or of a row of accelerators; likewise the N and
S ports of a column. A dimension of one board has no switches: its opposite ports are joined
(section III, "wrapped around").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from torch_topoopt.architectures.clos import RADIX, TwoLevels, check_switches
from torch_topoopt.architectures.topology import (
    ChannelRule,
    NodeLink,
    ServerGrid,
    Topology,
    Wires,
)
from torch_topoopt.plan.network import rings_of
from torch_topoopt.topology.finder.torus_cycles import disjoint_cycles, has_disjoint_cycles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.plan import Cluster, Demand

Direction = Literal["E", "W", "N", "S"]
Dimension = Literal["row", "column"]
Span = Literal["auto", "board", "accelerator"]
DIRECTIONS: tuple[Direction, ...] = ("E", "W", "N", "S")
SPANS: tuple[Span, ...] = ("auto", "board", "accelerator")
PORTS_PER_PLANE = 4


@dataclass(frozen=True)
class RowSwitches:
    """The switches that join the boards of one row (or column): nodes `first`... of the Topology,
    leaves before spines. `index` counts those of one `dimension`, from the north (west) on; `lines`
    rows (columns) of accelerators share them, from `index` x `lines` on."""

    dimension: Dimension
    index: int
    lines: int
    first: int
    shape: TwoLevels

    @property
    def leaves(self) -> range:
        return range(self.first, self.first + self.shape.leaves)

    @property
    def spines(self) -> range:
        return range(self.leaves.stop, self.leaves.stop + self.shape.spines)

    @property
    def nodes(self) -> range:
        return range(self.first, self.first + self.shape.switches)


@dataclass(frozen=True)
class HxMesh:
    """An x x y HammingMesh of boards of a x b accelerators: `a` and `x` count along a row (west to
    east), `b` and `y` along a column (north to south).

    Accelerators and boards are numbered row by row from the north-west corner, from 0. `span` is
    the scope of a switch: a row of boards ("board") or of accelerators ("accelerator"). "auto", as
    in Appendix C of the paper, is "board" if one switch has enough ports, else "accelerator";
    columns likewise. `taper` and `column_taper` are the uplinks of a leaf over its ports below, in
    the trees of rows and of columns; a single switch has no uplinks. Raises ValueError for sizes
    below 1, another span, a taper outside (0, 1], or a row that needs more than two levels of
    switches.
    """

    a: int
    b: int
    x: int
    y: int
    radix: int = RADIX
    span: Span = "auto"
    taper: float = 1.0
    column_taper: float = 1.0

    def __post_init__(self) -> None:
        for name in ("a", "b", "x", "y"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        if self.span not in SPANS:
            raise ValueError(f"span: {self.span!r} is not one of {', '.join(SPANS)}")
        check_switches(self.radix, self.taper)
        check_switches(self.radix, self.column_taper, "column_taper")
        self.shape("row").validate()
        self.shape("column").validate()

    @property
    def rows(self) -> int:
        """Rows of accelerators."""
        return self.b * self.y

    @property
    def columns(self) -> int:
        """Columns of accelerators."""
        return self.a * self.x

    @property
    def accelerators(self) -> int:
        return self.rows * self.columns

    @property
    def boards(self) -> int:
        return self.x * self.y

    def number(self, row: int, column: int) -> int:
        """The accelerator at (row, column) of all."""
        return row * self.columns + column

    def place(self, accelerator: int) -> tuple[int, int]:
        """Its (row, column) among all accelerators."""
        return divmod(accelerator, self.columns)

    def board_of(self, accelerator: int) -> tuple[int, int]:
        """The (row, column) of its board among the boards."""
        row, column = self.place(accelerator)
        return row // self.b, column // self.a

    def neighbours(self, accelerator: int) -> dict[Direction, int]:
        """The node at the other end of each of its ports: an accelerator of the board, or a switch.

        Unconnected ports are missing: those of a single row without boards to the south or north.
        """
        return {
            direction: node
            for direction in DIRECTIONS
            if (node := self.neighbour(accelerator, direction)) is not None
        }

    def neighbour(self, accelerator: int, direction: Direction) -> int | None:
        """As `neighbours`, of one port; None if unconnected."""
        row, column = self.place(accelerator)
        along_row = direction in ("E", "W")
        step = 1 if direction in ("E", "S") else -1
        here, size, boards = (column, self.a, self.x) if along_row else (row, self.b, self.y)
        there = here + step
        if there // size == here // size:
            return self.number(row, there) if along_row else self.number(there, column)
        if boards > 1:
            return self._leaf(row, column, direction)
        there %= size
        if there == here:
            return None
        return self.number(row, there) if along_row else self.number(there, column)

    def lines(self, dimension: Dimension) -> int:
        """Rows (columns) of accelerators that share switches."""
        size = self.b if dimension == "row" else self.a
        if self.span == "board":
            return size
        if self.span == "accelerator":
            return 1
        boards = self.x if dimension == "row" else self.y
        return size if 2 * size * boards <= self.radix else 1

    def shape(self, dimension: Dimension) -> TwoLevels:
        """The switches that one row (column) of boards, or of accelerators, has."""
        boards = self.x if dimension == "row" else self.y
        taper = self.taper if dimension == "row" else self.column_taper
        return TwoLevels(2 * boards * self.lines(dimension), self.radix, taper)

    @cached_property
    def switches(self) -> tuple[RowSwitches, ...]:
        """Switches of all rows, from the north, then of all columns, from the west; none for a
        dimension of one board."""
        found: list[RowSwitches] = []
        first = self.accelerators
        sizes: tuple[tuple[Dimension, int, int], ...] = (
            ("row", self.x, self.rows),
            ("column", self.y, self.columns),
        )
        for dimension, boards, count in sizes:
            if boards < 2:
                continue
            lines, shape = self.lines(dimension), self.shape(dimension)
            for index in range(count // lines):
                found.append(RowSwitches(dimension, index, lines, first, shape))
                first += shape.switches
        return tuple(found)

    @property
    def nodes(self) -> int:
        """Accelerators and switches of one plane."""
        return self.switches[-1].nodes.stop if self.switches else self.accelerators

    def switches_of(self, node: int) -> RowSwitches:
        """The group of the switch `node`; ValueError for another node."""
        if not self.accelerators <= node < self.nodes:
            raise ValueError(
                f"node: {node} is not a switch; those are {self.accelerators}..{self.nodes - 1}"
            )
        of_rows = self.rows // self.lines("row") if self.x > 1 else 0
        first_column = self.accelerators + of_rows * self.shape("row").switches
        if node < first_column:
            return self.switches[(node - self.accelerators) // self.shape("row").switches]
        return self.switches[of_rows + (node - first_column) // self.shape("column").switches]

    def switches_at(self, accelerator: int, dimension: Dimension) -> RowSwitches | None:
        """The switches at its board's edges along its row (column); None without any."""
        row, column = self.place(accelerator)
        if (self.x if dimension == "row" else self.y) < 2:
            return None
        if dimension == "row":
            return self.switches[row // self.lines("row")]
        of_rows = self.rows // self.lines("row") if self.x > 1 else 0
        return self.switches[of_rows + column // self.lines("column")]

    def ports_of(self, switches: RowSwitches) -> Iterator[int]:
        """The accelerator at each port below: board by board, of each line the W (N) edge before
        the E (S) one."""
        lines = range(switches.index * switches.lines, (switches.index + 1) * switches.lines)
        along_row = switches.dimension == "row"
        size, boards = (self.a, self.x) if along_row else (self.b, self.y)
        for board in range(boards):
            for line in lines:
                for edge in (board * size, board * size + size - 1):
                    yield self.number(line, edge) if along_row else self.number(edge, line)

    def _leaf(self, row: int, column: int, direction: Direction) -> int:
        """The switch that a port at the edge of a board leads to."""
        dimension: Dimension = "row" if direction in ("E", "W") else "column"
        at = self.switches_at(self.number(row, column), dimension)
        assert at is not None
        board, line = (column // self.a, row) if dimension == "row" else (row // self.b, column)
        port = (board * at.lines + line % at.lines) * 2 + (direction in ("E", "S"))
        return at.first + port // at.shape.down

    def ring_orders(self) -> tuple[tuple[int, ...], ...]:
        """Cycles through all accelerators on the torus of rows and columns: two without a common
        cable if they exist, else one."""
        return _cycles(self.rows, self.columns)


# parameters: one choice of the generator each, with the paper's names
def build(
    cluster: Cluster,
    demand: Demand | None = None,
    *,
    seed: int = 0,
    board: tuple[int, int] | None = None,
    boards: tuple[int, int] | None = None,
    planes: int | None = None,
    radix: int = RADIX,
    span: Span = "auto",
    taper: float = 1.0,
    column_taper: float | None = None,
    name: str = "hammingmesh",
) -> Topology:
    """A HammingMesh whose accelerators are the servers of `cluster`.

    `board` is (a, b), by default the largest of 4 x 4, 2 x 2 and 1 x 1 that leaves two boards or
    more in both dimensions; `boards` is (x, y), by default the squarest, x >= y. `planes` defaults
    to degree / 4; links have `planes` x the link rate. `radix`, `span`, `taper` and `column_taper`
    (default: `taper`) are those of HxMesh. Rows are cabled with DACs, columns and all between
    switches with AoCs (section III-D). AllReduce runs both ways on the cycles of
    `HxMesh.ring_orders`. `demand` and `seed` change nothing. Raises DocumentError for an invalid
    cluster, and ValueError for a size, a number of planes or switches that do not fit.
    """
    wires = Wires.of(cluster, pair_tables=False)
    mesh = mesh_of(
        cluster,
        board=board,
        boards=boards,
        radix=radix,
        span=span,
        taper=taper,
        column_taper=column_taper,
    )
    if planes is None and cluster.degree % PORTS_PER_PLANE:
        raise ValueError(
            f"degree: {cluster.degree} is not a multiple of {PORTS_PER_PLANE}, the ports of a plane"
        )
    planes = cluster.degree // PORTS_PER_PLANE if planes is None else planes
    if not 1 <= planes * PORTS_PER_PLANE <= cluster.degree:
        raise ValueError(
            f"planes: {planes} of {PORTS_PER_PLANE} ports are not between 1 port and the degree, "
            f"{cluster.degree}"
        )
    gbps = planes * cluster.link_gbps
    _wire_boards(wires, mesh, gbps)
    for switches in mesh.switches:
        medium: Literal["dac", "aoc"] = "dac" if switches.dimension == "row" else "aoc"
        switches.shape.wire(wires, tuple(mesh.ports_of(switches)), switches.first, gbps, medium)
    return Topology(
        architecture=name,
        servers=cluster.servers,
        nodes=mesh.nodes,
        links=tuple(wires.links),
        rings=rings_of(mesh.ring_orders(), both_ways=True),
        server_ports=PORTS_PER_PLANE,
        switch_ports=radix if mesh.switches else 0,
        channel_rule=north_last_rule(mesh, wires.links),
        grid=ServerGrid(mesh.rows, mesh.columns, mesh.b, mesh.a),
    ).validate()


def north_last_rule(mesh: HxMesh, links: Sequence[NodeLink]) -> ChannelRule:
    """The routing of section IV-C on the `links` of `mesh`: north-last on boards, and one more
    virtual channel with every link that leaves a board, to a switch or around a dimension of one
    board.

    A packet leaves boards at most once in each dimension, so three channels suffice. A path over
    switches within one board counts if it is as short as one on the board. Where the ports of one
    board are on several leaves of a tree, a path over another board can be as short as that over a
    spine. It leaves boards twice in that dimension.
    """
    dimensions: tuple[Dimension, ...] = ("row", "column")
    channels = 3 + sum(_splits_boards(mesh, dimension) for dimension in dimensions)
    raises: list[int] = []
    last: list[int] = []
    for i, link in enumerate(links):
        if link.source >= mesh.accelerators:
            continue
        if link.medium != "trace":
            raises.append(i)
        elif mesh.place(link.target)[0] < mesh.place(link.source)[0]:
            last.append(i)
    return ChannelRule(channels, tuple(raises), tuple(last), lifts=tuple(raises))


def _splits_boards(mesh: HxMesh, dimension: Dimension) -> bool:
    shape = mesh.shape(dimension)
    return not shape.single and shape.down % (2 * mesh.lines(dimension)) != 0


def mesh_of(
    cluster: Cluster,
    *,
    board: tuple[int, int] | None = None,
    boards: tuple[int, int] | None = None,
    column_taper: float | None = None,
    radix: int = RADIX,
    span: Span = "auto",
    taper: float = 1.0,
) -> HxMesh:
    """The HxMesh that `build` builds; raises ValueError as it does for the sizes."""
    servers = cluster.servers
    a, b = default_board(servers) if board is None else board
    if min(a, b) < 1 or servers % (a * b):
        raise ValueError(
            f"servers: {servers} is not a multiple of the accelerators of a {a} x {b} board"
        )
    x, y = default_boards(servers // (a * b)) if boards is None else boards
    if x * y * a * b != servers:
        raise ValueError(f"boards: {x} x {y} boards of {a} x {b} are not {servers} servers")
    return HxMesh(
        a,
        b,
        x,
        y,
        radix=radix,
        span=span,
        taper=taper,
        column_taper=taper if column_taper is None else column_taper,
    )


def default_boards(count: int) -> tuple[int, int]:
    """The squarest x x y of that many boards, x >= y."""
    y = max(size for size in range(1, math.isqrt(count) + 1) if count % size == 0)
    return count // y, y


def default_board(servers: int) -> tuple[int, int]:
    """The largest of 4 x 4, 2 x 2 and 1 x 1 that leaves two boards or more in both dimensions."""
    for size in (4, 2):
        if servers % size**2 == 0 and min(default_boards(servers // size**2)) > 1:
            return size, size
    return 1, 1


def build_hx1(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """An Hx1Mesh: a 2D HyperX with a server at each place."""
    return build(cluster, demand, seed=seed, board=(1, 1), name="hx1mesh")


def build_hx2(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """An Hx2Mesh: boards of 2 x 2."""
    return build(cluster, demand, seed=seed, board=(2, 2), name="hx2mesh")


def build_hx4(cluster: Cluster, demand: Demand | None = None, *, seed: int = 0) -> Topology:
    """An Hx4Mesh: boards of 4 x 4."""
    return build(cluster, demand, seed=seed, board=(4, 4), name="hx4mesh")


def _wire_boards(wires: Wires, mesh: HxMesh, gbps: float) -> None:
    """The traces of all boards, and a DAC from end to end along a dimension of one board."""
    for accelerator in range(mesh.accelerators):
        row, column = mesh.place(accelerator)
        sides: tuple[tuple[Direction, int, int, int], ...] = (
            ("E", column, mesh.a, mesh.x),
            ("S", row, mesh.b, mesh.y),
        )
        for direction, here, size, boards in sides:
            at_edge = here % size == size - 1
            if at_edge and boards > 1:
                continue
            other = mesh.neighbour(accelerator, direction)
            if other is not None:
                wires.cable(accelerator, other, gbps, medium="dac" if at_edge else "trace")


def _cycles(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Hamiltonian cycles of the torus; a dimension of two has two cables."""
    if has_disjoint_cycles(rows, columns):
        return disjoint_cycles(rows, columns)
    return (_one_cycle(rows, columns),)


def _one_cycle(rows: int, columns: int) -> tuple[int, ...]:
    """One cycle where two do not exist: a single row or column, or 2 x n or n x 2."""
    if min(rows, columns) == 1:
        return tuple(range(rows * columns))
    if rows == 2:
        return (*range(columns), *range(2 * columns - 1, columns - 1, -1))
    return (*range(0, 2 * rows, 2), *range(2 * rows - 1, 0, -2))
