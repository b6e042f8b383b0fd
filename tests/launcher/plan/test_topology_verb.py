"""`topoopt topology`: output, input files and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.refusals import named, refused

from torch_topoopt.launcher.main import main

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {
    *("servers", "degree", "duplex", "mode", "strides", "rings", "links", "mean_hops", "diameter"),
    *("max_link_load", "mean_link_load", "bandwidth_tax", "seconds"),
}


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["topology", *arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


@pytest.mark.parametrize(
    ("arguments", "strides", "mean", "longest"),
    [
        (("--degree", "4", "--ports", "simplex", "--mode", "paper"), [1, 3, 11, 37], 4.52, 8),
        (("--degree", "4", "--mode", "paper"), [1, 11], 5.48, 9),
        (("--degree", "4"), None, 3.51, 5),
        (("--degree", "4", "--mode", "released"), [1, 13], 5.62, 10),
        (("--degree", "8", "--mode", "released"), [1, 5, 13, 39], 2.96, 5),
    ],
)
def test_the_known_networks_of_128_servers(
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    strides: list[int] | None,
    mean: float,
    longest: int,
) -> None:
    found = results(capsys, "--servers", "128", *arguments)
    assert found.keys() >= KEYS
    assert found["strides"] == strides
    assert found["mean_hops"] == pytest.approx(mean, abs=0.005)
    assert found["diameter"] == longest
    assert found["bandwidth_tax"] > 1
    assert found["max_link_load"] >= found["mean_link_load"] > 0
    assert found["duplex"] == ("simplex" not in arguments)
    assert found["all_reduce_over_bound"] == pytest.approx(1)
    assert all(sorted(ring) == list(range(128)) for ring in found["rings"])
    transmitters = {(source, port) for source, _, port, _, _ in found["links"]}
    assert len(found["links"]) == len(transmitters) == 128 * found["degree"]
    assert {gbps for *_, gbps in found["links"]} == {10.0}


def test_twelve_servers_of_section_4_3(capsys: pytest.CaptureFixture[str]) -> None:
    found = results(capsys, "--servers", "12", "--degree", "4", "--ports", "simplex")
    assert found["strides"] == [1, 5, 7, 11]
    assert results(capsys, "--servers", "12", "--degree", "4")["strides"] == [1, 5]


def test_optimal_routing_loads_all_links_alike(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--servers", "16", "--degree", "4", "--mode", "released")
    plain = results(capsys, *asked)
    optimal = results(capsys, *asked, "--routing", "optimal")
    assert optimal["links"] == plain["links"]
    assert optimal["max_link_load"] < plain["max_link_load"]
    assert optimal["max_link_load"] == pytest.approx(optimal["mean_link_load"])


def test_more_ports_than_other_servers_must_be_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["topology", "--servers", "3", "--degree", "4"]) == 2
    assert named(capsys.readouterr().err, "parallel")
    found = results(capsys, "--servers", "3", "--degree", "4", "--parallel-links")
    assert found["strides"] == [1, 1]
    assert len(found["links"]) == 12


def test_a_demand_file_decides_the_links(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "demand.json"
    file.write_text(
        '{"version": 1, "groups": [{"servers": [0, 1, 2, 3, 4, 5, 6, 7], "size_bytes": 1000}],'
        ' "pairs": [{"source": 0, "target": 4, "size_bytes": 1000000000}]}'
    )
    shape = ("--servers", "8", "--degree", "4", "--bandwidth", "25Gbps")
    found = results(capsys, *shape, "--demand", str(file))
    assert found["strides"] is None
    assert [0, 4, 25.0] in [[a, b, gbps] for a, b, _, _, gbps in found["links"]]
    assert found["bandwidth_tax"] == pytest.approx(1, abs=1e-3)
    file.write_text(
        '{"version": 1, "pairs": {"all_to_all": [{"servers": [1, 3, 6], "size_bytes": 7}]}}'
    )
    sent = results(capsys, *shape, "--demand", str(file))
    assert sum(7 for a in (1, 3, 6) for b in (1, 3, 6) if a != b) <= (
        sent["mean_link_load"] * len(sent["links"]) + 1e-9
    )


def test_the_table_and_the_drawing_for_people(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawing = tmp_path / "network.svg"
    assert main(["topology", "--servers", "8", "--degree", "3", "--ports", "simplex",
                 "--plot", str(drawing)]) == 0  # fmt: skip
    out = capsys.readouterr().out
    for text in ("mean hops", "diameter", "bandwidth tax", "strides", "Moore bound"):
        assert text in out
    assert "0 → 1 → 2 → 3 → 4 → 5 → 6 → 7" in out
    assert f"drawing: {drawing}" in out
    assert drawing.read_text().startswith("<?xml")


def test_the_drawing_distinguishes_rings_and_on_simplex_both_directions(tmp_path: Path) -> None:
    drawing = tmp_path / "network.svg"
    shape = ["topology", "--servers", "8", "--degree", "4", "--plot", str(drawing)]
    counts = []
    for more in ([], ["--ports", "simplex"]):
        assert main([*shape, *more]) == 0
        counts.append(drawing.read_text().count('id="patch_'))
    # on duplex all cables are one collection of lines; on simplex each of 32 links is an arrow
    assert counts[1] - counts[0] == 32


def test_failures_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Four rings over eight servers: any cable or server costs a quarter of the bandwidth."""
    shape = ("--servers", "8", "--degree", "4")
    assert "failures" not in results(capsys, *shape)
    found = results(capsys, *shape, "--failures")["failures"]
    assert found["links"]["losses"] == 16
    assert found["links"]["disconnecting"] == found["servers"]["disconnecting"] == 0
    assert found["links"]["all_reduce_bandwidth"] == pytest.approx(0.75)
    assert main(["topology", *shape, "--failures"]) == 0
    assert "Worst single-failure impact" in capsys.readouterr().out


