"""The links that are flows for the controller, and their reports (paper, section 3.5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.route_control.controller.messages import FlowReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_topoopt.plan import Link
    from torch_topoopt.route_control.host.link_flows import LinkFlow
    from torch_topoopt.route_control.network_file import NetworkFile


class FlowReports:
    """The reports of one server. A flow of fewer than `threshold_bytes` in an iteration is left to
    ECMP; one without planned bytes, until it has sent so many. A report never changes, so that the
    controller recognises a repetition.

    `host` names the server ("": by its addresses); `unnamed` is called once with a link and an
    address without a host.
    """

    def __init__(
        self,
        flows: Sequence[LinkFlow],
        host: str,
        threshold_bytes: int,
        unnamed: Callable[[Link, str], None],
    ) -> None:
        self._flows = flows
        self._host = host
        self._threshold_bytes = threshold_bytes
        self._unnamed = unnamed
        self._said: set[Link] = set()
        self._named: dict[Link, FlowReport] = {}  # with 0 bytes where unplanned
        self.made: dict[Link, FlowReport] = {}

    def name_ends(self, network: NetworkFile) -> str | None:
        """Finds the hosts of the flows; this one's, None where no flow leaves it.

        Raises ValueError where the server's addresses are of several hosts.
        """
        names = {address: host.name for host in network.hosts for address in host.addresses}
        self._named = {}
        for flow in self._flows:
            source = self._host or names.get(flow.source_address)
            target = names.get(flow.target_address)
            for name, address in ((source, flow.source_address), (target, flow.target_address)):
                if name is None and flow.link not in self._said:
                    self._said.add(flow.link)
                    self._unnamed(flow.link, address)
            if source is not None and target is not None and source != target:
                size_bytes = flow.planned_bytes or 0
                report = FlowReport(flow.id, source, target, size_bytes, flow.period_s)
                self._named[flow.link] = report
        hosts = sorted({report.source for report in self._named.values()})
        if len(hosts) > 1:
            raise ValueError(f"one server has addresses of the hosts {', '.join(hosts)}")
        return hosts[0] if hosts else None

    @property
    def counted(self) -> bool:
        """Whether there are flows with unknown bytes."""
        return any(
            flow.planned_bytes is None and flow.link in self._named.keys() - self.made.keys()
            for flow in self._flows
        )

    def new(self, sent_bytes: Mapping[Link, int]) -> list[FlowReport]:
        """New flows to report, by the sent bytes of links so far."""
        found = []
        for flow in self._flows:
            report = self._named.get(flow.link)
            if report is None or flow.link in self.made:
                continue
            if flow.planned_bytes is None:
                report = report._replace(bytes=sent_bytes.get(flow.link, 0))
            if report.bytes >= max(1, self._threshold_bytes):
                self.made[flow.link] = report
                found.append(report)
        return found
