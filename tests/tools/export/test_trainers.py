"""Layouts as configurations of trainers, read by the trainers' own parsers where installed."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.plans import make_ring_plan
from support.refusals import refused

from torch_topoopt.launcher.main import main
from torch_topoopt.plan.layout import Layout
from torch_topoopt.tools.export import trainers
from torch_topoopt.tools.export.errors import ExportError

if TYPE_CHECKING:
    from pathlib import Path

    from torch_topoopt.plan import Plan

CELLS = [False, *[True] * 16, False]  # blocks between an embedding and an output layer
NESTED = Layout(
    tensor=2, data=2, pipeline=2, sharding="parameters", state_shards=2, recompute="full",
    micro_batch=3, micro_batches=4,
)  # fmt: skip
HYBRID = Layout(
    context=2, data=4, sharding="parameters", state_shards=4, reshard=False,
    recompute="selective", micro_batches=5,
)  # fmt: skip
EXPERTS = Layout(
    tensor=2, data=4, expert=4, pipeline=2, interleave=4, schedule="interleaved",
    sharding="parameters", state_shards=4, micro_batches=4, cells=(2, 2, 3, 2, 2, 3, 2, 2),
)  # fmt: skip
COPIES = Layout(data=8, micro_batch=2, micro_batches=3)
ZERO_1 = Layout(data=4, tensor=2, sharding="optimizer", state_shards=4)
ZERO_2 = Layout(data=8, sharding="gradients", state_shards=8)
OFFLOADED = Layout(data=8, sharding="parameters", state_shards=8, offload="host")
ZERO_3 = Layout(data=8, sharding="parameters", state_shards=8, micro_batch=2, micro_batches=2)


def plan_of(layout: Layout | None, accelerator: str = "h100:bf16") -> Plan:
    """Two accelerators on each server."""
    servers = max(2, layout.accelerators // 2) if layout else 4
    plan = make_ring_plan(servers)
    cluster = replace(plan.cluster, accelerator=accelerator, accelerators_per_server=2)
    return replace(plan, cluster=cluster, layout=layout)


def export(trainer: str, layout: Layout, accelerator: str = "h100:bf16") -> None:
    plan = plan_of(layout, accelerator)
    if trainer in ("torchtitan", "megatron"):
        getattr(trainers, trainer)(plan, lambda: CELLS)
    else:
        getattr(trainers, trainer)(plan)


def torchtitan(layout: Layout) -> str:
    return trainers.torchtitan(plan_of(layout), lambda: CELLS)


def titan_values(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    """Those that the module assigns to a configuration without any."""
    policies = {
        name: SimpleNamespace(Config=lambda name=name: name) for name in ("SelectiveAC", "FullAC")
    }
    distributed = ModuleType("torchtitan.distributed")
    distributed.activation_checkpoint = SimpleNamespace(**policies)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchtitan", ModuleType("torchtitan"))
    monkeypatch.setitem(sys.modules, "torchtitan.distributed", distributed)
    (tmp_path / "torchtitan_plan.py").write_text(torchtitan(layout))
    planned = runpy.run_path(str(tmp_path / "torchtitan_plan.py"))["planned"]
    config = planned(SimpleNamespace(parallelism=SimpleNamespace(), training=SimpleNamespace()))
    return {
        **vars(config.parallelism),
        **vars(config.training),
        "checkpoint": config.activation_checkpoint,
    }


def test_torchtitan_has_degrees_batches_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert titan_values(NESTED, tmp_path, monkeypatch) == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "always",
        "tensor_parallel_degree": 2,
        "context_parallel_degree": 1,
        "expert_parallel_degree": 1,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_microbatch_size": 3,
        "local_batch_size": 12,
        "global_batch_size": 24,
        "mixed_precision_param": "bfloat16",
        "enable_cpu_offload": False,
        "disable_cuda_graphs": True,
        "checkpoint": "FullAC",
    }


def test_torchtitan_shards_over_contexts_and_has_the_modules_of_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid = titan_values(HYBRID, tmp_path, monkeypatch)
    assert (hybrid["data_parallel_replicate_degree"], hybrid["data_parallel_shard_degree"]) == (
        2,
        2,
    )
    assert (hybrid["local_batch_size"], hybrid["global_batch_size"]) == (1, 20)
    assert (hybrid["fsdp_reshard_after_forward"], hybrid["checkpoint"]) == ("never", "SelectiveAC")
    experts = titan_values(EXPERTS, tmp_path, monkeypatch)
    assert experts["expert_parallel_degree"] == 4
    assert experts["pipeline_parallel_schedule"] == "Interleaved1F1B"
    modules = experts["module_fqns_per_model_part"]
    assert isinstance(modules, list)
    assert (modules[0], modules[2]) == (
        ["tok_embeddings", "layers.0"],
        [f"layers.{i}" for i in (3, 4, 5)],
    )
    assert modules[-1] == ["layers.15", "norm", "lm_head"]


def test_state_on_hosts_is_exported_where_trainers_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron has it for the optimizer's state alone."""
    assert titan_values(OFFLOADED, tmp_path, monkeypatch)["enable_cpu_offload"] is True
    assert accelerate_variables(OFFLOADED)["FSDP_OFFLOAD_PARAMS"] == "true"
    on_host = {"device": "cpu", "pin_memory": True}
    assert json.loads(trainers.deepspeed(plan_of(OFFLOADED)))["zero_optimization"] == {
        "stage": 3, "offload_param": on_host, "offload_optimizer": on_host
    }  # fmt: skip
    with refused(ExportError, "megatron", "offload", "host", "none"):
        export("megatron", OFFLOADED)


