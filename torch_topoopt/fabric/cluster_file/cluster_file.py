"""The cluster file: what a person, or `topoopt discover`, says about machines that exist.

Servers with their management addresses, ports with their addresses and speeds, and what the ports
are plugged into: a cable to another port, or a socket of a circuit switch.

    version: 1
    name: lab
    servers:
      - name: h0
        management: 10.200.0.1
        ports:
          - {name: p0, address: 10.201.0.1/30, bandwidth: 25Mbps}
    cables:
      - [h0:p0, h1:p1]

Reading is as strict as that of the other documents (see plan/codec.py): what is unknown, missing,
doubled or contradictory is a DocumentError that names the field by its path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torch_topoopt.fabric.cluster_file import strict_yaml
from torch_topoopt.fabric.cluster_file.entries import (
    CableEnds,
    ClusterEntries,
    HammingMeshEntry,
    PortEntry,
    SelectorEntry,
    ServerEntry,
    SwitchEntry,
)
from torch_topoopt.fabric.cluster_file.rules import check_cluster
from torch_topoopt.fabric.cluster_file.strict_yaml import Fields, list_at, text_at
from torch_topoopt.fabric.credentials import PasswordSource
from torch_topoopt.links.addresses import canonical
from torch_topoopt.plan.codec import DocumentError, brief, write_text_atomically
from torch_topoopt.plan.units import parse_gbps, rate_text

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Sequence

VERSION = 1


@dataclass(frozen=True)
class ClusterFile(ClusterEntries):
    """A whole cluster, as a document: read, checked and written."""

    def validate(self) -> Self:
        """Returns self, or raises DocumentError naming the first rule that is broken."""
        check_cluster(self)
        return self

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Of a parsed file, validated; raises DocumentError."""
        known = ("version", "name", "servers", "cables", "switches", "selector", "hammingmesh")
        fields = Fields(value, "", known)
        version = fields.integer("version")
        if not 1 <= version <= VERSION:
            raise DocumentError(
                f"version: {version} is not {VERSION}, the only one that this torch_topoopt reads"
            )
        return cls(
            version=version,
            name=fields.text("name"),
            servers=fields.list("servers", _read_server, required=True),
            cables=fields.list("cables", _read_cable),
            switches=fields.list("switches", _read_switch),
            selector=_read_selector(fields.raw("selector")) if fields.has("selector") else None,
            hammingmesh=_read_mesh(fields.raw("hammingmesh"))
            if fields.has("hammingmesh")
            else None,
        ).validate()

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Parses and validates; raises DocumentError."""
        return cls.from_value(strict_yaml.parse(text))

    def without(self, names: Collection[str]) -> Self:
        """The cluster of the other servers, and the cables between them."""
        return self.of_servers([s.name for s in self.servers if s.name not in names])

    def of_servers(self, names: Sequence[str]) -> Self:
        """The cluster of these servers, numbered in this order, and the cables between them."""
        of_name = {server.name: server for server in self.servers}
        return replace(
            self,
            hammingmesh=None,
            servers=tuple(of_name[name] for name in names),
            cables=tuple(
                cable
                for cable in self.cables
                if all(end.partition(":")[0] in names for end in cable)
            ),
        ).validate()

    def to_yaml(self) -> str:
        """The text of this file: one port, cable or switch per line."""
        return "\n".join(_written(self)) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all; raises OSError."""
        write_text_atomically(path, self.to_yaml())


def _read_server(value: object, path: str) -> ServerEntry:
    known = ("name", "management", "accelerators", "inside", "host", "ports")
    fields = Fields(value, path, known)
    return ServerEntry(
        name=fields.text("name"),
        management=canonical(fields.text("management")),
        accelerators=fields.integer("accelerators", 1),
        host=fields.optional_text("host"),
        ports=fields.list("ports", _read_port),
        inside_gbps=_read_rate(fields, "inside", path),
    )


def _read_rate(fields: Fields, name: str, path: str) -> float | None:
    """Gb/s of a field, None if it is missing."""
    if not fields.has(name):
        return None
    try:
        return parse_gbps(fields.text(name))
    except ValueError as error:
        raise DocumentError(f"{path}.{name}: {error}") from None


def _read_port(value: object, path: str) -> PortEntry:
    known = ("name", "address", "bandwidth", "interface", "mac", "mtu", "switch", "lookahead")
    fields = Fields(value, path, known)
    mac = fields.optional_text("mac")
    return PortEntry(
        name=fields.text("name"),
        address=canonical(fields.text("address")),
        gbps=_read_rate(fields, "bandwidth", path),
        interface=fields.optional_text("interface"),
        mac=mac.lower() if mac else None,
        mtu=fields.integer("mtu") if fields.has("mtu") else None,
        switch=fields.optional_text("switch"),
        lookahead=fields.optional_text("lookahead"),
    )


