"""From ports' announcements to cables: pure functions, who is waited for, the proof of a token."""

from __future__ import annotations

import math
import socket
import threading

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.discovery import survey as survey_module
from torch_topoopt.discovery.agent import PROTOCOL, Channel, ReachedBy, greet, meet
from torch_topoopt.discovery.ports import PortFacts, list_ports
from torch_topoopt.discovery.survey import (
    AgentReport,
    cables_of,
    common_subnet,
    heard_by,
    on_a_network,
    paired,
    server_names,
    shared_cables,
)
from torch_topoopt.fabric.credentials import Password
from torch_topoopt.links.errors import FabricError

End = tuple[int, str]
LIMIT_S = limit_s(20.0)


def senders_of(*pairs: tuple[End, End], silent: tuple[End, ...] = ()) -> dict[End, frozenset[End]]:
    """Port -> senders: for each pair (a, b), a receives the announcements of b."""
    senders: dict[End, frozenset[End]] = {end: frozenset() for end in silent}
    for end, other in pairs:
        senders[end] = senders.get(end, frozenset()) | {other}
    return senders


def both(a: End, b: End) -> list[tuple[End, End]]:
    return [(a, b), (b, a)]


NAMES = ["ann", "bob", "cid"]


def test_ports_that_receive_from_each_other_alone_are_the_ends_of_a_cable() -> None:
    senders = senders_of(
        *both((0, "x"), (1, "y")), *both((1, "x"), (2, "x")), *both((0, "y"), (1, "z"))
    )
    cables, remarks = cables_of(NAMES, senders)
    assert cables == [((0, "x"), (1, "y")), ((0, "y"), (1, "z")), ((1, "x"), (2, "x"))]
    assert remarks == []


def test_a_switch_is_no_cable() -> None:
    ends = [(0, "s"), (1, "s"), (2, "s")]
    senders = senders_of(*((a, b) for a in ends for b in ends if a != b))
    cables, remarks = cables_of(NAMES, senders)
    assert cables == []
    assert remarks == ["ann:s, bob:s, cid:s: on a switch or bridge; not a cable"]
    assert cables_of(NAMES, senders, quiet=ends) == ([], [])


def test_one_direction_alone_is_no_cable() -> None:
    senders = senders_of(((0, "x"), (1, "y")), silent=((1, "y"), (2, "z")))
    cables, remarks = cables_of(NAMES, senders)
    assert cables == []
    assert remarks == [
        "ann:x: receives announcements of bob:y, which receives none of its; is one direction of "
        "the cable broken?",
        "no port answers at the other end of bob:y, cid:z",
    ]


def port(*addresses: str) -> PortFacts:
    return PortFacts("nic", addresses, None, 1500, None)


def test_the_addresses_of_a_cable_are_in_one_subnet() -> None:
    assert common_subnet(port("10.0.0.1/30"), port("10.9.0.1/30", "10.0.0.2/30")) == (
        "10.0.0.1",
        "10.0.0.2",
    )
    assert common_subnet(port("10.0.0.1/30"), port("10.0.0.5/30")) is None
    assert common_subnet(port("10.0.0.1/16"), port("10.0.7.5/24")) is None, "one way only"
    assert common_subnet(port(), port("10.0.0.5/30")) is None


def test_hosts_keep_their_names_where_these_are_distinct() -> None:
    assert server_names(["ann.lab", "bob.lab"]) == ["ann", "bob"]
    assert server_names(["node.ann", "node.bob"]) == ["node.ann", "node.bob"]
    assert server_names(["same", "same"]) == ["h0", "h1"]
    assert server_names(["ann", "b:b"]) == ["h0", "h1"]
    assert server_names(["box_a", "box_b"]) == ["box_a", "box_b"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["me@ann.lab", "me@bob.lab"], ["ann", "bob"]),
        (["node.ann", "root@node.bob"], ["node.ann", "node.bob"]),
        (["box_a", "box_b"], ["box_a", "box_b"]),
        (["10.0.0.1", "10.0.0.2"], ["h0", "h1"]),
        (["fd00::1", "fd00::2"], ["h0", "h1"]),
        (["me@ann", "you@ann"], ["h0", "h1"]),
        (["x" * 64, "y" * 64], ["h0", "h1"]),
    ],
)
def test_hosts_with_one_name_are_named_as_ssh_was_given_them(
    given: list[str], names: list[str]
) -> None:
    assert server_names(["spark", "spark"], given) == names


