"""Recognises a file passed to the wrong reader, and names its kind and the commands that read it.

Readers of users' files call `wrong_kind` before they report a wrong field. It compares shapes only:
a file of the right kind with a wrong field is the reader's to report.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

CLUSTER_FILE = "cluster file"
MLX_HOSTFILE = "MLX hostfile"
EXO_LIST = "list of exo"
FLOW_FILE = "file of flows"
KINETO_TRACE = "Kineto trace"
CHAKRA_TRACE = "Chakra trace"
EXECUTION_TRACE = "PyTorch execution trace"
MSCCL_ALGORITHM = "MSCCL algorithm"
NCCL_TOPOLOGY = "topology of NCCL"
INFRAGRAPH = "InfraGraph"
GZIP_FILE = "gzip file"
MODEL_CONFIGURATION = "model configuration"

_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 1 << 16  # covers the XML root or the first lines of text
_NOTHING = "no command reads it"


@dataclass(frozen=True)
class FileKind:
    """A kind of file; `readers` says which commands read it."""

    name: str
    readers: str
    description: str = ""  # replaces the name, for files of other programs

    @property
    def described(self) -> str:
        return self.description or _with_article(self.name)


@dataclass(frozen=True)
class _Shape:
    """A kind whose JSON is an object with these fields."""

    kind: FileKind
    fields: frozenset[str]


def _own(name: str, fields: str, readers: str) -> _Shape:
    return _Shape(FileKind(name, readers), frozenset(fields.split()))


def _foreign(description: str, fields: str, readers: str = _NOTHING) -> _Shape:
    return _Shape(FileKind("", readers, description), frozenset(fields.split()))


_CONFIGURATION = FileKind(
    MODEL_CONFIGURATION,
    "`topoopt plan`, `compare` and `profile` read it as MODEL",
    "a Hugging Face model configuration",
)

_EXO_PEERS = FileKind(EXO_LIST, "`topoopt discover --hostfile` reads it", "a list of peers for exo")
_EXO_STATE = FileKind(
    EXO_LIST, "`topoopt discover --hostfile` and --cluster read it", "a state of exo (GET /state)"
)

# The first shape that fits counts. Names are the KIND of the documents.
_OBJECTS = (
    _own(
        "Plan",
        "cluster network strategy",
        "`topoopt run --plan`, `simulate`, `report`, `export` and `diff` read it",
    ),
    _own("OpGraph", "batch_size operators", "`topoopt plan` and `compare` read it"),
    _own("Strategy", "servers strategy", "`topoopt plan --strategy` reads it"),
    _own("CostTable", "device costs", "`topoopt plan --costs` reads it"),
    _own("CommunicationTrace", "world_size calls", "`topoopt report` reads it in its run folder"),
    _own("Demand", "version groups", "`topoopt topology --demand` reads it"),
    _own("Demand", "version pairs", "`topoopt topology --demand` reads it"),
    _own("Wiring", "fabric plan_digest", "`topoopt nccl-env --wiring` reads it"),
    _own("SharedCluster", "cluster architectures", "`topoopt simulate --jobs` reads it"),
    _own("document of routed jobs", "tors spines", "`topoopt simulate --routed-jobs` reads it"),
    _own(
        "network file",
        "switches hosts links",
        "`topoopt controller`, `probe` and `fabric up` read it as --network",
    ),
    _own("Snapshot", "switch circuits", "`topoopt fabric restore` reads its folder"),
    _own("all-to-all schedule", "topologies chunks", _NOTHING),
    _own("collective timeline", "collective pieces moves", _NOTHING),
    _own(
        "collective schedule",
        "collective links phases",
        "`topoopt topology --check-schedule` reads it",
    ),
    _own("graph of links", "servers links", "`topoopt topology --links` reads it"),
    _Shape(
        FileKind(
            KINETO_TRACE,
            "`topoopt profile --from-trace` reads it",
            "a trace of PyTorch's profiler (Kineto)",
        ),
        frozenset({"traceEvents", "schemaVersion"}),
    ),
    _foreign("a trace for Perfetto", "traceEvents", "ui.perfetto.dev shows it"),
    _own(EXECUTION_TRACE, "schema nodes", "`topoopt profile --from-trace` reads it"),
    _Shape(_CONFIGURATION, frozenset({"model_type"})),
    _Shape(_CONFIGURATION, frozenset({"architectures", "transformers_version"})),
    _own(
        INFRAGRAPH,
        "devices instances",
        "`topoopt plan` and `discover` read it as --server-file",
    ),
    _Shape(_EXO_PEERS, frozenset({"peers"})),
    _Shape(_EXO_STATE, frozenset({"topology", "nodeNetwork"})),
)

_CHAKRA = FileKind(CHAKRA_TRACE, "`topoopt profile --from-trace` reads it")
_CLUSTER = FileKind(CLUSTER_FILE, "`topoopt run`, `doctor` and others read it as --cluster")
_HOSTFILE = FileKind(MLX_HOSTFILE, "`topoopt discover --hostfile` and --cluster read it")
_FLOWS = FileKind(FLOW_FILE, "`topoopt simulate --flows` reads it")

_XML_ROOTS = {
    "algo": FileKind(MSCCL_ALGORITHM, "`topoopt export --check` reads it"),
    "system": FileKind(
        NCCL_TOPOLOGY,
        "`topoopt plan` and `discover` read it as --server-file",
        "a topology of NCCL (NCCL_TOPO_DUMP_FILE)",
    ),
    "graphs": FileKind("", _NOTHING, "a file of NCCL's graphs (NCCL_GRAPH_FILE)"),
    "platform": FileKind("", _NOTHING, "a platform of SimGrid"),
    "graphml": FileKind("", _NOTHING, "a graph in GraphML"),
}
_OTHER_XML = FileKind("", _NOTHING, "XML of another program")

_MAGIC = {
    _GZIP: FileKind(GZIP_FILE, "`topoopt profile --from-trace` reads traces so"),
    b"PK\x03\x04": FileKind("", _NOTHING, "a zip archive, such as a checkpoint of torch.save"),
}

# expected kind: how to get one
_SOURCES = {
    "Plan": "`topoopt plan` writes one",
    "OpGraph": "`topoopt profile MODEL -o FILE` writes one",
    "Demand": "`topoopt profile --output-demand` writes one",
    "CostTable": "`topoopt profile --output-costs` writes one",
    CLUSTER_FILE: "`topoopt discover` writes one",
    FLOW_FILE: "docs/planning/simulators.md has the format",
    KINETO_TRACE: "torch.profiler's export_chrome_trace writes one",
    NCCL_TOPOLOGY: "NCCL_TOPO_DUMP_FILE=FILE makes NCCL write one",
    EXECUTION_TRACE: "torch.profiler's ExecutionTraceObserver writes one",
}


def wrong_kind(path: str | os.PathLike[str], *expected: str) -> str:
    """Names the kind of the file at `path` and its command, in one line.

    "" if the file is not recognised, or is of one of the kinds `expected`.
    """
    return wrong_content(_content(path), *expected)


def is_kind(path: str | os.PathLike[str], name: str) -> bool:
    """Whether the file at `path` is of the kind of this name; it may be gzipped."""
    kind = kind_of(_unzipped(_content(path)))
    return kind is not None and kind.name == name


def _unzipped(data: bytes) -> bytes:
    try:
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError):
        return data


def _content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file that its kind is found by; none where it cannot be read."""
    if not Path(path).is_file():  # a pipe cannot be read twice
        return b""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
            whole = head.startswith(_GZIP) or head.lstrip()[:1] in (b"{", b"[")
            return head + (file.read() if whole else b"")
    except OSError:
        return b""


