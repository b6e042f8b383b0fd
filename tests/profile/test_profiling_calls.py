"""The calls of a traced model, and its batch and output as operators."""

from __future__ import annotations

import torch
from torch import nn

from torch_topoopt.models import dlrm
from torch_topoopt.profile.profiling import profile, trace_calls


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).view(x.shape[0], 2, 3)
        y.relu_()
        return self.second(y.flatten(1)) + 1


def test_calls_name_their_operators_in_order() -> None:
    trace, doubled, size, exporting, *_ = trace_calls(Residual(), torch.zeros(8, 4))
    assert (size, exporting) == (8, False)
    assert [c.name for c in trace.calls] == [c.name for c in doubled.calls]
    by_operator = [(c.operator.name, c.name, c.leaf) for c in trace.calls if c.operator]
    assert by_operator == [
        ("first", "first", True),
        ("relu", "relu", False),
        ("second", "second", True),
        ("add", "add", False),
    ]
    view = next(c for c in trace.calls if c.name == "view")
    assert view.operator is None
    assert view.numbers == {1: 8, 2: 2, 3: 3}
    assert view.inputs[0].producer is trace.calls[0].operator
    relu = next(c for c in trace.calls if c.name == "relu")
    assert relu.inputs[0].mutated
    assert not trace.calls[0].inputs[0].mutated
    assert trace.calls[0].inputs[0].source == "batch"
    assert [tensor.shape for tensor in trace.result] == [(8, 6)]


def test_a_boundary_adds_what_is_read_and_returned_and_changes_nothing_else() -> None:
    model, batch = dlrm.build("tiny"), dlrm.example_batch(4, size="tiny")
    plain = profile(model, batch, name="dlrm")
    bounded = profile(model, batch, name="dlrm", boundary=True)
    names = [operator.name for operator in bounded.operators]
    assert names == ["input", "input#2", *(o.name for o in plain.operators), "output"]
    assert (bounded.forward_flops, bounded.backward_flops) == (
        plain.forward_flops,
        plain.backward_flops,
    )
    by_name = {operator.name: operator for operator in bounded.operators}
    table = by_name["tables.1"]
    assert [(o.producer, o.size_bytes, o.gradient_bytes) for o in table.operands] == [
        (1, 4 * 5 * 8, 0)
    ]
    (result,) = by_name["output"].operands
    assert bounded.operators[result.producer].name == "top.4"
    assert (result.size_bytes, result.gradient_bytes) == (4 * 4, 4 * 4)
    assert by_name["input"].memory_bytes == by_name["output"].memory_bytes == 0
    assert all(operator.splittable for operator in bounded.operators)