def reached(host: int, client: str, **others: tuple[str, ...]) -> AgentReport:
    """A host with one port, its address and its MAC address, by which the survey has reached it."""
    facts = PortFacts("eth0", (f"10.0.0.{host}/24",), None, 1500, f"02:00:00:00:00:0{host}")
    by = ReachedBy("eth0", client, **others)
    addresses = frozenset({f"10.0.0.{host}", f"fe80::{host}"})
    return AgentReport("box", f"10.0.0.{host}", 1, (facts,), by, addresses)


@pytest.mark.parametrize(
    ("client", "others", "network"),
    [
        ("10.0.0.1", {}, False),
        ("127.0.0.1", {}, False),
        ("10.0.0.9", {}, True),
        ("", {}, True),
        ("fe80::1%eth0", {"gateways": ("10.0.0.1", "fe80::1")}, False),
        ("10.0.0.1", {"gateways": ("10.0.0.254",)}, True),
        ("10.0.0.1", {"neighbour_macs": ("02:00:00:00:00:01",)}, False),
        ("10.0.0.1", {"neighbour_macs": ("02:00:00:00:00:99",)}, True),
    ],
)
def test_where_others_than_the_hosts_are_it_is_a_network(
    client: str, others: dict[str, tuple[str, ...]], network: bool
) -> None:
    here = reached(2, client, **others)
    assert on_a_network(here.reached_by, [reached(1, "10.0.0.1"), here]) is network


def test_the_ports_of_this_machine_are_listed_without_loopback() -> None:
    names = {name for _, name in socket.if_nameindex()}
    for found in list_ports():
        assert found.interface in names - {"lo"}
        assert found.mtu is None or found.mtu >= 68
        assert PortFacts.from_plain({**vars(found), "addresses": list(found.addresses)}) == found


@pytest.mark.parametrize(("agent", "survey"), [("right", "right"), ("right", "wrong")])
def test_both_sides_prove_that_they_know_the_token(agent: str, survey: str) -> None:
    near, far = socket.socketpair()
    outcomes: dict[str, str] = {}

    def run(name: str, end: socket.socket, prove: object, token: str) -> None:
        with end, end.makefile("rwb") as stream:
            end.settimeout(LIMIT_S)
            try:
                prove(Channel(stream, stream, name), Password(token))  # type: ignore[operator]
                outcomes[name] = "met"
            except FabricError as error:
                outcomes[name] = str(error)

    thread = threading.Thread(target=run, args=("stranger", near, greet, agent))
    thread.start()
    run("agent", far, meet, survey)
    thread.join(LIMIT_S)
    if agent == survey:
        assert outcomes == {"stranger": "met", "agent": "met"}
    else:
        assert outcomes == {
            "stranger": "stranger: does not know the token",
            "agent": "agent: the token is another one than this agent's",
        }


def test_an_agent_that_does_not_know_the_token_is_found_out() -> None:
    near, far = socket.socketpair()
    with near, far, near.makefile("rwb") as stream, far.makefile("rwb") as other:
        near.settimeout(LIMIT_S)
        impostor = Channel(other, other, "survey")
        impostor.send({"topoopt": PROTOCOL, "nonce": "n"})
        impostor.send({"proof": "guessed"})
        with refused(FabricError, "agent", "token"):
            meet(Channel(stream, stream, "agent"), Password("right"))


def heard_by_all(*ends: End) -> dict[End, frozenset[End]]:
    return {end: frozenset(ends) - {end} for end in ends}


CARDS = {(host, name): "card p0" for host in range(3) for name in ("f", "g")}


