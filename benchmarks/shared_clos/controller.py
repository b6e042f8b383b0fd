"""The controller as a process of its own on the management network, and its operator."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from torch_topoopt.fabric.netns.layout import LAUNCHER
from torch_topoopt.route_control.controller.client import ControllerClient
from torch_topoopt.route_control.emulation.job import TCP_PORT
from torch_topoopt.route_control.probing.kernel_paths import kernel_paths
from torch_topoopt.route_control.probing.port_choice import PortChooser

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared_clos.jobs import SharedClos

_START_S = 30.0
_PORTS_PER_PATH = 3  # one may still be held by a connection that has just ended


class ControllerProcess:
    """`topoopt controller` for the network of `shared`, with its files in `folder`. It is gone when
    this is left."""

    def __init__(self, shared: SharedClos, folder: str) -> None:
        self._shared = shared
        self._folder = folder
        self._token = secrets.token_hex(16)
        self._listen = f"{shared.clos.names.layout.management_address(LAUNCHER)}:0"
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        shared.clos.network.save(f"{folder}/network.json")
        Path(f"{folder}/token").touch(mode=0o600)
        Path(f"{folder}/token").write_text(self._token + "\n")

    def __enter__(self) -> ControllerProcess:
        self.start()
        self.report_ports()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when it serves; raises RuntimeError if it does not. A later one has the address
        and the state of the first."""
        options = {
            "network": f"{self._folder}/network.json",
            "token-file": f"{self._folder}/token",
            "state-file": f"{self._folder}/state",
            "listen": self._listen,
        }
        command = [sys.executable, "-m", "torch_topoopt.launcher.main", "controller", "--json"]
        self._process = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _START_S)[0]:
            raise RuntimeError(f"the controller does not start within {_START_S:g} s")
        text = ""
        while not text.strip().endswith("}"):
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("the controller has ended; its message is above")
            text += line
        self.url = json.loads(text)["url"]
        self._listen = self.url.removeprefix("http://")

    def kill(self) -> None:
        """As `kill -9` does; harmless if it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def environment(self) -> dict[str, str]:
        """What ranks need to find it."""
        return {
            "TOPOOPT_CONTROLLER": self.url,
            "TOPOOPT_CONTROLLER_TOKEN_FILE": f"{self._folder}/token",
            "TOPOOPT_CONTROLLER_THRESHOLD": "1kB",  # whatever size is measured
        }

    def client(self) -> ControllerClient:
        return ControllerClient(self.url, self._token, limit_s=5.0)

    def report_ports(self, dead: Iterable[tuple[str, str]] = ()) -> None:
        """Probes which source port takes which path, now, for every host, and reports it."""
        names = self._shared.clos.names
        chooser = PortChooser(
            names.network,
            lambda flows: kernel_paths(names, flows),
            TCP_PORT,
            per_path=_PORTS_PER_PATH,
            dead=map(frozenset, dead),
        )
        with self.client() as client:
            for host, targets in self._shared.targets().items():
                client.set_ports(host, chooser.choose(host, targets))

    def connections(self) -> int:
        """Open ones; a host that follows the controller has two, one of them for news."""
        headers = {"Authorization": f"Bearer {self._token}"}
        answer = httpx.get(f"{self.url}/metrics", headers=headers, timeout=5.0, trust_env=False)
        found = re.search(r"^\w*connections (\d+)", answer.text, re.MULTILINE)
        if found is None:
            raise RuntimeError("the controller's metrics have no connections")
        return int(found[1])

    def on_path(self) -> tuple[int, int]:
        """(connections that are on a path that the controller has assigned, flows that it has)."""
        assigned = Counter(path for path in self.paths().values() if path is not None)
        taken = Counter(path for path in self._shared.paths_taken().values() if path is not None)
        return (assigned & taken).total(), assigned.total()

    def paths(self) -> dict[str, tuple[str, ...] | None]:
        """Flow -> its path, of all flows that there are."""
        found = {}
        with self.client() as client:
            for host in self._shared.hosts:
                found |= {flow.id: flow.path for flow in client.wait(host, 0).flows}
        return found
