"""Source ports such that every path to a host has some; a host reports them to the controller."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch_topoopt.links.errors import FabricError
from torch_topoopt.route_control.probing.probed_flow import TCP, ProbedFlow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch_topoopt.route_control.network_file import NetworkFile

    Path = tuple[str, ...]
    Probe = Callable[[Sequence[ProbedFlow]], Sequence[Path | None]]

FIRST_PORT, LAST_PORT = 61_000, 65_535  # above Linux's ephemeral ports, up to 60999
_FEWEST = 16  # ports probed at first


class PortChooser:
    """Probes ports of hosts of `network` with `probe`, until each path has `per_path` of them.

    `target_port` is the hosts' listening port; `dead` cables carry nothing. If `ports` do not
    suffice, `choose` raises FabricError, or with `lenient` leaves paths with fewer.
    """

    def __init__(
        self,
        network: NetworkFile,
        probe: Probe,
        target_port: int,
        *,
        per_path: int = 1,
        dead: Iterable[frozenset[str]] = (),
        protocol: int = TCP,
        ports: range = range(FIRST_PORT, LAST_PORT + 1),
        lenient: bool = False,
    ) -> None:
        self._file = network
        self._alive = network.network(frozenset(dead))
        self._probe = probe
        self._target_port = target_port
        self._per_path = per_path
        self._protocol = protocol
        self._ports = ports
        self._lenient = lenient

    def choose(self, source: str, targets: Iterable[str]) -> dict[str, dict[int, Path]]:
        """Target -> source port -> the switches on its path, in the controller's format.

        A host of the same ToR, or an unreachable one, gets none: there is no choice.
        """
        missing = {target: self._paths(source, target) for target in targets}
        found: dict[str, dict[int, Path]] = {target: {} for target in missing}
        missing = {target: paths for target, paths in missing.items() if paths}
        begin, count = 0, _FEWEST
        while missing:
            if begin >= len(self._ports):
                if self._lenient:
                    break
                self._give_up(source, missing)
            ports = self._ports[begin : begin + count]
            begin, count = begin + count, 2 * count
            flows = [
                ProbedFlow(source, target, port, self._target_port, self._protocol)
                for target in missing
                for port in ports
            ]
            for flow, path in zip(flows, self._probe(flows), strict=True):
                left = missing[flow.target]
                if path is not None and left[path] > 0:
                    left[path] -= 1
                    found[flow.target][flow.source_port] = path
            missing = {target: left for target, left in missing.items() if any(left.values())}
        return found

    def _paths(self, source: str, target: str) -> Counter[Path]:
        """How many ports each path between two hosts still needs."""
        ends = self._file.tor_of[source], self._file.tor_of[target]
        if ends[0] == ends[1]:
            return Counter()
        names = self._file.numbered
        paths = self._alive.paths(*ends)
        return Counter({tuple(names[i] for i in path): self._per_path for path in paths})

    def _give_up(self, source: str, missing: dict[str, Counter[Path]]) -> None:
        target, left = next(iter(missing.items()))
        path = next(path for path, count in left.items() if count)
        raise FabricError(
            f"probing: no {self._per_path} of the ports {self._ports[0]}..{self._ports[-1]} of "
            f"{source} lead to {target} over {' - '.join(path)}"
        )
