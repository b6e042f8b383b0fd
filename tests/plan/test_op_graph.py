"""OpGraph as a document: what is written is read back, and what is wrong is refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.op_graph import (
    GradientBuckets,
    MeasuredCost,
    MeasuredStep,
    Operand,
    Operator,
    OpGraph,
    RepeatedLayer,
    Split,
)
from torch_topoopt.plan.codec import DocumentError

if TYPE_CHECKING:
    from pathlib import Path

SIZES = st.integers(min_value=0, max_value=2**60)
DIMENSIONS = ("columns", "rows", "experts", "attribute")
NEEDS = st.sampled_from(("whole", "part"))


def operator(name: str = "a", *operands: Operand, **changes: Any) -> Operator:
    values: dict[str, Any] = {
        "kind": "Linear",
        "forward_flops": 10,
        "backward_flops": 20,
        "parameter_bytes": 4,
        "parameter_gradient_bytes": 4,
        "output_bytes": 8,
        "saved_bytes": 8,
        "memory_bytes": 20,
        "splittable": True,
    }
    return Operator(name=name, operands=operands, **{**values, **changes})


def graph(*operators: Operator, **changes: Any) -> OpGraph:
    values: dict[str, Any] = {"version": OpGraph.VERSION, "model": "m", "batch_size": 4}
    return OpGraph(operators=operators, **{**values, **changes})


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    operators = []
    for i in range(draw(st.integers(1, 5))):
        producers = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        operands = tuple(
            Operand(producer, draw(SIZES), draw(SIZES), draw(st.sampled_from((0, 3 * i + j))))
            for j, producer in enumerate(producers)
        )
        splits = st.builds(Split, st.sampled_from(DIMENSIONS), st.integers(2, 2**40), NEEDS)
        changes = {
            "forward_flops": draw(SIZES),
            "splittable": draw(st.booleans()),
            "splits": draw(st.lists(splits, unique_by=lambda s: s.dimension).map(tuple)),
            "output_dimensions": draw(st.integers(0, 5)),
        }
        operators.append(operator(f"{draw(st.text(max_size=5))}{i}", *operands, **changes))
    sizes, seconds = st.integers(1, 2**60), st.floats(0, 1e9)
    at_once = st.none() | st.floats(0.1, 1e3)
    measured_steps = st.builds(MeasuredStep, seconds, seconds, seconds, at_once)
    return graph(
        *operators,
        model=draw(st.text()),
        batch_size=draw(st.integers(1, 10**6)),
        gradient_buckets=draw(st.none() | st.builds(GradientBuckets, sizes, sizes)),
        measured_step=draw(st.none() | measured_steps),
    )


@given(graphs())
def test_reading_gives_back_what_was_written(written: OpGraph) -> None:
    text = written.to_json()
    read = OpGraph.from_json(text)
    assert read == written
    assert read.to_json() == text


def test_totals_are_sums_over_the_operators() -> None:
    two = graph(operator("a"), operator("b", forward_flops=1, parameter_bytes=3))
    assert (two.forward_flops, two.backward_flops) == (11, 40)
    assert (two.parameter_bytes, two.parameter_gradient_bytes) == (7, 8)


def test_readers_of_one_tensor_agree_on_its_sizes() -> None:
    first, *others = (Operand(0, 8, 8, 1), Operand(0, 8, 0, 1), Operand(0, 9, 8, 1))
    known = [operator("a"), operator("b", first)]
    assert graph(*known, operator("c", others[0])).validate()
    for wrong in (others[1], Operand(0, 8, 4, 1)):
        with refused(DocumentError, "(c)", "tensor 1", "producer 0", "b"):
            graph(*known, operator("c", wrong)).validate()
    third = operator("d", Operand(0, 8, 4, 1))
    no_gradient = graph(operator("a"), operator("b", others[0]), operator("c", first), third)
    with refused(DocumentError, "(d)", "c"):
        no_gradient.validate()


def test_a_saved_file_has_one_operator_per_line(tmp_path: Path) -> None:
    path = tmp_path / "opgraph.json"
    two = graph(operator("first"), operator("second", Operand(0, 8, 8)))
    two.save(path)
    lines = path.read_text().splitlines()
    assert sum('"name": "first"' in line for line in lines) == 1
    assert not any("first" in line and "second" in line for line in lines)
    assert OpGraph.load(path) == two
    assert [entry.name for entry in tmp_path.iterdir()] == ["opgraph.json"]


def change(path: str, value: Any) -> Any:
    def apply(document: Any) -> None:
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for key in parents:
            document = document[key]
        document[last] = value

    return apply


def remove(path: str) -> Any:
    def apply(document: Any) -> None:
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        for key in parents:
            document = document[key]
        del document[last]

    return apply


# class: its fields in the version of VERSION_OF_FIELDS
FIELDS = {
    OpGraph: (
        "version model batch_size operators layers gradient_buckets measured_step number_format"
    ),
    Operator: (
        "name kind forward_flops backward_flops parameter_bytes parameter_gradient_bytes "
        "output_bytes saved_bytes memory_bytes splittable operands splits output_dimensions "
        "measured"
    ),
    Operand: "producer size_bytes gradient_bytes tensor",
    Split: "dimension max_degree operands sections",
    MeasuredCost: "shards forward_s backward_s",
    RepeatedLayer: "kind length starts",
    GradientBuckets: "first_bytes cap_bytes",
    MeasuredStep: "overhead_s forward_scale backward_scale servers_at_once",
}
VERSION_OF_FIELDS = 5


def test_other_fields_are_another_version() -> None:
    """After a change of fields, both constants and the docstring of OpGraph change, too."""
    fields = {cls: " ".join(f.name for f in dataclasses.fields(cls)) for cls in FIELDS}
    assert (fields, OpGraph.VERSION) == (FIELDS, VERSION_OF_FIELDS)


def test_documents_of_version_4_are_read_with_columns_that_all_operators_read() -> None:
    split = Split("columns", 4, "whole", (4, 8))
    written = graph(operator("a", splits=(split,)))
    document = json.loads(written.to_json())
    assert document["version"] > 4
    assert OpGraph.from_json(json.dumps(document)) == written
    document["version"] = 4
    del document["operators"][0]["splits"][0]["sections"]
    read = OpGraph.from_json(json.dumps(document))
    assert (read.version, read.number_format) == (4, "fp32")
    assert read.operators[0].splits == (dataclasses.replace(split, sections=()),)


@pytest.mark.parametrize(
    ("edit", "tokens"),
    [
        (change("colour", 1), ("colour", "unknown")),
        (change("operators.1.colour", 1), ("operators[1].colour", "unknown")),
        (change("version", OpGraph.VERSION + 1), ("newer",)),
        (change("version", 0), ("version", "integer")),
        (change("version", True), ("version", "integer")),
        (remove("version"), ("version", "integer")),
        (remove("batch_size"), ("batch_size", "missing")),
        (remove("operators.0.kind"), ("operators[0].kind", "missing")),
        (
            remove("operators.1.operands.0.producer"),
            ("operators[1].operands[0].producer", "missing"),
        ),
        (change("batch_size", "4"), ("batch_size", 4)),
        (change("batch_size", 4.5), ("batch_size", 4.5)),
        (change("batch_size", 0), ("batch_size", 0, 1)),
        (change("operators", []), ("one operator",)),
        (change("operators", {}), ("operators", "dict")),
        (change("operators.0", 3), ("operators[0]", "int")),
        (change("operators.0.splittable", 1), ("operators[0].splittable", 1)),
        (change("operators.0.forward_flops", -1), ("operators[0] (a).forward_flops", -1)),
        (change("operators.0.name", ""), ("operators[0] ().name", "empty")),
        (change("operators.1.name", "a"), ("operators[1] (a).name", "unique")),
        (change("operators.1.operands.0.producer", 1), ("producer 1", "earlier")),
        (change("operators.1.operands.0.producer", -1), ("producer -1", "earlier")),
        (change("operators.1.operands.0.size_bytes", -8), ("sizes", "negative")),
        (change("operators.1.operands.0.tensor", -1), ("(b).operands", -1)),
        (
            change("measured_step", {"overhead_s": -1.0}),
            ("measured_step.overhead_s", -1.0),
        ),
        (
            change("measured_step", {"overhead_s": 1.0, "servers_at_once": 0.0}),
            ("measured_step.servers_at_once", 0),
        ),
        (change("gradient_buckets", {"first_bytes": 1}), ("gradient_buckets.cap_bytes", "missing")),
        (
            change("gradient_buckets", {"first_bytes": 0, "cap_bytes": 8}),
            ("gradient_buckets.first_bytes", 0, 1),
        ),
    ],
)
def test_a_wrong_document_is_refused_with_the_field(edit: Any, tokens: tuple[object, ...]) -> None:
    document = json.loads(graph(operator("a"), operator("b", Operand(0, 8, 8))).to_json())
    edit(document)
    with refused(DocumentError, *tokens):
        OpGraph.from_json(json.dumps(document))


SPLIT = {"dimension": "rows", "max_degree": 2, "operands": "whole"}


@pytest.mark.parametrize(
    ("splits", "tokens"),
    [
        ([SPLIT, SPLIT], ("operators[0] (a).splits[1].dimension", "twice")),
        ([{**SPLIT, "max_degree": 1}], ("operators[0] (a).splits[0].max_degree", 1)),
        ([{**SPLIT, "dimension": "width"}], ("splits[0].dimension", "width", "columns")),
        ([{**SPLIT, "operands": "half"}], ("operands", "half", "whole", "part")),
    ],
)
def test_a_wrong_split_is_named(splits: list[Any], tokens: tuple[object, ...]) -> None:
    document = json.loads(graph(operator("a")).to_json())
    assert "splits" not in document["operators"][0]
    document["operators"][0]["splits"] = splits
    with refused(DocumentError, *tokens):
        OpGraph.from_json(json.dumps(document))


def test_version_1_is_split_by_samples_only() -> None:
    document = json.loads(graph(operator("a")).to_json())
    document["version"] = 1
    assert OpGraph.from_json(json.dumps(document)).operators[0].splits == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"version": 1,}'])
def test_corrupt_json_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match=r"JSON|OpGraph"):
        OpGraph.from_json(text)


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(graph(operator()).to_json()[:-20])
    with refused(DocumentError, path, "JSON"):
        OpGraph.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with refused(DocumentError, path, "text file"):
        OpGraph.load(path)
