"""Requests of hosts, read strictly: one clear line for the first error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch_topoopt import _core
from torch_topoopt.plan.codec import DocumentError, brief, brief_name, decode
from torch_topoopt.route_control.network_file import LONGEST_NAME, check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGEST_INTEGER = 2**63 - 1
PortPaths = dict[str, dict[int, tuple[str, ...]]]  # target host -> source port -> switches


class FlowReport(NamedTuple):
    """A new flow between hosts; `period_s` is the time between its starts, if known."""

    id: str
    source: str
    target: str
    bytes: int
    period_s: float | None = None


class ReportedFlows(tuple[FlowReport, ...]):
    """The flows of one report, with columns that are made once, also if the report is repeated."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(flow.id for flow in self)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        return tuple(flow.source for flow in self)

    @cached_property
    def source_hosts(self) -> frozenset[str]:
        return frozenset(self.sources)


@dataclass(frozen=True)
class FlowFields:
    """A `FlowReport` as the codec reads it."""

    id: str
    source: str
    target: str
    bytes: int
    period_s: float | None = None


@dataclass(frozen=True)
class FlowsDocument:
    """A `FlowsRequest` as the codec reads it."""

    request: str
    job: str
    flows: tuple[FlowFields, ...]


@dataclass(frozen=True)
class FlowsRequest:
    """`body` is the request as it arrived."""

    request: str
    job: str
    flows: ReportedFlows
    body: bytes


@dataclass(frozen=True)
class EndRequest:
    request: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class LinksRequest:
    request: str
    down: tuple[tuple[str, ...], ...] = ()
    up: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class DegradedRequest:
    request: str
    flow: str


@dataclass(frozen=True)
class PortsRequest:
    request: str
    ports: PortPaths


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; raises DocumentError."""
    try:
        value = json.loads(body, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise DocumentError("body: objects or lists nested too deeply") from None
    except DocumentError:
        raise
    except ValueError:  # no UTF-8, no JSON, or an integer of thousands of digits
        raise DocumentError("body: not valid JSON") from None
    if not isinstance(value, dict):
        raise DocumentError(f"body: expected an object, got {type(value).__name__}")
    return value


def read_flows(body: bytes) -> FlowsRequest:
    """Raises DocumentError; does not look up hosts."""
    message = _plain_flows(body)
    if message is None:  # unusual: the codec finds the error
        read = decode(FlowsDocument, parse_object(body))
        flows = ReportedFlows(FlowReport(**vars(flow)) for flow in read.flows)
        message = FlowsRequest(read.request, read.job, flows, body)
        for i, flow in enumerate(flows):
            check_name(f"flows[{i}].id", flow.id)
            if not 0 < flow.bytes <= _LARGEST_INTEGER:
                raise DocumentError(f"flows[{i}].bytes: {brief(flow.bytes)} is not 1 to 2^63 - 1")
            if flow.period_s is not None and not flow.period_s > 0:
                raise DocumentError(f"flows[{i}].period_s: {flow.period_s} is not above 0")
    check_name("request", message.request)
    check_name("job", message.job)
    return message


class FlowsReader:
    """Reads reports like `read_flows`. A host repeats its report in every period of a job; what
    equals the last one is not parsed again, and has the same objects."""

    def __init__(self) -> None:
        # Job and first flow -> the text from the flows on, and its flows.
        self._last: dict[tuple[bytes, bytes], tuple[bytes, ReportedFlows]] = {}

    def read(self, body: bytes) -> FlowsRequest:
        begin = _BEGIN.match(body)
        if begin is None or len(body) > _LONGEST_KEPT:
            return read_flows(body)
        request, job = begin.groups()
        rest = body[begin.end() :]
        key = job, rest[:_KEY_BYTES]
        known = self._last.get(key)
        if known is not None and known[0] == rest:
            check_name("request", request.decode())
            return FlowsRequest(request.decode(), job.decode(), known[1], body)
        message = read_flows(body)
        if len(self._last) >= _MOST_KEPT:
            self._last.clear()
        self._last[key] = rest, message.flows
        return message


# Printable texts without escapes. The rest of a body has the same meaning after each such begin.
_BEGIN = re.compile(
    rb'\{"request": ?"([ !#-\[\]-~]+)", ?"job": ?"([ !#-\[\]-~]+)", ?"flows": ?(?=\[)'
)
_KEY_BYTES = 256
_LONGEST_KEPT, _MOST_KEPT = 2**20, 1024  # bytes of a body, and reports


def flows_body(job: str, flows: Sequence[FlowReport]) -> bytes:
    """A body that `read_flows` reads."""
    value = {"request": "-", "job": job, "flows": [flow._asdict() for flow in flows]}
    return json.dumps(value).encode()


_as_report = partial(tuple.__new__, FlowReport)  # FlowReport._make without a call in Python


def _plain_flows(body: bytes) -> FlowsRequest | None:
    """The same for a body in the common form, in a tenth of the time; None for any other."""
    read = _core.plain_report(body, LONGEST_NAME)
    if read is None:
        return None
    request, job, *fields = read
    flows = ReportedFlows(map(_as_report, zip(*fields, strict=True)))
    return FlowsRequest(request, job, flows, body)


def read_end(body: bytes) -> EndRequest:
    message: EndRequest = _read(EndRequest, body)
    return message


def read_links(body: bytes) -> LinksRequest:
    message: LinksRequest = _read(LinksRequest, body)
    return message


def read_degraded(body: bytes) -> DegradedRequest:
    message: DegradedRequest = _read(DegradedRequest, body)
    return message


def read_ports(body: bytes) -> PortsRequest:
    """Raises DocumentError; does not look up hosts and switches."""
    value = parse_object(body)
    if unknown := value.keys() - {"request", "ports"}:
        raise DocumentError(f"{brief_name(min(unknown))}: unknown field (known: request, ports)")
    for name, kind in (("request", str), ("ports", dict)):
        if not isinstance(value.get(name), kind):
            raise DocumentError(f"{name}: missing, or not a JSON {kind.__name__}")
    check_name("request", value["request"])
    ports = {
        target: _paths_of(f"ports.{brief_name(target)}", table)
        for target, table in value["ports"].items()
    }
    return PortsRequest(value["request"], ports)


def _paths_of(where: str, table: Any) -> dict[int, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise DocumentError(f"{where}: expected an object, got {type(table).__name__}")
    paths: dict[int, tuple[str, ...]] = {}
    for text, path in table.items():
        at = f"{where}.{brief_name(text)}"
        port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
        if not 0 < port < 2**16 or port in paths:
            raise DocumentError(f"{at}: not a port from 1 to 65535, or given twice")
        if not isinstance(path, list) or not all(isinstance(name, str) for name in path):
            raise DocumentError(f"{at}: expected a list of switches, got {brief(path)}")
        paths[port] = tuple(path)
    return paths


def _read(kind: type[Any], body: bytes) -> Any:
    message = decode(kind, parse_object(body))
    check_name("request", message.request)
    return message


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in items:
        if name in fields:
            raise DocumentError(f"{brief_name(name)}: given twice in one object")
        fields[name] = value
    return fields


def _no_constant(text: str) -> NoReturn:
    raise DocumentError(f"body: {text} is not a finite number")
