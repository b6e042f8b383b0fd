"""`topoopt run --cluster`: values from the file, from its options, and errors."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.refusals import named, refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.rendezvous import cluster_site
from torch_topoopt.launcher.rendezvous.cluster_site import ClusterSite
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from pathlib import Path

    from support.launcher import Launcher
    from support.plans import RingPlan


def make_cluster(managements: list[str], *, accelerators: int = 1) -> ClusterFile:
    """A ring; servers with the same management address are on one machine."""
    count = len(managements)
    servers = tuple(
        ServerEntry(
            f"h{i}",
            management,
            accelerators,
            host=f"box-{management}",
            ports=(
                PortEntry("left", f"10.1.{i}.1/30"),
                PortEntry("right", f"10.1.{(i + 1) % count}.2/30"),
            ),
        )
        for i, management in enumerate(managements)
    )
    cables = tuple((f"h{i}:right", f"h{(i + 1) % count}:left") for i in range(count))
    return ClusterFile(1, "lab", servers, cables).validate()


ELSEWHERE = ["203.0.113.1", "203.0.113.2", "203.0.113.3"]  # RFC 5737: of no host


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_NPROC_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "train.py"
    script.touch()

    def run(*options: str, managements: list[str] = ELSEWHERE, accelerators: int = 1):
        path = tmp_path / "lab.yaml"
        make_cluster(managements, accelerators=accelerators).save(path)
        return run_options.parse(["--cluster", str(path), *options, str(script)])

    return run


def test_the_file_says_what_torchrun_asks_for(parse) -> None:
    options = parse("--node-rank", "2", accelerators=4)
    arguments = options.torchrun
    assert (arguments.nnodes, arguments.node_rank, arguments.nproc_per_node) == ("3", 2, "4")
    assert (arguments.master_addr, arguments.master_port) == ("203.0.113.1", 29500)
    assert arguments.local_addr == "203.0.113.3"
    assert options.site.name == "h2"
    assert options.cluster.servers == 3
    assert options.cluster.accelerators_per_server == 4


def test_a_host_finds_itself_by_its_management_address(
    parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only an address of this host can be bound to. Which ones it has is not the test's to say.
    original = socket.socket.bind

    def bind(self: socket.socket, address: tuple[str, int]) -> None:
        original(self, ("127.0.0.1", 0) if address[0] == "203.0.113.2" else address)

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "bind", bind)
        assert parse().site.name == "h1"
        with refused(InputError, "node-rank", "h0", "h1"):
            parse(managements=["203.0.113.2", "203.0.113.2"])
    with refused(InputError, "h0", "203.0.113.1"):
        parse()


@pytest.mark.parametrize(
    ("given", "where"),
    [
        (["--rdzv-endpoint", "10.0.0.9:4711"], ("10.0.0.9", 4711)),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "lead"], ("lead", 29500)),
        (["--master-addr", "10.0.0.9"], ("10.0.0.9", 29500)),
        (["--master-port", "4711"], ("203.0.113.1", 4711)),
    ],
)
def test_the_hosts_meet_where_the_options_say(parse, given: list[str], where: object) -> None:
    site = parse("--node-rank", "0", *given).site
    assert (site.master_address, site.master_port) == where


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (["--nnodes", "4"], ("nnodes", 4, 3)),
        (["--node-rank", "3"], ("node-rank", 3, "0..2")),
        (["--nproc-per-node", "2"], ("nproc-per-node", 2, 1)),
        (["--servers", "3"], ("servers", "--servers")),
        (["--accelerators-per-server", "1"], ("accelerators-per-server", "cluster file")),
        (["--standalone"], ("standalone", "hosts")),
        (["--nnodes", "2:4"], ("nnodes", "2:4", 3)),
        (["--nnodes", "4:3"], ("nnodes", "4:3", "MIN", "1..3")),
        (["--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=x"], ("rdzv-conf", "x")),
        (["--rdzv-backend", "etcd"], ("rdzv-backend", "etcd")),
        (
            ["--rdzv-endpoint", "a:b"],
            ("rdzv-endpoint", "a:b", "host:port"),
        ),
        (["--rdzv-endpoint", "a:1", "--master-port", "1"], ("rdzv-endpoint", "--master-addr")),
        (["--master-port", "0"], ("master-port", 0, "1..65535")),
        (["--meet-timeout", "0"], ("meet-timeout", 0)),
    ],
)
def test_what_contradicts_the_file_is_an_error(
    parse, given: list[str], tokens: tuple[object, ...]
) -> None:
    rank = [] if "--node-rank" in given else ["--node-rank", "0"]
    with pytest.raises(InputError) as error:
        parse(*rank, *given)
    assert named(str(error.value), *tokens)


def test_a_plan_must_fit_the_cables(parse, ring_plan: RingPlan, tmp_path: Path) -> None:
    ring_plan(4).save(tmp_path / "four.json")
    ring_plan(3).save(tmp_path / "three.json")
    assert parse("--node-rank", "0", "--plan", str(tmp_path / "three.json")).plan == ring_plan(3)
    with refused(FabricError, 4, 3):
        parse("--node-rank", "0", "--plan", str(tmp_path / "four.json"))
    with refused(InputError, "three.json", 1):
        parse("--node-rank=0", "--plan", str(tmp_path / "three.json"), accelerators=2)


def test_a_run_without_a_model_plans_for_a_trace_or_for_nothing_known(
    parse, tmp_path: Path
) -> None:
    emulated = run_options.parse(["--servers", "2", "--model", "none", str(tmp_path / "train.py")])
    for options in (parse("--node-rank", "0", "--model", "none"), emulated):
        source = options.source
        assert (source.model, source.script, source.unknown) == ("", None, "--model none")
    traced = parse("--node-rank", "0").source.script
    assert (traced.name, traced.limits.time_s) == (str(tmp_path / "train.py"), 120.0)


def test_a_first_server_that_is_not_there_is_named(parse) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        options = parse("--node-rank=1", "--rdzv-endpoint", endpoint, "--meet-timeout=0.3")
        with pytest.raises(FabricError) as error:
            ClusterSite.join(options.site)
    assert str(error.value).startswith(
        f"h0 (node rank 0, 203.0.113.1) does not hold the job's store at {endpoint} (Conn"
    )


def test_a_master_port_that_is_taken_is_an_error(parse) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        endpoint = f"127.0.0.1:{port}"
        options = parse("--node-rank=0", "--rdzv-endpoint", endpoint, "--meet-timeout=5")
        with refused(FabricError, "master-port", port):
            ClusterSite.join(options.site)


@pytest.mark.parametrize(("answer", "reason"), [("", "no answer within"), ("HTTP/1.1 400\n", "")])
def test_another_service_at_the_master_port_is_one_line_in_time(
    parse, answer: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def serve() -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as connections:
            while True:
                connection, _ = service.accept()
                connections.enter_context(connection).sendall(answer.encode())

    before = threading.enumerate()
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(60)
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        endpoint = f"127.0.0.1:{service.getsockname()[1]}"
        options = parse("--node-rank=1", "--rdzv-endpoint", endpoint, "--meet-timeout=1.5")
        with pytest.raises(FabricError) as error:
            ClusterSite.join(options.site)
    said = str(error.value)
    assert said.startswith(
        f"what listens at {endpoint} is not the store of h0 (node rank 0, 203.0.113.1) ({reason}"
    )
    assert said.endswith("): another service? choose another --master-port, on all hosts")
    assert "\n" not in said
    if answer:  # an attempt that fails while the interpreter ends would abort the process
        assert {*threading.enumerate()} <= {*before, serving}
    assert capfd.readouterr().err == ""


def test_server_0_listens_at_the_address_where_the_hosts_meet_and_nowhere_else(parse) -> None:
    with socket.create_server(("127.0.0.7", 0)) as unused:
        port = unused.getsockname()[1]
    options = parse("--node-rank=0", "--rdzv-endpoint", f"127.0.0.7:{port}")
    store = cluster_site._open_store(options.site, time.monotonic() + 5)
    assert store.port == port
    socket.create_connection(("127.0.0.7", port), timeout=5).close()
    with refused(OSError, "refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_name_of_server_0_that_no_other_host_can_reach_is_refused(
    parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry])
    options = parse("--node-rank=0", "--rdzv-endpoint", "lead:29500")
    with refused(FabricError, "master-addr", "lead", "127.0.1.1"):
        ClusterSite.join(options.site)


def test_a_signal_ends_a_host_that_waits_for_a_silent_service(launcher: Launcher) -> None:
    (launcher.folder / "train.py").touch()
    make_cluster(ELSEWHERE).save(launcher.folder / "lab.yaml")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        process = launcher.start(
            "run", "--cluster", "lab.yaml", "--node-rank", "1", "--rdzv-endpoint", endpoint,
            "--meet-timeout", "3600", "train.py",
        )  # fmt: skip
        silent.settimeout(60)
        probe, _ = silent.accept()
        meeting, _ = silent.accept()  # torch's store, which now waits for an answer
        with probe, meeting:
            assert meeting.recv(1)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=limit_s(30))
    assert process.returncode == 128 + signal.SIGTERM
    assert err.splitlines()[-1] == "topoopt: stopped by SIGTERM"
    assert "frame #" not in out + err