@pytest.mark.parametrize("layout", [NESTED, HYBRID, COPIES, EXPERTS, OFFLOADED])
def test_torchtitan_parses_its_configuration(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "needs torchtitan 0.3 and its dependencies"
    pytest.importorskip("torchtitan.models.llama3.config_registry", reason=reason)
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    (tmp_path / "torchtitan_plan.py").write_text(torchtitan(layout))
    (tmp_path / "my_runs.py").write_text(
        "from torchtitan.models.llama3.config_registry import llama3_debugmodel\n"
        "from torchtitan_plan import planned\n"
        "def small():\n    return planned(llama3_debugmodel())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("torchtitan_plan", "my_runs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    config = ConfigManager().parse_args(["--module", "my_runs", "--config", "small"])
    dims = ParallelDims.from_config(config.parallelism, layout.accelerators)
    assert (dims.tp, dims.cp, dims.pp, dims.ep) == (
        layout.tensor, layout.context, layout.pipeline, layout.expert,
    )  # fmt: skip
    assert dims.dp_replicate * dims.dp_shard == layout.data
    assert config.training.enable_cpu_offload == (layout.offload == "host")


# Those of Megatron-LM's documentation that an export uses, with their types.
MEGATRON: dict[str, Any] = {
    **{
        name: {"type": int}
        for name in (
            "tensor-model-parallel-size", "context-parallel-size", "pipeline-model-parallel-size",
            "expert-model-parallel-size", "expert-tensor-parallel-size", "micro-batch-size",
            "global-batch-size", "num-virtual-stages-per-pipeline-rank", "recompute-num-layers",
            "num-distributed-optimizer-instances",
        )
    },
    **{
        name: {"action": "store_true"}
        for name in ("sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "bf16")
    },
    "pipeline-model-parallel-layout": {"type": str},
    "recompute-granularity": {"choices": ("full", "selective")},
    "recompute-method": {"choices": ("uniform", "block")},
    "data-parallel-sharding-strategy": {
        "choices": ("no_shard", "optim", "optim_grads", "optim_grads_params")
    },
    "ckpt-format": {"choices": ("torch", "torch_dist", "torch_dcp", "fsdp_dtensor")},
}  # fmt: skip


def megatron(layout: Layout, accelerator: str = "h100:bf16") -> dict[str, object]:
    """The arguments that are given, as its documentation has them."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, exit_on_error=False)
    for name, kinds in MEGATRON.items():
        parser.add_argument(f"--{name}", **kinds)
    files = trainers.megatron(plan_of(layout, accelerator), lambda: CELLS)
    return vars(parser.parse_args(files["megatron.args"].split()))


def megatron_files(layout: Layout) -> dict[str, str]:
    return trainers.megatron(plan_of(layout), lambda: CELLS)


def test_megatron_has_degrees_batches_and_checkpoints() -> None:
    assert megatron(NESTED) == {
        "tensor_model_parallel_size": 2,
        "context_parallel_size": 1,
        "pipeline_model_parallel_size": 2,
        "micro_batch_size": 3,
        "global_batch_size": 24,
        "sequence_parallel": True,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        "use_distributed_optimizer": True,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
        "ckpt_format": "fsdp_dtensor",
        "bf16": True,
    }


def test_megatron_recomputes_the_first_layers_of_each_stage() -> None:
    some = megatron(replace(NESTED, recompute_blocks=(5, 5)))
    assert some == {
        **megatron(NESTED), "recompute_method": "block", "recompute_num_layers": 5
    }  # fmt: skip


def test_megatron_has_experts_chunks_and_shards() -> None:
    experts = megatron(EXPERTS)
    assert experts["expert_model_parallel_size"] == 4
    assert experts["expert_tensor_parallel_size"] == 1
    assert experts["pipeline_model_parallel_layout"] == "Et|tt|ttt|tt|tt|ttt|tt|tL"
    assert megatron(replace(EXPERTS, cells=()))["num_virtual_stages_per_pipeline_rank"] == 4
    plain = megatron(COPIES, "cpu-core")
    assert "use_distributed_optimizer" not in plain
    assert "bf16" not in plain
    first = megatron(replace(ZERO_1, state_shards=2))
    assert "use_megatron_fsdp" not in first
    assert first["num_distributed_optimizer_instances"] == 2
    assert megatron_files(ZERO_1)["megatron.env"] == "CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    assert "megatron.env" not in megatron_files(NESTED)
    assert megatron(ZERO_2)["data_parallel_sharding_strategy"] == "optim_grads"


@pytest.mark.parametrize("layout", [NESTED, EXPERTS, COPIES, ZERO_1, ZERO_2])
def test_megatron_parses_its_arguments(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("megatron.training needs Python 3.12")
    arguments = pytest.importorskip(
        "megatron.training.arguments", reason="needs a checkout of Megatron-LM on PYTHONPATH"
    )
    model = (
        "--num-layers 16 --hidden-size 64 --num-attention-heads 8 --seq-length 128 --lr 1e-3 "
        "--max-position-embeddings 128 --tokenizer-type NullTokenizer --vocab-size 100 "
        "--train-iters 4 --transformer-impl local --no-gradient-accumulation-fusion "
        "--num-experts 8"
    )
    files = trainers.megatron(plan_of(layout), lambda: CELLS)
    words = files["megatron.args"].split()
    for line in files.get("megatron.env", "").splitlines():
        monkeypatch.setenv(*line.split("="))
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words, *model.split()])
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda *_: SimpleNamespace(major=9, minor=0)
    )
    parsed = arguments.parse_args()
    parsed.world_size = layout.accelerators
    arguments.validate_args(parsed)
    assert parsed.data_parallel_size == layout.data
    assert parsed.expert_model_parallel_size == layout.expert


def test_deepspeed_has_its_stage_and_batches() -> None:
    assert json.loads(trainers.deepspeed(plan_of(ZERO_3))) == {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": True},
    }
    assert json.loads(trainers.deepspeed(plan_of(COPIES, "cpu-core")))["bf16"] == {"enabled": False}
    first = json.loads(trainers.deepspeed(plan_of(ZERO_1)))
    assert (first["zero_optimization"], first["tensor_parallel"]) == (
        {"stage": 1},
        {"autotp_size": 2},
    )


@pytest.mark.parametrize("layout", [COPIES, ZERO_1, ZERO_2, ZERO_3, OFFLOADED])
def test_deepspeed_parses_its_configuration(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    config = pytest.importorskip("deepspeed.runtime.config", reason="needs DeepSpeed")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(config.dist, "get_world_size", lambda *_: layout.data)
    parsed = config.DeepSpeedConfig(json.loads(trainers.deepspeed(plan_of(layout))))
    assert parsed.zero_config.stage == layout.zero_stage
    assert (parsed.zero_config.offload_param is not None) == (layout.offload == "host")
    assert parsed.gradient_accumulation_steps == layout.micro_batches
    assert parsed.train_batch_size == layout.batch_size
    assert parsed.tensor_parallel_config.autotp_size in (0, layout.tensor)


def accelerate_variables(layout: Layout) -> dict[str, str]:
    text = trainers.accelerate(plan_of(layout))["accelerate.env"]
    return dict(line.split("=", 1) for line in text.splitlines())


def test_accelerate_has_sizes_and_steps() -> None:
    assert accelerate_variables(replace(HYBRID, recompute="full")) == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "5",
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "FSDP_VERSION": "2",
        "FSDP_RESHARD_AFTER_FORWARD": "false",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_ACTIVATION_CHECKPOINTING": "true",
        "FSDP_OFFLOAD_PARAMS": "false",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2",
        "PARALLELISM_CONFIG_TP_SIZE": "1",
        "PARALLELISM_CONFIG_CP_SIZE": "2",
    }
    assert accelerate_variables(COPIES) == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3",
    }


@pytest.mark.parametrize("layout", [replace(HYBRID, recompute="full"), ZERO_3, OFFLOADED, COPIES])
def test_accelerate_sets_the_exported_variables_from_the_exported_file(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = pytest.importorskip("accelerate.commands.launch", reason="needs accelerate")
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.launch import prepare_multi_gpu_env

    path = tmp_path / "accelerate.yaml"
    path.write_text(trainers.accelerate(plan_of(layout))["accelerate.yaml"])
    words = ["--config_file", str(path), "train.py"]
    arguments, *_ = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(words)
    )
    exported = accelerate_variables(layout)
    found = prepare_multi_gpu_env(arguments)
    del exported["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"]  # the launcher has it for DeepSpeed only
    assert {name: found.get(name) for name in exported} == exported
    if layout.sharding == "parameters":
        for name, value in exported.items():
            monkeypatch.setenv(name, value)
        assert ParallelismConfig().total_size == layout.accelerators


def test_the_trainer_of_transformers_parses_its_arguments(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="TrainingArguments needs accelerate")
    from transformers import HfArgumentParser, TrainingArguments

    words = trainers.accelerate(plan_of(COPIES, "cpu-core"))["trainer.args"].split()
    parser = HfArgumentParser(TrainingArguments)
    (parsed,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), *words])
    found = parsed.per_device_train_batch_size, parsed.gradient_accumulation_steps, parsed.bf16
    assert found == (2, 3, False)


def test_hosts_come_in_the_order_of_ranks() -> None:
    assert trainers.hosts(plan_of(NESTED), ()) == "".join(f"server{i} slots=2\n" for i in range(4))
    assert trainers.hosts(plan_of(NESTED), tuple("abcd")).startswith("a slots=2\nb slots=2\n")


@pytest.mark.parametrize(
    ("trainer", "layout", "tokens"),
    [
        ("torchtitan", ZERO_1, ("sharding", "optimizer")),
        ("torchtitan", replace(HYBRID, sharding="none", state_shards=1), ("sharding", "none")),
        ("torchtitan", Layout(data=4, expert=4), ("expert", 4)),
        ("torchtitan", replace(NESTED, schedule="zero-bubble"), ("interleave", 1, 2)),
        ("torchtitan", replace(EXPERTS, cells=()), ("interleave", 4, "cells")),
        ("torchtitan", replace(NESTED, cells=(8, 8)), ("cells", 16)),
        ("megatron", replace(NESTED, cells=(8, 8)), ("cells", 16)),
        ("torchtitan", replace(HYBRID, state_shards=1), ("state_shards", 1, 2)),
        ("megatron", replace(NESTED, schedule="gpipe"), ("schedule", "gpipe")),
        ("megatron", replace(ZERO_3, reshard=False), ("reshard", "false")),
        ("deepspeed", NESTED, ("pipeline", 2)),
        ("deepspeed", HYBRID, ("context", 2)),
        ("deepspeed", replace(COPIES, expert=2), ("expert", 2)),
        ("deepspeed", replace(COPIES, recompute="full"), ("recompute", "full")),
        ("deepspeed", replace(ZERO_3, state_shards=4), ("state_shards", 4, 8)),
        ("deepspeed", replace(ZERO_3, reshard=False), ("reshard", "false")),
        ("deepspeed", replace(ZERO_3, tensor=2), ("tensor", 2)),
        ("accelerate", NESTED, ("pipeline", 2)),
        ("accelerate", replace(COPIES, expert=2), ("expert", 2)),
        ("accelerate", ZERO_2, ("sharding", "gradients")),
        ("accelerate", HYBRID, ("recompute", "selective")),
        ("accelerate", Layout(tensor=2, data=2), ("tensor", 2)),
        *(
            (trainer, replace(ZERO_3, reshard_blocks=(5,)), ("reshard_blocks", 5))
            for trainer in ("torchtitan", "megatron", "deepspeed", "accelerate")
        ),
        ("torchtitan", replace(NESTED, recompute_blocks=(5, 5)), ("recompute_blocks", "5-5")),
        ("megatron", replace(NESTED, recompute_blocks=(5, 4)), ("recompute_blocks", "5-4")),
        ("megatron", replace(HYBRID, reshard=True, recompute_blocks=(5,)), ("recompute_blocks", 5)),
        (
            "accelerate",
            replace(ZERO_3, recompute="full", recompute_blocks=(5,)),
            ("recompute_blocks", 5),
        ),
    ],
)
def test_a_field_that_a_trainer_lacks_is_named(
    trainer: str, layout: Layout, tokens: tuple[object, ...]
) -> None:
    with refused(ExportError, trainer, *tokens):
        export(trainer, layout)


@pytest.mark.parametrize("accelerator", ["h100:fp8", "h100:fp4", "a100:tf32"])
@pytest.mark.parametrize("trainer", ["torchtitan", "megatron", "deepspeed", "accelerate"])
def test_other_precisions_are_refused(trainer: str, accelerator: str) -> None:
    with refused(ExportError, trainer, accelerator, "bf16"):
        export(trainer, COPIES, accelerator)


@pytest.mark.parametrize("trainer", ["torchtitan", "megatron", "deepspeed", "accelerate"])
def test_a_plan_without_a_layout_is_refused(
    trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_ring_plan(4).save(tmp_path / "plan.json")
    words = ["export", str(tmp_path / "plan.json"), "--to", trainer, "-o", str(tmp_path / "here")]
    assert main(words) == 2
    assert f"{trainer}: layout: the plan has none" in capsys.readouterr().err
    assert not (tmp_path / "here").exists()
