"""Computing times of the released simulations, measured by their authors on an A100.

They stand in `measures/*.json` of github.com/hipersys-team/FlexFlow (b1526834), by operator and by
parts of the batch. Here are those of 128 parts, and of tables whole, on servers of four
accelerators. Its layers have their activation function inside, so ReLU and dropout cost nothing
more; an operator that is not among them (pooling, VGG's last layer) keeps its estimate. All
convolutions of as many output channels have one time there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_topoopt.profile.cost_table import CostPoint, CostTable, OperatorCost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_topoopt.op_graph import Operator, OpGraph

_Times = tuple[float, float]  # milliseconds, forward and backward
_SHARED, _WHOLE = 512, 4  # accelerators among which a batch of 128 servers, or of one, is shared
_INSIDE = ("ReLU", "Dropout")

# by model; inputs and outputs of a dense layer
_DENSE: Mapping[str, Mapping[tuple[int, int], _Times]] = {
    "dlrm": {
        (2048, 2048): (0.194, 0.296),
        (10240, 4096): (0.615, 1.211),
        (4096, 4096): (0.270, 0.522),
        (4096, 1): (0.015, 0.040),
    },
    "candle": {
        (942, 16384): (0.906, 1.837),
        (16384, 16384): (7.787, 15.01),
        (5270, 16384): (2.582, 5.357),
        (2048, 16384): (1.022, 2.048),
        (81922, 16384): (43.63, 73.24),
        (16384, 1): (0.026, 0.045),
    },
    "bert": {(1024, 1024): (0.147, 0.279), (1024, 1): (0.011, 0.047)},
    "ncf": {(8192, 4096): (0.537, 0.975), (4096, 4096): (0.285, 0.534)},
    "vgg": {(61952, 4096): (2.090, 3.787), (4096, 4096): (0.174, 0.300)},
}
_KINDS: Mapping[tuple[str, str], _Times] = {
    ("dlrm", "cat"): (0.226, 0.226),
    ("candle", "cat"): (0.199, 0.241),
    ("ncf", "cat"): (0.194, 0.195),
    ("bert", "MultiheadAttention"): (0.301, 0.603),
    ("bert", "add"): (0.007, 0.014),
}
_TABLES: Mapping[tuple[str, int], _Times] = {  # rows times features
    ("dlrm", 10_000_000 * 128): (4.309, 8.617),
    ("ncf", 1_000_000 * 64): (6.287, 12.574),
    ("ncf", 1_000_000 * 128): (4.363, 8.727),
}
_CONVOLUTIONS: Mapping[int, _Times] = {  # output channels
    64: (1.885, 6.189),
    128: (1.518, 4.699),
    256: (1.686, 3.217),
    512: (1.456, 3.300),
}


def released_costs(op_graph: OpGraph) -> CostTable:
    """Of the operators of `op_graph`, whose batch is that of 128 servers.

    Raises ValueError for a model of which there are none.
    """
    model = op_graph.model.partition(":")[0]
    if model not in _DENSE:
        raise ValueError(f"model: {op_graph.model!r} is not one of {', '.join(_DENSE)}")
    costs = []
    for operator in op_graph.operators:
        found = _times(model, operator)
        if found is not None:
            (forward_ms, backward_ms), accelerators = found
            samples = op_graph.batch_size // accelerators
            point = CostPoint(samples, forward_ms * 1e-3, backward_ms * 1e-3)
            costs.append(OperatorCost(operator.name, (point,)))
    return CostTable(CostTable.VERSION, "A100, by the authors of TopoOpt", tuple(costs)).validate()


def _times(model: str, operator: Operator) -> tuple[_Times, int] | None:
    """And the accelerators that share the batch."""
    numbers = operator.parameter_bytes // 4
    if operator.kind in _INSIDE:
        return (0.0, 0.0), _SHARED
    if (model, operator.kind) in _KINDS:
        return _KINDS[model, operator.kind], _SHARED
    if (model, numbers) in _TABLES:
        return _TABLES[model, numbers], _WHOLE
    if operator.kind == "Linear":
        for (inputs, outputs), times in _DENSE[model].items():
            if numbers in (inputs * outputs, (inputs + 1) * outputs):
                return times, _SHARED
    if operator.kind == "Conv2d":
        for channels, times in _CONVOLUTIONS.items():
            inputs = {3, channels // 2, channels}
            if numbers in {(9 * count + 1) * channels for count in inputs}:
                return times, _SHARED
    return None
