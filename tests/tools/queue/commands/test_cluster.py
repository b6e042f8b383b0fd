"""`topoopt cluster`: output, errors and effects of its verbs."""

from __future__ import annotations

import importlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named, refused

from torch_topoopt.launcher.errors import BAD_INPUT, OK, InputError
from torch_topoopt.launcher.signals import Interrupted, interruptible
from torch_topoopt.links.errors import FabricError
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.tools.queue.commands import cluster
from torch_topoopt.tools.queue.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.plan import Plan

SERVER = """\
  - name: h{i}
    management: 10.0.0.{n}
    ports:
      - {{name: p0, address: 10.1.0.{n}/16, switch: "ocs0:{a}", lookahead: "ocs0:{c}"}}
      - {{name: p1, address: 10.1.1.{n}/16, switch: "ocs0:{b}", lookahead: "ocs0:{d}"}}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster file of three servers, a script, and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TOPOOPT_CLUSTER", raising=False)
    servers = "".join(
        SERVER.format(i=i, n=i + 1, a=4 * i + 1, b=4 * i + 2, c=4 * i + 3, d=4 * i + 4)
        for i in range(3)
    )
    sockets = ", ".join(f'"{n + 1}"' for n in range(12))
    (tmp_path / "lab.yaml").write_text(
        f"version: 1\nname: lab\nservers:\n{servers}switches:\n"
        f'  - {{name: ocs0, kind: memory, address: "-", sockets: [{sockets}]}}\n'
        "selector: {kind: memory}\n"
    )
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\necho on $TOPOOPT_JOB_SERVERS with $1 $GREETING > out\n")
    script.chmod(0o755)
    return tmp_path


def _submit(*options: str, script: str = "job.sh") -> tuple[str, ...]:
    shape = ("--servers", "2", "--degree", "1", "--model", "none", "--launch", "program")
    return ("submit", "--cluster", "lab.yaml", *shape, *options, script)


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cluster.main([*argv, "--json"]) == OK
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_every_sub_verb_is_a_module_that_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cluster.main(["--help"])
    assert ended.value.code == OK
    output = capsys.readouterr().out
    for name in cluster.SUB_VERBS:
        assert f"\n  {name} " in output
        module = importlib.import_module(f"torch_topoopt.tools.queue.commands.{name}")
        with pytest.raises(SystemExit) as ended:
            module.main(["--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert f"usage: topoopt cluster {name}" in text
        assert "examples:" in text
    assert cluster.main([]) == BAD_INPUT
    with refused(InputError, "topoopt cluster submit"):
        cluster.main(["sumbit"])


def test_a_job_goes_through_the_daemon_and_its_status_shows_it(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "hello")
    argv = [*_submit("--env", "GREETING", "--name", "first"), "an argument"]
    assert cluster.main(argv) == OK
    captured = capsys.readouterr()
    assert "job 1 (first): plan " in captured.out
    assert "no daemon runs; start `topoopt cluster daemon" in captured.err
    queued = _json(capsys, "status")
    assert (queued["daemon"], queued["jobs"][0]["state"]) == (None, "queued")
    assert cluster.main(["daemon", "--cluster", "lab.yaml", "--until-idle"]) == OK
    assert "job 1: done; its circuits are gone" in capsys.readouterr().out
    assert (lab / "out").read_text() == "on h0 h1 with an argument hello\n"
    job = _json(capsys, "status", "1")
    assert (job["state"], job["exit_code"], job["on"]) == ("done", 0, ["h0", "h1"])
    assert job["circuits"] == [
        {"switch": "ocs0", "sockets": ["1", "5"], "ends": ["h0:p0", "h1:p0"]}
    ]
    assert [event["text"] for event in job["events"]][-1].startswith("done; ")
    assert _json(capsys, "status")["jobs"] == []
    assert len(_json(capsys, "status", "--all")["jobs"]) == 1
    assert cluster.main(["status", "1"]) == OK
    assert "job 1 (first): done (exit code 0)" in capsys.readouterr().out


def test_a_job_that_is_emulated_says_so_when_submitted_and_in_its_status(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "emulated on the daemon's machine; the servers themselves run nothing"
    emulated = [*_submit("--launch", "run")]
    assert cluster.main([*emulated[:-1], "--dry-run", emulated[-1]]) == OK
    assert f"it would run {said}" in capsys.readouterr().out
    assert cluster.main(emulated) == OK
    assert f"job 1 runs {said}" in capsys.readouterr().out
    on_hosts = _submit("--launch", "hosts", "--reach", "ssh {management}", "--json")
    assert cluster.main([*on_hosts]) == OK
    captured = capsys.readouterr()
    assert json.loads(captured.out)["job"] == 2
    assert "job 2 runs on its servers" in captured.err
    assert cluster.main(["status"]) == OK
    table = capsys.readouterr().out
    assert "emulated" in table
    assert "on its servers" in table
    assert cluster.main(["status", "1"]) == OK
    assert f"runs: {said}" in capsys.readouterr().out
    assert [job["launch"] for job in _json(capsys, "status")["jobs"]] == ["run", "hosts"]


def test_a_dry_run_says_where_and_when_and_submits_nothing(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.main([*_submit("--dry-run")]) == OK
    output = capsys.readouterr().out
    assert "on h0 h1, at once; nothing else is touched" in output
    assert "  + ocs0: 1-5 (h0:p0, h1:p0)" in output
    assert not (lab / "xdg").exists()
    for _ in range(4):
        cluster.main([*_submit()])
    capsys.readouterr()
    assert cluster.main([*_submit("--dry-run", "--json")]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["ahead"] == 4
    assert len(Store(lab / "xdg/torch_topoopt/clusters/lab").jobs()) == 4


def test_a_job_that_can_never_fit_is_refused_at_once(lab: Path) -> None:
    with refused(InputError, 4, 3):
        cluster.main([*_submit("--servers", "4")])
    assert not (lab / "xdg").exists()
    assert cluster.main([*_submit("--servers", "3", "--degree", "2")]) == OK


def test_a_plan_that_needs_more_ports_than_there_are_is_refused(
    lab: Path, ring_plan: Callable[..., Plan]
) -> None:
    ring_plan(4).save(lab / "plan.json")
    argv = ["submit", "--cluster", "lab.yaml", "--plan", "plan.json", "job.sh"]
    with refused(FabricError, 4, 3):
        cluster.main(argv)
    with refused(InputError, "servers", "plan"):
        cluster.main([*argv[:-1], "--servers", "2", "job.sh"])
    assert not (lab / "xdg").exists()


@pytest.mark.parametrize(
    ("argv", "tokens"),
    [
        (("submit", "--servers", "2", "--degree", "1", "job.sh"), ("cluster", "missing")),
        (("submit", "--cluster", "lab.yaml", "job.sh"), ("servers", "missing")),
        (_submit(script="nowhere.sh"), ("nowhere.sh", "script")),
        (_submit("--reach", "ssh"), ("reach", "--launch")),
        (_submit("--env", "NO_SUCH_NAME"), ("env", "NO_SUCH_NAME")),
        (_submit(script="lab.yaml"), ("executable",)),
        (("status",), ("state",)),
        (("daemon", "--cluster", "lab.yaml", "--retry", "0"), ("retry", 0)),
    ],
)
def test_a_wrong_option_is_named(
    lab: Path, argv: tuple[str, ...], tokens: tuple[object, ...]
) -> None:
    with refused(InputError, *tokens):
        cluster.main(list(argv))
    assert not (lab / "xdg").exists()


def test_a_switch_of_an_unknown_kind_ends_the_daemon_before_it_starts(lab: Path) -> None:
    text = (lab / "lab.yaml").read_text()
    (lab / "lab.yaml").write_text(text.replace("kind: memory, address", "kind: memorie, address"))
    with refused(DocumentError, "memory"):
        cluster.main(["daemon", "--cluster", "lab.yaml", "--until-idle"])


def test_jobs_are_cancelled_and_ended_ones_are_an_error(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.main([*_submit()])
    cluster.main([*_submit()])
    assert cluster.main(["cancel", "1", "--dry-run"]) == OK
    assert named(capsys.readouterr().out, "job 1", "queue")
    assert _json(capsys, "cancel", "1")["jobs"] == [{"job": 1, "state": "cancelled"}]
    with refused(InputError, "job 1", "cancelled"):
        cluster.main(["cancel", "2", "1"])
    with refused(FabricError, "job 9"):
        cluster.main(["cancel", "2", "9"])
    assert [job["state"] for job in _json(capsys, "status")["jobs"]] == ["queued"]


@pytest.fixture
def own_signals() -> Iterator[None]:
    """After Interrupted a process ignores signals, as it is about to end; this one goes on."""
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in handled}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("own_signals")
def test_a_second_daemon_is_refused_and_a_signal_ends_the_first(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is this process; as soon as it has started, a second one tries."""
    from torch_topoopt.tools.queue.commands import daemon as cluster_daemon

    said = []

    def show(event: object) -> None:
        with pytest.raises(FabricError) as refused:
            cluster.main(["daemon", "--cluster", "lab.yaml"])
        said.append(str(refused.value))
        assert _json(capsys, "status", "--cluster", "lab.yaml")["daemon"] == os.getpid()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(cluster_daemon, "_show", show)
    with pytest.raises(Interrupted), interruptible():
        cluster.main(["daemon", "--cluster", "lab.yaml"])
    assert f"a daemon (process {os.getpid()}) serves" in said[0]


def test_the_daemons_dry_run_says_what_it_would_change_and_changes_nothing(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.main(["daemon", "--cluster", "lab.yaml", "--dry-run"]) == OK
    assert capsys.readouterr().out == "no job: nothing to change\n"
    assert not (lab / "xdg").exists()
