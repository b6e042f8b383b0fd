"""`topoopt doctor` as people start it: one host, a cluster over a command like ssh, repairs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.fabric.real_hosts import (
    LIMIT_S,
    Hosts,
    cluster_of,
    real_hosts,
    wait_until_up,
)
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.launcher import main
from torch_topoopt.tools.doctor.facts import HostFacts
from torch_topoopt.tools.doctor.hosts import RemoteHost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.plans import RingPlan

_TOPOOPT = (sys.executable, "-m", "torch_topoopt.launcher.main")
_SSH = """\
#!/bin/sh
# Stands for ssh: takes an address and a command, and runs that on the host.
[ "$1" = -- ] || exit 250
shift
case "$1" in
{hosts}
*) echo "ssh: connect to host $1: No route to host" >&2; exit 255 ;;
esac
shift
exec nsenter --net=/run/netns/"$name" sh -c "$*"
"""


@pytest.fixture
def hosts(ring_plan: RingPlan, tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts and a cable; p0 of h1 is up and has its address, that of h0 is down."""
    plan = ring_plan(2)
    with real_hosts(plan, tmp_path, cluster_of(plan, gbps=1)) as made:
        made.file.save(tmp_path / "lab.yaml")
        made.on(1, *f"ip address add {made.file.servers[1].ports[0].address} dev p0".split())
        made.interface(1, 0, "up")
        yield made


def _ssh(hosts: Hosts, known: int = 2) -> str:
    cases = [
        f"{server.management}) name={hosts.names[number]} ;;"
        for number, server in enumerate(hosts.file.servers[:known])
    ]
    path = hosts.folder / "like-ssh"
    path.write_text(_SSH.format(hosts="\n".join(cases)))
    path.chmod(0o755)
    return str(path)


def _doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_TOPOOPT, "doctor", *words],
        capture_output=True,
        text=True,
        timeout=limit_s(LIMIT_S),
        check=False,
    )


def _words(hosts: Hosts, ssh: str) -> list[str]:
    remote = " ".join(_TOPOOPT)
    cluster = str(hosts.folder / "lab.yaml")
    return ["--cluster", cluster, "--ssh-command", ssh, "--remote-command", remote]


def test_a_cluster_is_read_then_repaired(hosts: Hosts) -> None:
    before = [hosts.state(number) for number in range(2)]
    words = _words(hosts, _ssh(hosts))
    done = _doctor(*words)
    assert done.returncode == 1, done.stderr
    assert "error: h0:p0: p0 is down" in done.stdout
    assert "  h0: ip link set dev p0 up\n" in done.stdout
    assert "  h0: ip address add 10.77.0.1/30 dev p0\n" in done.stdout
    assert "who reaches whom" in done.stdout
    assert [hosts.state(number) for number in range(2)] == before
    done = _doctor(*words, "--apply", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["hosts"] == ["h0", "h1"]
    assert {"h0: ip link set dev p0 up", "h0: ip address add 10.77.0.1/30 dev p0"} <= set(
        result["applied"]
    )
    assert result["reach"] == {"h0": {"h1": "direct"}, "h1": {"h0": "direct"}}
    assert not [f for f in result["findings"] if f["level"] == "error"]


def test_a_host_that_does_not_answer_is_a_finding(hosts: Hosts) -> None:
    done = _doctor(*_words(hosts, _ssh(hosts, known=1)), "--json")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["hosts"] == ["h0"]
    silent = next(f for f in result["findings"] if f["check"] == "host")
    assert silent["server"] == "h1"
    assert silent["what"].endswith("ssh: connect to host 10.200.0.2: No route to host")
    assert result["reach"]["h1"] == {"h0": "?"}


def test_a_name_that_ssh_would_take_for_an_option_is_refused(
    ring_plan: RingPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, hacked = tmp_path / "lab.yaml", tmp_path / "hacked"
    text = cluster_of(ring_plan(2)).to_yaml()
    name = f"-oProxyCommand=touch {hacked}"
    path.write_text(text.replace("management: 10.200.0.2", f'management: "{name}"'))
    assert main.main(["doctor", "--cluster", str(path)]) == 2
    captured = capsys.readouterr()
    assert "servers[1].management: " in captured.err
    assert captured.err.count("\n") == 1
    file = cluster_of(ring_plan(2))
    remote = RemoteHost("h1", name, file, ("ssh",), "topoopt")
    with refused(ValueError, "name", "address"):
        remote.facts(probing=True)
    assert not hacked.exists()


def test_one_host_prints_its_facts_and_finds_itself(hosts: Hosts) -> None:
    words = ("doctor", "--facts", "--cluster", str(hosts.folder / "lab.yaml"))
    facts = HostFacts.from_json(hosts.on(1, *_TOPOOPT, *words))
    assert facts.server == "h1"
    assert facts.owner("10.77.0.2") is not None
    assert facts.cables == ()  # no carrier: the other end is down


def test_an_ordinary_user_sees_what_could_not_be_checked(hosts: Hosts) -> None:
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if shutil.which("setpriv") is None:
        pytest.skip("this needs the program setpriv (Debian: util-linux)")
    if subprocess.run(
        [*user, sys.executable, "-c", "import torch_topoopt"], timeout=limit_s(60)
    ).returncode:
        pytest.skip("here, an ordinary user may not start this Python")
    cluster = (hosts.folder / "lab.yaml").read_text()
    hosts.on(0, *f"ip address add {hosts.file.servers[0].ports[0].address} dev p0".split())
    hosts.interface(0, 0, "up")
    hosts.interface(1, 0, "mtu", "1400")
    wait_until_up(hosts)
    words = ("doctor", "--cluster", "-", "--local", "--json")
    output = hosts.on(1, *user, *_TOPOOPT, *words, given=cluster, check=False)
    checks = {finding["check"] for finding in json.loads(output)["findings"]}
    assert {"firewall-unknown", "cabling-unknown", "mtu"} <= checks
    done = subprocess.run(
        [*hosts.inside(1), *user, *_TOPOOPT, *words, "--apply"],
        input=cluster,
        capture_output=True,
        text=True,
        timeout=limit_s(LIMIT_S),
        check=False,
    )
    assert done.returncode == 2
    assert named(done.stderr, "h1", "root", "nothing was changed")
    assert "mtu 1400" in hosts.on(1, *["ip", "link", "show", "dev", "p0"])


def test_this_host_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--no-probes"]) in (0, 1)
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 host: ")


def test_bad_input_is_one_line(
    ring_plan: RingPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lab.yaml"
    cluster_of(ring_plan(4)).save(path)
    for words, message in (
        (["--host", "h0"], "'h0' names a server of a cluster file; add --cluster FILE"),
        (
            ["--cluster", str(path), "--local", "--host", "h9"],
            "'h9' is not a server of cluster lab",
        ),
        (
            ["--cluster", str(path), "--local"],
            "it is unclear which server of cluster lab this host",
        ),
        (["--cluster", str(path), "--no-probes"], "no-probes: hosts are checked by probes"),
        (["--cluster", str(tmp_path / "no.yaml")], "cannot read this cluster file"),
    ):
        assert main.main(["doctor", *words]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1


def test_an_ordinary_user_is_shown_how_to_start_it_as_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [sys.executable])
    for user, shown in ((1000, True), (0, False)):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        assert main.main(["doctor", "--no-probes"]) in (0, 1)
        hint = f"as root the doctor sees more: sudo {sys.executable} doctor --no-probes"
        assert (hint in capsys.readouterr().out) == shown
