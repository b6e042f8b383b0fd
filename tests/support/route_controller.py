"""`topoopt controller` as a process of its own, for hosts at loopback addresses."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.limits import limit_s
from torch_topoopt.route_control.controller.client import ControllerClient
from torch_topoopt.route_control.network_file import (
    NamedHost,
    NamedSwitch,
    NetworkFile,
    SwitchCable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.links.wiring import Wiring

TOKEN = "0123456789abcdef"
_LIMIT_S = 30.0


def leaf_of_each(wiring: Wiring, spines: int) -> NetworkFile:
    """Every server is a host, with a leaf of its own."""
    servers = sorted({port.server for port in wiring.ports})
    leaves, middle = [f"leaf{s}" for s in servers], [f"spine{i}" for i in range(spines)]
    hosts = [
        NamedHost(f"h{s}", f"leaf{s}", tuple(p.address for p in wiring.ports if p.server == s))
        for s in servers
    ]
    return NetworkFile(
        NetworkFile.VERSION,
        tuple(map(NamedSwitch, (*middle, *leaves))),
        tuple(hosts),
        tuple(SwitchCable(ends, 1e9) for ends in itertools.product(middle, leaves)),
    ).validate()


def path(source: int, spine: int, target: int) -> tuple[str, str, str]:
    return f"leaf{source}", f"spine{spine}", f"leaf{target}"


@dataclass(frozen=True)
class Controller:
    """Its files are in `folder`; several processes, and one after the other, may use them."""

    folder: Path

    def prepare(self, network: NetworkFile) -> None:
        network.save(self.folder / "network.json")
        token = self.folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)

    def start(self) -> str:
        """Its address, which is that of the one before it."""
        where = self.folder / "url"
        listen = where.read_text().removeprefix("http://") if where.exists() else "127.0.0.1:0"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch_topoopt.launcher.main", "controller"),
                *("--network", str(self.folder / "network.json")),
                *("--token-file", str(self.folder / "token")),
                *("--state-file", str(self.folder / "routes.db"), "--listen", listen),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        (self.folder / "pid").write_text(str(process.pid))
        assert process.stdout is not None
        said = re.match(r"controller: (http://[^,]+),", process.stdout.readline())
        assert said, "the controller has ended"
        where.write_text(said[1])
        return said[1]

    def kill(self) -> None:
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)

    def client(self) -> ControllerClient:
        return ControllerClient((self.folder / "url").read_text(), TOKEN, limit_s(_LIMIT_S))

    def environment(self) -> dict[str, str]:
        return {
            "TOPOOPT_CONTROLLER": (self.folder / "url").read_text(),
            "TOPOOPT_CONTROLLER_TOKEN_FILE": str(self.folder / "token"),
        }
