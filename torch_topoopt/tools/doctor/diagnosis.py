"""Runs all checks; the worst findings come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.tools.doctor import cluster_checks, host_checks, rdma_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch_topoopt.tools.doctor.findings import Finding, Site

CHECKS: tuple[Callable[[Site], Iterator[Finding]], ...] = (
    cluster_checks.check_cluster,
    host_checks.check_interfaces,
    cluster_checks.check_cabling,
    cluster_checks.check_mtu,
    cluster_checks.check_addresses,
    host_checks.check_arp,
    host_checks.check_rp_filter,
    host_checks.check_forwarding,
    host_checks.check_firewall,
    cluster_checks.check_reach,
    host_checks.check_speed,
    rdma_checks.check_rdma_ports,
    rdma_checks.check_pcie,
    rdma_checks.check_registering,
    rdma_checks.check_rdma_mtu,
    rdma_checks.check_flow_control,
    host_checks.check_buffers,
    host_checks.check_offloads,
    host_checks.check_congestion,
    host_checks.check_governor,
)
_LEVELS = ("error", "warning", "note")


def diagnose(site: Site) -> list[Finding]:
    """Findings of all checks: errors, then warnings, then notes."""
    found = [finding for check in CHECKS for finding in check(site)]
    return sorted(found, key=lambda finding: _LEVELS.index(finding.level))
