"""The shell script that sets up one real host for a Plan, and the one that undoes it.

Pure: HostSetup -> text. The first script records every change in a state file before it makes it,
so that the second can undo exactly these. It is idempotent, and undoes its changes if a step fails.
Both are POSIX sh and need only ip and tc (iproute2).
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Literal

from torch_topoopt.fabric.hosts.host_setup import FORWARD_MAC
from torch_topoopt.fabric.hosts.script_parts import APPLY, COMMON, REVERT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch_topoopt.fabric.hosts.host_setup import HostSetup, RelaySetup

Classifier = Literal["auto", "flower", "u32"]

# round trip over some relays with their queues, for the bytes in flight of a connection
ROUND_TRIP_S = 1e-3


def buffer_bytes(gbps: float) -> int:
    """Bytes that a socket buffer must hold for one connection to fill a link of `gbps`.

    Twice bandwidth times round trip: the kernel counts its own overhead as part of the buffer.
    """
    return math.ceil(2 * gbps * 1e9 / 8 * ROUND_TRIP_S)


def setup_script(setup: HostSetup, classifier: Classifier = "auto") -> str:
    """The script that sets the host up. `classifier` distinguishes the relays' frames."""
    return "\n".join(_setup_lines(setup, classifier)) + "\n"


def undo_script(setup: HostSetup) -> str:
    """The script that undoes exactly the changes of `setup_script`."""
    lines = (
        "#!/bin/sh",
        f"# Takes back what the set-up script of {_subject(setup)} changed,",
        "# as its state file says. Does nothing if that script did not run.",
        "set -eu",
        *_constants(setup),
        COMMON,
        REVERT,
        *_whole(
            (
                _ROOT,
                'if [ ! -e "$state" ]; then',
                '  echo "topoopt: nothing to take back: there is no $state"',
                "  exit 0",
                "fi",
                "check_plan",
                "revert",
                'echo "topoopt: $host is as it was before"',
            )
        ),
    )
    return "\n".join(lines) + "\n"


_ROOT = '[ "$(id -u)" = 0 ] || fail "run this as root"'


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """Wraps a script in a function called by its last line, so a truncated one does nothing."""
    yield "main() {"
    for line in lines:
        yield f"  {line}" if line else ""
    yield "}\n"
    yield "main"


def _subject(setup: HostSetup) -> str:
    return f"{setup.host} of cluster {setup.cluster}, plan {setup.plan_digest}"


def _constants(setup: HostSetup) -> Iterator[str]:
    yield f"host={shlex.quote(setup.host)}"
    yield f"plan={shlex.quote(setup.plan_digest)}"
    name = shlex.quote(f"{setup.cluster}-{setup.host}.state")
    yield 'state_dir="${TOPOOPT_STATE_DIR:-/run/topoopt}"'
    yield f'state="$state_dir/"{name}'


def _setup_lines(setup: HostSetup, classifier: Classifier) -> Iterator[str]:
    yield "#!/bin/sh"
    yield f"# Sets up {_subject(setup)}:"
    yield "# addresses, routes and neighbours of its ports, and what it passes on for others."
    yield "# Running it again changes nothing; `topoopt fabric script --undo` takes it back."
    yield "set -eu"
    yield from _constants(setup)
    yield f"forward_mac={FORWARD_MAC}"
    yield f"classifier={classifier}"
    yield COMMON
    yield REVERT
    yield APPLY
    yield from _whole(_steps(setup))


def _steps(setup: HostSetup) -> Iterator[str]:
    yield "# 1. Checks, before anything is changed"
    yield _ROOT
    yield from _checks(setup)
    yield "begin"
    yield ""
    yield "# 2. Ports"
    for port in setup.ports:
        interface = shlex.quote(port.interface)
        yield f"# {port.name}"
        if port.mtu is not None:
            yield f"set_mtu {interface} {port.mtu}"
        yield f"bring_up {interface}"
        yield f"add_address {interface} {port.address}"
        yield f"add_second {interface} {port.second}"
    yield ""
    yield "# 3. Kernel settings"
    yield from _sysctls(setup)
    yield ""
    yield "# 4. How this host reaches the others: one route per address"
    for route in setup.routes:
        yield f"# {' -> '.join(route.path)}"
        interface = shlex.quote(route.interface)
        yield f"set_route {route.destination} {interface} {route.source}"
        if route.mac is not None:
            yield f"set_neighbour {route.destination} {interface} {route.mac}"
    if setup.relays:
        yield ""
        yield "# 5. Relay rules of this host"
        yield from _relays(setup)
    yield ""
    yield "finish"


def _checks(setup: HostSetup) -> Iterator[str]:
    yield "need ip"
    if setup.relays:
        yield "need tc"
    for port in setup.ports:
        yield f"check_interface {shlex.quote(port.interface)} {port.mac or ''}".rstrip()
    yield "check_plan"
    for port in setup.ports:
        yield f"check_free {port.second}"


def _sysctls(setup: HostSetup) -> Iterator[str]:
    yield "# What arrives here by a relay comes in at another port than the one that goes back, so"
    yield "# the check of the way back must be off at the ports; all other interfaces keep theirs."
    yield "release_rp_filter"
    for port in setup.ports:
        folder = shlex.quote(f"/proc/sys/net/ipv4/conf/{port.interface}")
        yield f"set_sysctl {folder}/rp_filter 0"
        yield f"set_sysctl /proc/sys/net/ipv4/conf/{port.second}/rp_filter 0"
        yield "# Forwarding only at the ports (it also ends LRO, which merges frames of others)."
        yield f"set_sysctl {folder}/forwarding 1"
        yield f"set_sysctl /proc/sys/net/ipv4/conf/{port.second}/forwarding 1"
        yield "# A port answers for its own address only, and asks with it."
        yield f"set_sysctl {folder}/arp_ignore 1"
        yield f"set_sysctl {folder}/arp_announce 2"
    rates = [port.gbps for port in setup.ports if port.gbps is not None]
    if rates:
        size = buffer_bytes(max(rates))
        yield f"# Socket buffers: at least 2 x {max(rates):g} Gb/s x {ROUND_TRIP_S * 1e3:g} ms."
        for name in ("core/rmem_max", "core/wmem_max", "ipv4/tcp_rmem", "ipv4/tcp_wmem"):
            yield f"raise_sysctl /proc/sys/net/{name} {size}"


def _relays(setup: HostSetup) -> Iterator[str]:
    yield f"choose_classifier {setup.relays[0].entry}"
    for number, relay in enumerate(setup.relays, start=1):
        for path in relay.paths:
            yield f"# {path}"
        yield f"relay {_relay_arguments(number, relay)}"


def _relay_arguments(number: int, relay: RelaySetup) -> str:
    interface = shlex.quote(relay.interface)
    source = relay.source or "any"
    mac = relay.mac or "same"
    return f"{number} {relay.entry} {source} {relay.destination} {interface} {mac}"
