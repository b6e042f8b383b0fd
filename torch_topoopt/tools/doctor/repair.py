"""Applies the repairs of findings, and verifies each one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.tools.doctor.diagnosis import diagnose
from torch_topoopt.tools.doctor.findings import Finding, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.tools.doctor.facts import HostFacts
    from torch_topoopt.tools.doctor.hosts import HostAccess


def plan_repairs(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that commands can repair, without notes, which are a matter of taste."""
    return [finding for finding in findings if finding.repair and finding.level != "note"]


def apply_repairs(
    repairs: Sequence[Finding],
    site: Site,
    hosts: Mapping[str, HostAccess],
    on_step: Callable[[Finding, str], None],
) -> None:
    """Runs the commands of each finding on its host, one after the other.

    Raises FabricError if this user is not root there (before any command), if a command fails, or
    if the finding remains after its commands; then it skips the rest.
    """
    for server in dict.fromkeys(finding.server for finding in repairs):
        if not site.facts[server].root:
            raise FabricError(f"{server}: repairs need root there; nothing was changed")
    facts = dict(site.facts)
    for finding in repairs:
        for command in finding.repair:
            on_step(finding, command)
            hosts[finding.server].shell(command)
        read = hosts[finding.server].facts(probing=False)
        facts[finding.server] = _with_probes(read, facts[finding.server])
        _check(finding, Site(facts, site.file))


def _with_probes(read: HostFacts, probed: HostFacts) -> HostFacts:
    """The kernel's state now, and the probes from before."""
    return replace(read, cables=probed.cables, claimed=probed.claimed, reached=probed.reached)


def _check(repaired: Finding, site: Site) -> None:
    for finding in diagnose(site):
        if finding.key == repaired.key and finding.what == repaired.what:
            raise FabricError(
                f"{finding.where}: {'; '.join(finding.repair)} went through, but did not help: "
                f"{finding.what}"
            )
