"""Becomes one rank: `python rank_main.py LAUNCHER_PID COMMAND...`, without importing anything big.

The rank asks the kernel to be killed when its launcher ends, however that happens, and then turns
into COMMAND; so even a launcher killed with SIGKILL leaves no rank behind.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with(launcher_pid: int) -> None:
    """Asks for SIGKILL when the parent ends; exits at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != launcher_pid:
        sys.exit(f"launcher {launcher_pid} has ended")


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error.strerror}")
