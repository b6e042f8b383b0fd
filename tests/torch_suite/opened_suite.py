"""PyTorch's own tests of torch.distributed, with what they reserve for built-in backends opened.

The suite that every torch installation carries decides by the name of the backend which tests
apply. Its source is parsed, the comparisons with "gloo" and "mpi" are widened to "topoopt" in
memory, and the result is run as a module; the installed file stays as it is.
"""

from __future__ import annotations

import ast
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_distributed

MODULE = "torch.testing._internal.distributed.distributed_test"
# The subgroup tests ask for 8 ranks, but their groups are ranks 1 and 2.
SUBGROUP_TEST_RANKS = 3


class _Opener(ast.NodeTransformer):
    """Lets `backend` pass where the suite asks for gloo, or for MPI's all_to_all on the CPU."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.widened = 0

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        match node:
            case ast.Compare(ast.Name("BACKEND"), [ast.Eq()], [ast.Constant("gloo")]):
                return self._membership(node, ast.In(), "gloo")
            case ast.Compare(
                ast.Name("BACKEND"), [ast.NotEq()], [ast.Constant("gloo" | "mpi" as name)]
            ):
                return self._membership(node, ast.NotIn(), name)
        return node

    def _membership(self, node: ast.Compare, operator: ast.cmpop, name: str) -> ast.expr:
        self.widened += 1
        names = ast.Tuple([ast.Constant(name), ast.Constant(self.backend)], ast.Load())
        return ast.copy_location(ast.Compare(node.left, [operator], [names]), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(
                ast.Name("require_backend_is_available"), [ast.Set([ast.Constant("gloo")])]
            ):
                self.widened += 1
                node.args[0].elts.append(ast.Constant(self.backend))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name == "test_ddp_logging_data_cpu":
            self._expect_custom(node)
        return node

    def _expect_custom(self, test: ast.FunctionDef) -> None:
        """DDP logs the kind of backend, which torch calls "custom" for all that are registered."""
        for node in ast.walk(test):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.assertEqual":
                logged, expected = node.args[:2]
                if "backend_name" in ast.unparse(logged):
                    self.widened += 1
                    node.args[1] = ast.copy_location(ast.Constant("custom"), expected)


def load(backend: str) -> types.ModuleType:
    """The opened suite, for a backend that is registered. Reads BACKEND, WORLD_SIZE, TEMP_DIR."""
    for feature in ("ddp", "gpu", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(backend)
    common_distributed.skip_if_small_worldsize = _skip_below(SUBGROUP_TEST_RANKS)
    package = Path(torch.__file__).parent
    path = package.parent.joinpath(*MODULE.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(), str(path))
    opener = _Opener(backend)
    tree = ast.fix_missing_locations(opener.visit(tree))
    if opener.widened == 0:
        raise RuntimeError(f"{path}: nothing in it asks for gloo; this torch has another suite")
    module = types.ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module
    exec(compile(tree, str(path), "exec", dont_inherit=True), module.__dict__)
    # Profiler records must then be there, and be called topoopt:<operation>.
    module.PROFILING_SUPPORTED_BACKENDS.append(backend)
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    return module


def _skip_below(ranks: int) -> Any:
    def decorate(function: Any) -> Any:
        return function if int(os.environ["WORLD_SIZE"]) >= ranks else _too_few

    def _too_few(*_: Any) -> None:
        sys.exit(common_distributed.TEST_SKIPS["small_worldsize"].exit_code)

    return decorate