def test_help_says_what_is_wired_for_without_a_demand(capsys: pytest.CaptureFixture[str]) -> None:
    with refused(SystemExit, 0):
        main(["topology", "--help"])
    out = capsys.readouterr().out
    assert "Without --demand: one AllReduce of 1 GB over all servers" in out
    assert '"all_to_all"' in out


@pytest.mark.parametrize(
    ("arguments", "demand", "tokens"),
    [
        (("--servers", "1", "--degree", "1"), None, ("servers", 2)),
        (("--servers", "8", "--degree", "0"), None, ("degree", 1)),
        (("--servers", "8", "--degree", "8"), None, ("degree", 8, 7)),
        (("--servers", "8", "--degree", "1"), None, ("degree", 1, 8)),
        (("--servers", "8", "--mode", "paper", "--operations", "3"), None,
         ("operations", "mode paper")),
        (("--servers", "8", "--degree", "2", "--mode", "best", "--operations", "4e6", "--routing",
          "coin-change"), None, ("routing",)),
        (("--servers", "8", "--degree", "2", "--plot", "x.txt"), None, ("plot", "x.txt")),
        (("--servers", "8", "--degree", "2", "--demand", "/x/y"), None, ("/x/y", "No such file")),
        ((), '{"version": 1}', ("groups", "pairs", "empty")),
        ((), '{"version": 1, "pairs": [{"source": 0, "target": 9, "size_bytes": 1}]}',
         ("demand.pairs[0]", "server 9", "0..7")),
        ((), '{"version": 1, "groups": [{"servers": [0, 8], "size_bytes": 1}]}',
         ("demand.groups[0].servers", "server 8", "0..7")),
        ((), '{"version": 1, "groups": [{"servers": [0, 1], "size_bytes": 0}]}',
         ("groups[0].size_bytes", 0)),
        ((), '{"version": 1, "groups": [{"servers": [0, 1], "size_bytes": -4}]}',
         ("groups[0].size_bytes", -4, 0)),
        ((), '{"version": 1, "groups": [{"servers": [0, 1], "size_bytes": NaN}]}',
         ("groups[0].size_bytes", "nan")),
        ((), '{"version": 1, "pairs": {"all_to_all": [{"servers": [0, 0], "size_bytes": 1}]}}',
         ("demand.pairs.all_to_all[0].servers", "[0, 0]", "twice")),
        ((), '{"version": 1, "pairs": {"all_to_all": [{"servers": [0, 1], "size_bytes": 0}]}}',
         ("pairs.all_to_all[0].size_bytes", 0)),
        ((), '{"version": 1, "sizes": []}', ("sizes", "unknown")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    demand: str | None,
    tokens: tuple[object, ...],
) -> None:
    if demand is not None:
        file = tmp_path / "demand.json"
        file.write_text(demand)
        arguments = ("--servers", "8", "--degree", "2", "--demand", str(file))
    assert main(["topology", *arguments]) == 2
    captured = capsys.readouterr()
    assert named(captured.err, *tokens)
    assert captured.err.count("\n") == 1
    assert captured.out == ""
