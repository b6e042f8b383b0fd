"""`topoopt fabric up --network` and `topoopt probe`, on a host that hangs on emulated switches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.fabric.netns_fixtures import a_name, own_state, require_namespaces
from support.refusals import named

from torch_topoopt.fabric.netns import kernel as netns_kernel
from torch_topoopt.fabric.netns.layout import LAUNCHER, NetnsLayout
from torch_topoopt.launcher.fabric import probe
from torch_topoopt.launcher.main import main
from torch_topoopt.route_control.controller.client import ControllerClient
from torch_topoopt.route_control.controller.messages import FlowReport
from torch_topoopt.route_control.emulation.names import ClosNames
from torch_topoopt.route_control.network_file import NetworkFile
from torch_topoopt.route_control.network_shapes import leaf_spine_file
from torch_topoopt.route_control.probing.kernel_paths import kernel_paths
from torch_topoopt.route_control.probing.probed_flow import ProbedFlow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "only-for-this-test"
PORT = 20000


@pytest.fixture
def network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[dict[str, Any]]:
    """What `fabric up` prints of a network that it has made, which is taken down afterwards."""
    require_namespaces()
    own_state(tmp_path, monkeypatch)
    leaf_spine_file(2, 2, 2, 1e8).save(tmp_path / "network.json")
    name = a_name()
    up = ["fabric", "up", name, "--network", str(tmp_path / "network.json")]
    try:
        capsys.readouterr()
        assert main([*up, "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["dry_run"]
        assert netns_kernel.of_fabric(name) == []
        assert main([*up, "--json"]) == 0
        yield json.loads(capsys.readouterr().out)
    finally:
        main(["fabric", "down", name])
        assert netns_kernel.of_fabric(name) == []


def probed(
    network: dict[str, Any], capsys: pytest.CaptureFixture[str], *options: str
) -> dict[str, Any]:
    """What `topoopt probe` on h1 prints."""
    command = ["--network", network["network"], f"--target-port={PORT}", "--json"]
    namespace = network["hosts"]["h1"]["namespace"]
    capsys.readouterr()
    assert netns_kernel.inside(namespace, lambda: probe.main([*command, *options])) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.timeout(120)
def test_a_host_finds_its_ports_and_the_controller_assigns_by_them(
    network: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)
    block = int(network["management"].split(".")[2])
    layout = NetnsLayout(network["name"], block)
    options = {
        "network": network["network"],
        "token-file": tmp_path / "token",
        "state-file": tmp_path / "routes.db",
        "listen": f"{layout.management_address(LAUNCHER)}:0",
    }
    command = [sys.executable, "-m", "torch_topoopt.launcher.main", "controller"]
    process = subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in options.items())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        url = next(filter(None, (re.search(r"http://[\d.]+:\d+", line) for line in lines)))[0]
        token = ("--controller", url, "--token-file", str(tmp_path / "token"))
        found = probed(network, capsys, *token)
        with ControllerClient(url, TOKEN, limit_s=20.0) as client:
            answer = client.start("j", [FlowReport("f", "h1", "h2", 10**7)])
    finally:
        process.kill()
        process.communicate()
    names = ClosNames(NetworkFile.load(network["network"]), layout)
    assert found["host"] == "h1"
    assert set(found["ports"]) == {"h2", "h3"}  # h0 hangs on the same leaf
    assert not found["without_ports"]
    for target, table in found["ports"].items():
        flows = [ProbedFlow("h1", target, int(port), PORT) for port in table]
        assert kernel_paths(names, flows) == [tuple(path) for path in table.values()]
        assert sorted(path[1] for path in table.values()) == ["spine0"] * 2 + ["spine1"] * 2
    (flow,) = answer.flows
    assert flow.path is not None
    assert found["ports"]["h2"][str(flow.source_port)] == list(flow.path)


def test_paths_that_no_port_takes_are_shown(
    network: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = NetworkFile.load(network["network"])
    clos = ClosNames(file, NetnsLayout(network["name"]))
    for leaf in ("leaf0", "leaf1"):
        with netns_kernel.open_route(network["switches"][leaf]["namespace"]) as route:
            (index,) = route.link_lookup(ifname=clos.interface(leaf, "spine1"))
            route.link("set", index=index, state="down")
    found = probed(network, capsys, "--targets", "h3", "--ports-per-path", "1", "--protocol", "udp")
    assert found["without_ports"] == {"h3": [["leaf0", "spine1", "leaf1"]]}
    assert set(map(tuple, found["ports"]["h3"].values())) == {("leaf0", "spine0", "leaf1")}


def test_what_a_fabric_of_a_plan_can_do_is_refused(
    network: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fabric", "verify", network["name"]]) == 2
    assert "hang on switches" in capsys.readouterr().err
    assert main(["fabric", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["fabrics"]
    assert (listed["name"], listed["state"], listed["servers"]) == (network["name"], "kept", 4)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (["--host", "h9"], ("host", "h9")),
        (["--host", "h0"], ("host", "h0")),
        ([], ("host",)),
        (["--target-port", "0"], ("target-port", 0, "1..65535")),
        (["--controller", "http://127.0.0.1:1"], ("--controller", "--token-file")),
    ],
)
def test_bad_input_of_a_probe_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    tokens: tuple[object, ...],
) -> None:
    leaf_spine_file(2, 2, 2, 1e8).save(tmp_path / "network.json")
    network = str(tmp_path / "network.json")
    assert main(["probe", "--network", network, f"--target-port={PORT}", *options]) == 2
    error = capsys.readouterr().err
    assert named(error, *tokens)
    assert "Traceback" not in error


def test_a_network_and_a_plan_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fabric", "up", "lab", "--network", "network.json", "--degree", "2"]) == 2
    assert named(capsys.readouterr().err, "degree", "--degree", "--network")
