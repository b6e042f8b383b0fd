"""A plan's layout as the configuration of torchtitan, Megatron-LM, DeepSpeed and accelerate.

All of them number ranks as layouts do: tensor innermost, then context, data, and stages. So rank r
runs on server r // accelerators_per_server of hosts.txt. Fields that a trainer takes from the
script alone, or lacks, are refused by their name.

Sources: torchtitan 0.3.0, config/configs.py and trainer.py; Megatron-LM (August 2026),
training/arguments.py; DeepSpeed 0.19.8, runtime/config.py and runtime/zero/config.py; accelerate
1.15.0, parallelism_config.py, utils/launch.py and commands/launch.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.plan import Plan
    from torch_topoopt.plan.layout import BlockField, Layout

_TITAN_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}
_TITAN_CHUNKS = 2  # of a looped schedule, unless the modules of each are given
_TITAN_CHECKPOINTS = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
_MEGATRON_STRATEGIES = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
Cells = Callable[[], Sequence[bool]]  # of the model, in order: whether each is a block

_PRECISIONS = ("fp32", "bf16")  # tf32 is a setting of the script; fp8 and fp4 need its layers


@dataclass(frozen=True)
class LayoutExport:
    """The layout of a plan, for one trainer."""

    trainer: str
    plan: Plan
    layout: Layout
    precision: str

    @classmethod
    def of(cls, trainer: str, plan: Plan) -> LayoutExport:
        """Raises ExportError for a plan without a layout, and for other precisions."""
        if plan.layout is None:
            raise ExportError(
                f"{trainer}: layout: the plan has none; make one with `topoopt plan MODEL "
                "--strategy-space layouts`"
            )
        precision = plan.cluster.accelerator.partition(":")[2] or "fp32"
        found = cls(trainer, plan, plan.layout, precision)
        if precision not in _PRECISIONS:
            found.refuse(
                "accelerator", plan.cluster.accelerator, f"one with {' or '.join(_PRECISIONS)}"
            )
        return found

    def refuse(self, field: str, value: object, right: str) -> NoReturn:
        """Raises ExportError for a field of the layout."""
        raise ExportError(f"{self.trainer}: {field}: {value} cannot be exported; {right}")

    def refuse_above_one(self, right: Mapping[str, str]) -> None:
        """Refuses the degrees that `right` names, unless they are 1."""
        for field, reason in right.items():
            if (value := getattr(self.layout, field)) > 1:
                self.refuse(field, value, reason)

    def refuse_some_blocks(self, *fields: BlockField) -> None:
        """Refuses choices for some of the blocks."""
        for field in fields:
            if counts := getattr(self.layout, field):
                self.refuse(field, "-".join(map(str, counts)), "leave it out: all blocks are alike")

    @property
    def copies(self) -> int:
        """Groups of accelerators that each hold the whole state of their stage and tensor part."""
        return self.layout.data * self.layout.context // self.layout.state_shards

    def blocks_of_chunks(self, cells: Cells) -> list[int]:
        """The number of blocks of each chunk of the stages, in order; none without stages."""
        layout = self.layout
        if layout.pipeline == 1 or not layout.cells:
            return []
        are_blocks = list(cells())
        count = sum(are_blocks)
        first = are_blocks.index(True) if count else 0
        if sum(layout.cells) != len(are_blocks) or not all(are_blocks[first : first + count]):
            self.refuse(
                "cells", layout.cells, f"{count} blocks in a row, between one input and one output"
            )
        parts, at = [], 0
        for size in layout.cells:
            parts.append(sum(are_blocks[at : at + size]))
            at += size
        return parts

    def data_shards(self) -> int:
        """The accelerators of the data dimension that share parameters, next to those of the
        context dimension, where a trainer shards over both."""
        layout = self.layout
        if layout.sharding == "none" and layout.context == 1:
            return 1
        if layout.sharding != "parameters":
            self.refuse("sharding", layout.sharding, _sharded(layout))
        if layout.state_shards % layout.context:
            self.refuse(
                "state_shards",
                layout.state_shards,
                f"a multiple of context, {layout.context}, as parameters are sharded over it",
            )
        return layout.state_shards // layout.context


def _sharded(layout: Layout) -> str:
    if layout.context > 1:
        return "parameters, which are sharded over the context dimension"
    return "none or parameters (FSDP2)"


def hosts(plan: Plan, names: tuple[str, ...]) -> str:
    """The hosts in the order of their ranks, as DeepSpeed and MPI read them."""
    slots = plan.cluster.accelerators_per_server
    named = names or [f"server{i}" for i in range(plan.cluster.servers)]
    return "".join(f"{name} slots={slots}\n" for name in named)


def torchtitan(plan: Plan, cells: Cells) -> str:
    """A Python module that puts the layout into a Trainer.Config."""
    export = LayoutExport.of("torchtitan", plan)
    export.refuse_some_blocks("recompute_blocks", "reshard_blocks")
    layout = export.layout
    shards = export.data_shards()
    if (shards * layout.context * layout.tensor) % layout.expert:
        export.refuse(
            "expert",
            layout.expert,
            f"a divisor of {shards * layout.context * layout.tensor}, the accelerators that share "
            "parameters",
        )
    batch_size = layout.micro_batch * (layout.micro_batches if layout.pipeline > 1 else 1)
    values: dict[str, object] = {
        "parallelism.data_parallel_replicate_degree": export.copies,
        "parallelism.data_parallel_shard_degree": shards,
        "parallelism.fsdp_reshard_after_forward": "always" if layout.reshard else "never",
        "parallelism.tensor_parallel_degree": layout.tensor,
        "parallelism.context_parallel_degree": layout.context,
        "parallelism.expert_parallel_degree": layout.expert,
        "parallelism.pipeline_parallel_degree": layout.pipeline,
        "training.local_batch_size": batch_size,
        "training.global_batch_size": layout.batch_size,
        "training.mixed_precision_param": "bfloat16" if export.precision == "bf16" else "float32",
        "training.enable_cpu_offload": layout.offload == "host",
    }
    if layout.pipeline > 1:
        values |= _titan_pipeline(export, cells)
    if layout.pipeline > 1 or layout.expert > 1:  # torchtitan captures neither
        values["training.disable_cuda_graphs"] = True
    checkpoint = _TITAN_CHECKPOINTS[layout.recompute]
    assigned = [f"    config.{name} = {value!r}\n" for name, value in values.items()]
    return _TITAN_MODULE.format(
        digest=plan.digest(),
        assigned="".join(assigned),
        checkpoint=f"activation_checkpoint.{checkpoint}.Config()" if checkpoint else "None",
    )


_TITAN_MODULE = '''\
"""The layout of plan {digest} for torchtitan 0.3.

    from torchtitan.models.llama3.config_registry import llama3_8b
    from torchtitan_plan import planned

    def llama3_8b_planned():
        return planned(llama3_8b())
