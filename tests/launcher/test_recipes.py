"""docs/guides/recipes.md as it stands, on machines that look like the ones it is about, as root.

Cables have no addresses. After the commands of a recipe the test looks at what they have found and
carried; on the ring of four a job runs over libfabric, too.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import shared_server
from support.device_tree import SPARK_PORTS, Function, add_card
from support.fabric.cabled_machines import Machines, Socket
from support.limits import limit_s
from support.plain_namespaces import Namespaces

from torch_topoopt.fabric.cluster_file.load import load_cluster
from torch_topoopt.links.addresses import zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "recipes.md"
LIMIT_S = limit_s(300.0)  # of one recipe
WIRE = "200mbit"
FIRST, SECOND = SPARK_PORTS
BOX_PORTS = tuple(f"enp{bus}s0f{port}np{port}" for bus in (65, 129) for port in (0, 1))


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    with Namespaces("tc", "unshare") as made:
        yield made


def blocks(section: str, language: str) -> list[str]:
    (text,) = (part for part in PAGE.read_text().split("\n## ") if part.startswith(section))
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def prepare(machines: Machines) -> None:
    """The programs of the page; every host has a home of its own, the first one `train.py`."""
    programs = machines.folder / "bin"
    programs.mkdir()
    server = shared_server()
    _program(programs / "ssh", f'exec {machines.folder}/ssh "$@"')
    _program(
        programs / "scp",
        f'shift; eval "to=\\${{$#}}"; for file in "$@"; do [ "$file" = "$to" ] || '
        f'cp "$file" {machines.folder}/"${{to%:}}"/home/; done',
    )
    # measuring steps and searching strategies take seconds, on two cores for all machines
    _program(
        programs / "topoopt",
        "verb=$1; shift\n"
        '[ "$verb" != run ] || verb="run --no-measure-steps --strategy-space data-parallel"\n'
        f'exec {shlex.join(server.command("topoopt"))} $verb "$@"',
    )
    script = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (machines.folder / machines.hosts[0] / "home/train.py").write_text(script)


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def follow(machines: Machines, commands: str) -> str:
    """What the commands print on the first host; they must succeed."""
    folder = machines.folder
    path = f"PATH={folder}/bin:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        [*machines.command(0, "env", path, "bash", "-c", f"set -e -o pipefail\n{commands}")],
        cwd=folder / machines.hosts[0] / "home",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make(namespaces: Namespaces, folder: Path, hosts: tuple[str, ...]) -> Machines:
    machines = Machines.make(namespaces, folder, hosts)
    prepare(machines)
    return machines


def sparks(namespaces: Namespaces, folder: Path, count: int) -> Machines:
    """A ring, which for three is a triangle."""
    machines = make(namespaces, folder, tuple(f"spark{n}" for n in range(count)))
    for host in range(count):
        machines.cable((host, SECOND), ((host + 1) % count, FIRST), WIRE, mtu=9000)
    machines.wait()
    machines.write_spark_trees()
    return machines


def pair(namespaces: Namespaces, folder: Path) -> Machines:
    machines = make(namespaces, folder, ("box0", "box1"))
    for number, port in enumerate(BOX_PORTS):
        ends: list[Socket] = [(0, (port,)), (1, (BOX_PORTS[number ^ 1],))]
        machines.cable(ends[0], ends[1], WIRE, mtu=9000)
    machines.wait()
    for number, host in enumerate(machines.hosts):
        addresses = machines.addresses(number)
        for card, bus in enumerate(("0000:41:00", "0000:81:00")):
            ports = BOX_PORTS[2 * card : 2 * card + 2]
            functions = [
                Function(
                    *(f"{bus}.{n}", name, f"mlx5_{2 * card + n}", f"p{n}"),
                    width=16,
                    best_width=16,
                    addresses=addresses[name],
                )
                for n, name in enumerate(ports)
            ]
            add_card(folder / host / "sys", f"b8ce:f603:00{card}1:2200", functions)
    return machines


def usb4(namespaces: Namespaces, folder: Path) -> Machines:
    machines = make(namespaces, folder, tuple(f"frame{n}" for n in range(4)))
    for host in range(4):
        machines.cable((host, ("thunderbolt0",)), ((host + 1) % 4, ("thunderbolt1",)), WIRE)
    machines.wait()
    return machines


RECIPES: dict[str, tuple[str, Callable[[Namespaces, Path], Machines]]] = {
    "sparks3": ("Three DGX Sparks", lambda namespaces, folder: sparks(namespaces, folder, 3)),
    "sparks4": ("Four DGX Sparks", lambda namespaces, folder: sparks(namespaces, folder, 4)),
    "pair": ("Two boxes with four cables", pair),
    "usb4": ("A ring of USB4 or Thunderbolt", usb4),
}


def check_cluster(machines: Machines, cables: int) -> None:
    cluster = load_cluster(machines.folder / machines.hosts[0] / "home/lab.yaml")
    assert [server.name for server in cluster.servers] == list(machines.hosts)
    assert len(cluster.cables) == cables
    for server in cluster.servers:
        assert all(zone_of(port.address) == port.interface for port in server.ports)


def check_job(machines: Machines, printed: str, links: int) -> None:
    """It has trained, and every link has carried a like part."""
    assert re.search(r"^.*loss \d", printed, re.MULTILINE), printed
    (metrics,) = (machines.folder / machines.hosts[0] / "home").glob("**/metrics.jsonl")
    events = map(json.loads, metrics.read_text().splitlines())
    sent = [event["sent_bytes"] for event in events if event["event"] == "link"]
    assert len(sent) == links
    assert min(sent) > 0.5 * max(sent) > 0, sent
    metrics.unlink()


@pytest.mark.slow
def test_three_sparks_use_both_functions_of_every_port(
    namespaces: Namespaces, tmp_path: Path
) -> None:
    section, machines = RECIPES["sparks3"][0], sparks(namespaces, tmp_path, 3)
    look, train = blocks(section, "sh")
    printed = follow(machines, look + train)
    check_cluster(machines, cables=6)
    cluster = load_cluster(tmp_path / "spark0/home/lab.yaml")
    assert {port.gbps for _, port in cluster.ports.values()} == {5.0}, "veth says 10, for two"
    assert printed.count("functions of one port each, links of one cable") == 3
    assert "on a switch" not in printed
    check_job(machines, printed, links=12)


@pytest.mark.exhaustive
def test_four_sparks_are_a_ring(namespaces: Namespaces, tmp_path: Path) -> None:
    section, machines = RECIPES["sparks4"][0], sparks(namespaces, tmp_path, 4)
    (look,) = blocks(section, "sh")
    printed = follow(machines, look.replace("doctor", "doctor --json"))
    report = json.loads(printed[printed.index("\n{") :])
    check_cluster(machines, cables=8)
    assert report["reach"]["spark0"] == {"spark1": "direct", "spark2": "ranks", "spark3": "direct"}
    assert len(report["links"]) == 8
    for link in report["links"]:
        assert (link["carrier"], link["gbps"]) == ("tcp", pytest.approx(5.0)) or (
            link["carrier"] == "verbs"
        )
        assert "shared by 2 links" in link["limit"]


@pytest.mark.exhaustive
def test_two_boxes_with_four_cables(namespaces: Namespaces, tmp_path: Path) -> None:
    section, machines = RECIPES["pair"][0], pair(namespaces, tmp_path)
    (commands,) = blocks(section, "sh")
    printed = follow(machines, commands)
    check_cluster(machines, cables=4)
    assert "functions of one port" not in printed
    check_job(machines, printed, links=8)


@pytest.mark.exhaustive
def test_a_ring_of_usb4_also_over_libfabric(namespaces: Namespaces, tmp_path: Path) -> None:
    section, machines = RECIPES["usb4"][0], usb4(namespaces, tmp_path)
    (commands,) = blocks(section, "sh")
    printed = follow(machines, commands)
    check_cluster(machines, cables=4)
    check_job(machines, printed, links=8)
    if missing := _fabric_missing():
        pytest.skip(missing)
    train = commands[commands.index("rank=0") :].replace(" run ", " run --transport fabric:tcp ")
    hosts = commands.partition("\n")[0]
    check_job(machines, follow(machines, f"{hosts}\nexport TOPOOPT_LOG=info\n{train}"), links=8)


def _fabric_missing() -> str:
    import torch  # noqa: F401  (the extension needs its libraries)

    from torch_topoopt import _backend

    return _backend.fabric_missing()
