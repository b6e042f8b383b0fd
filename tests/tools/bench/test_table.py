"""The table of `topoopt bench`, beside what nccl-tests prints for the same case."""

from __future__ import annotations

import re

import pytest
from json_schemas import result_schema
from jsonschema import Draft202012Validator
from support.plans import make_ring_plan

from torch_topoopt.plan.result_json import plain
from torch_topoopt.tools.bench.operations import Buffers, Case
from torch_topoopt.tools.bench.table import (
    BenchResults,
    Line,
    LinkRow,
    Timed,
    foot,
    head,
    link_lines,
    summary,
    theory_bytes,
)


def case(operation: str, size_bytes: int = 1 << 20, ranks: int = 4) -> Case:
    return Case(operation, size_bytes, "float", "sum", 0, ranks - 1, ranks)


def test_the_columns_are_those_of_nccl_tests() -> None:
    form = ["time", "algbw", "busbw", "#wrong"]
    _, above, columns, units = head(None)
    names = columns.replace("#", " ", 1).split()
    assert names == ["size", "count", "type", "redop", "root", *form, *form]
    assert units.split()[1:] == ["(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    assert above.split() == ["#", "out-of-place", "in-place"]
    beside = head("gloo")
    assert beside[1].split()[-1] == "gloo"
    assert beside[2].split()[-3:] == ["time", "#wrong", "ratio"]


@pytest.mark.parametrize(
    ("operation", "count", "redop", "root", "factor"),
    [
        ("all_reduce", 262144, "sum", "-1", 1.5),
        ("all_gather", 65536, "none", "-1", 0.75),
        ("reduce_scatter", 65536, "sum", "-1", 0.75),
        ("all_to_all", 65536, "none", "-1", 0.75),
        ("broadcast", 262144, "none", "0", 1.0),
        ("reduce", 262144, "sum", "0", 1.0),
        ("sendrecv", 262144, "none", "-1", 1.0),
    ],
)
def test_a_line_counts_as_nccl_tests_does(
    operation: str, count: int, redop: str, root: str, factor: float
) -> None:
    line = Line(case(operation), {"out_of_place": Timed(1e-3, 0)}, {})
    cells = line.text().split()
    assert cells[:5] == ["1048576", str(count), "float", redop, root]
    assert cells[5] == "1000.00"
    assert float(cells[6]) == pytest.approx(1.05, abs=0.005)
    assert float(cells[7]) == pytest.approx(1.048576 * factor, rel=0.005)
    assert cells[8:] == ["0", *["N/A"] * 4]
    written = plain(line)
    assert written["out_of_place"]["bus_bw"] == pytest.approx(1.048576 * factor)
    assert written["in_place"] is None
    assert "peer" not in written


def test_every_cell_is_below_its_column() -> None:
    """Right ends of cells and names are in one column."""
    names = head("gloo")[2]
    ends = [place.end() for place in re.finditer(r"[^\s]+", names.replace("#", " ", 1))]
    for seconds in (12.3456, 1e-3, 1e-6):
        forms = {"out_of_place": Timed(seconds, 7), "in_place": Timed(seconds, None)}
        line = Line(case("all_gather"), forms, forms).text()
        assert [place.end() for place in re.finditer(r"\S+", line)] == ends


def test_the_foot_says_what_was_wrong() -> None:
    good = Line(case("all_reduce"), {"in_place": Timed(1e-3, 0)}, {})
    bad = Line(case("all_reduce"), {"in_place": Timed(1e-3, 3)}, {"in_place": Timed(1e-3, 5)})
    assert foot([good])[0] == "# Out of bounds values : 0 OK"
    assert foot([good, bad])[0] == "# Out of bounds values : 3 FAILED"
    assert summary([good, bad]) == (3, pytest.approx(1.048576 * 1.5))


def test_links_stand_beside_theory() -> None:
    rows = [
        LinkRow("all_reduce", 1048576, 0, 1, 786432.0, 786432.0, 0.2, 0.2),
        LinkRow("all_reduce", 1048576, 1, 0, 9.0, None, 0.1, None),
    ]
    lines = [line.split() for line in link_lines(rows)]
    assert lines[1] == ["#", "0", ">", "1", "786432", "786432", "0.2", "100.0", "%"]
    assert lines[2][-3:] == ["-", "0.1", "-"]


def test_theory_is_that_of_rings_and_routes() -> None:
    plan = make_ring_plan(4)
    size = 1 << 20
    each = size * 2 * 3 / 4 / 2  # on each of two rings, half of it
    assert theory_bytes(plan, case("all_reduce")) == pytest.approx(
        {(link.source, link.target): each for link in plan.network.links}
    )
    gathered = theory_bytes(plan, case("all_gather"))
    assert gathered is not None
    assert list(gathered.values()) == pytest.approx([each / 2] * len(gathered))
    sent = theory_bytes(plan, Case("sendrecv", 100, "float", "sum", 0, 1, 4))
    assert sent is not None
    assert sent[0, 1] == 100
    assert sum(sent.values()) == 100
    assert theory_bytes(plan, case("broadcast")) is None


def test_in_place_buffers_share_their_memory() -> None:
    for operation in ("all_gather", "reduce_scatter"):
        buffers = Buffers(case(operation, 256), rank=2, in_place=True)
        whole, part = sorted((buffers.input, buffers.output), key=len, reverse=True)
        assert part.data_ptr() == whole.data_ptr() + 2 * 16 * 4
        apart = Buffers(case(operation, 256), rank=2)
        assert apart.input.untyped_storage().data_ptr() != apart.output.untyped_storage().data_ptr()
        assert apart.input.tolist() == buffers.input.tolist()


def test_results_have_the_schema_of_the_verb_and_the_keys_of_nccl_tests() -> None:
    forms = {"out_of_place": Timed(1e-3, 2), "in_place": Timed(1e-3, None)}
    lines = [Line(case("all_reduce"), forms, {}), Line(case("all_to_all"), forms, forms)]
    rows = [LinkRow("all_reduce", 1048576, 0, 1, 786432.0, None, 0.2, 0.2)]
    written = plain(BenchResults("2.15.0", 4, {"minbytes": 8, "peer": None}, lines, rows))
    Draft202012Validator(result_schema("bench")).validate(written)
    assert written["out_of_bounds"] == {"count": 4, "okay": False}
    assert written["average_bus_bandwidth"]["unit"] == "GB/s"
