"""The doctor's findings as output: for people, and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.tools.doctor.cluster_checks import Matrix
    from torch_topoopt.tools.doctor.findings import Finding, Site
    from torch_topoopt.tools.doctor.link_rates import ExpectedLink


@dataclass(frozen=True)
class RepairCommand:
    """A command that --apply would run."""

    server: str
    command: str


@dataclass(frozen=True)
class Diagnosis:
    """The result of `topoopt doctor`; `applied` are the commands that --apply has run."""

    JSON_FIELDS: ClassVar = ("hosts", "findings", "reach", "links", "repairs", "applied")

    site: Site
    findings: list[Finding]
    applied: list[str]

    def hosts(self) -> list[str]:
        return list(self.site.facts)

    def reach(self) -> Matrix:
        from torch_topoopt.tools.doctor.cluster_checks import reach_matrix

        return reach_matrix(self.site)

    def links(self) -> list[ExpectedLink]:
        from torch_topoopt.tools.doctor.link_rates import link_rates

        return link_rates(self.site)

    def repairs(self) -> list[RepairCommand]:
        from torch_topoopt.tools.doctor.repair import plan_repairs

        found = plan_repairs(self.findings)
        return [RepairCommand(one.server, command) for one in found for command in one.repair]


def show(terminal: Terminal, found: Diagnosis) -> None:
    """Prints findings, reachability, link rates, the repair plan, and a summary line."""
    for alike in _alike(found.findings):
        finding = alike[0]
        places = ", ".join(other.where for other in alike)
        terminal.line(f"{finding.level}: {places}: {finding.what}")
        terminal.line(f"    why: {finding.why}")
        if finding.advice:
            terminal.line(f"    fix: {finding.advice}")
        if finding.level == "note":
            for command in finding.repair:
                terminal.line(f"    if you like, on {_servers(alike)}: {command}")
    _show_matrix(terminal, found.reach())
    _show_rates(terminal, found.links())
    if repairs := found.repairs():
        terminal.line("repair plan (--apply runs it; until the next restart):")
        for repair in repairs:
            terminal.line(f"  {repair.server}: {repair.command}")
        terminal.line()
    terminal.line(_summary(found.site, found.findings))


def _alike(findings: list[Finding]) -> list[list[Finding]]:
    """Groups findings that differ only in their place."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key = (one.level, one.check, one.what, one.why, one.advice, one.repair)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _servers(alike: list[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.server for finding in alike))


def _show_matrix(terminal: Terminal, matrix: Matrix) -> None:
    if matrix:
        rows = [
            [source, *("-" if source == target else row[target] for target in matrix)]
            for source, row in matrix.items()
        ]
        terminal.table("who reaches whom", ["from", *matrix], rows)


def _show_rates(terminal: Terminal, links: list[ExpectedLink]) -> None:
    rows = [
        (
            rate.link,
            rate.carrier,
            "not known" if rate.gbps is None else f"{rate.gbps:.3g} Gb/s",
            rate.limit,
        )
        for rate in links
    ]
    if rows:
        terminal.table("what each link gets", ["link", "over", "at most", "limited by"], rows)


def _summary(site: Site, findings: list[Finding]) -> str:
    levels = ("error", "warning", "note")
    counts = {level: sum(finding.level == level for finding in findings) for level in levels}
    asked = counted(len(site.facts), "host")
    if not findings:
        return f"{asked}: nothing is wrong"
    found = ", ".join(counted(count, level) for level, count in counts.items() if count)
    return f"{asked}: {found}"
