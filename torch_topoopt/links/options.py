"""The options of links between servers: one table for `topoopt run` and for its ranks.

The launcher makes its command-line options and the environment of ranks from LINK_OPTIONS; a rank
reads its environment by the same table. RequestedLinks.of() checks the values for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_topoopt import environment as names
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TCP = "tcp"
_TRANSPORTS = (TCP, "auto", "fabric", "fabric:tcp", "fabric:shm", "fabric:verbs")
_SWITCH = {"0": False, "1": True}


@dataclass(frozen=True)
class RequestedLinks:
    """The options of a job's links; all but the last three are the same on all ranks."""

    encrypted: bool = False
    transport: str = TCP
    connections: int | None = None  # per link; None: by its rate
    why_single: str = ""  # the reason for one connection per link; "": several are possible
    link_threads: bool = False
    reduce_threads: int = 0
    zero_copy: str = "off"  # see session_types.LinkSpec

    @classmethod
    def of(cls, environment: Mapping[str, str], *, by_flag: bool = False) -> RequestedLinks:
        """The links that the variables in `environment` request.

        Raises FabricError, which names the variable of a wrong option, or `by_flag` its flag.
        """
        given = [option for option in LINK_OPTIONS if option.variable in environment]
        called = [option.flag if by_flag else option.variable for option in given]
        requested = cls()
        for name, option in zip(called, given, strict=True):
            try:
                value = option.value_of(environment[option.variable])
            except ValueError as error:
                raise FabricError(f"{name}: {error}") from None
            requested = replace(requested, **{option.field: value})
        requested = replace(requested, why_single=_why_single(requested.transport, environment))
        for name, option in zip(called, given, strict=True):
            if why := option.obstacle(requested):
                raise FabricError(f"{name}: {why}; leave it out")
        return requested


PLAIN = RequestedLinks()


@dataclass(frozen=True)
class LinkOption:
    """The option --`flag` of `topoopt run`, and the `variable` of ranks, for `field` of
    RequestedLinks.

    `words` maps its texts to values; each of `numbers` is a text, too. An option with the
    words 0 and 1 is a flag without a value on the command line. `obstacle` returns the reason why
    links of this kind cannot have the requested value; "" if they can.
    """

    field: str
    flag: str
    variable: str
    help: str
    words: Mapping[str, Any]
    numbers: range = range(0)
    obstacle: Callable[[RequestedLinks], str] = lambda _: ""

    def value_of(self, text: str) -> Any:
        """Raises ValueError for a text that the option does not have."""
        if text in self.words:
            return self.words[text]
        if text.isascii() and text.isdecimal() and int(text) in self.numbers:
            return int(text)
        numbers = [f"{self.numbers[0]}..{self.numbers[-1]}"] if self.numbers else []
        raise ValueError(f"{text!r} is none of {', '.join([*self.words, *numbers])}")


def _why_single(transport: str, environment: Mapping[str, str]) -> str:
    if transport != TCP:
        return f"a link over {transport} has one connection"
    if environment.get(names.CONTROLLER_VARIABLE):
        return "a controller of routes assigns a path to one connection per link"
    if environment.get(names.CIRCUITS_VARIABLE):
        return "circuits that move carry one connection each"
    return ""


def _why_not_over(links: RequestedLinks) -> str:
    if links.encrypted and links.transport != TCP:
        return f"links over {links.transport} are not encrypted"
    return ""


def _why_no_connections(links: RequestedLinks) -> str:
    return links.why_single if (links.connections or 1) > 1 else ""


def _why_no_threads(links: RequestedLinks) -> str:
    if links.link_threads and links.transport != TCP:
        return f"a link over {links.transport} has no threads of its own"
    if links.link_threads and links.encrypted:
        return "the bytes of an encrypted link pass through the reactor thread"
    return ""


def _why_copied(links: RequestedLinks) -> str:
    if links.zero_copy != "off" and links.transport != TCP:
        return f"a link over {links.transport} does not send by TCP"
    if links.zero_copy != "off" and links.encrypted:
        return "an encrypted link sends a copy"
    return ""


LINK_OPTIONS = (
    LinkOption(
        "encrypted",
        "encrypt",
        names.ENCRYPT_VARIABLE,
        "encrypt the links between servers (TLS 1.3; docs/guides/security.md has its cost)",
        _SWITCH,
    ),
    LinkOption(
        "transport",
        "transport",
        names.TRANSPORT_VARIABLE,
        "transport of the plan's links: tcp (default), or libfabric's provider "
        "(docs/guides/rdma.md); auto: verbs where an interface has it, else tcp",
        {name: name for name in _TRANSPORTS},
        obstacle=_why_not_over,
    ),
    LinkOption(
        "connections",
        "connections",
        names.CONNECTIONS_VARIABLE,
        "TCP connections of every link, 1 to 16 (default: auto, which is 1; 2 from 25 Gb/s on, 4 "
        "from 100 Gb/s on)",
        {"auto": None},
        range(1, 17),
        _why_no_connections,
    ),
    LinkOption(
        "link_threads",
        "link-threads",
        names.LINK_THREADS_VARIABLE,
        "two threads for each fast TCP connection, near its network card (default: one thread per "
        "rank serves all; docs/guides/fast-links.md)",
        _SWITCH,
        obstacle=_why_no_threads,
    ),
    LinkOption(
        "reduce_threads",
        "reduce-threads",
        names.REDUCE_THREADS_VARIABLE,
        "threads of each rank that add up long chunks, 0 to 64 (default: 0, the thread that "
        "serves the links does)",
        {},
        range(65),
    ),
    LinkOption(
        "zero_copy",
        "zero-copy",
        names.ZERO_COPY_VARIABLE,
        "send long pieces over fast TCP connections without copying them (MSG_ZEROCOPY); a "
        "connection whose bytes the kernel copies all the same ends that by itself (default: the "
        "kernel copies all; docs/guides/fast-links.md)",
        {"0": "off", "1": "on", "always": "always"},
        obstacle=_why_copied,
    ),
)
