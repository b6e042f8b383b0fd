"""Servers in InfraGraph, as JSON and as YAML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.refusals import refused

from torch_topoopt.fabric.server_file.load import load_server
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path


def link(name: str, **bandwidth: float) -> dict[str, Any]:
    return {"name": name, "physical": {"bandwidth": bandwidth}}


def edge(a: str, b: str, name: str, scheme: str = "many2many") -> dict[str, Any]:
    return {"ep1": {"component": a}, "ep2": {"component": b}, "link": name, "scheme": scheme}


def component(name: str, count: int, choice: str) -> dict[str, Any]:
    return {"name": name, "count": count, "choice": choice}


def infrastructure() -> dict[str, Any]:
    """Two servers of eight accelerators and four cards with two ports, at a switch."""
    server = {
        "name": "box",
        "components": [
            component("cpu", 2, "cpu"),
            component("xpu", 8, "xpu"),
            component("nvsw", 4, "switch"),
            component("slot", 4, "custom"),
            component("card", 4, "device"),
            component("manage", 1, "nic"),
        ],
        "links": [
            link("nvlink", gigabytes_per_second=100),
            link("pcie", gigabits_per_second=252),
            {"name": "upi"},
        ],
        "edges": [
            edge("cpu", "cpu", "upi"),
            edge("xpu[0:8]", "nvsw[0:4]", "nvlink"),
            edge("cpu[0]", "slot[:2]", "pcie"),
            edge("cpu[1]", "slot[2:4]", "pcie"),
            edge("slot", "card", "pcie", "one2one"),
            edge("xpu", "cpu[0]", "pcie"),
        ],
    }
    card = {
        "name": "card",
        "components": [component("asic", 1, "cpu"), component("port", 2, "port")],
        "links": [],
        "edges": [],
    }
    outside = {
        "ep1": {"instance": "box[0:2]", "component": "card[0:4].port[0:2]"},
        "ep2": {"instance": "leaf", "component": "port"},
        "link": "eth",
        "scheme": "one2one",
    }
    return {
        "name": "lab",
        "devices": [server, card, {"name": "leaf", "components": [component("port", 16, "port")]}],
        "links": [link("eth", gigabits_per_second=200)],
        "instances": [
            {"name": "box", "device": "box", "count": 2},
            {"name": "leaf", "device": "leaf", "count": 1},
        ],
        "edges": [outside],
    }


@pytest.mark.parametrize("dumps", [json.dumps, yaml.safe_dump])
def test_a_server_with_composed_cards(tmp_path: Path, dumps: Any) -> None:
    path = tmp_path / "infra"
    path.write_text(dumps(infrastructure()))
    server = load_server(path)
    assert (server.accelerators, server.joined_by, server.inside_gbps) == (8, "nvlink", 3200)
    assert [port.name for port in server.data_ports] == [
        f"card.{i}.{j}" for i in range(4) for j in range(2)
    ]
    assert {(p.speed_gbps, p.pcie_gbps, p.gbps) for p in server.data_ports} == {(200, 126, 126)}
    assert server.ports[0].name == "manage.0"


def test_accelerators_in_a_ring_and_links_without_a_rate(tmp_path: Path) -> None:
    value = infrastructure()
    server = value["devices"][0]
    server["edges"] = [edge("xpu", "xpu", "nvlink", "ring")]
    path = tmp_path / "infra.json"
    path.write_text(json.dumps({"infrastructure": value}))
    assert load_server(path).inside_gbps == 2 * 800
    server["links"] = [{"name": "nvlink"}]
    path.write_text(json.dumps(value))
    found = load_server(path)
    assert (found.joined_by, found.inside_gbps) == ("nvlink", None)
    assert found.data_ports[0].gbps == 200


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        (lambda value: value["devices"].pop(0), ("devices", "none")),
        (lambda value: value["devices"].append(value["devices"][0]), ("box, box",)),
        (lambda value: value["devices"][0]["edges"].append(edge("gpu", "cpu", "pcie")), ("'gpu'",)),
        (lambda value: value["devices"][0]["components"][0].pop("count"), ("InfraGraph", "count")),
        (lambda value: value.pop("instances"), ("InfraGraph", "instances")),
    ],
)
def test_bad_infrastructures_are_one_line(
    tmp_path: Path, change: Any, tokens: tuple[object, ...]
) -> None:
    value = infrastructure()
    change(value)
    path = tmp_path / "infra.json"
    path.write_text(json.dumps(value))
    with refused(DocumentError, path, *tokens):
        load_server(path)
