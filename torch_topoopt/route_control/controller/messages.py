"""Requests of hosts, read strictly: one clear line for the first error."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn

from torch_topoopt.plan.codec import DocumentError, brief, brief_name, decode
from torch_topoopt.route_control.network_file import LONGEST_NAME, check_name

_LARGEST_INTEGER = 2**63 - 1
PortPaths = dict[str, dict[int, tuple[str, ...]]]  # target host -> source port -> switches


@dataclass(frozen=True)
class FlowReport:
    """A new flow between hosts; `period_s` is the time between its starts, if known."""

    id: str
    source: str
    target: str
    bytes: int
    period_s: float | None = None


@dataclass(frozen=True)
class FlowsRequest:
    request: str
    job: str
    flows: tuple[FlowReport, ...]


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
    value = parse_object(body)
    message = _plain_flows(value)
    if message is None:  # unusual: the codec finds the error
        message = decode(FlowsRequest, value)
    check_name("request", message.request)
    check_name("job", message.job)
    for i, flow in enumerate(message.flows):
        if not (0 < len(flow.id) <= LONGEST_NAME and flow.id.isprintable()):
            check_name(f"flows[{i}].id", flow.id)
        if not 0 < flow.bytes <= _LARGEST_INTEGER:
            raise DocumentError(f"flows[{i}].bytes: {brief(flow.bytes)} is not 1 to 2^63 - 1")
        if flow.period_s is not None and not flow.period_s > 0:
            raise DocumentError(f"flows[{i}].period_s: {flow.period_s} is not above 0")
    return message


_PLAIN = {"id": str, "source": str, "target": str, "bytes": int}


def _plain_flows(value: dict[str, Any]) -> FlowsRequest | None:
    """The codec's result, in a third of the time; None where the codec might refuse."""
    request, job, flows = (value.get(name) for name in ("request", "job", "flows"))
    if len(value) != 3 or type(request) is not str or type(job) is not str:
        return None
    if type(flows) is not list:
        return None
    reports = []
    for flow in flows:
        if type(flow) is not dict or not 4 <= len(flow) <= 5:
            return None
        for name, kind in _PLAIN.items():
            if type(flow.get(name)) is not kind:
                return None
        if len(flow) == 5:
            period_s = flow.get("period_s", math.inf)
            if period_s is not None and not (type(period_s) is float and period_s < math.inf):
                return None
        reports.append(FlowReport(**flow))
    return FlowsRequest(request, job, tuple(reports))


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
