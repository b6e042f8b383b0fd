"""All switches of a cluster change together or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fabric.sonic_ocs_device import OcsDevice
from support.fabric.sonic_ocs_server import OcsServer
from support.fabric.switched_clusters import Memories, switched_file
from support.limits import limit_s, slowness
from support.refusals import named, refused

from torch_topoopt.fabric.cluster.switched_plan import place_on_switches
from torch_topoopt.fabric.cluster.switches import Switches, save_snapshots
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.fabric.switches.circuits import Circuit, CircuitError, Difference
from torch_topoopt.fabric.switches.configure import Snapshot
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.switch import NotSettled, SwitchError
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.plans import RingPlan


LIMIT_S = limit_s(20.0)

# the ring 0-1-2-3 on two switches, where server k has socket k + 1 of each
RING = {"ocs0": (("1", "2"), ("3", "4")), "ocs1": (("1", "4"), ("2", "3"))}
OTHER = {"ocs0": (("1", "3"), ("2", "4")), "ocs1": (("1", "4"), ("2", "3"))}


@pytest.fixture
def memories() -> Memories:
    return Memories(switched_file(4, [1, 1]))


def test_a_preview_is_what_configuring_changes(memories: Memories) -> None:
    with memories.switches() as switches:
        previewed = switches.preview(RING)
        assert memories.circuits() == {"ocs0": frozenset(), "ocs1": frozenset()}
        assert switches.configure(RING) == previewed
        assert previewed["ocs0"].describe() == ["+ 1A-2B", "+ 2A-1B", "+ 3A-4B", "+ 4A-3B"]
        assert switches.preview(RING) == {
            "ocs0": Difference((), ()),
            "ocs1": Difference((), ()),
        }
        assert switches.preview(OTHER)["ocs1"] == Difference((), ())


def test_what_is_plugged_is_what_the_circuits_make(memories: Memories) -> None:
    with memories.switches() as switches:
        assert switches.plugged() == []
        switches.configure(RING)
        assert switches.plugged() == [
            ("h0:p0", "h1:p0"),
            ("h2:p0", "h3:p0"),
            ("h0:p1", "h3:p1"),
            ("h1:p1", "h2:p1"),
        ]
        memories.by_name["ocs1"].apply(Difference((Circuit("4A", "1B"),), ()))
        assert ("h0:p1", "h3:p1") not in switches.plugged()


def test_a_plan_leaves_the_circuits_that_it_needs_alone(
    memories: Memories, ring_plan: RingPlan
) -> None:
    """The ring was made the other way round over the switches; it stays."""
    turned = {"ocs0": RING["ocs1"], "ocs1": RING["ocs0"]}
    with memories.switches() as switches:
        switches.configure(turned)
        placed = place_on_switches(ring_plan(4), memories.file, switches.plugged())
        assert not any(switches.preview(placed.cables).values())
        assert any(switches.preview(place_on_switches(ring_plan(4), memories.file).cables).values())


def test_when_one_switch_fails_the_others_go_back(memories: Memories, tmp_path: Path) -> None:
    with memories.switches() as switches:
        switches.configure(RING)
        before = memories.circuits()
        other = OTHER | {"ocs1": (("1", "2"), ("3", "4"))}
        memories.by_name["ocs1"].broken.add(Circuit("1A", "2B"))
        with refused(NotSettled, "ocs1", "1A-2B") as caught:
            switches.configure(other, timeout_s=1.0 * slowness(), folder=tmp_path / "before")
        assert memories.circuits() == before
    message = str(caught.value)
    assert named(message, "ocs0 is restored")
    assert "all circuits from before are in" not in message
    assert not (tmp_path / "before").exists(), "there is nothing to go back to"


def test_a_switch_that_fails_while_going_back_is_named(memories: Memories) -> None:
    first, second = memories.by_name.values()

    def progress(name: str, done: int, of: int, what: str) -> None:
        if name == "ocs1":
            first.deaf = second.deaf = True

    with (
        memories.switches() as switches,
        refused(SwitchError, "ocs0", "no answer"),
    ):
        switches.configure(RING, progress=progress)


def test_nothing_changes_when_one_switch_would_refuse(memories: Memories) -> None:
    """A foreign circuit on the last switch keeps the first one from being touched."""
    memories.by_name["ocs1"].apply(Difference((), (Circuit("4A", "8B"),)))
    with (
        memories.switches() as switches,
        refused(CircuitError, "4A", "4A-8B"),
    ):
        switches.configure(RING)
    assert memories.circuits()["ocs0"] == frozenset()


def test_ctrl_c_in_the_middle_goes_back(memories: Memories) -> None:
    def progress(name: str, done: int, of: int, what: str) -> None:
        if name == "ocs1":
            raise KeyboardInterrupt

    with memories.switches() as switches:
        with pytest.raises(KeyboardInterrupt) as caught:
            switches.configure(RING, progress=progress)
        assert memories.circuits() == {"ocs0": frozenset(), "ocs1": frozenset()}
    assert any("ocs0 is restored too" in note for note in caught.value.__notes__)


def test_snapshots_bring_all_switches_back(memories: Memories, tmp_path: Path) -> None:
    with memories.switches() as switches:
        switches.configure(RING, folder=tmp_path / "empty")
        save_snapshots(switches.snapshots(), tmp_path / "ring")
        switches.configure(OTHER)
        assert switches.preview_restore(tmp_path / "ring")["ocs0"].remove
        switches.restore(tmp_path / "ring")
        assert switches.preview(RING)["ocs0"] == Difference((), ())
        switches.restore(tmp_path / "empty")
    assert memories.circuits() == {"ocs0": frozenset(), "ocs1": frozenset()}


def test_a_switch_that_fails_to_go_back_does_not_keep_the_others(
    memories: Memories, tmp_path: Path
) -> None:
    with memories.switches() as switches:
        switches.configure(RING, folder=tmp_path)
        memories.by_name["ocs0"].fails_after = 0
        with refused(SwitchError, "ocs0", "connection"):
            switches.restore(tmp_path)
    assert memories.circuits()["ocs1"] == frozenset()


def test_snapshots_are_never_overwritten_and_must_fit(memories: Memories, tmp_path: Path) -> None:
    with memories.switches() as switches:
        switches.configure(RING, folder=tmp_path)
        with refused(FabricError, "ocs0.json", "exists"):
            switches.configure(OTHER, folder=tmp_path)
        assert switches.preview(RING)["ocs0"] == Difference((), ())
        ours = Snapshot.load(tmp_path / "ocs0.json")
        replace(ours, ports=(*ours.ports, "7A")).save(tmp_path / "ocs0.json")
        with refused(FabricError, "7A", "socket"):
            switches.restore(tmp_path)
        replace(ours, switch="ocs1").save(tmp_path / "ocs0.json")
        with refused(FabricError, "ocs1", "ocs0"):
            switches.restore(tmp_path)
        with refused(FabricError, "snapshot", "No such file"):
            switches.restore(tmp_path / "nowhere")


def test_a_cluster_without_switches() -> None:
    with refused(FabricError, "cluster lab"):
        Switches(replace(switched_file(4, [1]), switches=()))


@pytest.fixture
def sonic_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OcsServer]]:
    monkeypatch.setenv("OCS_PASSWORD", OcsServer.password)
    with OcsServer(OcsDevice()) as first, OcsServer(OcsDevice()) as second:
        yield [first, second]


def test_two_sonic_switches_over_their_protocol(
    sonic_servers: list[OcsServer], ring_plan: RingPlan
) -> None:
    """From a Plan to the circuits of both; a device that fails half-way takes both back."""
    file = switched_file(4, [1, 1])
    entries = tuple(
        replace(
            entry,
            kind="sonic-ocs",
            address=server.address,
            user="admin",
            password=PasswordSource(env="OCS_PASSWORD"),
            options={"insecure": True, "poll_s": 0.01},
        )
        for entry, server in zip(file.switches, sonic_servers, strict=True)
    )
    file = replace(file, switches=entries)
    placed = place_on_switches(ring_plan(4), file)
    with Switches(file, open_switch=open_switch) as switches:
        switches.configure(placed.cables, timeout_s=LIMIT_S)
        before = [server.device.circuits() for server in sonic_servers]
        assert [len(circuits) for circuits in before] == [4, 4]
        second = sonic_servers[1].device
        second.broken |= {Circuit("1A", "3B"), Circuit("2A", "4B")}
        moved = {"ocs0": OTHER["ocs0"], "ocs1": OTHER["ocs0"]}
        with refused(NotSettled, "1A-3B", "2A-4B", "ocs0", "restored"):
            switches.configure(moved, timeout_s=0.5 * slowness())
    assert [server.device.circuits() for server in sonic_servers] == before
