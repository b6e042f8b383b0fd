"""Tensor and sequence parallelism: PyTorch's styles for the modules of a model, by its OpGraph.

Layers of columns and rows have parts of their parameters, and what lies between them has parts of
the features. All other operators have parts of the positions.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from torch_topoopt.parallel.sharded.attention import AttentionHeads, sections_of_attention
from torch_topoopt.parallel.sharded.blocks import path_of
from torch_topoopt.parallel.sharded.experts import expert_paths
from torch_topoopt.parallel.sharded.local_parts import (
    LocalParts,
    LocalProducts,
    TableRows,
    gathered,
    plain,
    position_placement,
    replicate_parameters,
)
from torch_topoopt.parallel.sharded.sections import (
    Conv1DRows,
    LayerColumns,
    features_of,
    is_conv1d,
    sections_of_columns,
)
from torch_topoopt.parallel.sharded.whole_sizes import LayerNumbers, WholeSizes
from torch_topoopt.parallel.splits import is_divisible
from torch_topoopt.parallel.stages import StrategyError
from torch_topoopt.plan.layout import Layout
from torch_topoopt.search.accelerators import class_of
from torch_topoopt.search.layouts.cell_costs import parameter_kinds
from torch_topoopt.search.layouts.cells import cells_of, shared_bytes, with_shared_tables
from torch_topoopt.search.layouts.divisible import (
    gathers_operands,
    is_product_of_heads,
    why_not_divided,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement
    from torch.distributed.tensor.parallel import ParallelStyle

    from torch_topoopt.op_graph import Operator, OpGraph
    from torch_topoopt.parallel.sharded.sections import Sections
    from torch_topoopt.plan import ParameterKind


def tensor_parallel(
    module: nn.Module, op_graph: OpGraph, mesh: DeviceMesh, *, last: bool = True
) -> None:
    """Leaves this rank's part of the tensors of `module` in it, for the group `mesh`.

    `module` is the model of `op_graph` or a stage of it, and all ranks have the same values in it.
    The results of the `last` stage are whole tensors. Raises StrategyError for a module that cannot
    be divided.
    """
    styles = TensorStyles(module, op_graph, mesh.size())
    ties = _ties(module)
    chosen = dict(styles.of_modules())
    for path in styles.gathering():
        module.get_submodule(path).register_forward_pre_hook(_gather_inputs, with_kwargs=True)
    for owner, numbers in styles.with_numbers():
        WholeSizes.around(owner, numbers)
    for owner in styles.with_heads():
        _divide_heads(owner, mesh.size())
    for owner, sizes in styles.with_sections():
        _divide_sizes(owner, mesh.size(), sizes)
    for path, style in chosen.items():
        parallelize_module(module.get_submodule(path), mesh, style, src_data_rank=None)
    replicate_parameters(module, mesh)
    for owner in styles.with_products():
        LocalProducts.around(owner)
    for first, *others in ties:
        _tie(module, first, others)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(_as_parameter(parameter))
    module.register_forward_hook(_whole_results if last else _plain_results)


class TensorStyles:
    """How the modules of a model are divided over `parts` ranks."""

    def __init__(self, module: nn.Module, op_graph: OpGraph, parts: int) -> None:
        self.modules = dict(module.named_modules())
        self.parts = parts
        self.operators = with_shared_tables(op_graph).operators
        self.cells = [n for n, c in enumerate(cells_of(op_graph)) for _ in range(c.begin, c.end)]
        kinds = parameter_kinds(self.operators, parts, 1)
        assert kinds is not None, "no experts are divided"
        self.kinds = kinds
        self.mixtures = {path.rpartition(".")[0] for path in expert_paths(module)}
        why = why_not_divided(self.operators, kinds, Layout(tensor=parts))
        if why:
            raise StrategyError(f"layout: {why}")

    def of_modules(self) -> Iterator[tuple[str, ParallelStyle]]:
        """The style of each module that has tensors, by its path."""
        for path in self.mixtures:
            yield path, LocalParts(Shard(1))
        for operator, kind in zip(self.operators, self.kinds, strict=True):
            path = path_of(operator)
            leaf = self.modules.get(path)
            is_function = operator.kind[:1].islower()
            if kind is not None and is_function and operator.parameter_bytes:
                raise StrategyError(
                    f"layout: tensor: {path!r} cannot be divided by {kind}: it is a function that "
                    "reads a parameter, and no module"
                )
            if leaf is None or self._in_mixture(path):
                continue
            reads_buffers = kind is None and any(True for _ in leaf.buffers())
            if reads_buffers or any(True for _ in leaf.parameters()):
                yield path, self._style(operator, kind, path, leaf)

    def _style(
        self, operator: Operator, kind: ParameterKind | None, path: str, leaf: nn.Module
    ) -> ParallelStyle:
        if kind == "rows":
            if isinstance(leaf, nn.MultiheadAttention):
                return AttentionHeads(path, position_placement(operator.output_dimensions))
            if is_conv1d(leaf):
                return Conv1DRows(self._result(operator))
            if isinstance(leaf, nn.Embedding | nn.EmbeddingBag):
                if not is_divisible(leaf):
                    raise StrategyError(
                        f"layout: tensor: {path!r} cannot be divided by rows: tables with "
                        "max_norm, sparse gradients or gradients scaled by frequency are not"
                    )
                return TableRows(self._result(operator))
            if isinstance(leaf, nn.Linear):
                return RowwiseParallel(
                    output_layouts=self._result(operator), use_local_output=False
                )
        elif kind == "columns":
            if _needs(operator, "columns") == "part":
                return LocalParts(None)
            sizes, is_output = _sizes(operator), not self._readers(operator)
            if not is_output and (is_conv1d(leaf) or (len(sizes) > 1 and type(leaf) is nn.Linear)):
                return LayerColumns(sizes)
            if isinstance(leaf, nn.Linear):
                return ColwiseParallel(output_layouts=Replicate() if is_output else Shard(-1))
        else:
            if operator.operands:
                return LocalParts(self._result(operator))
            known = type(leaf).__module__.startswith("torch.nn.")
            return LocalParts(self._result(operator), cuts="inputs" if known else "result")
        raise StrategyError(
            f"layout: tensor: {path!r} cannot be divided by {kind}: it is a "
            f"{type(leaf).__name__}, and not a linear layer or a table"
        )

    def gathering(self) -> Iterator[str]:
        """The modules whose inputs are gathered: the innermost that all columns of a tensor in a
        cell are in, so that they share it."""
        readers: dict[tuple[int, int, int, int], list[str]] = defaultdict(list)
        for i, (operator, kind) in enumerate(zip(self.operators, self.kinds, strict=True)):
            if not gathers_operands(operator, kind) or self._in_mixture(path_of(operator)):
                continue
            for operand in operator.operands:
                alone = 0 if operand.tensor else i
                key = operand.producer, operand.tensor, alone, self.cells[i]
                readers[key].append(path_of(operator))
        for (producer, *_), paths in readers.items():
            outer = _common(paths)
            if len(paths) == 1 or f"{path_of(self.operators[producer])}.".startswith(f"{outer}."):
                yield from (path for path in paths if path in self.modules)
            elif outer in self.modules:
                yield outer

    def sections(self) -> dict[str, Sections]:
        """Those of the parameters that are divided by them, by name."""
        found: dict[str, Sections] = {}
        for operator, path, leaf in self._divided_leaves():
            if isinstance(leaf, nn.MultiheadAttention):
                its = sections_of_attention(leaf)
            else:
                its = sections_of_columns(leaf, _sizes(operator))
            found.update((f"{path}.{name}", one) for name, one in its.items())
        return found

    def with_sections(self) -> list[tuple[nn.Module, set[int]]]:
        """The modules that take the sections of a layer's columns apart, and the sizes of these."""
        found: dict[str, set[int]] = defaultdict(set)
        for operator, path, leaf in self._divided_leaves():
            if not isinstance(leaf, nn.MultiheadAttention):
                found[path.rpartition(".")[0]].update(_sizes(operator))
        return [(self.modules[path], sizes) for path, sizes in found.items()]

    def _divided_leaves(self) -> Iterator[tuple[Operator, str, nn.Module]]:
        """The modules whose parameters are divided by sections."""
        for operator, kind in zip(self.operators, self.kinds, strict=True):
            path = path_of(operator)
            leaf = self.modules.get(path)
            if leaf is None or self._in_mixture(path):
                continue
            columns = kind == "columns" and bool(_sizes(operator))
            has_its_own = kind == "rows" and isinstance(leaf, nn.MultiheadAttention)
            if has_its_own or (columns and gathers_operands(operator, kind)):
                yield operator, path, leaf

    def with_heads(self) -> list[nn.Module]:
        """The modules whose attention, or functions of it, have some of the heads."""
        pairs = zip(self.operators, self.kinds, strict=True)
        with_heads = (o for o, kind in pairs if kind == "columns" and _has_heads(o))
        names = map(path_of, with_heads)
        paths = dict.fromkeys(name.rpartition(".")[0] for name in names)
        return [self.modules[path] for path in paths if path in self.modules]

    def with_numbers(self) -> Iterator[tuple[nn.Module, LayerNumbers]]:
        """The modules that take heads or sections apart, and their numbers of features."""
        sizes: dict[str, set[int]] = defaultdict(set)
        sections: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for operator, kind in zip(self.operators, self.kinds, strict=True):
            path = path_of(operator)
            leaf = self.modules.get(path)
            if not (isinstance(leaf, nn.Linear) or (leaf is not None and is_conv1d(leaf))):
                continue
            owner, its = path.rpartition(".")[0], _sizes(operator)
            if kind == "columns":
                sizes[owner].update((features_of(leaf)[1], *its))
                sections[owner].update([its] if its else [])
            elif kind == "rows":
                sizes[owner].add(features_of(leaf)[0])
        apart = {*self.with_heads(), *(module for module, _ in self.with_sections())}
        for owner, of_layers in sizes.items():
            module = self.modules[owner]
            if module not in apart or self._in_mixture(f"{owner}."):
                continue
            whole = frozenset(_head_counts(module).values())
            part = frozenset(count // self.parts for count in whole)
            numbers = frozenset(of_layers), frozenset(sections[owner])
            yield module, LayerNumbers(self.parts, *numbers, (whole, part))

    def with_products(self) -> list[nn.Module]:
        """The modules that multiply by matrices of their own or of tables, by functions."""
        dense = (o for o in self.operators if o.kind[:1].islower() and class_of(o) == "dense")
        names = [path_of(o) for o in dense if o.parameter_bytes or shared_bytes(o)]
        paths = dict.fromkeys(name.rpartition(".")[0] for name in names)
        return [self.modules[path] for path in paths if path in self.modules]

    def _readers(self, operator: Operator) -> list[Operator]:
        at = self.operators.index(operator)
        return [o for o in self.operators if any(p.producer == at for p in o.operands)]

    def _in_mixture(self, path: str) -> bool:
        return any(path.startswith(f"{mixture}.") for mixture in self.mixtures)

    @staticmethod
    def _result(operator: Operator) -> Placement:
        """The parts of what an operator makes that is not divided by features."""
        has_positions = operator.split("attribute") is not None and operator.output_dimensions == 3
        is_positions = class_of(operator) == "lookup" and not operator.splittable
        if has_positions or (is_positions and operator.output_dimensions in (2, 3)):
            return position_placement(operator.output_dimensions)
        return Replicate()


def _has_heads(operator: Operator) -> bool:
    return class_of(operator) == "attention" or is_product_of_heads(operator)


def _divide_heads(module: nn.Module, parts: int) -> None:
    """Attributes with a number of heads get that of this rank: forward methods view tensors by it.

    Names are those of transformers, diffusers and timm.
    """
    for name, value in _head_counts(module).items():
        setattr(module, name, value // parts)


def _head_counts(module: nn.Module) -> dict[str, int]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.endswith(("heads", "n_head")) and isinstance(value, int)
    }


# Numbers of features, by which forward methods take the columns of a layer apart. Names are those
# of transformers, timm and nanoGPT.
_FEATURES = frozenset(
    {
        *("split_size", "attn_dim", "embed_dim", "hidden_size", "intermediate_size", "inner_dim"),
        *("n_embd", "all_head_size"),
    }
)


def _divide_sizes(module: nn.Module, parts: int, sizes: set[int]) -> None:
    """As _divide_heads, for numbers of features, and for numbers of heads in a configuration, of
    which the module gets a copy."""
    for name, value in vars(module).items():
        if name in _FEATURES and value in sizes:
            setattr(module, name, value // parts)
    config: Any = getattr(module, "config", None)
    if hasattr(config, "num_attention_heads"):
        own = copy.copy(config)
        for name in ("num_attention_heads", "num_key_value_heads"):
            if isinstance(getattr(own, name, None), int):
                setattr(own, name, getattr(own, name) // parts)
        module.config = own


def _sizes(operator: Operator) -> tuple[int, ...]:
    """Of the sections of its columns; none if they have one alone, which parts divide."""
    columns = operator.split("columns")
    return () if columns is None or len(columns.sections) < 2 else columns.sections


def _needs(operator: Operator, kind: ParameterKind | None) -> str | None:
    """Whether a shard reads the "whole" of its operands or a "part"; None if it is not split."""
    split = operator.split(kind) if kind is not None else None
    return None if split is None else split.operands


def _common(paths: Sequence[str]) -> str:
    """The innermost module around `paths`."""
    parts = [path.split(".") for path in paths]
    same = 0
    while all(len(p) > same + 1 and p[same] == parts[0][same] for p in parts):
        same += 1
    return ".".join(parts[0][:same])


def _ties(module: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [its for its in names.values() if len(its) > 1]


def _tie(module: nn.Module, first: str, others: Sequence[str]) -> None:
    """Makes one parameter of several that are divided alike."""
    parameter: Any = module.get_parameter(first)
    for name in others:
        other: Any = module.get_parameter(name)
        if other.placements != parameter.placements:
            raise StrategyError(
                f"layout: tensor: {name!r} cannot share {first!r}: they are divided differently"
            )
        path, _, own = name.rpartition(".")
        module.get_submodule(path)._parameters[own] = parameter


def _as_parameter(parameter: Any) -> Any:
    """A hook that sums gradients of which ranks have partial sums."""
    placements = parameter.placements

    def hook(gradient: Any) -> Any:
        if isinstance(gradient, DTensor) and gradient.placements != placements:
            return gradient.redistribute(placements=placements)
        return gradient

    return hook


def _gather_inputs(_: nn.Module, args: Any, kwargs: Any) -> Any:
    return gathered(args), gathered(kwargs)


def _whole_results(_: nn.Module, __: Any, results: Any) -> Any:
    return plain(gathered(results))


def _plain_results(_: nn.Module, __: Any, results: Any) -> Any:
    return plain(results)
