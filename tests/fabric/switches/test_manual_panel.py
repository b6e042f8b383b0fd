"""The manual panel, with a scripted person at the other end of a pseudo-terminal."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
from support.fabric.switch_contract import Bench, SwitchContract
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.fabric.cluster_file.entries import SwitchEntry
from torch_topoopt.fabric.switches.circuits import Circuit, Difference, Fence, duplex_circuit
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.manual_panel import ManualPanel, PanelState, state_file
from torch_topoopt.fabric.switches.open_switch import open_switch
from torch_topoopt.fabric.switches.panel_work import (
    AssumedPerson,
    PersonLeft,
    Sheet,
    TerminalPerson,
)
from torch_topoopt.fabric.switches.switch import NotSettled, SwitchError
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOCKETS = [str(i) for i in range(1, 25)]
FENCE = Fence(frozenset(SOCKETS[:8]))
PROMPT = re.compile(r"move (\d+) of \d+: (take|plug) .* sockets (\S+) and (\S+)\. Done\? [^>]*> $")
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Hands:
    """A person who reads a terminal, moves real cables and answers."""

    def __init__(self) -> None:
        self.cables: set[Circuit] = set()
        self.stuck: set[Circuit] = set()
        self.cut_after: int | None = None
        self.lazy = False
        self.failure: Exception | None = None
        self._master, self._slave = os.openpty()
        self.source = os.fdopen(os.dup(self._slave), "r")
        self.output = os.fdopen(os.dup(self._slave), "w")
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.source.close()
        self.output.close()
        os.close(self._slave)
        self._thread.join(20)
        assert not self._thread.is_alive()
        os.close(self._master)
        assert self.failure is None

    def _work(self) -> None:
        seen = ""
        while True:
            try:
                seen += os.read(self._master, 65536).decode()
            except OSError:  # the terminal was closed
                return
            if asked := PROMPT.search(COLOURS.sub("", seen)):
                seen = ""
                try:
                    answer = self._move(asked[2], duplex_circuit(asked[3], asked[4]))
                except Exception as error:  # the move cannot be done in the real panel
                    self.failure, answer = error, b"n\n"
                os.write(self._master, answer)

    def _move(self, verb: str, circuit: Circuit) -> bytes:
        if self.lazy:
            return b"\n"
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                self.cut_after = None
                return b"n\n"
        if circuit in self.stuck:
            return b"n\n"
        if verb == "take":
            self.cables.remove(circuit)
        else:
            assert not {p for c in self.cables for p in c.ports} & set(circuit.ports)
            self.cables.add(circuit)
        return b"y\n"


@pytest.fixture
def hands() -> Iterator[Hands]:
    hands = Hands()
    yield hands
    hands.close()


@pytest.fixture
def bench(hands: Hands, tmp_path: Path) -> Bench:
    person = TerminalPerson(hands.source, hands.output)
    return Bench(
        ManualPanel(SOCKETS, person=person, state=tmp_path / "panel.json"),
        lambda: frozenset(hands.cables),
        hands.stuck.add,
        lambda count: setattr(hands, "cut_after", count),
        lambda: setattr(hands, "lazy", True),
    )


class TestManualPanel(SwitchContract):
    pass


def scripted(
    tmp_path: Path, answers: str, svg: Path | None = None
) -> tuple[ManualPanel, io.StringIO]:
    output = io.StringIO()
    person = TerminalPerson(io.StringIO(answers), output, svg)
    return ManualPanel(SOCKETS, person=person, state=tmp_path / "panel.json"), output


def cable(a: int, b: int) -> Circuit:
    return duplex_circuit(str(a), str(b))


def test_the_moves_are_numbered_removals_first_with_a_picture(tmp_path: Path) -> None:
    panel, _ = scripted(tmp_path, "\n" * 3)
    panel.apply(Difference((), (cable(1, 2), cable(3, 4), cable(9, 14))))
    panel, output = scripted(tmp_path, "a\n")
    configure(panel, [cable(2, 3), cable(4, 5)], FENCE, timeout_s=1)
    lines = output.getvalue().splitlines()
    assert lines[:5] == [
        "panel: 4 moves, in this order:",
        "   1. take the cable out of sockets 1 and 2",
        "   2. take the cable out of sockets 3 and 4",
        "   3. plug a cable into sockets 2 and 3",
        "   4. plug a cable into sockets 4 and 5",
    ]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells[0] == [str(i) for i in range(1, 13)]  # the second row of sockets has no change
    assert cells[1][:5] == ["-2", "-1", "-4", "-3", "+4"]
    assert cells[2][:5] == ["", "+3", "+2", "+5", ""]
    assert cells[1][8] == "=14"
    assert len(cells) == 3
    assert panel.circuits() == {cable(2, 3), cable(4, 5), cable(9, 14)}


def test_the_svg_picture_shows_every_cable(tmp_path: Path) -> None:
    svg = tmp_path / "moves.svg"
    panel, output = scripted(tmp_path, "a\na\n", svg)
    panel.apply(Difference((), (cable(1, 2), cable(3, 4))))
    panel.apply(Difference((cable(1, 2),), (cable(2, 20),)))
    root = ET.fromstring(svg.read_text())
    space = "{http://www.w3.org/2000/svg}"
    assert [path.get("class") for path in root.iter(f"{space}path")] == ["keep", "remove", "add"]
    assert {text.text for text in root.iter(f"{space}text")} >= set(SOCKETS)
    assert f"picture: {svg}" in output.getvalue()


def test_a_picture_that_cannot_be_written_stops_before_the_first_move(tmp_path: Path) -> None:
    panel, _ = scripted(tmp_path, "a\n", tmp_path / "no folder" / "moves.svg")
    with refused(SwitchError, "moves.svg", "nothing was changed"):
        panel.apply(Difference((), (cable(1, 2),)))
    assert panel.circuits() == frozenset()


def test_an_answer_that_is_none_is_asked_for_again(tmp_path: Path) -> None:
    panel, output = scripted(tmp_path, "maybe\n y \n")
    panel.apply(Difference((), (cable(1, 2),)))
    assert named(output.getvalue(), "maybe", "Enter", "a", "n")
    assert output.getvalue().count("Done?") == 2


def test_all_done_holds_for_one_sheet_only(tmp_path: Path) -> None:
    panel, _ = scripted(tmp_path, "a\n")
    panel.apply(Difference((), (cable(1, 2), cable(3, 4))))
    with pytest.raises(PersonLeft):
        panel.apply(Difference((cable(1, 2),), ()))


def test_the_end_of_the_input_undoes_nothing_and_says_what_is_believed(tmp_path: Path) -> None:
    panel, output = scripted(tmp_path, "\n")
    with pytest.raises(PersonLeft) as caught:
        configure(panel, [cable(1, 2), cable(3, 4)], FENCE, timeout_s=1)
    assert named(
        str(caught.value),
        "move 2",
        3,
        4,
        "not undone",
        "1-2",
        f"{tmp_path}/panel.json",
        "going back failed",
    )
    assert output.getvalue().count("in this order") == 1  # the person is not asked to undo
    again, _ = scripted(tmp_path, "\n")
    assert configure(again, [cable(1, 2), cable(3, 4)], FENCE, timeout_s=1).add == (cable(3, 4),)


def test_a_person_who_leaves_at_the_first_move_has_moved_nothing(tmp_path: Path) -> None:
    panel, _ = scripted(tmp_path, "")
    with pytest.raises(PersonLeft) as caught:
        configure(panel, [cable(1, 2)], FENCE, timeout_s=1)
    assert "; no cable was moved; " in str(caught.value)
    assert str(caught.value).endswith("; its circuits are those from before")
    assert "undone" not in str(caught.value)
    assert "restored" not in str(caught.value)


def test_a_move_that_cannot_be_done_is_named_and_the_way_back_is_asked_for(
    tmp_path: Path,
) -> None:
    panel, output = scripted(tmp_path, "\nn\n\n")
    with refused(NotSettled, "move 2", 3, 4, "restored"):
        configure(panel, [cable(1, 2), cable(3, 4)], FENCE, timeout_s=1)
    assert panel.circuits() == frozenset()
    assert named(output.getvalue(), "move 1", "out of sockets 1")


def test_ctrl_c_undoes_nothing_and_says_what_is_believed(tmp_path: Path) -> None:
    """A real process, a real SIGINT, while it waits for the second move."""
    script = f"""