def test_functions_of_two_physical_ports_are_links_of_one_cable() -> None:
    senders = heard_by_all((0, "f"), (0, "g"), (1, "f"), (1, "g"))
    (bundle,), left = shared_cables(senders, CARDS)
    assert left == {}
    assert paired(bundle, lambda a, b: False) == (
        [((0, "f"), (1, "f")), ((0, "g"), (1, "g"))],
        [],
    )
    crossed = paired(bundle, lambda a, b: a[1] != b[1])
    assert crossed == ([((0, "f"), (1, "g")), ((0, "g"), (1, "f"))], [])
    without_own = {
        end: frozenset(e for e in heard if e[0] != end[0]) for end, heard in senders.items()
    }
    assert shared_cables(without_own, CARDS) == ([bundle], {}), "some cards keep it from their own"


def test_a_port_with_one_function_takes_one_of_the_two() -> None:
    senders = heard_by_all((0, "f"), (0, "g"), (1, "f"))
    (bundle,), left = shared_cables(senders, CARDS)
    assert left == {}
    assert paired(bundle, lambda a, b: False) == ([((0, "f"), (1, "f"))], [(0, "g")])


@pytest.mark.parametrize(
    ("senders", "physical"),
    [
        (heard_by_all((0, "f"), (0, "g"), (1, "f"), (1, "g")), {}),
        (heard_by_all((0, "f"), (0, "g"), (1, "f"), (1, "g"), (2, "f")), CARDS),
        (heard_by_all((0, "f"), (1, "f"), (2, "f")), CARDS),
        (heard_by_all((0, "f"), (0, "g"), (1, "f"), (1, "x")), CARDS),
        (heard_by_all((0, "f"), (0, "g")), CARDS),
        (heard_by_all((0, "f"), (1, "f")), CARDS),
    ],
    ids=["no evidence", "a third host", "a switch", "another port", "one host", "plain cable"],
)
def test_without_evidence_nothing_is_one_cable(
    senders: dict[End, frozenset[End]], physical: dict[End, str]
) -> None:
    assert shared_cables(senders, physical) == ([], senders)


def test_link_local_addresses_of_a_cable_go_together() -> None:
    near, far = port("fe80::1%a/64"), port("fe80::2%b/64")
    assert common_subnet(near, far) == ("fe80::1%a", "fe80::2%b")
    assert common_subnet(near, port("10.0.0.5/30")) is None
    routed = port("fd00::1/64", "fe80::1%a/64"), port("fd00::2/64", "fe80::2%b/64")
    assert common_subnet(*routed) == ("fd00::1", "fd00::2")
    assert common_subnet(routed[0], port("fd00:1::2/64", "fe80::2%b/64")) == (
        "fe80::1%a",
        "fe80::2%b",
    )


class LateCable:
    """One end of a cable between ann and bob; bob announces from poll number `first` on."""

    def __init__(self, name: str, first: float) -> None:
        self.name, self.left, self.polls = name, first, 0

    def ask(self, question: str) -> dict[str, object]:
        assert question == "senders"
        self.left -= 1
        self.polls += 1
        if self.name == "bob":
            return {"senders": {"x": [["ann", "x"]]}, "rounds": max(0, -self.left)}
        return {"senders": {"x": [["bob", "x"]] if self.left < 0 else []}, "rounds": self.polls}


def late_cable(first: float) -> list[Channel]:
    return [LateCable(name, first) for name in ("ann", "bob")]  # type: ignore[list-item]


def test_a_host_that_is_kept_from_announcing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "_POLL_S", 0.001)
    monkeypatch.setattr(survey_module, "_PATIENCE", 1e6)
    senders = heard_by(late_cable(400), ["ann", "bob"], 0.2)
    assert senders == {(0, "x"): frozenset({(1, "x")}), (1, "x"): frozenset({(0, "x")})}


def test_a_host_that_never_announces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "_POLL_S", 0.001)
    with refused(FabricError, "bob", 0):
        heard_by(late_cable(math.inf), ["ann", "bob"], 0.05)
