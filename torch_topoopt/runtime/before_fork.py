"""Start-up work common to all ranks, done once in the process that forks them.

Forks share the memory of this process. So loading the C++ backend (a third of the processor time of
a start) and building the readers of a plan and its wiring cost nothing in the ranks.
"""

from __future__ import annotations

import contextlib

from torch_topoopt.links.wiring import Wiring
from torch_topoopt.plan import Plan
from torch_topoopt.plan.codec import prepare_reader
from torch_topoopt.runtime.backend import load


def prepare() -> None:
    """Starts no thread and opens nothing: forks would lose the threads and share the files."""
    with contextlib.suppress(ImportError):  # ranks that need it report the error
        load()
    for document in (Plan, Wiring):
        prepare_reader(document)