import sys
from pathlib import Path
from torch_topoopt.fabric.switches.circuits import Fence, duplex_circuit
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.fabric.cluster_file.cluster_file import SwitchEntry
from torch_topoopt.fabric.switches.configure import configure
from torch_topoopt.fabric.switches.manual_panel import ManualPanel
panel = ManualPanel("1234", state=Path({str(tmp_path / "panel.json")!r}))
cables = [duplex_circuit("1", "2"), duplex_circuit("3", "4")]
configure(panel, cables, Fence(frozenset("1234")), timeout_s=1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        shown = ""
        while "move 2 of 2: plug a cable into sockets 3 and 4. Done?" not in shown:
            character = process.stderr.read(1)
            assert character, shown
            shown += character
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=limit_s(30))
    finally:
        process.kill()
        process.wait()
    assert (
        "stopped at move 2 of 2; the moves before it are not undone; taken to hold the cables 1-2"
        in rest
    )
    assert "take the cable out" not in shown + rest
    assert rest.rstrip().splitlines()[-2].endswith("KeyboardInterrupt")
    assert PanelState.load(tmp_path / "panel.json").circuits == (Circuit("1", "2"),)


def test_unattended_moves_are_taken_as_done(tmp_path: Path) -> None:
    output = io.StringIO()
    panel = ManualPanel(SOCKETS, person=AssumedPerson(output), state=tmp_path / "panel.json")
    configure(panel, [cable(1, 2)], FENCE, timeout_s=1)
    assert named(output.getvalue(), "move 1", "done")
    assert "no " + str(tmp_path / "panel.json") + " yet; taken to be empty" in output.getvalue()


