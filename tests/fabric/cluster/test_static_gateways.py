"""A link is tried over its cable alone, never through a gateway; between namespaces, as root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.plain_namespaces import End, Namespaces, ip, run, skip_without_ipv6, wait_for_carrier
from support.sites import in_namespace

from torch_topoopt.fabric.cluster.static_check import check_links
from torch_topoopt.links.addresses import is_ipv6
from torch_topoopt.links.wiring import PortAddress, Wiring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.plans import RingPlan

FORWARD = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    with Namespaces() as made:
        yield made


@pytest.mark.parametrize("subnet", ["10.{}.0.{}/24", "fd00:{}::{}/64"])
def test_a_router_between_the_ends_is_no_cable(
    subnet: str, namespaces: Namespaces, ring_plan: RingPlan
) -> None:
    """The other host would refuse, so a refusal would say that packets have arrived there."""
    skip_without_ipv6()
    hosts = [namespaces.add() for _ in range(2)]
    router = namespaces.add()
    run("ip", "netns", "exec", router, "sh", "-c", FORWARD)
    at_once = "nodad" if is_ipv6(subnet) else ""
    ports = []
    for number, host in enumerate(hosts, start=1):
        namespaces.cable(End(host, "p0"), End(router, f"r{number}"))
        for end, last in ((End(host, "p0"), 1), (End(router, f"r{number}"), 2)):
            address = f"{subnet.format(number, last)} dev {end.interface} {at_once}"
            ip(f"-n {end.namespace} addr add {address}")
            ip(f"-n {end.namespace} link set {end.interface} up")
        address = subnet.format(number, 1).partition("/")[0]
        ports.append(PortAddress(number - 1, 0, address, None, interface="p0"))
    for host, (number, other) in zip(hosts, ((1, 2), (2, 1)), strict=True):
        far = subnet.format(other, 1).partition("/")[0]
        via = subnet.format(number, 2).partition("/")[0]
        ip(f"-n {host} route add {far} via {via}")
    wait_for_carrier((host, "p0") for host in hosts)
    plan = ring_plan(2)
    wiring = Wiring(Wiring.VERSION, "static", plan.digest(), 20000, tuple(ports)).validate()
    failures = in_namespace(
        hosts[0], lambda: check_links(plan, wiring, 0, {}, bytes(32), limit_s(3.0))
    )
    assert len(failures) == 1
    assert "refuses" not in next(iter(failures.values()))
