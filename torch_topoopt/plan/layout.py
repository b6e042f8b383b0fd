"""How the blocks of a model are divided over accelerators: the dimensions of today's trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, get_args

from torch_topoopt.plan.codec import DocumentError

Sharding = Literal["none", "optimizer", "gradients", "parameters"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
ZERO_STAGE: dict[Sharding, int] = {name: stage for stage, name in enumerate(SHARDINGS)}


@dataclass(frozen=True)
class Layout:
    """One division of every block over `accelerators` accelerators.

    Ranks are ordered with the parts of a tensor innermost, then context, data, and the stages of
    the pipeline outermost. So the tensor group of a rank is in its own box if it fits there.

    - `tensor`: parts of columns and rows; norms and dropouts split positions over the same group.
    - `context`: parts of the positions; keys and values pass round the group.
    - `data`: groups that share the samples. `expert` of them share the experts.
    - `state_shards`: accelerators of the data and context dimensions that share the state which
      `sharding` names: of the optimizer (ZeRO-1), also gradients (ZeRO-2), also parameters (ZeRO-3,
      FSDP). Fewer than `data * context` is HSDP. With `reshard`, parameters are gathered again
      for the backward pass.
    - `pipeline` stages of `interleave` chunks each; every data group runs `micro_batches` of
      `micro_batch` samples an iteration.
    """

    tensor: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    pipeline: int = 1
    interleave: int = 1
    sharding: Sharding = "none"
    state_shards: int = 1
    reshard: bool = True
    recompute: Recompute = "none"
    schedule: Schedule = "1f1b"
    micro_batch: int = 1
    micro_batches: int = 1

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def batch_size(self) -> int:
        """Samples of an iteration."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def zero_stage(self) -> int:
        """0 to 3, as ZeRO counts what is sharded."""
        return ZERO_STAGE[self.sharding]

    def validate(self) -> Self:
        """Returns self, or raises DocumentError: field, value, and what would be right."""
        for field in ("tensor", "context", "data", "expert", "pipeline", "interleave"):
            _at_least_one(field, getattr(self, field))
        for field in ("state_shards", "micro_batch", "micro_batches"):
            _at_least_one(field, getattr(self, field))
        if (self.data * self.context) % self.state_shards:
            raise DocumentError(
                f"state_shards: {self.state_shards} does not divide the {self.data * self.context} "
                "accelerators of the data and context dimensions"
            )
        if self.sharding == "none" and self.state_shards > 1:
            raise DocumentError(f"sharding: none, but state_shards is {self.state_shards}")
        if (self.data * self.context * self.tensor) % self.expert:
            raise DocumentError(
                f"expert: {self.expert} does not divide the "
                f"{self.data * self.context * self.tensor} accelerators of a stage"
            )
        if self.interleave > 1 and self.micro_batches % self.pipeline:
            raise DocumentError(
                f"micro_batches: {self.micro_batches} is no multiple of the {self.pipeline} "
                "stages, which an interleaved schedule needs"
            )
        return self


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise DocumentError(f"{field}: {value} is not at least 1")
