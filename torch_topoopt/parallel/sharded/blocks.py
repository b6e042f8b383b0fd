"""The modules of a model's blocks, by the repeated layers of its OpGraph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.search.layouts.cells import cells_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from torch_topoopt.op_graph import Operator, OpGraph


@dataclass(frozen=True)
class ModelCell:
    """The modules of a cell of the search: of a `block` the one that is called, else the leaf
    modules with parameters. Its operators are begin..end - 1 of the OpGraph."""

    paths: tuple[str, ...]
    begin: int
    end: int
    block: bool


def path_of(operator: Operator) -> str:
    """The path of the leaf module, or of the call, that `operator` stands for."""
    return operator.name.split("#")[0]


def model_cells(module: torch.nn.Module, op_graph: OpGraph) -> tuple[ModelCell, ...]:
    """The cells of `op_graph`, which is that of `module`, in order."""
    modules = dict(module.named_modules())
    found = []
    for cell in cells_of(op_graph):
        operators = op_graph.operators[cell.begin : cell.end]
        if cell.block:
            paths: tuple[str, ...] = (_common_path([path_of(o) for o in operators], modules),)
        else:
            leaves = dict.fromkeys(path_of(operator) for operator in operators)
            paths = tuple(path for path in leaves if _has_parameters(modules.get(path)))
        found.append(ModelCell(paths, cell.begin, cell.end, cell.block))
    return tuple(found)


def why_not_some_blocks(cells: Sequence[ModelCell]) -> str:
    """Why no layout can choose some of the blocks of a model; empty if it can."""
    calls = Counter(path for cell in cells if cell.block for path in cell.paths)
    twice = (path for path, count in calls.items() if count > 1)
    return next((f"several blocks are calls of '{path}'" for path in twice), "")


def _common_path(paths: Sequence[str], modules: dict[str, torch.nn.Module]) -> str:
    """The innermost module that all of `paths` are in."""
    first, *others = [path.split(".") for path in paths]
    length = len(first)
    for other in others:
        while first[:length] != other[:length]:
            length -= 1
    while ".".join(first[:length]) not in modules:
        length -= 1
    return ".".join(first[:length])


def _has_parameters(module: torch.nn.Module | None) -> bool:
    return module is not None and any(True for _ in module.parameters())