def wrong_content(data: bytes, *expected: str) -> str:
    """Like `wrong_kind`, for the content of a file."""
    kind = kind_of(data)
    if kind is None or kind.name in expected:
        return ""
    source = f" ({_SOURCES[expected[0]]})" if expected[0] in _SOURCES else ""
    return (
        f"expected {_with_article(expected[0])}{source}, but this is {kind.described}; "
        f"{kind.readers}"
    )


def kind_of(data: bytes) -> FileKind | None:
    """The kind of a file by its content; None where it is not recognised."""
    for magic, kind in _MAGIC.items():
        if data.startswith(magic):
            return kind
    if _is_chakra(data):
        return _CHAKRA
    text = data.decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if text.startswith("<"):
        root = re.search(r"<([A-Za-z_][\w.:-]*)", re.sub(r"<!--.*?-->", "", text, flags=re.S))
        return None if root is None else _XML_ROOTS.get(root[1], _OTHER_XML)
    if text.startswith(("{", "[")):
        try:
            return _kind_of_json(json.loads(text))
        except (ValueError, RecursionError):
            return None
    if re.search(r"^servers:[ \t]*(#.*)?\n\s*- ", text, re.M):
        return _CLUSTER
    if re.search(r"^nodes\s+\d+\s+hosts\s+\d+", text, re.M):
        return _FLOWS
    return None


def _is_chakra(data: bytes) -> bool:
    """Whether protobuf messages follow each other, each after its length: metadata, then a node."""
    place, ends = 0, []
    for _ in range(2):
        size, shift = 0, 0
        while place < len(data) and shift <= 21:
            digit = data[place]
            place += 1
            size |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                break
        ends.append(data[place : place + 1])
        place += size
    # fields of GlobalMetadata: version, attributes; of a Node: number, name, type
    return ends[0] in (b"\x0a", b"\x12") and ends[1] in (b"\x08", b"\x12", b"\x18")


def _kind_of_json(value: Any) -> FileKind | None:
    if isinstance(value, list):
        return _kind_of_list(value)
    for shape in _OBJECTS:
        if shape.fields <= value.keys():
            return shape.kind
    if _all(value.get("hosts"), _has_ssh):
        return _HOSTFILE
    if _all(value.get("servers"), lambda server: isinstance(server, dict)):
        return _CLUSTER
    return None


def _kind_of_list(value: list[Any]) -> FileKind | None:
    if _all(value, _has_ssh):
        return _HOSTFILE
    if _all(value, _is_address) or _all(value, lambda row: _all(row, _is_address)):
        return FileKind("", _NOTHING, "a list of addresses for MLX's ring (MLX_HOSTFILE)")
    if _all(value, lambda row: _all(row, lambda name: name is None or isinstance(name, str))):
        return FileKind("", _NOTHING, "a list of RDMA devices for MLX's jaccl (MLX_IBV_DEVICES)")
    return None


def _all(value: object, holds: Callable[[Any], bool]) -> bool:
    """Whether this is a list, not empty, and `holds` of every element."""
    return isinstance(value, list) and bool(value) and all(map(holds, value))


def _has_ssh(value: object) -> bool:
    return isinstance(value, dict) and "ssh" in value


def _is_address(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\S+:\d+", value) is not None


def _with_article(name: str) -> str:
    vowel = name[0] in "AEIOaeio" or name.startswith("M")  # MLX, MSCCL
    return f"{'an' if vowel else 'a'} {name}"
