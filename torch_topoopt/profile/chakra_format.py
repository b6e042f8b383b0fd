"""Files of Chakra execution traces: the messages, and their order.

Source: github.com/mlcommons/chakra, schema/protobuf/et_def.proto: field numbers and types. A file
of one rank is a sequence of messages, each preceded by its length as a varint: a GlobalMetadata,
then Nodes. Only the fields in use are described; protobuf skips the others.
"""

from __future__ import annotations

import functools
import gzip
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA_VERSION = "1.0.0"
_PACKAGE = "ChakraProtoMsg"
_ZIPPED = b"\x1f\x8b"

Value = bool | int | float | str


class NodeType(IntEnum):
    """NodeType of the schema."""

    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """CollectiveCommType of the schema."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


@dataclass(frozen=True)
class ChakraNode:
    """A Node. Numbers of `attributes` are written as int64, bool, double or string."""

    number: int
    name: str
    kind: NodeType
    data_deps: tuple[int, ...] = ()
    control_deps: tuple[int, ...] = ()
    duration_us: int = 0
    start_us: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class ChakraTrace:
    """The trace of one rank."""

    nodes: tuple[ChakraNode, ...]
    version: str = SCHEMA_VERSION
    attributes: Mapping[str, Value] = field(default_factory=dict)


def encode(trace: ChakraTrace) -> bytes:
    """The bytes of a file. Raises DocumentError where the protobuf library is not installed."""
    messages = _messages()
    metadata = messages["GlobalMetadata"](version=trace.version)
    _set_attributes(messages, metadata, trace.attributes)
    parts = [metadata]
    for node in trace.nodes:
        message = messages["Node"](
            id=node.number,
            name=node.name,
            type=int(node.kind),
            ctrl_deps=node.control_deps,
            data_deps=node.data_deps,
            start_time_micros=node.start_us,
            duration_micros=node.duration_us,
        )
        _set_attributes(messages, message, node.attributes)
        parts.append(message)
    return b"".join(_varint(len(body)) + body for body in (p.SerializeToString() for p in parts))


def decode(data: bytes) -> ChakraTrace:
    """Reads a file, also a gzipped one. Raises DocumentError for an invalid one."""
    if data.startswith(_ZIPPED):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise DocumentError(f"Chakra: broken gzip: {error}") from None
    messages = _messages()
    from google.protobuf.message import DecodeError

    bodies = list(_bodies(data))
    if not bodies:
        raise DocumentError("Chakra: an empty file; it begins with a GlobalMetadata")
    metadata = messages["GlobalMetadata"]()
    nodes = []
    try:
        metadata.ParseFromString(bodies[0])
        for body in bodies[1:]:
            message = messages["Node"]()
            message.ParseFromString(body)
            nodes.append(_node(message))
    except (DecodeError, UnicodeDecodeError) as error:
        raise DocumentError(f"Chakra: message {len(nodes)}: {error}") from None
    return ChakraTrace(tuple(nodes), metadata.version, _attributes(metadata))


def _node(message: Any) -> ChakraNode:
    if message.type not in list(NodeType):
        raise DocumentError(f"Chakra: node {message.id}: type {message.type} is not known here")
    return ChakraNode(
        number=message.id,
        name=message.name,
        kind=NodeType(message.type),
        data_deps=tuple(message.data_deps),
        control_deps=tuple(message.ctrl_deps),
        duration_us=message.duration_micros,
        start_us=message.start_time_micros,
        attributes=_attributes(message),
    )


def _set_attributes(messages: dict[str, Any], owner: Any, values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        kinds = ((bool, "bool_val"), (int, "int64_val"), (float, "double_val"), (str, "string_val"))
        kind = next(kind for of, kind in kinds if isinstance(value, of))
        owner.attr.append(messages["AttributeProto"](name=name, **{kind: value}))


def _attributes(owner: Any) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for attribute in owner.attr:
        kind = attribute.WhichOneof("value")
        if kind is not None:
            found[attribute.name] = getattr(attribute, kind)
    return found


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _bodies(data: bytes) -> Iterable[bytes]:
    """The messages of a file; raises DocumentError if one is truncated."""
    place = 0
    while place < len(data):
        size, shift, start = 0, 0, place
        while True:
            if place >= len(data) or shift > 28:
                raise DocumentError(f"Chakra: byte {start}: not the length of a message")
            digit = data[place]
            place += 1
            size |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                break
        if place + size > len(data):
            raise DocumentError(f"Chakra: byte {start}: a message of {size} bytes is cut off")
        yield data[place : place + size]
        place += size


# name, number, type of FieldDescriptorProto; r: repeated
_NODE = (
    *(("id", 1, "uint64", ""), ("name", 2, "string", ""), ("type", 3, "int32", "")),
    *(("ctrl_deps", 4, "uint64", "r"), ("data_deps", 5, "uint64", "r")),
    *(("start_time_micros", 6, "uint64", ""), ("duration_micros", 7, "uint64", "")),
    ("attr", 10, "AttributeProto", "r"),
)
_METADATA = (("version", 1, "string", ""), ("attr", 2, "AttributeProto", "r"))
_VALUES = (
    *(("double_val", 3, "double"), ("float_val", 5, "float"), ("int32_val", 7, "int32")),
    *(("int64_val", 9, "int64"), ("uint32_val", 11, "uint32"), ("uint64_val", 13, "uint64")),
    *(("sint32_val", 15, "sint32"), ("sint64_val", 17, "sint64"), ("bool_val", 27, "bool")),
    ("string_val", 29, "string"),
)


@functools.cache
def _messages() -> dict[str, Any]:
    """The classes of the messages. An enum travels as an int32 does."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise DocumentError(
            "Chakra: needs the protobuf library: pip install 'torch-topoopt[export]'"
        ) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="torch_topoopt/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(message: Any, name: str, number: int, kind: str, repeated: str) -> Any:
        is_message = kind == "AttributeProto"
        return message.field.add(
            name=name,
            number=number,
            label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            type=kinds.TYPE_MESSAGE if is_message else getattr(kinds, f"TYPE_{kind.upper()}"),
            type_name=f".{_PACKAGE}.{kind}" if is_message else None,
        )

    attribute = file.message_type.add(name="AttributeProto")
    add(attribute, "name", 1, "string", "")
    add(attribute, "doc_string", 2, "string", "")
    attribute.oneof_decl.add(name="value")
    for name, number, kind in _VALUES:
        add(attribute, name, number, kind, "").oneof_index = 0
    for message_name, fields in (("GlobalMetadata", _METADATA), ("Node", _NODE)):
        message = file.message_type.add(name=message_name)
        for of_field in fields:
            add(message, *of_field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("AttributeProto", "GlobalMetadata", "Node")
    }
