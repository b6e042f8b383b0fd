"""Ports that announce their names, on a veth cable between two namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
from support.limits import limit_s
from support.plain_namespaces import End, Namespaces, ip, up
from support.refusals import refused

from torch_topoopt.discovery.neighbours import Neighbours
from torch_topoopt.links.errors import FabricError

# Prints the senders that the port receives, and announces its name until the end of its input.
SCRIPT = """
import json, sys, time
from torch_topoopt.discovery.neighbours import Neighbours

server, port, interface = sys.argv[1:]
with (
    Neighbours("job", 23456, server, {port: interface}) as own,
    Neighbours("other job", 23456, server, {"stranger": interface}),
):
    senders = own.wait(lambda so_far: all(so_far.values()), time.monotonic() + 120)
    print(json.dumps({name: sorted(ends) for name, ends in senders.items()}), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["IPv4", "IPv6"])
def test_both_ends_of_a_cable_receive_each_other_and_no_other_job(kind: str) -> None:
    """The addresses do not fit together, and with IPv6 there are none but those of the link."""
    with ExitStack() as stack:
        namespaces = stack.enter_context(Namespaces())
        ends = [namespaces.add() for _ in range(2)]
        for name in ends:
            setting = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
            ip(f"netns exec {name} tee {setting}", given=str(int(kind == "IPv4")))
        namespaces.cable(End(ends[0], "ear"), End(ends[1], "mouth"))
        for name, interface, address in (
            (ends[0], "ear", "10.1.0.1/30"),
            (ends[1], "mouth", "10.77.0.1/24"),
        ):
            up(name, interface, address if kind == "IPv4" else None)
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
        senders = [json.loads(process.stdout.readline()) for process in processes]
        for process in processes:
            process.communicate(timeout=limit_s(60))
            assert process.returncode == 0
        assert senders == [{"p0": [["h1", "p1"]]}, {"p1": [["h0", "p0"]]}]


def test_an_interface_that_is_not_there_is_named() -> None:
    with refused(FabricError, "h0:p0", "nic-of-no-host"):
        Neighbours("job", 23456, "h0", {"p0": "nic-of-no-host"})
