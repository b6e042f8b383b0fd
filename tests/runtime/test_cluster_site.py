"""The hosts of a cluster wait for each other without a word, and name those that do not come."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from support.limits import limit_s
from support.refusals import refused
from torch.distributed import TCPStore

from torch_topoopt.fabric.cluster_file.cluster_file import ClusterFile
from torch_topoopt.fabric.cluster_file.entries import PortEntry, ServerEntry
from torch_topoopt.launcher.rendezvous.cluster_site import ClusterChoice, _LauncherMeeting
from torch_topoopt.links.errors import FabricError
from torch_topoopt.links.meeting import broadcast, receive

if TYPE_CHECKING:
    import pytest

    from torch_topoopt.links.meeting import Meeting

SEVERAL_LOOKS_S = 1.2


def meetings() -> list[Meeting]:
    """Those of two hosts, over a store on this one."""
    servers = tuple(
        ServerEntry(name, "127.0.0.1", ports=(PortEntry("p0", f"10.0.0.{number}/24"),))
        for number, name in enumerate("ab", 1)
    )
    file = ClusterFile(1, "pair", servers, (("a:p0", "b:p0"),))
    limit = timedelta(seconds=limit_s(60))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    client = TCPStore("127.0.0.1", store.port, wait_for_workers=False, timeout=limit)
    return [
        _LauncherMeeting(ClusterChoice(file, "", server, "127.0.0.1", store.port, 1.0), of)
        for server, of in enumerate((store, client))
    ]


def test_a_host_that_waits_for_another_logs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = meetings()
    capfd.readouterr()
    with refused(FabricError, "a", "b", "plan"):
        receive(second, "plan", time.monotonic() + SEVERAL_LOOKS_S)
    assert capfd.readouterr().err == ""
    broadcast(first, "plan", [1, 2])
    assert receive(second, "plan", time.monotonic() + limit_s(10)) == [1, 2]
