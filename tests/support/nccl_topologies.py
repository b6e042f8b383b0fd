"""Topologies in the form of NCCL_TOPO_DUMP_FILE."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def system(*functions: str) -> str:
    """A server with these PCIe functions."""
    inside = "".join(functions)
    cpu = '<cpu host_hash="0x1" numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel"'
    return f'<system version="1">{cpu} familyid="6" modelid="143">{inside}</cpu></system>'


def gpu(
    address: str,
    *,
    sm: object = 90,
    links: Mapping[str, int] | None = None,
    speed: str = "32.0 GT/s PCIe",
    tag: str = "nvlink",
    gcn: str = "",
) -> str:
    """A GPU with numbers of links to addresses, or to "switch"."""
    inside = "".join(
        f'<{tag} target="{target}" count="{count}" '
        f'tclass="{"0x068000" if target == "switch" else "0x030200"}"/>'
        for target, count in (links or {}).items()
    )
    return (
        f'<pci busid="{address}" class="0x030200" link_speed="{speed}" link_width="16">'
        f'<gpu dev="0" sm="{sm}" rank="0" gdr="1" gcn="{gcn}">{inside}</gpu></pci>'
    )


def nic(address: str, *ports: tuple[str, int], width: int = 16) -> str:
    """A network card with ports of a name and a speed in Mb/s."""
    nets = "".join(
        f'<net name="{name}" dev="{i}" speed="{speed}" port="1" guid="0x1" gdr="1"/>'
        for i, (name, speed) in enumerate(ports)
    )
    return (
        f'<pci busid="{address}" class="0x020000" link_speed="32.0 GT/s PCIe" '
        f'link_width="{width}"><nic>{nets}</nic></pci>'
    )


def dgx() -> str:
    """Eight GPUs behind NVLink switches, eight ports of 400 Gb/s and one for management."""
    boards = [
        f'<pci busid="0000:{i}0:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" '
        f'link_width="16">{gpu(f"0000:{i}1:00.0", links={"switch": 18})}'
        f"{nic(f'0000:{i}2:00.0', (f'mlx5_{i}', 400000))}</pci>"
        for i in range(8)
    ]
    return system(*boards, nic("0000:90:00.0", ("eth0", 10000), width=4))
