"""The memory that a process and its descendants hold, and the free memory of this machine."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that the kernel, and this process's control group if limited, would still give.

    Source: proc(5), `MemAvailable`; Linux, Documentation/admin-guide/cgroup-v2.rst, `memory.max`.
    """
    free = _kilobytes(Path("/proc/meminfo"), "MemAvailable:")
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def used_bytes(pid: int) -> int:
    """Of a process and all its descendants; memory that they share is counted once.

    0 if the process has ended.
    """
    return sum(_proportional_bytes(one) for one in _with_descendants(pid))


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:  # grows while it is read
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue  # it has ended
    return found


def _proportional_bytes(pid: int) -> int:
    folder = Path(f"/proc/{pid}")
    try:
        return _kilobytes(folder / "smaps_rollup", "Pss:")
    except OSError:
        pass
    try:
        return _kilobytes(folder / "status", "VmRSS:")
    except OSError:
        return 0


def _kilobytes(path: Path, name: str) -> int:
    """The value of a line like "Pss:   12 kB", in bytes; 0 where there is none."""
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
