"""`topoopt bench link` on a cable between namespaces that is shaped to 50 Mb/s."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import Hosts, cluster_of, real_hosts, wait_until_up
from support.refusals import named, refused

from torch_topoopt.fabric.netns.shaper import goodput_share, paced_share
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.main import main
from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.tools.bench.link import command as link
from torch_topoopt.tools.bench.link.end import pingpong_s

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.plans import RingPlan

GBPS = 0.05
TOLERANCE = 0.03
_SSH = """\
#!/bin/sh
[ "$1" = -- ] || exit 250
case "$2" in
{hosts}
esac
exec nsenter --net=/run/netns/"$name" sh -c "$3"
"""


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (("h0",), ("servers", 1)),
        (("h0", "h1", "--all"), ("all",)),
        (("h0", "h9"), ("h9",)),
        (("h0", "h2"), ("h0", "h2")),
        (("h0", "h1", "--port", "p7"), ("p7", "p0")),
        (("--all", "--window", "0"), ("window", 0)),
    ],
)
def test_cables_that_are_not_there_are_refused(
    words: tuple[str, ...], tokens: tuple[object, ...], ring_plan: RingPlan, tmp_path: Path
) -> None:
    cluster_of(ring_plan(4)).save(tmp_path / "lab.yaml")
    with refused((InputError, DocumentError), *tokens):
        link.main([*words, "--cluster", str(tmp_path / "lab.yaml")])


@pytest.fixture
def hosts(ring_plan: RingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two hosts with a cable, shaped in both directions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = ring_plan(2)
    with real_hosts(plan, tmp_path, cluster_of(plan, gbps=GBPS)) as made:
        for server, entry in enumerate(made.file.servers):
            for port in entry.ports:
                made.on(server, *f"ip address add {port.address} dev {port.interface}".split())
                made.on(server, *f"ip link set {port.interface} up".split())
                shape = f"dev {port.interface} root tbf rate 50mbit burst 16kb latency 20ms"
                made.on(server, *f"tc qdisc add {shape}".split())
        wait_until_up(made)
        made.file.save(tmp_path / "lab.yaml")
        cases = "\n".join(
            f"{server.management}) name={made.names[number]} ;;"
            for number, server in enumerate(made.file.servers)
        )
        (tmp_path / "ssh").write_text(_SSH.format(hosts=cases))
        (tmp_path / "ssh").chmod(0o755)
        yield made


def measure(hosts: Hosts, *words: str) -> int:
    remote = f"{sys.executable} -m torch_topoopt.launcher.main"
    how = ("--ssh-command", str(hosts.folder / "ssh"), "--remote-command", remote)
    return main(["bench", "link", *words, "--cluster", str(hosts.folder / "lab.yaml"), *how])


@pytest.mark.alone
def test_a_shaped_cable_carries_what_the_shape_allows(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(hosts, "h0", "h1", "--port", "p0", "--json") == 0
    (cable,) = json.loads(capsys.readouterr().out)["cables"]
    assert cable["ends"] == ["h0:p0", "h1:p0"]
    alone, together = GBPS * goodput_share(1500), GBPS * paced_share(1500)
    for direction in cable["directions"]:
        assert [rate["connections"] for rate in direction["rates"]] == [1, 2, 4]
        for rate in direction["rates"]:
            assert rate["gbps"] == pytest.approx(alone, rel=TOLERANCE)
            assert rate["together_gbps"] == pytest.approx(together, rel=TOLERANCE)
        assert direction["should_gbps"] == pytest.approx(alone, rel=1e-6)
        assert named(direction["limit"], "bandwidth")
    small, large = cable["latency"]
    assert 0 < small["seconds"] < large["seconds"]
    assert cable["libfabric"] is None, "there is no RDMA device"
    assert cable["damaged_frames"] == 0


_PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64k     20      =20      2.5m        0.01s    219.15     299.05       0.00
"""


def test_the_times_of_libfabric_s_program_are_read() -> None:
    assert pingpong_s(_PINGPONG) == pytest.approx(299.05e-6)
    assert pingpong_s("fi_getinfo: -61") is None
