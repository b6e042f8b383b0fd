"""Limits of requests: larger ones are refused in one line before any allocation.

Each limit is MOST_BYTES divided by the least memory of one requested item. A request below it may
still be slow; the limit keeps a typing error, or a small file that names a billion servers, from
exhausting the memory of the machine.
"""

from __future__ import annotations

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.plan.units import format_bytes

# memory budget of one request: half of 8 GB, the smallest machine that people plan on
MOST_BYTES = 4 << 30

# tables over all ordered pairs of servers: demand, hops, and the simulators' tables of links and
# paths (8 + 2 + 4 + 24 bytes), twice because they are copied while they are built
BYTES_PER_PAIR = 64
# a link, port, rank or node of a flow program: a Python object, or a simulator's record and queues
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
    """Raises DocumentError if `field: value` requests more than MOST_ITEMS of `what`."""
    if count > MOST_ITEMS:
        needed = format_bytes(count * BYTES_PER_ITEM)
        raise DocumentError(
            f"{field}: {brief_number(value)} asks for more than {MOST_ITEMS} {what}: they would "
            f"take {needed} of memory, and at most {format_bytes(MOST_BYTES)} is allowed"
        )


def brief_number(value: int) -> str:
    """The number itself, or its magnitude if it has too many digits to read."""
    return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
