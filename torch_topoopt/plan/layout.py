"""How the blocks of a model are divided over accelerators: the dimensions of today's trainers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

from torch_topoopt.plan.codec import DocumentError, brief, decode

Sharding = Literal["none", "optimizer", "gradients", "parameters"]
Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "host"]
OffloadChoice = Literal["auto", "none", "host"]
Precision = Literal["own", "bf16"]
SoftwareName = Literal["eager", "nanotron", "compiled", "megatron"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
BlockField = Literal["recompute_blocks", "reshard_blocks"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
_DIGITS = 9
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
    - `offload` "host": the accelerator's share of the state is in the memory of its host, where the
      optimizer steps, as with the CPUOffloadPolicy of FSDP2. Shares of parameters are copied to the
      accelerator before each gather, and those of gradients to the host once they are summed.
    - `recompute_blocks` and `reshard_blocks`: how many blocks of each stage `recompute` and
      `reshard` are for, its first ones. The other blocks keep all activations, or parameters.
      Empty: all blocks.
    - `pipeline` stages of `interleave` chunks each; every data group runs `micro_batches` of
      `micro_batch` samples an iteration. `cells` has the number of cells of each chunk, in order: a
      cell is a block, or all operators before, between or after blocks. Empty: equal times.
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
    cells: tuple[int, ...] = ()
    recompute_blocks: tuple[int, ...] = ()
    reshard_blocks: tuple[int, ...] = ()
    offload: Offload = "none"

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

    @property
    def expert_shards(self) -> int:
        """Accelerators with the same experts that share their state."""
        return max(1, self.state_shards * self.tensor // self.expert)

    @property
    def replicas(self) -> int:
        """Accelerators with the same share of the state."""
        return self.data * self.context // self.state_shards

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are gathered before they are used: from other accelerators, or from
        the host."""
        return self.zero_stage == 3 and (self.state_shards > 1 or self.offload == "host")

    @property
    def sums_on_host(self) -> bool:
        """Whether the host adds the gradients of a micro-batch to those of earlier ones. Replicas
        sum theirs only after the last one, so the accelerator keeps them until then."""
        return self.offload == "host" and self.micro_batches > 1 and self.replicas == 1

    @property
    def why_no_zero_bubble(self) -> str:
        """Why PyTorch cannot run this layout under a zero-bubble schedule: field, value, and what
        would be right; empty if it can."""
        count, rounds = self.micro_batches, max(1, self.micro_batches // self.pipeline)
        if count % rounds:
            return f"micro_batches: {count} are not {rounds} equal rounds"
        if self.zero_stage > 1:
            return f"sharding: {self.sharding} are summed more than once; use none or optimizer"
        if self.recompute != "none":
            return f"recompute: {self.recompute} would compute twice again; use none"
        return ""

    def __str__(self) -> str:
        """Such as "tensor 8 x data 8, parameters sharded over 8, 4 micro-batches of 1"."""
        degrees = ("tensor", "context", "data", "pipeline")
        parts = [f"{name} {count}" for name in degrees if (count := getattr(self, name)) > 1]
        words = [" x ".join(parts) or "one accelerator"]
        if self.expert > 1:
            words.append(f"experts over {self.expert}")
        if self.pipeline > 1:
            chunks = f" of {self.interleave} chunks a stage" if self.interleave > 1 else ""
            words.append(f"schedule {self.schedule}{chunks}")
        if self.cells:
            words.append(f"chunks of {_range(self.cells)} cells")
        if self.state_shards > 1:
            kept = "" if self.reshard or self.zero_stage < 3 else ", kept for the backward pass"
            if self.reshard_blocks:
                kept = f", gathered again in {_blocks(self.reshard_blocks)}"
            state = "state of the optimizer" if self.zero_stage == 1 else self.sharding
            words.append(f"{state} sharded over {self.state_shards}{kept}")
        if self.offload == "host":
            words.append("offloaded to the host")
        if self.recompute != "none":
            some = f" of {_blocks(self.recompute_blocks)}" if self.recompute_blocks else ""
            words.append(f"{self.recompute} recomputation{some}")
        count = (
            "1 micro-batch" if self.micro_batches == 1 else f"{self.micro_batches} micro-batches"
        )
        return ", ".join((*words, f"{count} of {self.micro_batch}"))

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
        if self.offload == "host" and self.sharding != "parameters":
            raise DocumentError(
                f"offload: host needs sharding parameters, and sharding is {self.sharding}"
            )
        self._check_cells()
        self._check_blocks()
        return self

    def _check_cells(self) -> None:
        chunks = self.pipeline * self.interleave
        for count in self.cells:
            _at_least_one("cells", count)
        if self.cells and len(self.cells) != chunks:
            raise DocumentError(f"cells: {len(self.cells)} chunks, but the layout has {chunks}")

    def _check_blocks(self) -> None:
        for field, counts in (
            ("recompute_blocks", self.recompute_blocks),
            ("reshard_blocks", self.reshard_blocks),
        ):
            if counts and len(counts) != self.pipeline:
                raise DocumentError(
                    f"{field}: {len(counts)} stages, but the layout has {self.pipeline}"
                )
            for count in counts:
                if count < 0:
                    raise DocumentError(f"{field}: {count} is not at least 0")
        if self.recompute_blocks and self.recompute == "none":
            raise DocumentError("recompute_blocks: recompute is none; use selective or full")
        if self.reshard_blocks and not (self.reshard and self.sharding == "parameters"):
            raise DocumentError(
                "reshard_blocks: need sharding parameters, and reshard true; have "
                f"{self.sharding}, {str(self.reshard).lower()}"
            )


@dataclass(frozen=True)
class Trainer:
    """How a layout is trained: by `software` (`topoopt plan --software`) and `optimizer`, or by one
    whose state has `optimizer_factor` bytes per byte of gradients, if that is not 0.

    Blocks compute in `precision`, by default that of the parameters.
    """

    software: SoftwareName = "compiled"
    optimizer: str = "adamw"
    optimizer_factor: float = 0.0
    precision: Precision = "own"

    def validate(self) -> Self:
        """Returns self, or raises DocumentError."""
        if not 0 <= self.optimizer_factor < math.inf:
            raise DocumentError(
                f"trainer.optimizer_factor: {self.optimizer_factor} is not a finite number from 0 "
                "on"
            )
        return self


DEFAULT_TRAINER = Trainer()


def _range(counts: tuple[int, ...]) -> str:
    least, most = min(counts), max(counts)
    return f"{least} to {most}" if least < most else str(most)


def _blocks(counts: tuple[int, ...]) -> str:
    word = "block" if set(counts) == {1} else "blocks"
    return f"{_range(counts)} {word}{' a stage' if len(counts) > 1 else ''}"


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise DocumentError(f"{field}: {value} is not at least 1")


def layout_from(text: str, accelerators: int, batch_size: int | None) -> Layout:
    """The layout that `text` describes, such as "tensor=8,sharding=parameters".

    The data dimension has the remaining accelerators, state is sharded over all copies, and
    micro-batches fill the batch, unless `text` says otherwise. Without a `batch_size`, nothing is
    checked about samples. Raises DocumentError for an unknown field, or a layout of other
    accelerators or another batch.
    """
    given = _layout_fields(text)
    others = 1
    for field in ("tensor", "context", "pipeline"):
        others *= max(1, given.get(field, 1))
    data = given.setdefault("data", max(1, accelerators // others))
    if given.get("sharding", "none") != "none":
        given.setdefault("state_shards", data * max(1, given.get("context", 1)))
    if given.get("interleave", 1) > 1:
        given.setdefault("schedule", "interleaved")
    rest = max(1, data * max(1, given.get("micro_batch", 1)))
    if batch_size is None:
        given["micro_batches"] = max(1, given.get("pipeline", 1))
    given.setdefault("micro_batches", max(1, (batch_size or 1) // rest))
    layout: Layout = decode(Layout, given)
    layout.validate()
    if layout.accelerators != accelerators:
        raise DocumentError(
            f"{text}: tensor x context x data x pipeline is {layout.accelerators}, and must be "
            f"{accelerators}, the accelerators of the cluster"
        )
    if batch_size is not None and layout.batch_size != batch_size:
        raise DocumentError(
            f"{text}: data x micro_batches x micro_batch is {layout.data} x {layout.micro_batches} "
            f"x {layout.micro_batch} = {layout.batch_size}, and must be {batch_size}, the samples "
            "of an iteration"
        )
    return layout


def layouts_from(text: str, accelerators: int, batch_size: int) -> list[Layout]:
    """As `layout_from`, with micro-batches of every size that `text` leaves open."""
    layout = layout_from(text, accelerators, batch_size)
    if {"micro_batch", "micro_batches"} & _layout_fields(text).keys():
        return [layout]
    share = layout.micro_batches
    made = [
        replace(layout, micro_batch=size, micro_batches=share // size)
        for size in range(1, share + 1)
        if share % size == 0
    ]
    return [one for one in made if one.interleave == 1 or one.micro_batches % one.pipeline == 0]


def _layout_fields(text: str) -> dict[str, Any]:
    """The values of FIELD=VALUE,FIELD=VALUE; raises DocumentError for an unknown field."""
    defaults = {field.name: field.default for field in fields(Layout)}
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in defaults:
            raise DocumentError(
                f"{brief(name)} is not a dimension of a layout; they are {', '.join(defaults)}"
            )
        default = defaults[name]
        if isinstance(default, bool):
            if value not in ("true", "false"):
                raise DocumentError(f"{name}: {brief(value)} is not true or false")
            found[name] = value == "true"
        elif isinstance(default, int):
            if not value.isdecimal() or len(value) > _DIGITS:
                raise DocumentError(f"{name}: {brief(value)} is not an integer of at least 1")
            found[name] = int(value)
        elif isinstance(default, tuple):
            counts = value.split("-")
            if not all(count.isdecimal() and len(count) <= _DIGITS for count in counts):
                raise DocumentError(f"{name}: {brief(value)} is not integers, such as 3-2-2-3")
            found[name] = [int(count) for count in counts]
        else:
            found[name] = value
    return found
