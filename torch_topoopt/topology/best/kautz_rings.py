"""Generalised Kautz networks, also cut into rings: few hops at once, for simplex ports.

The generalised Kautz network of n servers and degree d has a link from server u to -(d u + j) mod n
for j = 1 .. d (Imase and Itoh, IEEE Transactions on Computers 1983). Its diameter is at most one
above that of Moore's bound. `kautz_links` has it for any n. As a union of d rings over all servers
it takes two conditions on n:

- d + 1 divides n. Otherwise some server has a link to itself, and no ring has one. (Generalised
  de Bruijn networks, u to d u + j, always have such links: 0 to 0.)
- d divides n. Then the d servers u, u + n / d, u + 2 n / d ... have links to the same d servers:
  the network is a line digraph. So which ring takes which of these d x d links is a Latin square,
  and a Latin square may be changed without regard to the others. That makes the search for squares
  that give d rings, and not more and shorter ones, a small one.

Duplex cables would double these links back, for which the family is not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from torch_topoopt.plan import Pair
    from torch_topoopt.topology.finder.crossed_rings import Order


# In the unit of `search_rings`' work: of following one link of one ring, and of one exchange.
_OPERATIONS_PER_LINK, _OPERATIONS_PER_STEP = 250, 10_000


def kautz_links(servers: int, degree: int) -> list[Pair]:
    """The links of the network, also those of a server to itself."""
    return [(u, (-degree * u - j) % servers) for u in range(servers) for j in range(1, degree + 1)]


def has_kautz_rings(servers: int, degree: int) -> bool:
    """Whether the generalised Kautz network has no link of a server to itself, and is a line
    digraph: what `kautz_rings` asks for."""
    return degree >= 2 and servers % (degree + 1) == 0 and servers % degree == 0


def kautz_rings(
    servers: int, degree: int, chooser: random.Random, work: int
) -> tuple[Order, ...] | None:
    """`degree` rings over all servers that are the generalised Kautz network; None if not found.

    Two rows, columns or symbols of a random Latin square are exchanged if there are no more cycles
    in all afterwards, until every symbol has one cycle or `work` operations are done.

    Raises ValueError if the network has no such squares (`has_kautz_rings`).
    """
    if not has_kautz_rings(servers, degree):
        raise ValueError(
            f"servers: {servers} is not a multiple of {degree} and of {degree + 1}, as a "
            f"generalised Kautz network of {degree} rings needs"
        )
    classes = servers // degree
    squares = []
    for _ in range(classes):
        rows, columns = list(range(degree)), list(range(degree))
        chooser.shuffle(rows)
        chooser.shuffle(columns)
        squares.append([[(r + c) % degree for c in columns] for r in rows])
    following = [[0] * servers for _ in range(degree)]
    for u in range(classes):
        _lay(following, squares[u], u, classes)
    cycles = [_cycles(ring) for ring in following]
    steps = work // (_OPERATIONS_PER_LINK * servers * degree + _OPERATIONS_PER_STEP)
    for _ in range(steps):
        if sum(cycles) == degree:
            break
        u = chooser.randrange(classes)
        before = squares[u]
        squares[u] = _changed(before, chooser)
        _lay(following, squares[u], u, classes)
        now = [_cycles(ring) for ring in following]
        if sum(now) <= sum(cycles):
            cycles = now
        else:
            squares[u] = before
            _lay(following, before, u, classes)
    if sum(cycles) != degree:
        return None
    return tuple(_order(ring) for ring in following)


def _changed(square: list[list[int]], chooser: random.Random) -> list[list[int]]:
    degree = len(square)
    a, b = chooser.sample(range(degree), 2)
    place = list(range(degree))
    place[a], place[b] = b, a
    kind = chooser.randrange(3)
    if kind == 0:
        return [square[row] for row in place]
    if kind == 1:
        return [[row[column] for column in place] for row in square]
    return [[place[symbol] for symbol in row] for row in square]


def _lay(following: list[list[int]], square: list[list[int]], u: int, classes: int) -> None:
    """Row i of the square is server u + i * classes, column j the link to -(d u + j + 1)."""
    degree = len(square)
    servers = classes * degree
    heads = [(-degree * u - j - 1) % servers for j in range(degree)]
    for i, row in enumerate(square):
        tail = u + i * classes
        for j, symbol in enumerate(row):
            following[symbol][tail] = heads[j]


def _cycles(following: list[int]) -> int:
    left = bytearray(b"\x01") * len(following)
    count = 0
    start = left.find(1)
    while start >= 0:
        count += 1
        at = start
        while left[at]:
            left[at] = 0
            at = following[at]
        start = left.find(1, start)
    return count


def _order(following: list[int]) -> Order:
    order = [0]
    while following[order[-1]]:
        order.append(following[order[-1]])
    return tuple(order)
