"""`topoopt bench`: measured on emulated servers, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from plain_hosts import Hosts, make_hosts
from support.launcher import forked
from support.limits import limit_s
from support.plain_namespaces import Namespaces
from support.refusals import named

from torch_topoopt.launcher.main import main
from torch_topoopt.tools.bench.options import OPERATIONS

if TYPE_CHECKING:
    from pathlib import Path

    from support.launcher import Launcher


@pytest.mark.slow
def test_all_operations_beside_gloo_link_by_link(launcher: Launcher, tmp_path: Path) -> None:
    sizes = ("-b", "96K", "-e", "192K", "-f", "2", "-n", "2", "-w", "0")
    done = launcher.run(
        *("bench", "all", "--servers", "3", "--bandwidth", "200Mbps", *sizes),
        *("--peer", "gloo", "--links"),
        *("-J", tmp_path / "out.json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    results = found["results"]
    assert [r["operation"] for r in results] == [
        *(name for name in OPERATIONS[:-1] for _ in range(2)),
        "barrier",
    ]
    assert found["out_of_bounds"] == {"count": 0, "okay": True}
    assert found["ranks"] == 3
    for result in results:
        for form in ("out_of_place", "in_place"):
            timed = result[form]
            assert timed is None or (timed["time"] > 0 and timed["nwrong"] == 0)
            assert (timed is None) == (form not in result["peer"])
    reduced = [k for k in found["links"] if (k["operation"], k["size"]) == ("all_reduce", 196608)]
    assert {(k["source"], k["target"]) for k in reduced} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }
    assert {k["theory_bytes"] for k in reduced} == {196608 * 2 / 3}
    assert all(k["sent_bytes"] == pytest.approx(196608 * 2 / 3, rel=0.01) for k in reduced)
    assert done.stdout.count("# Out of bounds values : 0 OK") == len(OPERATIONS)
    assert "Time of each stage" not in done.stdout + done.stderr
    assert named(done.stdout, "gloo", "planned links")
    assert "gloo" not in done.stderr


def test_json_is_printed_alone(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run(
        *("bench", "all_gather", "--servers", "2", "-b", "1K", "-e", "1K", "-n", "1", "--json"),
        *("--run-dir", tmp_path / "kept", "--bandwidth", "100Mbps", "-c", "0"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["results"][0]["in_place"]["nwrong"] is None
    assert found["config"]["limited"]
    assert (tmp_path / "kept" / "report.html").is_file()
    assert "all_gather, 2 ranks" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (("all_reduce",), ("servers", "missing")),
        (("allreduce", "--servers", "2"), ("operation", "allreduce", "all_reduce")),
        (("--servers", "2", "--nnodes", "4", "all_reduce"), ("--nnodes",)),
        (("--standalone", "4"), ("--standalone",)),
        (("--servers", "2", "4"), ("operation", 4, "all_reduce")),
        (("all_reduce", "--servers", "2", "-b", "x"), ("'x'",)),
        (("all_reduce", "--servers", "2", "-b", "2K", "-e", "1K"), ("maxbytes", 1024)),
        (("all_reduce", "--servers", "2", "-f", "1"), ("stepfactor", 2)),
        (("all_reduce", "--servers", "2", "-n", "0"), ("iters", 1)),
        (("broadcast", "--servers", "2", "-r", "2"), ("root", 2, "0..1")),
        (("all_reduce", "--servers", "2", "-J", "/no/such/file"), ("json-file", "/no/such/file")),
        (("all_reduce", "--servers", "2", "-d", "fp8"), ("choice", "fp8")),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], tokens: tuple[object, ...]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert named(capsys.readouterr().err, *tokens)


def test_two_hosts_of_a_cluster_file(launcher: Launcher) -> None:
    """The same command on each; rank 0's host prints the table."""
    with Namespaces() as namespaces:
        hosts = make_hosts(2, [(0, 1), (0, 1)], Hosts(namespaces))
        hosts.cluster().save(launcher.folder / "cluster.yaml")
        started = [
            launcher.start(
                *("bench", "all_reduce", "--cluster", "cluster.yaml", "--nnodes", "2"),
                *("-b", "64K", "-e", "64K", "-n", "2", "--node-rank", str(host)),
                command=("ip", "netns", "exec", hosts.names[host], *forked()),
            )
            for host in range(2)
        ]
        printed = []
        for process in started:
            out, err = process.communicate(timeout=limit_s(100.0))
            assert process.returncode == 0, err
            printed.append(out)
    assert "# Out of bounds values : 0 OK" in printed[0]
    assert printed[1] == ""
