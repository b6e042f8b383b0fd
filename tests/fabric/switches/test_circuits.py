"""Circuits, what must change between two sets of them, and the fence around a job's ports."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.fabric.switches.circuits import (
    Circuit,
    CircuitError,
    Difference,
    Fence,
    circuit_order,
    describe_ports,
    duplex_circuit,
    port_order,
    reconcile,
)

PORTS = [str(i) for i in range(12)]
NAMES = st.text(st.sampled_from("019AB²-٣"), max_size=5)


@st.composite
def circuit_sets(draw: st.DrawFn, ports: list[str] | None = None) -> frozenset[Circuit]:
    """Circuits that can be together: every port in one at most."""
    shuffled = draw(st.permutations(PORTS if ports is None else ports))
    count = draw(st.integers(0, len(shuffled) // 2))
    return frozenset(Circuit(*shuffled[2 * i : 2 * i + 2]) for i in range(count))


@settings(deadline=None)
@given(circuit_sets(), circuit_sets())
def test_the_difference_leads_to_exactly_what_is_wanted(
    current: frozenset[Circuit], wanted: frozenset[Circuit]
) -> None:
    difference = reconcile(current, wanted)
    assert (current - set(difference.remove)) | set(difference.add) == wanted
    assert not reconcile(wanted, wanted)


@settings(deadline=None)
@given(circuit_sets(), circuit_sets())
def test_the_difference_is_the_least(
    current: frozenset[Circuit], wanted: frozenset[Circuit]
) -> None:
    difference = reconcile(current, wanted)
    kept = current & wanted
    assert set(difference.remove) == current - kept
    assert set(difference.add) == wanted - kept
    assert len(set(difference.remove)) == len(difference.remove)
    assert len(set(difference.add)) == len(difference.add)
    assert bool(difference) == (current != wanted)


@settings(deadline=None)
@given(circuit_sets(), circuit_sets())
def test_every_step_in_the_given_order_leaves_each_port_in_one_circuit(
    current: frozenset[Circuit], wanted: frozenset[Circuit]
) -> None:
    present = set(current)
    difference = reconcile(current, wanted)
    for circuit in difference.remove:
        present.remove(circuit)
    for circuit in difference.add:
        assert not {p for c in present for p in c.ports} & set(circuit.ports)
        present.add(circuit)


@settings(deadline=None)
@given(circuit_sets(), circuit_sets(), st.randoms())
def test_the_order_of_the_input_does_not_matter(current, wanted, random) -> None:  # type: ignore[no-untyped-def]
    have, want = list(current), list(wanted)
    random.shuffle(have)
    random.shuffle(want)
    assert reconcile(have, want) == reconcile(current, wanted)


@settings(deadline=None)
@given(circuit_sets(), st.data())
def test_a_port_that_two_wanted_circuits_need_is_refused(
    wanted: frozenset[Circuit], data: st.DataObject
) -> None:
    taken = data.draw(st.sampled_from(sorted(wanted, key=circuit_order) or [Circuit("0", "1")]))
    port = data.draw(st.sampled_from(taken.ports))
    second = data.draw(st.sampled_from([Circuit(port, "new"), Circuit("new", port)]))
    with refused(CircuitError, f"port {port}"):
        reconcile((), {*wanted, taken, second})


def test_a_port_looped_back_to_itself_is_one_circuit() -> None:
    loop = duplex_circuit("7", "7")
    assert reconcile((), [loop]).add == (loop,)


@settings(deadline=None)
@given(circuit_sets(), st.sets(st.sampled_from(PORTS)))
def test_a_fence_owns_what_lies_within_and_refuses_what_crosses(
    circuits: frozenset[Circuit], ports: set[str]
) -> None:
    fence = Fence(frozenset(ports))
    crossing = [c for c in circuits if len(set(c.ports) & ports) == 1]
    if crossing:
        with refused(CircuitError, "in use"):
            fence.own(circuits)
        with refused(CircuitError, "not a port"):
            fence.check(circuits)
        return
    own = fence.own(circuits)
    assert own == {c for c in circuits if set(c.ports) <= ports}
    fence.check(own)
    if own != circuits:
        with refused(CircuitError, "ports"):
            fence.check(circuits)


@settings(deadline=None)
@given(circuit_sets(PORTS[:6]), circuit_sets(PORTS[6:]), circuit_sets(PORTS[:6]))
def test_what_others_have_is_never_in_a_difference_within_the_fence(
    ours: frozenset[Circuit], theirs: frozenset[Circuit], wanted: frozenset[Circuit]
) -> None:
    fence = Fence(frozenset(PORTS[:6]))
    assert reconcile(fence.own(ours | theirs), wanted) == reconcile(ours, wanted)


@settings(deadline=None)
@given(NAMES, NAMES)
@example("01", "1")
@example("²", "٣")
def test_every_name_has_a_place_of_its_own_in_the_order(a: str, b: str) -> None:
    assert (port_order(a) == port_order(b)) == (a == b)
    assert duplex_circuit(a, b) == duplex_circuit(b, a)


@settings(max_examples=20, deadline=None)
@given(st.permutations(["1A", "1B", "2A", "10A", "10B", "A1", "A9", "A10"]))
def test_ports_are_sorted_as_a_person_does(names: list[str]) -> None:
    assert sorted(names, key=port_order) == ["A1", "A9", "A10", "1A", "1B", "2A", "10A", "10B"]


def test_a_difference_is_described_line_by_line_removals_first() -> None:
    difference = Difference((Circuit("1", "2"),), (Circuit("1", "3"), Circuit("2", "4")))
    assert difference.describe() == ["- 1-2", "+ 1-3", "+ 2-4"]


def test_many_ports_are_described_shortly() -> None:
    assert describe_ports(["10", "9"]) == "ports 9, 10"
    assert describe_ports(PORTS) == "ports 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"
    assert describe_ports([]) == "no ports"
