"""Running a model as a plan says: placed tables, operators on some servers, pipeline stages."""

from torch_topoopt.parallel.api import StrategyError, parallelize
from torch_topoopt.parallel.module import ParallelModule
from torch_topoopt.parallel.program import Program

__all__ = ["ParallelModule", "Program", "StrategyError", "parallelize"]
