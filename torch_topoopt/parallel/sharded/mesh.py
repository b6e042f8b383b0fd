"""The ranks of a layout as meshes, whose dimensions are its groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from torch_topoopt.plan.layout import Layout


@dataclass(frozen=True)
class LayoutMesh:
    """All ranks in the order of Layout, divided in up to three ways.

    - `state`: ("pipeline", "replicas", "shards", "tensor"). Ranks of "shards" share the state of a
      model, those of "replicas" have the same share.
    - `samples`: ("pipeline", "data", "context", "tensor"); None without context parallelism.
    - `experts`: ("pipeline", "replicas", "shards", "expert"); None without expert parallelism.
    """

    layout: Layout
    state: DeviceMesh
    samples: DeviceMesh | None
    experts: DeviceMesh | None

    @classmethod
    def of(cls, layout: Layout, device_type: str) -> LayoutMesh:
        """The meshes of `layout` over all ranks; a collective call."""
        per_stage = layout.accelerators // layout.pipeline

        def mesh(names: tuple[str, str, str], *inner: int) -> DeviceMesh:
            outer = per_stage // (inner[0] * inner[1])
            return init_device_mesh(
                device_type,
                (layout.pipeline, outer, *inner),
                mesh_dim_names=("pipeline", *names),
            )

        state = mesh(("replicas", "shards", "tensor"), layout.state_shards, layout.tensor)
        samples = experts = None
        if layout.context > 1:
            samples = mesh(("data", "context", "tensor"), layout.context, layout.tensor)
        if layout.expert > 1:
            shards = layout.expert_shards
            experts = mesh(("replicas", "shards", "expert"), shards, layout.expert)
        return cls(layout, state, samples, experts)

    @property
    def copies(self) -> DeviceMesh:
        """The ranks with this rank's parameters: (shards), or (replicas, shards) if several ranks
        have the same share."""
        sharded_once = self.state.size(1) == 1
        return self.state["shards"] if sharded_once else self.state["replicas", "shards"]

    @property
    def expert_copies(self) -> DeviceMesh | None:
        """As `copies`, of this rank's experts; None without expert parallelism."""
        if self.experts is None:
            return None
        sharded_once = self.experts.size(1) == 1
        return self.experts["shards"] if sharded_once else self.experts["replicas", "shards"]

    @property
    def tensor(self) -> DeviceMesh:
        """This rank's tensor group."""
        return self.state["tensor"]

    @property
    def stage(self) -> int:
        """The stage of this rank, from 0."""
        return int(dist.get_rank()) // (self.layout.accelerators // self.layout.pipeline)

    @property
    def replica(self) -> int:
        """The copy of the model, of `layout.data`, that this rank is part of."""
        layout = self.layout
        of_stage = int(dist.get_rank()) % (layout.accelerators // layout.pipeline)
        return of_stage // (layout.tensor * layout.context)
