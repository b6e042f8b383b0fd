"""Ports that say their names, on a veth cable between two namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.discovery.neighbours import Neighbours
from torch_topoopt.fabric.driver import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tells what the port hears, and goes on saying its name until the end of its input.
SCRIPT = """
import json, sys, time
from torch_topoopt.discovery.neighbours import Neighbours

server, port, interface = sys.argv[1:]
with (
    Neighbours("job", 23456, server, {port: interface}) as own,
    Neighbours("other job", 23456, server, {"stranger": interface}),
):
    heard = own.wait(lambda so_far: all(so_far.values()), time.monotonic() + 30)
    print(json.dumps({name: sorted(ends) for name, ends in heard.items()}), flush=True)
    sys.stdin.read()
"""


@contextmanager
def namespace(name: str) -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20)
    if made.returncode != 0:
        pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True, timeout=20)


def run(command: str, given: str | None = None) -> None:
    subprocess.run(
        command.split(), input=given, check=True, stdout=subprocess.DEVNULL, text=True, timeout=20
    )


@pytest.mark.parametrize("kind", ["IPv4", "IPv6"])
def test_both_ends_of_a_cable_hear_each_other_and_no_other_job(kind: str) -> None:
    """The addresses do not fit together, and with IPv6 there are none but those of the link."""
    with ExitStack() as stack:
        ends = [stack.enter_context(namespace(f"topoopt-ears-{os.getpid()}-{i}")) for i in range(2)]
        for name in ends:
            setting = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
            run(f"ip netns exec {name} tee {setting}", given=str(int(kind == "IPv4")))
        run(f"ip link add ear netns {ends[0]} type veth peer name mouth netns {ends[1]}")
        for name, interface, address in (
            (ends[0], "ear", "10.1.0.1/30"),
            (ends[1], "mouth", "10.77.0.1/24"),
        ):
            run(f"ip -n {name} link set {interface} up")
            if kind == "IPv4":
                run(f"ip -n {name} addr add {address} dev {interface}")
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, "-c", SCRIPT, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name, arguments in zip(
                ends, (("h0", "p0", "ear"), ("h1", "p1", "mouth")), strict=True
            )
        ]
        heard = [json.loads(process.stdout.readline()) for process in processes]
        for process in processes:
            process.communicate(timeout=20)
            assert process.returncode == 0
        assert heard == [{"p0": [["h1", "p1"]]}, {"p1": [["h0", "p0"]]}]


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(FabricError, match="h0:p0: there is no interface nic-of-nobody"):
        Neighbours("job", 23456, "h0", {"p0": "nic-of-nobody"})
