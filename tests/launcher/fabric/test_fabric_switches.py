"""`topoopt fabric apply`, `snapshot` and `restore`, against a switch on a real socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.launcher import main as launcher
from torch_topoopt.launcher.errors import BAD_INPUT, OK
from torch_topoopt.launcher.run import options as run_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.plans import RingPlan

    Topoopt = Callable[..., tuple[int, str, str]]

from support.fabric.sonic_ocs_device import OcsDevice
from support.fabric.sonic_ocs_server import OcsServer
from support.refusals import named

SECRET = OcsServer.password


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OcsServer]:
    monkeypatch.setenv("OCS_PASSWORD", SECRET)
    with OcsServer(OcsDevice()) as server:
        yield server


@pytest.fixture
def lab(tmp_path: Path, server: OcsServer, ring_plan: RingPlan) -> Path:
    """A folder with plan.json, a ring of four, and lab.yaml, where h1 has sockets 3 and 4."""
    ring_plan(4).save(tmp_path / "plan.json")
    ports = "\n".join(
        f"  - name: h{i}\n    management: 10.200.0.{i + 1}\n    ports:\n"
        f"      - {{name: p0, address: 10.201.0.{2 * i + 1}/24, switch: 'ocs0:{2 * i + 1}'}}\n"
        f"      - {{name: p1, address: 10.201.0.{2 * i + 2}/24, switch: 'ocs0:{2 * i + 2}'}}"
        for i in range(4)
    )
    sockets = ", ".join(f"'{i + 1}'" for i in range(8))
    (tmp_path / "lab.yaml").write_text(
        f"version: 1\nname: lab\nservers:\n{ports}\nswitches:\n"
        f"  - name: ocs0\n    kind: sonic-ocs\n    address: {server.address}\n    user: admin\n"
        f"    password: {{env: OCS_PASSWORD}}\n    sockets: [{sockets}]\n"
        "    options: {insecure: true, poll_s: 0.01}\n"
    )
    return tmp_path


@pytest.fixture
def topoopt(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Topoopt:
    monkeypatch.chdir(lab)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = launcher.main(["fabric", *arguments])
        out, err = capfd.readouterr()
        assert SECRET not in out + err
        return code, out, err

    return run


def test_a_dry_run_prints_exactly_what_the_change_then_is(
    server: OcsServer, topoopt: Topoopt
) -> None:
    code, output, _ = topoopt("apply", "plan.json", "--cluster", "lab.yaml", "--dry-run")
    assert code == OK
    assert output.splitlines() == [
        "ocs0: circuits: 0 to remove, 8 to add",
        "  + 1A-3B",
        "  + 2A-7B",
        "  + 3A-1B",
        "  + 4A-5B",
        "  + 5A-4B",
        "  + 6A-8B",
        "  + 7A-2B",
        "  + 8A-6B",
        "nothing was changed (--dry-run)",
    ]
    assert server.device.circuits() == frozenset()
    code, done, _ = topoopt("apply", "plan.json", "--cluster", "lab.yaml", "--snapshots", "before")
    assert code == OK
    assert done.splitlines()[1:9] == output.splitlines()[1:9]
    assert "all 4 cables of the plan on switches carry light" in done
    assert "back to before: topoopt fabric restore before --cluster lab.yaml" in done
    assert {f"  + {c}" for c in server.device.circuits()} == set(output.splitlines()[1:9])


def test_applied_again_it_changes_nothing_and_keeps_nothing(
    lab: Path, server: OcsServer, topoopt: Topoopt
) -> None:
    assert topoopt("apply", "plan.json", "--cluster", "lab.yaml")[0] == OK
    assert len(list(lab.glob("lab-before-*/ocs0.json"))) == 1
    before = server.device.circuits()
    code, output, _ = topoopt("apply", "plan.json", "--cluster", "lab.yaml", "--json")
    assert code == OK
    result = json.loads(output)
    assert result["switches"] == [{"name": "ocs0", "remove": [], "add": []}]
    assert result["cables"][0] == ["h0:p0", "h1:p0"]
    assert result["snapshots"] is None
    assert server.device.circuits() == before
    assert len(list(lab.glob("lab-before-*"))) == 1


def test_snapshot_and_restore(server: OcsServer, topoopt: Topoopt) -> None:
    server.device.bulk_update([], [("1A-2B", "1A", "2B"), ("2A-1B", "2A", "1B")])
    first = server.device.circuits()
    code, output, _ = topoopt("snapshot", "kept", "--cluster", "lab.yaml", "--json")
    assert code == OK
    assert json.loads(output)["switches"] == [{"name": "ocs0", "circuits": ["1A-2B", "2A-1B"]}]
    assert topoopt("apply", "plan.json", "--cluster", "lab.yaml")[0] == OK
    planned = server.device.circuits()
    assert planned != first
    code, output, _ = topoopt("restore", "kept", "--cluster", "lab.yaml", "--dry-run", "--json")
    assert code == OK
    assert json.loads(output)["dry_run"] is True
    assert json.loads(output)["switches"][0]["add"] == ["1A-2B", "2A-1B"]
    assert server.device.circuits() == planned
    code, output, _ = topoopt("restore", "kept", "--cluster", "lab.yaml")
    assert code == OK
    assert "ocs0: circuits: 8 removed, 2 added" in output
    assert server.device.circuits() == first
    code, _, said = topoopt("snapshot", "kept", "--cluster", "lab.yaml")
    assert code == BAD_INPUT
    assert "exists; give another folder" in said


def test_a_wrong_password_is_one_line(
    server: OcsServer, topoopt: Topoopt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", "hunter2-hunter2")
    code, out, said = topoopt("apply", "plan.json", "--cluster", "lab.yaml")
    assert code == BAD_INPUT
    lines = [line for line in said.splitlines() if line.startswith("topoopt: error")]
    assert lines == [
        "topoopt: error: ocs0: the device does not accept user 'admin' with the password from "
        "$OCS_PASSWORD (401: Authentication failed)"
    ]
    assert "hunter2" not in out + said


def test_a_circuit_of_another_job_is_not_touched(server: OcsServer, topoopt: Topoopt) -> None:
    server.device.size = 16
    server.device.bulk_update([], [("1A-12B", "1A", "12B")])
    code, _, said = topoopt("apply", "plan.json", "--cluster", "lab.yaml")
    assert code == BAD_INPUT
    assert named(said, "1A", "1A-12B")
    assert [str(c) for c in server.device.circuits()] == ["1A-12B"]


def test_bad_input_is_named(lab: Path, topoopt: Topoopt) -> None:
    code, _, said = topoopt("apply", "none.json", "--cluster", "lab.yaml")
    assert (code, named(said, "none.json", "Plan")) == (BAD_INPUT, True)
    code, _, said = topoopt("apply", "plan.json", "--cluster", "lab.yaml", "--timeout", "0")
    assert (code, "timeout: 0 is not" in said) == (BAD_INPUT, True)
    code, _, said = topoopt("restore", "nowhere", "--cluster", "lab.yaml")
    assert (code, named(said, "nowhere/ocs0.json", "snapshot")) == (BAD_INPUT, True)
    text = (lab / "lab.yaml").read_text()
    (lab / "typo.yaml").write_text(text.replace("sonic-ocs", "sonic-osc"))
    code, _, said = topoopt("apply", "plan.json", "--cluster", "typo.yaml")
    assert (code, "did you mean 'sonic-ocs'" in said) == (BAD_INPUT, True)
    plugged = "version: 1\nname: lab\nservers: [{name: h0, management: 10.0.0.1}]\n"
    (lab / "cables.yaml").write_text(plugged)
    code, _, said = topoopt("snapshot", "kept", "--cluster", "cables.yaml")
    assert (code, "has no switches" in said) == (BAD_INPUT, True)


def test_a_run_on_switches_takes_a_model_a_plan_or_neither(lab: Path) -> None:
    (lab / "train.py").write_text("")
    asked = ["--cluster", str(lab / "lab.yaml"), "--node-rank", "0"]
    options = run_options.parse([*asked, "--model", "none", str(lab / "train.py")])
    assert (options.cluster.servers, options.cluster.degree) == (4, 2)
    options = run_options.parse([*asked, "--plan", str(lab / "plan.json"), str(lab / "train.py")])
    assert options.cluster.servers == 4
    options = run_options.parse([*asked, "--model", "ncf", str(lab / "train.py")])
    assert (options.cluster.servers, options.cluster.degree) == (4, 2)
