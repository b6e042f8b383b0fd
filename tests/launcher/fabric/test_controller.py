"""`topoopt controller`: killed and started again, stopped by Ctrl-C, and bad input."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from route_control.controller.test_route_state import leaf_spine_file, report
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.route_control.controller.client import ControllerClient

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "only-for-this-test"


def options(folder: Path) -> list[str]:
    """Files of a network of two leaves and two spines, and the options that name them."""
    leaf_spine_file(2, 2, 2).save(folder / "network.json")
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    return [
        "controller",
        *("--network", str(folder / "network.json")),
        *("--token-file", str(folder / "token")),
        *("--state-file", str(folder / "state")),
        *("--listen", "127.0.0.1:0"),
    ]


def started(folder: Path, *more: str) -> tuple[subprocess.Popen[str], ControllerClient]:
    command = [sys.executable, "-m", "torch_topoopt.launcher.main", *options(folder), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    found = next(filter(None, (re.search(r"http://127.0.0.1:\d+", line) for line in lines)), None)
    assert found, "it ended before it said where it listens"
    return process, ControllerClient(found[0], TOKEN, limit_s=20)


def stopped(process: subprocess.Popen[str], how: signal.Signals) -> int:
    process.send_signal(how)
    process.communicate(timeout=20)
    return process.returncode


@pytest.mark.timeout(120)
def test_killed_and_started_again_it_has_the_same_assignments(tmp_path: Path) -> None:
    process, client = started(tmp_path, "--json", "--limit-rates")
    with client:
        client.start("j", [report(name, "h0", "h2") for name in "ab"])
        client.set_links(down=[("leaf0", "spine0")])
        before = client.wait("h0", 0)
    assert stopped(process, signal.SIGKILL) == -signal.SIGKILL
    process, client = started(tmp_path, "--limit-rates", "--precompute", "9")
    with client:
        assert client.wait("h0", 0) == before
        assert [flow.rate_bits_per_s for flow in before.flows] == [5e7, 5e7]
        assert client.end(["a"]).epoch == before.epoch + 1
    assert stopped(process, signal.SIGINT) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"network.json", "token", "state"}


@pytest.mark.parametrize(
    ("option", "value", "tokens"),
    [
        ("--precompute", "-1", ("precompute", -1, 0)),
        ("--lease", "0", ("lease", 0)),
        ("--listen", "here", ("listen", "HOST:PORT")),
        ("--network", "none.json", ("network file",)),
        ("--token-file", "none", ("token-file",)),
        ("--state-file", "none/state", ("state-file",)),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    tokens: tuple[object, ...],
) -> None:
    given = options(tmp_path)
    if option in given:
        given[given.index(option) + 1] = value if option == "--listen" else str(tmp_path / value)
    else:
        given += [option, value]
    assert main(given) == 2
    assert named(capsys.readouterr().err, *tokens)


def test_a_short_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = options(tmp_path)
    (tmp_path / "token").write_text("short\n")
    assert main(given) == 2
    assert "token: has fewer than 16 bytes" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
