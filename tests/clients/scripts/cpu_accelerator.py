"""Lets accelerate use a CPU as its accelerator: it shards parameters on GPUs only."""

import os

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType


def use() -> None:
    """Call this before accelerate or transformers look for devices."""

    def set_device(state: PartialState) -> None:
        state.device = torch.device("cpu")

    os.environ["ACCELERATE_USE_CPU"] = "false"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = set_device
