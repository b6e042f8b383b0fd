"""`topoopt fabric up|list|verify|down` and `topoopt run --fabric netns`; need root."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from support.limits import limit_s
from support.refusals import named

from torch_topoopt.fabric.netns import goodput as netns_goodput
from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns import shaper as netns_shaper
from torch_topoopt.fabric.netns import state as netns_state
from torch_topoopt.launcher.main import main
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch_topoopt.plan import Plan

# Ranks that say where they are and wait to be ended.
SCRIPT = """\
import os, pathlib, signal
import torch
import torch.distributed as dist
dist.init_process_group()
total = torch.ones(1000)
dist.all_reduce(total)
assert total[0].item() == dist.get_world_size()
here = os.readlink("/proc/self/ns/net")
pathlib.Path(os.environ["WHERE"], os.environ["RANK"]).write_text(here)
if os.environ["STAY"] == "1":
    signal.pause()
dist.destroy_process_group()
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    try:
        netns_kernel.require()
    except FabricError as error:
        pytest.skip(f"no network namespaces here: {error}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    name = f"test-{os.getpid()}-{secrets.token_hex(3)}"
    yield name
    for left in {name, *netns_state.names()}:
        netns_state.take_down(left)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["fabric", *arguments, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


@pytest.mark.alone
def test_up_list_verify_and_down(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netns_goodput, "_WINDOWS", 3)
    size = ["--shaper", "tbf", "--servers", "3", "--degree", "2", "--bandwidth", "25Mbps"]
    code, would = answer(capsys, "up", name, *size, "--dry-run")
    assert (code, would["servers"], would["cables"]) == (0, 3, 3)
    assert netns_state.names() == []
    code, made = answer(capsys, "up", name, *size)
    assert (code, made["links"], made["shaper"]) == (0, 6, "tbf")
    assert all(netns_kernel.exists(namespace) for namespace in made["namespaces"])
    assert main(["fabric", "up", name, *size]) == 2
    assert named(capsys.readouterr().err, name, "already")

    code, listed = answer(capsys, "list")
    assert [(fabric["name"], fabric["state"]) for fabric in listed["fabrics"]] == [(name, "kept")]

    code, verified = answer(capsys, "verify", name)
    assert code == 0, verified
    assert [link["right"] for link in verified["links"]] == [True] * 6
    assert all(abs(link["share"] - 1) <= 0.03 for link in verified["links"])

    # A link that is slowed down by 10 % is found, and only that one.
    with netns_kernel.open_route(made["namespaces"][0]) as route:
        (index,) = route.link_lookup(ifname="port0")
        route.tc("del", index=index, root=True)
        netns_shaper.limit(route, index, 0.0225, 1500, "tbf")
    monkeypatch.setattr(netns_goodput, "_ATTEMPTS", 3)
    code, verified = answer(capsys, "verify", name)
    assert code == 1
    wrong = [link for link in verified["links"] if not link["right"]]
    assert [(link["source"], link["source_port"]) for link in wrong] == [(0, 0)]
    assert wrong[0]["share"] == pytest.approx(0.9, abs=0.05)

    code, down = answer(capsys, "down", name, "--dry-run")
    assert netns_state.names() == [name]
    code, down = answer(capsys, "down", name)
    assert (code, down["removed"]) == (0, [name])
    assert netns_kernel.of_fabric(name) == []
    assert main(["fabric", "down", name]) == 2
    assert named(capsys.readouterr().err, "name", name)


def test_what_was_interrupted_half_way_is_listed_and_removed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reserved = netns_state.reserve(name)
    netns_kernel.create(netns_state.NetnsLayout(name).namespace(0))
    assert answer(capsys, "list")[1]["fabrics"][0]["state"] == "being made"
    assert answer(capsys, "down", "--all")[1] == {
        "removed": [],
        "in_use": [name],
        "dry_run": False,
        "host_routes": False,
    }
    reserved.release()  # as the end of its process would
    assert answer(capsys, "list")[1]["fabrics"][0]["state"] == "incomplete"
    assert main(["fabric", "verify", name]) == 2
    assert f"the fabric '{name}' is not complete" in capsys.readouterr().err
    assert answer(capsys, "down", "--all")[1]["removed"] == [name]
    assert netns_kernel.of_fabric(name) == []


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ("up x", ("servers", "missing")),
        ("up X --servers 3", ("name", "X")),
        ("up x --plan p.json --servers 3", ("servers", "--servers", "--plan")),
        ("up x --servers 3 --mtu 9", ("mtu", 9, "576..65521")),
        ("down", ("name", "--all")),
        ("verify missing", ("name", "missing")),
    ],
)
@pytest.mark.usefixtures("name")
def test_bad_input_is_one_line(
    arguments: str, tokens: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fabric", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("topoopt: error: ")
    assert named(error, *tokens)
    assert error.count("\n") == 1


@pytest.fixture
def job(
    name: str, tmp_path: Path, ring_plan: Callable[..., Plan], launcher: Any
) -> Callable[[str], Any]:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "where").mkdir()
    ring_plan(2).save(tmp_path / "plan.json")

    def start(stay: str) -> Any:
        return launcher.start(
            "run",
            "--fabric",
            "netns",
            "--plan",
            "plan.json",
            "script.py",
            WHERE=str(tmp_path / "where"),
            STAY=stay,
        )

    return start


def ranks_said(tmp_path: Path) -> list[str]:
    return [file.read_text() for file in (tmp_path / "where").iterdir()]


def test_ranks_run_in_the_namespaces_of_their_servers(
    job: Callable[[str], Any], tmp_path: Path
) -> None:
    process = job("0")
    out, err = process.communicate(timeout=limit_s(100))
    assert process.returncode == 0, out + err
    assert "2 links on netns, each verified from both ends" in out
    said = ranks_said(tmp_path)
    assert len(set(said)) == 2
    assert os.readlink("/proc/self/ns/net") not in said
    assert netns_state.names() == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_job_that_is_ended(
    signum: signal.Signals,
    job: Callable[[str], Any],
    launcher: Any,
    until: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process = job("1")
    until(lambda: len(ranks_said(tmp_path)) == 2 or process.poll() is not None, "ranks")
    (fabric,) = netns_state.names()
    record, _, _ = netns_state.load(fabric)
    assert netns_state.describe(fabric)[0] == "in use"
    outside = socket.if_nametoindex(record.layout.launcher_interface)
    process.send_signal(signum)
    process.communicate(timeout=limit_s(60))
    if signum == signal.SIGINT:
        assert process.returncode == 130
    else:
        until(lambda: not launcher.leftovers(), "end of the ranks")
        assert netns_state.describe(fabric)[0] == "abandoned"
        assert answer(capsys, "down", "--all")[1]["removed"] == [fabric]
    assert netns_state.names() == []
    assert netns_kernel.of_fabric(fabric) == []
    assert outside not in dict(socket.if_nameindex())
