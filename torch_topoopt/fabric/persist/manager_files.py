"""The files by which netplan, NetworkManager and systemd-networkd set up cable ports. Pure.

Files name interfaces rather than MAC addresses, as the cluster file does. No other interface occurs
in them, so the management network stays as it is.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch_topoopt.links.addresses import is_ipv6, is_link_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.fabric.persist.port_settings import KeptPort

Manager = Literal["netplan", "networkmanager", "networkd"]
MANAGERS: tuple[Manager, ...] = ("netplan", "networkmanager", "networkd")

_HEAD = "# Written by `topoopt fabric persist`; its option --undo removes it."
_PRIVATE, _PUBLIC = 0o600, 0o644  # netplan and NetworkManager refuse files that others can read


@dataclass(frozen=True)
class ConfigFile:
    JSON_FIELDS = ("path", "text")

    path: str
    text: str
    mode: int


def config_files(manager: Manager, ports: Sequence[KeptPort]) -> tuple[ConfigFile, ...]:
    """The files of one host: those of its network manager, and the kernel's ARP settings."""
    made: Iterator[ConfigFile] = _WRITERS[manager](ports)
    return (*made, *_sysctls(ports))


def _sysctls(ports: Sequence[KeptPort]) -> Iterator[ConfigFile]:
    """udev applies the file to each interface as it appears (systemd-sysctl)."""
    lines = [
        f"net/ipv4/conf/{port.interface}/{name} = {value}"
        for port in ports
        for name, value in port.sysctls
    ]
    if lines:
        yield _file("/etc/sysctl.d/90-topoopt-cables.conf", lines, _PUBLIC)


def _netplan(ports: Sequence[KeptPort]) -> Iterator[ConfigFile]:
    lines = ["network:", "  version: 2", "  ethernets:"]
    for port in ports:
        lines += [
            f"    # {port.port}",
            f'    "{port.interface}":',
            "      optional: true",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            f"      link-local: [{'' if _is_fixed(port) else 'ipv6'}]",
        ]
        if port.by_mac:
            lines.append("      ipv6-address-generation: eui64")
        else:
            lines.append(f'      addresses: ["{port.address}"]')
        if port.mtu is not None:
            lines.append(f"      mtu: {port.mtu}")
    yield _file("/etc/netplan/90-topoopt-cables.yaml", lines, _PRIVATE)


def _networkd(ports: Sequence[KeptPort]) -> Iterator[ConfigFile]:
    for port in ports:
        lines = [f"# {port.port}", "[Match]", f"Name={port.interface}", "", "[Link]"]
        if port.mtu is not None:
            lines.append(f"MTUBytes={port.mtu}")
        lines += ["RequiredForOnline=no", "", "[Network]", "IPv6AcceptRA=no"]
        if port.by_mac:
            lines += ["LinkLocalAddressing=ipv6", "IPv6LinkLocalAddressGenerationMode=eui64"]
        else:
            lines.append(f"LinkLocalAddressing={'no' if _is_fixed(port) else 'ipv6'}")
            lines.append(f"Address={port.address}")
        # the first file that matches an interface counts
        yield _file(f"/etc/systemd/network/00-topoopt-{port.interface}.network", lines, _PUBLIC)


def _networkmanager(ports: Sequence[KeptPort]) -> Iterator[ConfigFile]:
    for port in ports:
        name = f"topoopt-{port.interface}"
        static = ["method=manual", f"address1={port.address}", "never-default=true"]
        ipv4 = ["method=disabled"] if is_ipv6(port.address) else static
        ipv6 = ["addr-gen-mode=eui64", "method=link-local"]
        if is_ipv6(port.address) and not port.by_mac:
            ipv6 = ["addr-gen-mode=eui64", *static]
        lines = [
            f"# {port.port}",
            "[connection]",
            f"id={name}",
            f"uuid={uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}.torch_topoopt')}",
            "type=ethernet",
            f"interface-name={port.interface}",
            "autoconnect-priority=100",
            "",
            "[ethernet]",
            *([f"mtu={port.mtu}"] if port.mtu is not None else []),
            "",
            "[ipv4]",
            *ipv4,
            "",
            "[ipv6]",
            *ipv6,
        ]
        path = f"/etc/NetworkManager/system-connections/{name}.nmconnection"
        yield _file(path, lines, _PRIVATE)


_WRITERS = {"netplan": _netplan, "networkmanager": _networkmanager, "networkd": _networkd}


def _is_fixed(port: KeptPort) -> bool:
    """Whether it keeps a link-local address that its MAC address does not give (stable-privacy)."""
    return is_link_local(port.address) and not port.by_mac


def _file(path: str, lines: Sequence[str], mode: int) -> ConfigFile:
    return ConfigFile(path, "\n".join((_HEAD, *lines)) + "\n", mode)
