"""Transports of links: which need libfabric, and which provider carries a link."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import pytest
from support.refusals import refused

from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.identity import wire_version, without_transport
from torch_topoopt.runtime.link_options import provider_chooser, requested_links


@dataclass
class _Library:
    """The bindings of libfabric on a machine that may have RDMA devices."""

    missing: str = ""
    verbs: tuple[str, ...] = ()

    def fabric_missing(self) -> str:
        return self.missing

    def fabric_addresses(self, provider: str) -> list[str]:
        assert provider == "verbs"
        return list(self.verbs)


@pytest.fixture
def connection():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connected,
    ):
        yield connected


def test_without_libfabric_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library("libfabric.so.1 is not installed: apt-get install libfabric1")
    monkeypatch.setenv("TOPOOPT_TRANSPORT", "fabric:tcp")
    with refused(FabricError, "fabric:tcp", "apt-get install"):
        requested_links(library)
    monkeypatch.setenv("TOPOOPT_TRANSPORT", "auto")
    assert requested_links(library).transport == "auto"


@pytest.mark.parametrize(
    ("transport", "missing", "verbs", "provider"),
    [
        ("tcp", "", ("127.0.0.1",), ""),
        ("auto", "", ("127.0.0.1",), "verbs"),
        ("auto", "", ("192.0.2.1",), ""),
        ("auto", "none", (), ""),
        ("fabric", "", ("127.0.0.1",), "verbs"),
        ("fabric", "", (), "tcp"),
        ("fabric:shm", "", ("127.0.0.1",), "shm"),
    ],
)
def test_verbs_is_chosen_where_the_interface_of_the_link_has_it(
    transport, missing, verbs, provider, connection
) -> None:
    assert provider_chooser(_Library(missing, verbs), transport)(connection) == provider


def test_ranks_of_different_transports_have_different_versions() -> None:
    here, there = wire_version("a"), wire_version("a", transport="fabric:tcp")
    assert here != there
    assert without_transport(there) == here