def _read_selector(value: object) -> SelectorEntry:
    fields = Fields(value, "selector", ("kind", "program", "timeout_s"))
    return SelectorEntry(
        kind=fields.text("kind"),
        program=fields.list("program", lambda element, where: text_at(where, element)),
        timeout_s=fields.integer("timeout_s", SelectorEntry.timeout_s),
    )


def _read_mesh(value: object) -> HammingMeshEntry:
    fields = Fields(value, "hammingmesh", ("boards", "board", "boards_per_leaf"))
    return HammingMeshEntry(
        boards=_read_product(fields.text("boards"), "hammingmesh.boards", "16x16"),
        board=_read_product(fields.text("board"), "hammingmesh.board", "2x2")
        if fields.has("board")
        else HammingMeshEntry.board,
        boards_per_leaf=fields.integer("boards_per_leaf", HammingMeshEntry.boards_per_leaf),
    )


def _read_product(text: str, path: str, example: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text, re.ASCII)
    if match is None:
        raise DocumentError(f"{path}: {brief(text)} is not columns x rows, as {example}")
    return int(match[1]), int(match[2])


def _read_cable(value: object, path: str) -> CableEnds:
    ends = list_at(path, value, lambda element, where: text_at(where, element))
    if len(ends) != 2:
        raise DocumentError(f"{path}: a cable has two ends, [h0:p0, h1:p1], not {len(ends)}")
    return ends[0], ends[1]


def _read_switch(value: object, path: str) -> SwitchEntry:
    known = ("name", "kind", "address", "user", "password", "sockets", "options")
    fields = Fields(value, path, known)
    options = fields.raw("options") if fields.has("options") else {}
    if not isinstance(options, dict):
        raise DocumentError(f"{path}.options: expected an object, got {strict_yaml.found(options)}")
    return SwitchEntry(
        name=fields.text("name"),
        kind=fields.text("kind"),
        address=fields.text("address"),
        user=fields.optional_text("user"),
        password=_read_secret(fields.raw("password"), f"{path}.password")
        if fields.has("password")
        else None,
        sockets=fields.list("sockets", lambda element, where: text_at(where, element)),
        options=options,
    )


def _read_secret(value: object, path: str) -> PasswordSource:
    if not isinstance(value, dict):  # whose text may be the password, so it is not shown
        raise DocumentError(
            f"{path}: a password is not written into a cluster file; say where it is, "
            "{env: NAME} or {file: PATH}"
        )
    fields = Fields(value, path, ("env", "file"))
    secret = PasswordSource(fields.optional_text("env"), fields.optional_text("file"))
    if (secret.env is None) == (secret.file is None):
        raise DocumentError(f"{path}: needs one of env and file")
    return secret


def _written(cluster: ClusterFile) -> Iterator[str]:
    scalar, flow = strict_yaml.scalar, strict_yaml.flow
    yield f"version: {cluster.version}"
    yield f"name: {scalar(cluster.name)}"
    yield "servers:"
    for server in cluster.servers:
        yield f"  - name: {scalar(server.name)}"
        yield f"    management: {scalar(server.management)}"
        yield f"    accelerators: {server.accelerators}"
        if server.inside_gbps is not None:
            yield f"    inside: {rate_text(server.inside_gbps)}"
        if server.host is not None:
            yield f"    host: {scalar(server.host)}"
        if server.ports:
            yield "    ports:"
        for port in server.ports:
            rate = None if port.gbps is None else rate_text(port.gbps)
            fields = {"name": port.name, "address": port.address, "bandwidth": rate}
            rest = ("interface", "mac", "mtu", "switch", "lookahead")
            yield f"      - {flow(fields | {name: getattr(port, name) for name in rest})}"
    if cluster.cables:
        yield "cables:"
    for cable in cluster.cables:
        ends = (end if end[0].isalpha() else f'"{end}"' for end in cable)
        yield f"  - [{', '.join(ends)}]"
    if cluster.switches:
        yield "switches:"
    for switch in cluster.switches:
        secret = switch.password
        yield "  - " + flow(
            {
                "name": switch.name,
                "kind": switch.kind,
                "address": switch.address,
                "user": switch.user,
                "password": strict_yaml.nested(flow(vars(secret))) if secret else None,
                "sockets": list(switch.sockets),
                "options": switch.options or None,
            }
        )
    if cluster.hammingmesh is not None:
        mesh = cluster.hammingmesh
        yield "hammingmesh: " + flow(
            {
                "boards": "x".join(map(str, mesh.boards)),
                "board": "x".join(map(str, mesh.board)),
                "boards_per_leaf": mesh.boards_per_leaf,
            }
        )
    if cluster.selector is not None:
        selector = cluster.selector
        yield "selector: " + flow(
            {
                "kind": selector.kind,
                "program": list(selector.program) or None,
                "timeout_s": selector.timeout_s,
            }
        )