"""

from torchtitan.distributed import activation_checkpoint


def planned(config):
    """`config`, a Trainer.Config, with the layout."""
{assigned}    config.activation_checkpoint = {checkpoint}
    return config
'''


def _titan_pipeline(export: LayoutExport, cells: Cells) -> dict[str, object]:
    layout = export.layout
    values: dict[str, object] = {
        "parallelism.pipeline_parallel_schedule": _TITAN_SCHEDULES[layout.schedule],
        "parallelism.pipeline_parallel_microbatch_size": layout.micro_batch,
    }
    is_looped = layout.schedule in ("interleaved", "zero-bubble")
    if is_looped != (layout.interleave > 1):
        export.refuse(
            "interleave",
            layout.interleave,
            f"{layout.schedule} needs {'at least 2' if is_looped else '1'}",
        )
    if parts := export.blocks_of_chunks(cells):
        names = iter(range(sum(parts)))
        modules = [[f"layers.{next(names)}" for _ in range(count)] for count in parts]
        modules[0].insert(0, "tok_embeddings")
        modules[-1] += ["norm", "lm_head"]
        values["parallelism.module_fqns_per_model_part"] = modules
    elif layout.interleave > _TITAN_CHUNKS:
        export.refuse("interleave", layout.interleave, "a plan needs the cells of its chunks")
    return values


def megatron(plan: Plan, cells: Cells) -> dict[str, str]:
    """megatron.args has arguments, one on each line, and megatron.env the variables it needs."""
    export = LayoutExport.of("megatron", plan)
    layout = export.layout
    if layout.offload != "none":
        right = "none, as --optimizer-cpu-offload moves the optimizer's state alone"
        export.refuse("offload", layout.offload, right)
    if layout.pipeline > 1 and layout.schedule not in ("1f1b", "interleaved"):
        export.refuse("schedule", layout.schedule, "1f1b or interleaved")
    arguments = [
        f"--tensor-model-parallel-size {layout.tensor}",
        f"--context-parallel-size {layout.context}",
        f"--pipeline-model-parallel-size {layout.pipeline}",
        f"--micro-batch-size {layout.micro_batch}",
        f"--global-batch-size {layout.batch_size}",
    ]
    if layout.tensor > 1:
        arguments.append("--sequence-parallel")
    if layout.expert > 1:
        arguments.append(f"--expert-model-parallel-size {layout.expert}")
        arguments.append("--expert-tensor-parallel-size 1")
    if parts := export.blocks_of_chunks(cells):
        stages = "|".join("t" * count for count in parts)
        arguments.append(f"--pipeline-model-parallel-layout E{stages}L")
    elif layout.interleave > 1:
        arguments.append(f"--num-virtual-stages-per-pipeline-rank {layout.interleave}")
    arguments += _megatron_recomputation(export)
    arguments += _megatron_sharding(export)
    if export.precision == "bf16":
        arguments.append("--bf16")
    files = {"megatron.args": "\n".join(arguments) + "\n"}
    if (layout.tensor > 1 or layout.context > 1) and layout.sharding not in _MEGATRON_STRATEGIES:
        files["megatron.env"] = "CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    return files


def _megatron_recomputation(export: LayoutExport) -> list[str]:
    layout, first = export.layout, export.layout.recompute_blocks
    if layout.recompute == "none":
        return []
    arguments = [f"--recompute-granularity {layout.recompute}"]
    if first and (layout.recompute != "full" or layout.interleave > 1 or len(set(first)) > 1):
        right = "one number for all stages, with full recomputation and interleave 1"
        export.refuse("recompute_blocks", "-".join(map(str, first)), right)
    if layout.recompute == "full":
        how = (
            f"block --recompute-num-layers {first[0]}"
            if first
            else "uniform --recompute-num-layers 1"
        )
        arguments.append(f"--recompute-method {how}")
    return arguments


def _megatron_sharding(export: LayoutExport) -> list[str]:
    layout = export.layout
    export.refuse_some_blocks("reshard_blocks")
    if layout.sharding == "none":
        return []
    arguments = ["--use-distributed-optimizer"]
    if strategy := _MEGATRON_STRATEGIES.get(layout.sharding):
        if layout.sharding == "parameters" and not layout.reshard:
            export.refuse("reshard", "false", "true")
        arguments += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {strategy}"]
        arguments.append("--ckpt-format fsdp_dtensor")
    if export.copies > 1:
        arguments.append(f"--num-distributed-optimizer-instances {export.copies}")
    return arguments


def deepspeed(plan: Plan) -> str:
    """The JSON that `deepspeed.initialize` and the Trainer of transformers read."""
    export = LayoutExport.of("deepspeed", plan)
    export.refuse_some_blocks("reshard_blocks")
    layout = export.layout
    in_script = "1, as its script makes"
    export.refuse_above_one(
        {
            "pipeline": f"{in_script} the stages (PipelineModule)",
            "expert": f"{in_script} the groups of experts",
            "context": "1, as its sequence parallelism exchanges heads, not keys and values",
        }
    )
    if layout.recompute != "none":
        export.refuse("recompute", layout.recompute, "none, as its script makes the checkpoints")
    if layout.tensor > 1 and layout.zero_stage == 3:
        export.refuse("tensor", layout.tensor, "1 with sharded parameters")
    if layout.zero_stage == 3 and not layout.reshard:
        export.refuse("reshard", "false", "true")
    zero: dict[str, object] = {"stage": layout.zero_stage}
    if layout.offload == "host":
        on_host = {"device": "cpu", "pin_memory": True}
        zero |= {"offload_param": on_host, "offload_optimizer": on_host}
    if layout.zero_stage and export.copies > 1:
        export.refuse(
            "state_shards", layout.state_shards, f"{layout.data * layout.context}, all copies"
        )
    values: dict[str, object] = {
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches,
        "zero_optimization": zero,
        "bf16": {"enabled": export.precision == "bf16"},
    }
    if layout.tensor > 1:
        values["tensor_parallel"] = {"autotp_size": layout.tensor}
    return json.dumps(values, indent=2) + "\n"


def accelerate(plan: Plan) -> dict[str, str]:
    """accelerate.yaml for `accelerate launch --config_file`, accelerate.env with the variables that
    this command would set, and trainer.args with arguments of transformers' Trainer."""
    export = LayoutExport.of("accelerate", plan)
    export.refuse_some_blocks("recompute_blocks", "reshard_blocks")
    layout, cluster = export.layout, plan.cluster
    export.refuse_above_one({"pipeline": "it has none", "expert": "it has none"})
    shards = export.data_shards()
    is_sharded = layout.sharding == "parameters"
    if layout.recompute == "selective" or (layout.recompute == "full" and not is_sharded):
        export.refuse("recompute", layout.recompute, "none, or full with sharded parameters")
    if layout.tensor > 1 and shards * layout.context == 1:
        export.refuse("tensor", layout.tensor, "1, or parameters sharded over several copies")
    precision = "bf16" if export.precision == "bf16" else "no"
    config: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if is_sharded else "MULTI_GPU",
        "mixed_precision": precision,
        "num_machines": cluster.servers,
        "num_processes": layout.accelerators,
    }
    variables = {
        "ACCELERATE_MIXED_PRECISION": precision,
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(layout.micro_batches),
    }
    if is_sharded:
        sharding, sizes = _accelerate_sharding(export, shards)
        config |= {"fsdp_config": sharding, "parallelism_config": sizes}
        variables |= {
            "ACCELERATE_USE_FSDP": "true",
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            **{name.upper(): _lower(value) for name, value in (sharding | sizes).items()},
        }
    return {
        "accelerate.yaml": _yaml(config),
        "accelerate.env": "".join(f"{name}={value}\n" for name, value in variables.items()),
        "trainer.args": (
            f"--per_device_train_batch_size {layout.micro_batch}\n"
            f"--gradient_accumulation_steps {layout.micro_batches}\n"
            f"--bf16 {_lower(export.precision == 'bf16')}\n"
        ),
    }


def _accelerate_sharding(
    export: LayoutExport, shards: int
) -> tuple[dict[str, object], dict[str, object]]:
    layout = export.layout
    sharding: dict[str, object] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.reshard,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": layout.recompute == "full",
        "fsdp_offload_params": layout.offload == "host",
    }
    sizes: dict[str, object] = {
        "parallelism_config_dp_replicate_size": export.copies,
        "parallelism_config_dp_shard_size": shards,
        "parallelism_config_tp_size": layout.tensor,
        "parallelism_config_cp_size": layout.context,
    }
    return sharding, sizes


def _lower(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(values: Mapping[str, object], indent: str = "") -> str:
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(value)}\n")
    return "".join(lines)
