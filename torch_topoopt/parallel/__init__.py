"""Execution of a model's plan: placed tables, operators on some servers, pipeline stages."""

from torch_topoopt.parallel.api import parallelize
from torch_topoopt.parallel.dry_run import checked_program
from torch_topoopt.parallel.layouts import on_ranks
from torch_topoopt.parallel.micro_batches import Pipeline
from torch_topoopt.parallel.module import ParallelModule
from torch_topoopt.parallel.pipelines import pipeline
from torch_topoopt.parallel.program import Program
from torch_topoopt.parallel.sharded.model import ShardedModel
from torch_topoopt.parallel.stages import Stage, StrategyError, stages_of

__all__ = [
    "ParallelModule",
    "Pipeline",
    "Program",
    "ShardedModel",
    "Stage",
    "StrategyError",
    "checked_program",
    "on_ranks",
    "parallelize",
    "pipeline",
    "stages_of",
]
