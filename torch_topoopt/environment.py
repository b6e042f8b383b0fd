"""Names of the environment variables that several rooms read or set, and of all others.

docs/reference/environment.md lists the values of those that users set.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CIRCUITS_VARIABLE = "TOPOOPT_CIRCUITS"  # path of the socket of the service that moves circuits
CONNECTIONS_VARIABLE = "TOPOOPT_CONNECTIONS"
CONTROLLER_VARIABLE = "TOPOOPT_CONTROLLER"
ENCRYPT_VARIABLE = "TOPOOPT_ENCRYPT"
LINK_THREADS_VARIABLE = "TOPOOPT_LINK_THREADS"
REDUCE_THREADS_VARIABLE = "TOPOOPT_REDUCE_THREADS"
SPARE_VARIABLE = "TOPOOPT_SPARE_AFTER_S"  # seconds until a lost link moves to spare ports
TRANSPORT_VARIABLE = "TOPOOPT_TRANSPORT"
ZERO_COPY_VARIABLE = "TOPOOPT_ZERO_COPY"

_NAMES = """
ALGORITHM ALLTOALL_ROUTES BATCH_LINES CIRCUITS CLUSTER COMPARE_PLACES CONNECTIONS CONTROLLER
CONTROLLER_HOST CONTROLLER_THRESHOLD CONTROLLER_TOKEN_FILE COST_MODEL DEBUG DEVICE_MEMORY
DISCOVER_TOKEN ENCRYPT INTERFACES JOB JOB_CLUSTER JOB_PLAN JOB_SERVERS LINK_THREADS LOG METRICS
NCCL_CONNECT_LIMIT_S NCCL_RANK NCCL_WIRING PLAN RANK_ERRORS REDUCE_THREADS RUN_DIR SECRET_FILE
SERVER_GPUS SHARED_MEMORY SILENCE_LIMIT_S SPARE_AFTER_S STALL_WARNING_S STARTED
STATE_DIR SYSFS TAKE_OVER TIMELINE TRACE TRANSPORT WIRING ZERO_COPY
"""
VARIABLES = frozenset(f"TOPOOPT_{name}" for name in _NAMES.split())


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """The variable that is probably meant by each name that is nearly one of VARIABLES."""
    unknown = [name for name in names if name.startswith("TOPOOPT_") and name not in VARIABLES]
    near = {name: difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.9) for name in unknown}
    return {name: matches[0] for name, matches in near.items() if matches}
