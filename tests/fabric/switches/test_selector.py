"""1x2 switches: flipped, read back, driven by a program of the user's; and in the cluster file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import SelectorEntry
from torch_topoopt.fabric.switches.selector import (
    CommandSelector,
    MemorySelector,
    Selector,
    flip,
    open_selector,
)
from torch_topoopt.fabric.switches.switch import SwitchError, SwitchUnreachable
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

# A relay board: its state is a file, and port "h0:stuck" has a broken coil.
PROGRAM = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
state = json.loads(path.read_text()) if path.exists() else {}
if sys.argv[2] == "set":
    moves = dict(a.split("=") for a in sys.argv[3:])
    moves.pop("h0:stuck", None)
    path.write_text(json.dumps(state | moves))
else:
    for port in sys.argv[3:]:
        print(port, state.get(port, "switch"))
"""

CLUSTER = """
version: 1
name: lab
servers:
  - name: h0
    management: 10.0.0.1
    ports:
      - {name: p0, address: 10.1.0.1/16, switch: "ocs0:1", lookahead: "ocs0:5"}
switches:
  - {name: ocs0, kind: memory, address: x, sockets: ["1", "2", "5"]}
selector: {kind: command, program: [/opt/relays, "--board", "1"], timeout_s: 3}
"""


@pytest.fixture(params=["memory", "command"])
def selector(request: pytest.FixtureRequest, tmp_path: Path) -> Selector:
    if request.param == "memory":
        memory = MemorySelector()
        memory.stuck = {"h0:stuck"}
        return memory
    (tmp_path / "relays.py").write_text(PROGRAM)
    program = (sys.executable, str(tmp_path / "relays.py"), str(tmp_path / "state.json"))
    return open_selector(SelectorEntry("command", program, 30))


def test_ports_are_flipped_and_others_are_not(selector: Selector) -> None:
    ports = ("h0:p0", "h0:p1", "h1:p0")
    assert selector.sides(ports) == dict.fromkeys(ports, "switch")
    assert flip(selector, {"h0:p0": "lookahead", "h1:p0": "switch"}) == {"h0:p0": "lookahead"}
    assert selector.sides(ports) == {**dict.fromkeys(ports, "switch"), "h0:p0": "lookahead"}
    assert flip(selector, {"h0:p0": "lookahead"}) == {}
    assert flip(selector, {"h0:p0": "switch"}) == {"h0:p0": "switch"}


def test_a_port_that_does_not_move_is_named(selector: Selector) -> None:
    with refused(SwitchError, "h0:stuck", "lookahead"):
        flip(selector, {"h0:p0": "lookahead", "h0:stuck": "lookahead"})


def test_a_flip_takes_milliseconds_not_the_time_of_a_switch() -> None:
    selector = MemorySelector()
    flip(selector, {f"h{i}:p0": "lookahead" for i in range(128)})
    assert selector.clock.now() < 0.02


@pytest.mark.parametrize(
    ("program", "tokens"),
    [
        (("/nowhere/relays",), ("No such file",)),
        ((sys.executable, "-c", "print('h0:p0 upwards')"), ("h0:p0 upwards",)),
        ((sys.executable, "-c", "print('h9:p9 switch')"), ("h9:p9 switch",)),
        ((sys.executable, "-c", ""), ("h0:p0",)),
        ((sys.executable, "-c", "raise SystemExit('board off')"), ("exit code 1", "board off")),
    ],
)
def test_a_program_that_fails_is_an_error(
    program: tuple[str, ...], tokens: tuple[object, ...]
) -> None:
    with refused(SwitchError, *tokens):
        CommandSelector(program, 30).sides(["h0:p0"])


def test_a_program_that_hangs_has_a_limit() -> None:
    program = (sys.executable, "-c", "import time; time.sleep(60)")
    with refused(SwitchUnreachable, 0.1, "no answer"):
        CommandSelector(program, 0.1).sides(["h0:p0"])


def test_the_cluster_file_holds_both_sockets_of_a_port_and_the_program() -> None:
    cluster = ClusterFile.from_yaml(CLUSTER)
    port = cluster.ports["h0:p0"][1]
    assert (port.switch, port.lookahead) == ("ocs0:1", "ocs0:5")
    assert cluster.selector == SelectorEntry("command", ("/opt/relays", "--board", "1"), 3)
    assert ClusterFile.from_yaml(cluster.to_yaml()) == cluster


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        ('"ocs0:5"', '"ocs0:9"', ("lookahead", "ocs0:9", 9, "ocs0")),
        ('"ocs0:5"', '"ocs0:1"', ("lookahead", "ocs0:1", "servers[0].ports[0].switch")),
        ('switch: "ocs0:1", ', "", ("switch",)),
        ("kind: command, program: [/opt/relays", "kind: memory, program: [/opt/relays", ("leave",)),
        ('program: [/opt/relays, "--board", "1"], ', "", ("selector.program", "missing")),
        ("selector: {kind: command", "selector: {kind: ttl", ("selector.kind", "ttl")),
        ("timeout_s: 3", "timeout_s: 0", ("selector.timeout_s", 0, 1)),
        (CLUSTER[CLUSTER.index("selector:") :], "", ("1x2", "flip")),
    ],
)
def test_a_wrong_file_is_an_error_with_its_field(
    old: str, new: str, tokens: tuple[object, ...]
) -> None:
    assert old in CLUSTER
    with refused(DocumentError, *tokens):
        ClusterFile.from_yaml(CLUSTER.replace(old, new))
