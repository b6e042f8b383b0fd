"""The last import of the server that forks ranks: what each of them would otherwise do itself."""

from __future__ import annotations

import atexit
import gc
import os

from torch import _dynamo  # noqa: F401  (DistributedDataParallel imports it, for two seconds)

from torch_topoopt.runtime import before_fork

before_fork.prepare()
gc.collect()
gc.freeze()  # memory that is never collected is never written to, and forks share it
atexit.register(os._exit, 0)  # of this process, not of ranks: taking PyTorch apart takes a second
