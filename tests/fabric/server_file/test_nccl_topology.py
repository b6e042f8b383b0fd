"""Topologies as NCCL and RCCL write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.nccl_topologies import dgx, gpu, nic, system
from support.refusals import refused

from torch_topoopt.fabric.server_file.load import load_server
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.fabric.server_file.description import ServerDescription

GEN5 = 32 * 128 / 130  # Gb/s of a lane


def read(folder: Path, text: str) -> ServerDescription:
    path = folder / "topology.xml"
    path.write_text(text)
    return load_server(path)


def test_accelerators_behind_nvlink_switches(tmp_path: Path) -> None:
    server = read(tmp_path, dgx())
    assert (server.accelerators, server.joined_by) == (8, "NVLink")
    assert server.inside_gbps == 18 * 25 * 8  # H100: as in the table of accelerators
    assert [port.name for port in server.ports] == [*(f"mlx5_{i}" for i in range(8)), "eth0"]
    assert [port.gbps for port in server.data_ports] == [400.0] * 8


def test_a_pcie_link_limits_its_ports(tmp_path: Path) -> None:
    narrow = system(
        gpu("0000:01:00.0"),
        nic("0000:02:00.0", ("a", 200000), width=4),
        nic("0000:03:00.0", ("b", 100000), width=8),
        nic("0000:03:00.1", ("c", 200000), width=8),
    )
    a, b, c = read(tmp_path, narrow).ports
    assert a.gbps == pytest.approx(4 * GEN5)
    assert (b.gbps, b.pcie_gbps) == (100, pytest.approx(4 * GEN5))  # half of the card's link
    assert c.gbps == pytest.approx(4 * GEN5)


def test_bridged_pairs_are_joined_by_pcie(tmp_path: Path) -> None:
    cards = [f"0000:0{i}:00.0" for i in range(4)]
    pairs = [gpu(cards[i], sm=86, links={cards[i ^ 1]: 4}, speed="16.0 GT/s") for i in range(4)]
    server = read(tmp_path, system(*pairs))
    assert server.joined_by == "PCIe"
    assert server.inside_gbps == pytest.approx(16 * 16 * 128 / 130)
    assert not server.ports


def test_cubes_and_xgmi_are_joined_by_all_their_links(tmp_path: Path) -> None:
    cards = [f"0000:0{i}:00.0" for i in range(4)]
    mesh = [gpu(own, sm=70, links={c: 2 for c in cards if c != own}) for own in cards]
    assert read(tmp_path, system(*mesh)).inside_gbps == 6 * 25 * 8
    radeon = [
        gpu(own, links={c: 1 for c in cards if c != own}, tag="xgmi", gcn="gfx942:sramecc+")
        for own in cards
    ]
    server = read(tmp_path, system(*radeon))
    assert (server.joined_by, server.inside_gbps) == ("xGMI", 3 * 64 * 8)


def test_ports_that_nccl_does_not_use_are_none(tmp_path: Path) -> None:
    text = system(gpu("0000:01:00.0"), nic("0000:02:00.0", ("a", -1)))
    assert read(tmp_path, text).data_ports[0].gbps is None
    assert not read(tmp_path, text.replace('dev="0" speed', "speed")).ports


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<system", ("XML",)),
        ('<system version="1"/>', ("gpu",)),
        ('<system><cpu host_hash="1"/><cpu host_hash="2"/></system>', ("host_hash", 2)),
        (system(gpu("0000:01:00.0", sm="x", links={"0000:02:00.0": 1})), ("gpu.sm", "'x'")),
        (system(gpu("0000:01:00.0", sm=52, links={"0000:02:00.0": 1})), ("gpu.sm", 52)),
        (system("<pci><gpu/></pci>"), ("pci.busid", "missing")),
        ('<graphs version="1"/>', ("NCCL_GRAPH_FILE", "topology of NCCL")),
    ],
)
def test_bad_topologies_are_one_line(tmp_path: Path, text: str, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, "topology.xml", *tokens):
        read(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with refused(DocumentError, tmp_path / "none.xml"):
        load_server(tmp_path / "none.xml")
