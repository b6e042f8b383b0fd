"""The doctor's findings as output: for people, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    from torch_topoopt.launcher.console import Terminal
    from torch_topoopt.tools.doctor.findings import Finding, Site


def as_json(site: Site, findings: list[Finding], applied: list[str]) -> dict[str, Any]:
    """The result of the verb; `repairs` are the commands that --apply would run."""
    from torch_topoopt.tools.doctor.cluster_checks import reach_matrix
    from torch_topoopt.tools.doctor.link_rates import link_rates
    from torch_topoopt.tools.doctor.repair import plan_repairs

    return {
        "hosts": list(site.facts),
        "findings": [vars(finding) for finding in findings],
        "reach": reach_matrix(site),
        "links": [vars(rate) for rate in link_rates(site)],
        "repairs": [
            {"server": finding.server, "command": command}
            for finding in plan_repairs(findings)
            for command in finding.repair
        ],
        "applied": applied,
    }


def show(terminal: Terminal, site: Site, findings: list[Finding]) -> None:
    """Findings, who reaches whom, what links get, the repair plan, and a line that sums up."""
    from torch_topoopt.tools.doctor.repair import plan_repairs

    for alike in _alike(findings):
        finding = alike[0]
        places = ", ".join(other.where for other in alike)
        terminal.line(f"{finding.level}: {places}: {finding.what}")
        terminal.line(f"    why: {finding.why}")
        if finding.advice:
            terminal.line(f"    fix: {finding.advice}")
        if finding.level == "note":
            for command in finding.repair:
                terminal.line(f"    if you like, on {_servers(alike)}: {command}")
    _show_matrix(terminal, site)
    _show_rates(terminal, site)
    repairs = plan_repairs(findings)
    if repairs:
        terminal.line("repair plan (--apply runs it; until the next restart):")
        for finding in repairs:
            for command in finding.repair:
                terminal.line(f"  {finding.server}: {command}")
        terminal.line()
    terminal.line(_summary(site, findings))


def _alike(findings: list[Finding]) -> list[list[Finding]]:
    """Findings that differ in their place only, together."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        key = (one.level, one.check, one.what, one.why, one.advice, one.repair)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _servers(alike: list[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.server for finding in alike))


def _show_matrix(terminal: Terminal, site: Site) -> None:
    from torch_topoopt.tools.doctor.cluster_checks import reach_matrix

    matrix = reach_matrix(site)
    if matrix:
        rows = [
            [source, *("-" if source == target else row[target] for target in matrix)]
            for source, row in matrix.items()
        ]
        terminal.table("who reaches whom", ["from", *matrix], rows)


def _show_rates(terminal: Terminal, site: Site) -> None:
    from torch_topoopt.tools.doctor.link_rates import link_rates

    rows = [
        (
            rate.link,
            rate.carrier,
            "not known" if rate.gbps is None else f"{rate.gbps:.3g} Gb/s",
            rate.limit,
        )
        for rate in link_rates(site)
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
