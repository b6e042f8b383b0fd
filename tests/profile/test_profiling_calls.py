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
    trace, doubled, size, exporting = trace_calls(Residual(), torch.zeros(8, 4))
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


class Asking(nn.Module):
    """Asks where its tensors are, and makes others there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert (x.device.type, x.is_cpu, x.is_meta) == ("cpu", True, False)
        kind = torch.device("cpu")
        near = torch.ones(4, device=x.device) + torch.ones(4, device="cpu")
        near = near + torch.ones(4, device=kind).cpu() + torch.ones(4).to("cpu") + near.to(kind)
        return self.first(x).to(x.device) + near


def test_the_model_sees_tensors_of_a_cpu() -> None:
    trace = trace_calls(Asking(), torch.zeros(8, 4)).once
    assert [o.name for o in trace.operators] == ["input", "first", "add", "output"]
    assert "device" not in [call.name for call in trace.calls], "it has no tensors"


def test_hooks_of_others_run_outside_of_a_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, made: torch.tanh(made))
    trace = trace_calls(model, torch.zeros(8, 4)).once
    assert [o.name for o in trace.operators] == ["input", "0", "tanh", "1", "output"]


class Checked(nn.Module):
    """Branches on values, unless torch.export asks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting() or bool((x > 0).all()):
            return x * 2
        return x


def test_control_flow_on_values_is_traced_as_torch_export_sees_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Checked())
    assert trace_calls(model, torch.zeros(8, 4)).exporting
    assert not torch.compiler.is_exporting()
