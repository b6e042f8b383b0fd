"""Wiring: what a fabric driver hands to the ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.refusals import refused

from torch_topoopt.links.wiring import PortAddress, ServerAddress, Wiring
from torch_topoopt.plan import Plan
from torch_topoopt.plan.codec import DocumentError

RingPlan = Callable[..., Plan]


def _wiring(plan: Any, **changes: Any) -> Wiring:
    ends = sorted({(link.source, link.source_port) for link in plan.network.links})
    ports = tuple(PortAddress(s, p, f"127.9.{s}.{p + 1}", None) for s, p in ends)
    wiring = Wiring(Wiring.VERSION, "loopback", plan.digest(), 20_000, ports)
    return dataclasses.replace(wiring, **changes)


def test_a_saved_wiring_reads_back_equal(ring_plan: RingPlan, tmp_path: Any) -> None:
    wiring = _wiring(ring_plan()).validate()
    wiring.save(tmp_path / "wiring.json")
    assert Wiring.load(tmp_path / "wiring.json") == wiring


def test_it_fits_its_own_plan_and_no_other(ring_plan: RingPlan) -> None:
    wiring = _wiring(ring_plan(4))
    assert wiring.check(ring_plan(4)) is wiring
    with refused(DocumentError, "plan_digest", "another plan"):
        wiring.check(ring_plan(5))


def test_every_port_that_a_link_uses_needs_an_address(ring_plan: RingPlan) -> None:
    plan = ring_plan(4)
    wiring = _wiring(plan)
    with refused(DocumentError, "port 0", "server 0"):
        dataclasses.replace(wiring, ports=wiring.ports[1:]).check(plan)


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"address": "127.0.0"}, ("ports[0].address", "127.0.0")),
        ({"address": "ff02::1"}, ("ports[0].address", "ff02::1")),
        ({"address": "127.9.1.1"}, ("ports[2].address", "127.9.1.1", "ports[0]")),
        ({"server": 1}, ("ports[2]", "port 0", "server 1", "ports[0]")),
        ({"gbps": 0.0}, ("ports[0].gbps", 0.0, 0)),
        ({"server": -1}, ("ports[0]", "negative")),
    ],
)
def test_a_bad_port_is_named(
    ring_plan: RingPlan, change: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    wiring = _wiring(ring_plan())
    first = dataclasses.replace(wiring.ports[0], **change)
    with refused(DocumentError, *tokens):
        dataclasses.replace(wiring, ports=(first, *wiring.ports[1:])).validate()


def test_all_servers_have_a_forwarded_address_or_none(ring_plan: RingPlan) -> None:
    plan = ring_plan(3)
    addresses = tuple(ServerAddress(s, f"10.1.{s}.1") for s in range(3))
    assert _wiring(plan, forwarded=addresses).validate().check(plan)
    for wrong, tokens in (
        (addresses[:2], ("forwarded", 2, 3)),
        (addresses[::-1], ("forwarded[0].server", 2, 0)),
        ((ServerAddress(0, "h0"),), ("forwarded[0].address", "h0", "IPv4")),
    ):
        with refused(DocumentError, *tokens):
            _wiring(plan, forwarded=wrong).validate().check(plan)


def test_newer_versions_and_unknown_fields_are_refused(ring_plan: RingPlan) -> None:
    plain = json.loads(_wiring(ring_plan()).to_json())
    with refused(DocumentError, "version", 2, 1):
        Wiring.from_json(json.dumps({**plain, "version": 2}))
    with refused(DocumentError, "colour", "unknown"):
        Wiring.from_json(json.dumps({**plain, "colour": "red"}))
    with refused(DocumentError, "tcp_port", 0, "1..65535"):
        Wiring.from_json(json.dumps({**plain, "tcp_port": 0}))
