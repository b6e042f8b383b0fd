"""The files of `fabric persist`, read by the tools that they are written for."""

from __future__ import annotations

import configparser
import ipaddress
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.fabric.persist.manager_files import MANAGERS, ConfigFile, config_files
from torch_topoopt.fabric.persist.port_settings import (
    check_free,
    eui64_address,
    kept_ports,
    with_static_addresses,
)
from torch_topoopt.links.errors import FabricError

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.fabric.persist.manager_files import Manager

MAC = "4c:bb:47:00:00:01"
BY_MAC = "fe80::4ebb:47ff:fe00:1"
# what discover finds: NVIDIA's own addressing, a /30, IPv6, link-local by MAC address, and not
ADDRESSES = {
    "by-mac": (f"{BY_MAC}%enp1s0f0np0/64", "fe80::2%enp1s0f0np0/64"),
    "stable-privacy": ("fe80::5c1f:a7%enp1s0f0np0/64", "fe80::2%enp1s0f0np0/64"),
    "self-assigned": ("169.254.7.1/16", "169.254.9.1/16"),
    "ipv4": ("10.99.1.1/30", "10.99.1.2/30"),
    "ipv6": ("fd00:5::1/64", "fd00:5::2/64"),
}


def cluster(near: str, far: str, *, interface: str | None = "enp1s0f0np0") -> ClusterFile:
    servers = (
        ServerEntry("h0", "10.0.0.1", ports=(PortEntry("p0", near, None, interface, MAC, 9000),)),
        ServerEntry("h1", "10.0.0.2", ports=(PortEntry("p0", far, None, "enp1s0f0np0"),)),
    )
    return ClusterFile(1, "lab", servers, (("h0:p0", "h1:p0"),)).validate()


def files_of(manager: Manager, kind: str) -> tuple[ConfigFile, ...]:
    return config_files(manager, kept_ports(cluster(*ADDRESSES[kind]), "h0"))


def expected(kind: str) -> str:
    ip, _, prefix = ADDRESSES[kind][0].partition("/")
    return f"{ip.partition('%')[0]}/{prefix}"


def need(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"this needs the program {program} (Debian: {package})")
    return found


def checked(*command: str, given: str | None = None) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=limit_s(60), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ini(text: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(text)
    return read


@pytest.mark.parametrize("kind", ADDRESSES)
@pytest.mark.parametrize("renderer", ["networkd", "NetworkManager"])
def test_netplan_generates_units_and_keyfiles(kind: str, renderer: str, tmp_path: Path) -> None:
    netplan = need("netplan", "netplan.io")
    (file, *_) = files_of("netplan", kind)
    path = tmp_path / file.path.strip("/")
    path.parent.mkdir(parents=True)
    path.write_text(file.text)
    path.chmod(file.mode)
    (path.parent / "00-site.yaml").write_text(f"network:\n  renderer: {renderer}\n")
    (path.parent / "00-site.yaml").chmod(0o600)
    checked(netplan, "generate", "--root-dir", str(tmp_path))
    if renderer == "networkd":
        made = tmp_path / "run/systemd/network/10-netplan-enp1s0f0np0.network"
        network, mtu = ini(made.read_text()), "MTUBytes"
        assert network["Link"][mtu] == "9000"
        address = network["Network"].get("Address")
    else:
        folder = tmp_path / "run/NetworkManager/system-connections"
        network = ini((folder / "netplan-enp1s0f0np0.nmconnection").read_text())
        assert network["ethernet"]["mtu"] == "9000"
        section = "ipv6" if ":" in expected(kind) else "ipv4"
        address = network[section].get("address1")
    assert address == (None if kind == "by-mac" else expected(kind))


@pytest.mark.parametrize("kind", ADDRESSES)
def test_networkmanager_reads_its_keyfiles(kind: str) -> None:
    nmcli = need("nmcli", "network-manager")
    (file, *_) = files_of("networkmanager", kind)
    read = ini(checked(nmcli, "--offline", "connection", "modify", given=file.text))
    given = ini(file.text)
    for section in given.sections():
        assert dict(given[section]) == {k: read[section].get(k) for k in given[section]}
    assert read["connection"]["interface-name"] == "enp1s0f0np0"
    assert read["ethernet"]["mtu"] == "9000"


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize("kind", ADDRESSES)
def test_files_name_the_ports_alone_and_their_settings(manager: Manager, kind: str) -> None:
    *config, last = files_of(manager, kind)
    has_ipv4 = ":" not in expected(kind)
    assert (last.path == "/etc/sysctl.d/90-topoopt-cables.conf") == has_ipv4
    for file in config if has_ipv4 else [*config, last]:
        assert (expected(kind) in file.text) == (kind != "by-mac")
        assert "9000" in file.text
        assert "eth0" not in file.text


def test_the_address_of_a_mac_address() -> None:
    assert eui64_address(MAC) == ipaddress.IPv6Address(BY_MAC)


@pytest.mark.parametrize(
    ("addressing", "subnet", "ends"),
    [
        ("ipv4", "10.201.0.0/16", ("10.201.0.0/31", "10.201.0.1/31")),
        ("ipv6", "fd00:201::/48", ("fd00:201::1/64", "fd00:201::2/64")),
    ],
)
def test_a_cable_gets_a_subnet(addressing: str, subnet: str, ends: tuple[str, str]) -> None:
    made = with_static_addresses(cluster(*ADDRESSES["by-mac"]), addressing, subnet)  # type: ignore[arg-type]
    assert tuple(made.ports[end][1].address for end in made.cables[0]) == ends


def test_what_cannot_be_kept_is_refused() -> None:
    with refused(FabricError, "h0:p0", "interface"):
        kept_ports(cluster("10.99.1.1/30", "10.99.1.2/30", interface=None), "h0")
    with refused(FabricError, "h0:p0", "eth*"):
        kept_ports(cluster("10.99.1.1/30", "10.99.1.2/30", interface="eth*"), "h0")
    file = cluster("10.99.1.1/30", "10.99.1.2/30")
    for subnet in ("10.201.0.0/32", "fd00::/48", "10.201.0.1/16"):
        with refused(FabricError, "subnet"):
            with_static_addresses(file, "ipv4", subnet)
    ports = kept_ports(file, "h0")
    check_free("10.201.0.0/16", "h0", ports, ["enp1s0f0np0 10.201.0.0/31", "eth0 10.0.0.1/24"])
    with refused(FabricError, "10.201.7.1/24", "eth0", "h0"):
        check_free("10.201.0.0/16", "h0", ports, ["eth0 10.201.7.1/24"])
