"""Two Hamiltonian cycles of a two-dimensional torus that share no cable.

They exist for all rows and columns from 3 on (Kotzig: the product of two cycles is the union of two
Hamiltonian cycles), so all four links of a server carry an AllReduce on four rings. The rule of the
HammingMesh paper (appendix D, listing 1) finds them for some sizes only; this one for all:

Let the rows be one colour and the columns the other. Swapping the colours of a square whose
horizontal cables have one colour and whose vertical cables the other leaves two cables of each
colour at every server, so each colour remains a union of cycles. For rows <= columns, swaps along
the diagonal join all rows to one cycle, and as many columns to another. Two columns more are joined
by a pair of swaps, of which the first cuts the cycle of the rows and the second joins it again; a
last column by a swap where the cycle of the rows passes the square twice in the same direction
(then it stays one): an odd number of rows has that between its last and its first. An even number
does not; there the pairs go on over the last column, where the cycle of the columns has it.

A dimension of two has two cables between its servers. Every server then needs one of each pair on
each cycle, so the cables along the other dimension alternate: there are cycles if and only if its
size is even. (With one cable, servers have three: too few.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Cycle = tuple[int, ...]
Colours = tuple[bytearray, bytearray]  # of the cables to the east and to the south of every server

_EAST, _SOUTH, _WEST = range(3)  # and north: the opposite of a side is 2 away


def has_disjoint_cycles(rows: int, columns: int) -> bool:
    """Whether a torus has two Hamiltonian cycles that share no cable."""
    shorter, longer = sorted((rows, columns))
    return shorter > 2 or (shorter == 2 and longer % 2 == 0)


def disjoint_cycles(rows: int, columns: int) -> tuple[Cycle, Cycle]:
    """Two Hamiltonian cycles of the rows x columns torus that share no cable, from server 0.

    Server i * columns + j is in row i and column j; a dimension of two has two cables between each
    two neighbours. Checked before they are returned. The effort is in proportion to the servers.
    Raises ValueError where there are no two such cycles.
    """
    if not has_disjoint_cycles(rows, columns):
        raise ValueError(_why_none(rows, columns))
    if rows > columns:
        turned = disjoint_cycles(columns, rows)
        first, second = (tuple(s % rows * columns + s // rows for s in cycle) for cycle in turned)
        return first, second
    colours = _two_rows(columns) if rows == 2 else _swapped(rows, columns)
    first, second = (_cycle(rows, columns, colours, colour) for colour in (1, 0))
    return first, second


def _why_none(rows: int, columns: int) -> str:
    shorter, longer = sorted((rows, columns))
    what = f"a torus of {rows} x {columns} has no two Hamiltonian cycles that share no cable"
    if shorter < 2:
        return f"{what}: a dimension below 2 leaves at most one; give 2 or more rows and columns"
    return f"{what}: beside a dimension of 2 the other one must be even, not {longer}"


def _squares(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """The squares to swap, by the row and the column of their first corner; rows <= columns."""
    yield from ((i, i) for i in range(rows - 1))
    rest = columns - rows
    pairs = rest // 2 if rows % 2 else (rest + 1) // 2
    for column in range(rows - 1, rows - 1 + 2 * pairs, 2):
        yield from ((0, column), (1, column + 1))
    if rows % 2 and rest % 2:
        yield rows - 1, columns - 2


def _two_rows(columns: int) -> Colours:
    """For two rows: one cable of every column, and every other one of each row."""
    return bytearray(b"\x01\x00" * (columns // 2) + b"\x00\x01" * (columns // 2)), bytearray(
        b"\x01" * columns + b"\x00" * columns
    )


def _swapped(rows: int, columns: int) -> Colours:
    """After all swaps; at first the cables along rows have colour 1."""
    east, south = bytearray(b"\x01") * (rows * columns), bytearray(rows * columns)
    for row, column in _squares(rows, columns):
        below, right = (row + 1) % rows * columns, (column + 1) % columns
        for cables, server in (
            (east, row * columns + column),
            (east, below + column),
            (south, row * columns + column),
            (south, row * columns + right),
        ):
            cables[server] ^= 1
    return east, south


def _cycle(rows: int, columns: int, colours: Colours, colour: int) -> Cycle:
    """The cycle of one colour's cables. Each cable has one colour, so two cycles share none."""
    east, south = colours
    servers = rows * columns
    sides = [0] * servers  # the sum of the two sides of this colour
    count = bytearray(servers)
    for cables, side, step in ((east, _EAST, 1), (south, _SOUTH, columns)):
        for server, given in enumerate(cables):
            if given != colour:
                continue
            near = _neighbour(server, step, columns, servers)
            sides[server] += side
            sides[near] += side + 2
            count[server] += 1
            count[near] += 1
    assert set(count) == {2}, "every server is passed once"
    side = _EAST if east[0] == colour else _SOUTH if south[0] == colour else _WEST
    server = 0
    cycle: list[int] = []
    while not cycle or server:
        cycle.append(server)
        if len(cycle) > servers:
            break
        step = (1, columns, -1, -columns)[side]
        server = _neighbour(server, step, columns, servers)
        side = sides[server] - (side ^ 2)
    assert len(set(cycle)) == len(cycle) == servers, "one cycle passes all servers"
    return tuple(cycle)


def _neighbour(server: int, step: int, columns: int, servers: int) -> int:
    if abs(step) == columns:
        return (server + step) % servers
    row = server // columns * columns
    return row + (server - row + step) % columns
