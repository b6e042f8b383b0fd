"""Becomes one rank: `python rank_main.py LAUNCHER_PID RANKS_PER_SERVER NAMESPACES COMMAND...`.

RANKS_PER_SERVER other than 0 sets the script's local ranks as if every emulated server were a
machine; with TOPOOPT_SERVER_GPUS (this machine's GPUs), each server also gets GPUs of its own while
there are enough. NAMESPACES is "-" (none) or K:PATH: rank R first enters the network namespace at
PATH followed by R // K, its server's number. K,S0,S1,...:PATH has the servers in another order.

The kernel kills the rank when its launcher ends, so even a launcher killed with SIGKILL leaves no
rank behind. The rank then becomes COMMAND. Imports stay small, so that ranks start fast.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_CLONE_NEWNET = 0x40000000  # <sched.h>


def die_with(launcher_pid: int) -> None:
    """Requests SIGKILL at the parent's end; exits at once if it has already ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != launcher_pid:
        sys.exit(f"launcher {launcher_pid} has ended")


def place_on_server(ranks_per_server: int) -> None:
    """Sets torchrun's variables as if every server were a machine of its own; 0: no change."""
    if not ranks_per_server:
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.update(
        LOCAL_RANK=str(rank % ranks_per_server),
        LOCAL_WORLD_SIZE=str(ranks_per_server),
        GROUP_RANK=str(rank // ranks_per_server),
        GROUP_WORLD_SIZE=str(world_size // ranks_per_server),
    )
    gpus = os.environ.get("TOPOOPT_SERVER_GPUS", "").split(",")
    if gpus != [""]:
        server = rank // ranks_per_server
        own = (gpus[(server * ranks_per_server + i) % len(gpus)] for i in range(ranks_per_server))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        os.environ["NCCL_HOSTID"] = f"topoopt-server-{server}"  # else NCCL would use shared memory


def enter_namespace(namespaces: str) -> None:
    """Enters the network namespace of this rank's server; "-": none."""
    if namespaces == "-":
        return
    where, path = namespaces.split(":", 1)
    per_server, *order = where.split(",")
    place = int(os.environ["RANK"]) // int(per_server)
    path += order[place] if order else str(place)
    try:
        with open(path) as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                sys.exit(f"{path}: setns: {os.strerror(ctypes.get_errno())}")
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    place_on_server(int(sys.argv[2]))
    enter_namespace(sys.argv[3])
    try:
        os.execvp(sys.argv[4], sys.argv[4:])
    except OSError as error:
        sys.exit(f"{sys.argv[4]}: {error.strerror}")
