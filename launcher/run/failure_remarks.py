"""The launcher's remarks on a failed rank, in addition to the rank's own message."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.run import link_bytes
from torch_topoopt.plan.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_topoopt.launcher.run.ranks import RankFailure

_VMSTAT = Path("/proc/vmstat")


class KernelKills:
    """Whether this machine's kernel kills processes for lack of memory, from now on."""

    def __init__(self, vmstat: Path = _VMSTAT) -> None:
        self._vmstat = vmstat
        self._began = self._count()

    def any(self) -> bool:
        """False also where the kernel does not count them (before Linux 4.13)."""
        return self._count() > self._began

    def _count(self) -> int:
        """Source: proc(5), /proc/vmstat, oom_kill; those of control groups are among them."""
        for line in self._vmstat.read_text(encoding="ascii").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0


def remarked(
    failures: Sequence[RankFailure], run: Path, where: Sequence[str], kills: KernelKills
) -> list[RankFailure]:
    """The failures with remarks. `where[i]` is the server of failure i, in words."""
    return [
        replace(failure, remark=_remark(failure, run, server, kills))
        for failure, server in zip(failures, where, strict=True)
    ]


def _remark(failure: RankFailure, run: Path, server: str, kills: KernelKills) -> str:
    if failure.exit_code == 0:
        ended = link_bytes.iterations_of(run, failure.rank)
        return f"after {counted(ended, 'iteration')}, {failure.remark}" if ended else failure.remark
    if failure.exit_code != -signal.SIGKILL:
        return failure.remark
    if kills.any():
        return f"on {server}, where the kernel has just killed a process to free memory"
    return f"on {server}; if nobody killed it, memory ran out: `dmesg` there says so"
