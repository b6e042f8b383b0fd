"""Readings of iptables and nft: made-up texts, and the real programs in a namespace."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from support.fabric.netns_fixtures import require_nft
from support.plain_namespaces import Namespaces, run
from support.sites import in_namespace

from torch_topoopt.tools.doctor.facts import ChainFacts
from torch_topoopt.tools.doctor.firewall import (
    accept_rule,
    iptables_chains,
    nft_chains,
    read_firewall,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOCKER = """\
-P INPUT ACCEPT
-P FORWARD DROP
-P OUTPUT ACCEPT
-N DOCKER
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER-USER -i eth1 -j ACCEPT
-A DOCKER-USER -i eth2 -o eth3 -j ACCEPT
-A DOCKER-USER -j RETURN
"""


def test_what_docker_leaves_behind() -> None:
    (chain,) = iptables_chains(_DOCKER)
    assert chain == ChainFacts(
        "forward", "iptables chain FORWARD", ("eth1", "eth2"), "iptables -I DOCKER-USER {}"
    )
    assert accept_rule(chain, "eth4") == "iptables -I DOCKER-USER -i eth4 -j ACCEPT"


def test_policies_that_accept_say_nothing() -> None:
    assert list(iptables_chains("-P INPUT ACCEPT\n-P FORWARD ACCEPT\n")) == []
    assert list(iptables_chains("")) == []


def test_a_rule_for_everything_opens_the_chain() -> None:
    (chain,) = iptables_chains("-P INPUT DROP\n-A INPUT -j ACCEPT\n-A INPUT -p tcp -j ACCEPT\n")
    assert chain.hook == "input"
    assert chain.accepts == ("*",)


def _nft(*rules: list[dict[str, object]], family: str = "inet") -> str:
    where = {"family": family, "table": "guard", "chain": "pass"}
    chain = {"family": family, "table": "guard", "name": "pass", "hook": "forward"}
    entries: list[dict[str, object]] = [{"chain": {**chain, "policy": "drop"}}]
    entries += [{"rule": {**where, "expr": rule}} for rule in rules]
    return json.dumps({"nftables": entries})


def _match(key: str, right: object) -> dict[str, object]:
    return {"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}}


def test_rules_of_nft() -> None:
    (chain,) = nft_chains(
        _nft(
            [_match("iifname", {"set": ["eth1", "eth2"]}), {"accept": None}],
            [_match("iifname", "eth3"), {"counter": {"packets": 0}}, {"accept": None}],
            [_match("iifname", "eth4"), {"drop": None}],
            [_match("l4proto", "tcp"), {"accept": None}],
        )
    )
    assert chain.accepts == ("eth1", "eth2", "eth3")
    assert chain.where == "nft chain inet guard pass"
    assert accept_rule(chain, "eth4") == (
        'nft insert rule inet guard pass iifname \\"eth4\\" accept'
    )
    assert list(nft_chains(_nft(family="ip6"))) == []


@pytest.fixture
def namespace() -> Iterator[str]:
    with Namespaces("nsenter") as namespaces:
        yield namespaces.add()


def _inside(namespace: str, *command: str) -> str:
    return run("nsenter", f"--net=/run/netns/{namespace}", *command)


def test_the_real_nft(namespace: str) -> None:
    require_nft()
    assert in_namespace(namespace, read_firewall).drops == ()
    table = """
table inet guard {
  chain pass { type filter hook forward priority 0; policy drop; iifname "eth1" counter accept; }
}
"""
    run("nsenter", f"--net=/run/netns/{namespace}", "nft", "-f", "-", given=table)
    (chain,) = in_namespace(namespace, read_firewall).drops
    assert (chain.hook, chain.where) == ("forward", "nft chain inet guard pass")
    assert chain.accepts == ("eth1",)
    _inside(namespace, "sh", "-c", accept_rule(chain, "eth2"))
    (chain,) = in_namespace(namespace, read_firewall).drops
    assert chain.accepts == ("eth1", "eth2")


def test_the_real_iptables(namespace: str) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("this needs the program iptables")
    _inside(namespace, "iptables", "-P", "FORWARD", "DROP")
    found = in_namespace(namespace, read_firewall)
    assert [chain.where for chain in found.drops] == ["iptables chain FORWARD"]
    assert not found.docker
    _inside(namespace, "iptables", "-N", "DOCKER-USER")
    _inside(namespace, "iptables", "-A", "FORWARD", "-j", "DOCKER-USER")
    (chain,) = in_namespace(namespace, read_firewall).drops
    _inside(namespace, "sh", "-c", accept_rule(chain, "eth1"))
    found = in_namespace(namespace, read_firewall)
    assert found.docker
    assert [chain.accepts for chain in found.drops] == [("eth1",)]
