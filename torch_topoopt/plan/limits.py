"""Limits of requests: larger ones are refused before anything is allocated for them, in one line.

Each limit follows from one number, MOST_BYTES, and from what the items that are asked for take at
the least. That is no promise that a request below it is fast; it keeps a typing error, or a file of
a few bytes that names a billion servers, from taking the memory of the whole machine.
"""

from __future__ import annotations

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import format_bytes

# The memory of one request before anything is computed: half of a machine of 8 GB, the smallest on
# which people plan.
MOST_BYTES = 4 << 30

# Tables over all ordered pairs of servers: demand, hops, and the simulators' two tables of links
# and paths (8 + 2 + 4 + 24 bytes), and as much again while they are made.
BYTES_PER_PAIR = 64
# A link, a port, a rank or a node of a flow program: an object of Python, or a record of a
# simulator with its queues.
BYTES_PER_ITEM = 1024

MOST_SERVERS = int((MOST_BYTES / BYTES_PER_PAIR) ** 0.5)
MOST_ITEMS = MOST_BYTES // BYTES_PER_ITEM


def check_servers(servers: int, field: str = "servers") -> None:
    """Raises DocumentError for more than MOST_SERVERS."""
    if servers > MOST_SERVERS:
        needed = format_bytes(servers * servers * BYTES_PER_PAIR)
        raise DocumentError(
            f"{field}: {brief_number(servers)} is more than {MOST_SERVERS}: tables over all pairs "
            f"would take {needed} of memory, and at most {format_bytes(MOST_BYTES)} is allowed"
        )


def check_items(count: int, field: str, value: int, what: str) -> None:
    """Raises DocumentError for more than MOST_ITEMS of `what`, which `field: value` asks for."""
    if count > MOST_ITEMS:
        needed = format_bytes(count * BYTES_PER_ITEM)
        raise DocumentError(
            f"{field}: {brief_number(value)} asks for more than {MOST_ITEMS} {what}: they would "
            f"take {needed} of memory, and at most {format_bytes(MOST_BYTES)} is allowed"
        )


def brief_number(value: int) -> str:
    """The number itself, or its size where it has too many digits to read."""
    return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
