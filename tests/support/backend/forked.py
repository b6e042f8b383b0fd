"""The last import of the server that forks ranks: what each of them would otherwise do itself.

Ranks of tests/parallel take a second for models of transformers, and 0.2 s for what divides them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os

from torch import _dynamo  # noqa: F401  (DistributedDataParallel imports it, for two seconds)

import torch_topoopt.parallel  # noqa: F401
from torch_topoopt.runtime import before_fork

with contextlib.suppress(ImportError):  # tests that need it are skipped
    from transformers import (  # noqa: F401
        LlamaForCausalLM,
        Qwen3MoeForCausalLM,
        WhisperForConditionalGeneration,
    )

before_fork.prepare()
gc.collect()
gc.freeze()  # memory that is never collected is never written to, and forks share it
atexit.register(os._exit, 0)  # of this process, not of ranks: taking PyTorch apart takes a second