def test_sockets_in_use_are_refused_before_the_person_is_asked(tmp_path: Path) -> None:
    panel, output = scripted(tmp_path, "\n")
    panel.apply(Difference((), (cable(1, 2),)))
    asked = output.getvalue()
    for wanted, tokens in (
        (cable(2, 3), ("port 2", "1-2")),
        (Circuit("3", "99"), (99, "sockets")),
        (Circuit("4", "3"), ("4-3", "sockets")),
        (Circuit("5", "5"), ("5-5", "sockets")),
    ):
        with refused(SwitchError, *tokens):
            panel.apply(Difference((), (wanted,)))
    assert output.getvalue() == asked


def test_two_jobs_at_one_panel_keep_each_others_moves(tmp_path: Path) -> None:
    theirs, _ = scripted(tmp_path, "\n")

    class Meanwhile(AssumedPerson):
        def done(self, sheet: Sheet, number: int) -> bool:
            if number == 2:
                theirs.apply(Difference((), (cable(5, 6),)))
            return True

    ours = ManualPanel(SOCKETS, person=Meanwhile(io.StringIO()), state=tmp_path / "panel.json")
    ours.apply(Difference((), (cable(1, 2), cable(3, 4))))
    assert ours.circuits() == {cable(1, 2), cable(3, 4), cable(5, 6)}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("{", ("JSON",)),
        ('{"version": 1, "panel": "other", "circuits": []}', ("panel", "other")),
        (
            '{"version": 1, "panel": "panel", "circuits": [{"ingress": "2", "egress": "1"}]}',
            ("circuits[0]", "2-1"),
        ),
        (
            '{"version": 1, "panel": "panel", "circuits": [{"ingress": "1", "egress": "2"}, '
            '{"ingress": "2", "egress": "3"}]}',
            ("circuits[1]", 2, "circuits[0]"),
        ),
    ],
)
def test_a_state_that_cannot_be_true_is_refused(
    tmp_path: Path, text: str, tokens: tuple[object, ...]
) -> None:
    (tmp_path / "panel.json").write_text(text)
    with refused(SwitchError, *tokens):
        scripted(tmp_path, "")[0].circuits()


def test_a_move_that_cannot_be_remembered_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    panel = ManualPanel(
        SOCKETS, person=AssumedPerson(io.StringIO()), state=tmp_path / "file" / "panel.json"
    )
    with refused(SwitchError, "file/panel.json"):
        panel.apply(Difference((), (cable(1, 2),)))


def test_the_state_lies_in_the_users_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_file("rack-2") == tmp_path / "torch_topoopt" / "panels" / "rack-2.json"
    panel = ManualPanel(SOCKETS, name="rack-2", person=AssumedPerson(io.StringIO()))
    panel.apply(Difference((), (cable(1, 2),)))
    assert PanelState.load(state_file("rack-2")).circuits == (cable(1, 2),)
    for name in ("../x", "", ".hidden", "a/b"):
        with refused(SwitchError, "letters"):
            state_file(name)


def entry(**fields: Any) -> SwitchEntry:
    return SwitchEntry("wall", "manual", "room 3, left", **fields)


def test_a_panel_of_a_cluster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = ManualPanel(
        SOCKETS, name="wall", person=AssumedPerson(io.StringIO()), state=tmp_path / "wall.json"
    )
    theirs.apply(Difference((), (cable(9, 20),)))  # sockets that the entry does not name
    options = {
        "state": str(tmp_path / "wall.json"),
        "picture": str(tmp_path / "wall.svg"),
        "unattended": True,
    }
    panel = open_switch(entry(sockets=("1", "2", "3"), options=options))
    configure(panel, [cable(1, 3)], Fence(frozenset("123")), timeout_s=1)
    assert panel.circuits() == {cable(1, 3), cable(9, 20)}
    assert "wall (room 3, left): 1 move, in this order:" in capsys.readouterr().err
    assert (tmp_path / "wall.svg").exists()
    panel = open_switch(entry(sockets=("1",), options={**options, "size": 48}))
    assert panel.fibres("48") == ("48", "48")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, ("wall", "options.size")),
        ({"sockets": ("7",), "options": {"size": 6}}, ("sockets", 7, 1, 6)),
        ({"options": {"confirm": "no"}}, ("options.confirm", "option")),
    ],
)
def test_a_panel_entry_that_makes_no_sense_is_named(
    fields: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    with refused(DocumentError, *tokens):
        open_switch(entry(**fields))
