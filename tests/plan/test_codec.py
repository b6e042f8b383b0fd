"""Reading is strict and writing canonical, for both kinds of document."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused

from torch_topoopt.op_graph import Operand, Operator, OpGraph
from torch_topoopt.plan import Plan
from torch_topoopt.plan.codec import DocumentError, write_text_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def op_graph(**changes: Any) -> OpGraph:
    first = Operator("embed", "Linear", 10, 20, 40, 40, 8, 8, 56, True, ())
    second = Operator("head", "Linear", 10, 20, 40, 40, 8, 8, 56, False, (Operand(0, 8, 8),))
    fields = {"version": 1, "model": "small", "batch_size": 4, "operators": (first, second)}
    return OpGraph(**(fields | changes))


@pytest.fixture(params=["OpGraph", "Plan"])
def document(request: pytest.FixtureRequest, ring_plan: Callable[..., Plan]) -> OpGraph | Plan:
    return op_graph() if request.param == "OpGraph" else ring_plan()


def test_a_document_reads_back_equal_and_writes_the_same_bytes(document: OpGraph | Plan) -> None:
    text = document.to_json()
    again = type(document).from_json(text)
    assert again == document
    assert again.to_json() == text
    assert text.endswith("}\n")


def test_a_saved_document_loads_equal(document: OpGraph | Plan, tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    document.save(path)
    assert type(document).load(path) == document
    assert os.listdir(tmp_path) == ["document.json"]


def test_whole_numbers_in_float_fields_are_the_same_bytes(ring_plan: Callable[..., Plan]) -> None:
    assert ring_plan(link_gbps=100).to_json() == ring_plan(link_gbps=100.0).to_json()
    assert ring_plan(link_gbps=100).digest() == ring_plan(link_gbps=100.0).digest()


def test_one_element_of_a_list_is_one_line(ring_plan: Callable[..., Plan]) -> None:
    plan = ring_plan(4)
    lines = plan.to_json().splitlines()
    assert sum('"source_port"' in line for line in lines) == len(plan.network.links) == 8
    assert sum('"weight"' in line for line in lines) == len(plan.network.routes)


def edited(document: OpGraph | Plan, edit: Callable[[dict[str, Any]], Any]) -> str:
    value = json.loads(document.to_json())
    edit(value)
    return json.dumps(value)


def rejects(
    document: OpGraph | Plan, edit: Callable[[dict[str, Any]], Any], *tokens: object
) -> None:
    with refused(DocumentError, *tokens):
        type(document).from_json(edited(document, edit))


def test_an_unknown_field_is_refused_by_name(document: OpGraph | Plan) -> None:
    rejects(document, lambda d: d.update(colour=1), "colour", "unknown", "version")


def test_a_missing_field_is_refused_by_name(document: OpGraph | Plan) -> None:
    rejects(document, lambda d: d.pop("model"), "model", "missing")


def test_a_newer_version_asks_for_an_upgrade(document: OpGraph | Plan) -> None:
    newer = type(document).VERSION + 1
    rejects(document, lambda d: d.update(version=newer), "version", newer, "upgrade")


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_a_version_that_is_no_positive_integer_is_refused(
    document: OpGraph | Plan, version: Any
) -> None:
    rejects(document, lambda d: d.update(version=version), "version", 1)


def test_a_document_without_a_version_is_refused(document: OpGraph | Plan) -> None:
    rejects(document, lambda d: d.pop("version"), "version", 1, None)


@pytest.mark.parametrize("value", ["8", 8.0, True, None, [8], {"of": 8}])
def test_a_wrong_type_is_refused_without_conversion(document: OpGraph | Plan, value: Any) -> None:
    rejects(document, lambda d: d.update(batch_size=value), "batch_size", "int")


def test_a_wrong_type_deep_inside_is_named_by_its_path(ring_plan: Callable[..., Plan]) -> None:
    plan = ring_plan()
    rejects(
        plan,
        lambda d: d["network"]["links"][3].update(source="1"),
        "network.links[3].source",
        "int",
        "'1'",
    )
    rejects(
        plan,
        lambda d: d["network"]["groups"][0]["rings"][1].update(colour="red"),
        "network.groups[0].rings[1].colour",
        "unknown",
    )
    rejects(
        plan,
        lambda d: d["network"]["routes"][0]["servers"].append([]),
        "network.routes[0].servers[3]",
        "int",
        "[]",
    )


def test_a_list_or_an_object_in_the_wrong_place_is_refused(ring_plan: Callable[..., Plan]) -> None:
    plan = ring_plan()
    rejects(plan, lambda d: d.update(rounds={}), "rounds", "list", "dict")
    rejects(plan, lambda d: d.update(cluster=[]), "cluster", "object", "list")
    rejects(plan, lambda d: d.update(mode="fast"), "mode", "fast", "paper")
    rejects(plan, lambda d: d.update(mode=["paper"]), "mode", "str", "['paper']")
    rejects(plan, lambda d: d.update(routing="fast"), "routing", "fast", "shortest")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(
    ring_plan: Callable[..., Plan], value: str
) -> None:
    text = ring_plan().to_json().replace('"link_gbps": 1.0', f'"link_gbps": {value}')
    with refused(DocumentError, "cluster.link_gbps"):
        Plan.from_json(text)


def test_an_integer_too_large_for_a_float_is_refused(ring_plan: Callable[..., Plan]) -> None:
    text = ring_plan().to_json().replace('"link_gbps": 1.0', f'"link_gbps": 1{"0" * 400}')
    with refused(DocumentError, "cluster.link_gbps"):
        Plan.from_json(text)


def test_not_finite_numbers_are_never_written(ring_plan: Callable[..., Plan]) -> None:
    with refused(DocumentError, "link_gbps", 0, "nan"):
        ring_plan(link_gbps=float("nan"))


def test_a_field_given_twice_is_refused() -> None:
    text = op_graph().to_json().replace('"version": 1,', '"version": 1, "version": 1,')
    with refused(DocumentError, "version", "twice"):
        OpGraph.from_json(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ("JSON", "line 1", 1)),
        ("{", ("JSON", "line 1", 2)),
        ("[1, 2]", ("Plan", "list")),
        ("null", ("Plan", "NoneType")),
        ("[" * 100_000, ("not a Plan",)),
        ('{"version": 1' + "0" * 5000 + "}", ("not a Plan",)),
    ],
)
def test_corrupt_text_is_one_clear_line(text: str, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens) as caught:
        Plan.from_json(text)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_refused(document: OpGraph | Plan) -> None:
    text = document.to_json().rstrip()
    for end in range(0, len(text), 97):
        with pytest.raises(DocumentError):
            type(document).from_json(text[:end])


def test_a_bad_file_is_named_and_a_missing_one_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(FileNotFoundError):
        Plan.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with refused(DocumentError, "plan.json", "text file"):
        Plan.load(path)
    path.write_text("{}")
    with refused(DocumentError, "plan.json", "version"):
        Plan.load(path)


@settings(max_examples=40, deadline=None)
@given(junk=st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_value_in_any_field_is_read_or_refused_but_never_crashes(junk: Any) -> None:
    value = json.loads(op_graph().to_json())
    for holder, name in [
        *[(value, name) for name in list(value)],
        *[(value["operators"][1], name) for name in list(value["operators"][1])],
        *[(value["operators"][1]["operands"][0], name) for name in ("producer", "size_bytes")],
    ]:
        before = holder[name]
        holder[name] = junk
        with contextlib.suppress(DocumentError):
            OpGraph.from_json(json.dumps(value))
        holder[name] = before


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    write_text_atomically(path, "old\n")

    def full(source: object, target: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with refused(OSError, "no space left"):
        write_text_atomically(path, "new\n")
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text_atomically(path, "new\n")
        assert os.read(reader, 100) == b"new\n"
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def _operators(**changes: Any) -> dict[str, Any]:
    first, second = op_graph().operators
    return {"operators": (first, Operator(**(vars(second) | changes)))}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"batch_size": 0}, ("batch_size", 0, 1)),
        ({"operators": ()}, ("operators", "OpGraph")),
        (_operators(name=""), ("operators[1] ().name", "empty")),
        (_operators(name="embed"), ("operators[1] (embed).name", "unique")),
        (_operators(forward_flops=-1), ("operators[1] (head).forward_flops", -1)),
        (_operators(backward_flops=-1), ("backward_flops", -1)),
        (_operators(parameter_bytes=-1), ("parameter_bytes", -1)),
        (_operators(parameter_gradient_bytes=-1), ("parameter_gradient_bytes", -1)),
        (_operators(output_bytes=-1), ("output_bytes", -1)),
        (_operators(saved_bytes=-1), ("saved_bytes", -1)),
        (_operators(memory_bytes=-1), ("memory_bytes", -1)),
        (_operators(operands=(Operand(1, 0, 0),)), ("producer 1", "earlier")),
        (_operators(operands=(Operand(-1, 0, 0),)), ("producer -1", "earlier")),
        (_operators(operands=(Operand(0, -1, 0),)), ("sizes", "negative")),
        (_operators(operands=(Operand(0, 0, -1),)), ("sizes", "negative")),
    ],
)
def test_each_rule_of_an_op_graph_rejects(
    changes: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    op_graph().validate()
    with refused(DocumentError, *tokens):
        op_graph(**changes).validate()


def test_the_sums_of_an_op_graph_are_over_its_operators() -> None:
    graph = op_graph()
    sums = (graph.forward_flops, graph.backward_flops)
    assert sums == (20, 40)
    assert (graph.parameter_bytes, graph.parameter_gradient_bytes) == (80, 80)
