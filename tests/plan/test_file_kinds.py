"""Files are recognised by their content: our documents, and those of other programs."""

from __future__ import annotations

import dataclasses
import gzip
import importlib
import json
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest

import torch_topoopt
from torch_topoopt.plan.codec import Document
from torch_topoopt.plan.file_kinds import (
    CHAKRA_TRACE,
    CLUSTER_FILE,
    FLOW_FILE,
    KINETO_TRACE,
    MLX_HOSTFILE,
    MSCCL_ALGORITHM,
    kind_of,
    wrong_content,
    wrong_kind,
)
from torch_topoopt.profile.chakra_format import ChakraNode, ChakraTrace, NodeType, encode

if TYPE_CHECKING:
    from pathlib import Path

# Documents that no command is given by a person: records of processes, and what they exchange.
INTERNAL = {
    "CpuRoofline",
    "FabricRecord",
    "Host",
    "HostFacts",
    "JobSpec",
    "Layout",
    "MeasuredRates",
    "PanelState",
    "RankGroups",
    "RankPace",
    "RankTimeline",
    "RankTraffic",
}


def _documents() -> list[type[Document]]:
    for module in pkgutil.walk_packages(torch_topoopt.__path__, "torch_topoopt."):
        name = module.name.rpartition(".")[2]
        if not (name.startswith("_") or name in ("rank_main", "fork_server_main", "ray_train")):
            importlib.import_module(module.name)
    found = [cls for cls in Document.__subclasses__() if cls.__module__.startswith("torch_topoopt")]
    return sorted(found, key=lambda cls: cls.KIND)


@pytest.fixture(scope="module")
def documents() -> list[type[Document]]:
    return _documents()


def _content(cls: type[Document], *, optional: bool) -> bytes:
    """A document with the fields of `cls`, of which only names count."""
    fields: Any = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [f.name for f in fields if optional or f.default is dataclasses.MISSING]
    return json.dumps(dict.fromkeys(names, 1)).encode()


def test_every_document_that_people_name_is_recognised(documents: list[type[Document]]) -> None:
    named = [cls for cls in documents if cls.KIND not in INTERNAL]
    assert {"Plan", "OpGraph", "Strategy", "Demand", "CostTable"} <= {cls.KIND for cls in named}
    for cls in named:
        found = kind_of(_content(cls, optional=True))
        assert found is not None, cls.KIND
        assert found.name == cls.KIND
        assert wrong_content(_content(cls, optional=True), cls.KIND) == ""
        other = wrong_content(_content(cls, optional=True), "nothing")
        assert found.described in other
        assert found.readers in other


def test_a_document_without_its_optional_fields_is_no_other_kind(
    documents: list[type[Document]],
) -> None:
    for cls in documents:
        assert wrong_content(_content(cls, optional=False), cls.KIND) == "", cls.KIND


@pytest.mark.parametrize(
    ("content", "description"),
    [
        ({"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}, "PyTorch's profiler"),
        ({"displayTimeUnit": "ms", "traceEvents": []}, "a trace for Perfetto"),
        ({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}, "a PyTorch execution trace"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "a Hugging Face model"),
        ({"architectures": ["A"], "transformers_version": "5.0"}, "a Hugging Face model"),
        ({"peers": {"a": {"address": "10.0.0.1"}}}, "a list of peers for exo"),
        ([["10.0.0.1:5000"], ["10.0.0.2:5000"]], "MLX_HOSTFILE"),
        (["10.0.0.1:5000", "10.0.0.2:5000"], "MLX_HOSTFILE"),
        ([[None, "rdma_en5"], ["rdma_en5", None]], "MLX_IBV_DEVICES"),
        ('<?xml version="1.0"?>\n<!-- <algo> -->\n<platform version="4.1"/>', "SimGrid"),
        ('<system version="1"><cpu numaid="0"/></system>', "a topology of NCCL"),
        ('<graphs version="1"/>', "NCCL_GRAPH_FILE"),
        ("<graphml/>", "GraphML"),
        ("<svg/>", "XML of another program"),
        ({"devices": [], "instances": []}, "an InfraGraph"),
        ({"topology": {}, "nodeNetwork": {}}, "a state of exo"),
        ("PK\x03\x04", "a zip archive"),
    ],
)
def test_files_of_other_programs(content: Any, description: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    message = wrong_content(text.encode(), "Plan")
    assert message.startswith("expected a Plan (`topoopt plan` writes one), but this is ")
    assert description in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("version: 1\nname: lab\nservers:\n  - {name: a}\n", CLUSTER_FILE),
        ('{"version": 1, "servers": [{"name": "a"}]}', CLUSTER_FILE),
        ('[{"ssh": "a", "ips": ["10.0.0.1"]}]', MLX_HOSTFILE),
        ('{"backend": "jaccl", "hosts": [{"ssh": "a", "rdma": [null]}]}', MLX_HOSTFILE),
        ("# two hosts\nnodes 3 hosts 2\n", FLOW_FILE),
        ('<algo name="ring"/>', MSCCL_ALGORITHM),
        ('{"traceEvents": [], "schemaVersion": 1}', KINETO_TRACE),
    ],
)
def test_other_files_that_commands_read(text: str, name: str) -> None:
    found = kind_of(text.encode())
    assert found is not None
    assert found.name == name
    assert wrong_content(text.encode(), "Plan", name) == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"[1, 2]", b"{not json", b"\xff\xfe", b"import torch\n", b"[" * 10**5],
)
def test_what_is_not_recognised_is_left_to_its_reader(content: bytes) -> None:
    assert wrong_content(content, "Plan") == ""


@pytest.mark.parametrize("nodes", [1, 300])
@pytest.mark.parametrize("attributes", [{}, {"input_file": "x" * 9000}])
def test_chakra_traces_are_recognised(nodes: int, attributes: dict[str, str]) -> None:
    trace = [ChakraNode(i, f"node {i}", NodeType.COMP) for i in range(nodes)]
    for version in ("", "1.0.0"):
        data = encode(ChakraTrace(tuple(trace), version, attributes))
        if not (version or attributes):
            continue  # an empty message has no fields
        assert wrong_content(data, "Plan").endswith(
            "but this is a Chakra trace; `topoopt profile --from-trace` reads it"
        )
        assert wrong_content(data, CHAKRA_TRACE) == ""


def test_compressed_files_and_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    assert "a gzip file" in wrong_kind(path, "Plan")
    assert wrong_kind(tmp_path, "Plan") == ""
    assert wrong_kind(tmp_path / "nowhere", "Plan") == ""
