"""benchmarks/published_graphs.py: its reader on hand-made files, and what it makes of them."""

from __future__ import annotations

import struct

import published_graphs as graphs
import pytest
from support.refusals import refused

from torch_topoopt.sim import run_program

GPU, NETWORK = 0, 13
FORWARD, TRANSFER, ALL_REDUCE = 0, 5, 6


def _append_table(buffer: bytearray, fields: list[object]) -> int:
    """Appends a FlatBuffers table and what it points to; returns its place.

    A field is None, (form, value), (form, [values]) or a list of tables' fields."""
    offsets, inline = [], bytearray(4)
    for item in fields:
        offsets.append(len(inline) if item is not None else 0)
        if item is not None:
            scalar = isinstance(item, tuple) and not isinstance(item[1], list)
            inline += struct.pack("<" + item[0], item[1]) if scalar else bytes(4)
    vtable = struct.pack(f"<{2 + len(fields)}H", 4 + 2 * len(fields), len(inline), *offsets)
    place = len(buffer) + len(vtable)
    inline[:4] = struct.pack("<i", len(vtable))
    buffer += vtable + inline
    for offset, item in zip(offsets, fields, strict=True):
        if isinstance(item, tuple) and isinstance(item[1], list):
            struct.pack_into("<I", buffer, place + offset, len(buffer) - place - offset)
            buffer += struct.pack(f"<I{len(item[1])}{item[0]}", len(item[1]), *item[1])
        elif isinstance(item, list):
            struct.pack_into("<I", buffer, place + offset, len(buffer) - place - offset)
            start = len(buffer) + 4
            buffer += struct.pack("<I", len(item)) + bytes(4 * len(item))
            for i, child in enumerate(item):
                at = _append_table(buffer, child)
                struct.pack_into("<I", buffer, start + 4 * i, at - start - 4 * i)
    return place


def _file(servers: int, tasks: list[list[object]], devices: list[list[object]]) -> bytes:
    buffer = bytearray(4)
    fields: list[object] = [None] * 12
    fields[1], fields[2] = ("I", servers), ("I", 1)
    fields[8], fields[9] = tasks, devices
    struct.pack_into("<I", buffer, 0, _append_table(buffer, fields))
    return bytes(buffer)


def _task(
    kind: int, number: int, device: int, ms: float, size: int, after: list[int]
) -> list[object]:
    return [
        ("h", kind),
        ("Q", number),
        ("Q", device),
        ("f", ms),
        ("Q", size),
        ("Q", after),
    ]


def _device(kind: int, number: int, ends: int = 0) -> list[object]:
    return [("h", kind), ("Q", number), ("Q", 0), ("Q", ends), ("Q", 0)]


def small() -> graphs.Graph:
    """Of 3 servers and a switch: 0 computes 1 ms, sends 10 packets to 2, all reduce 40."""
    return graphs.read_graph(
        _file(
            3,
            [
                _task(FORWARD, 100, 7, 1.0, 0, [101]),
                _task(TRANSFER, 101, 8, 0.0, 10 * graphs.PAYLOAD, [102]),
                _task(ALL_REDUCE, 102, 7, 0.5, 40 * graphs.PAYLOAD, [2, 0, 1]),
            ],
            [_device(GPU, 7), _device(NETWORK, 8, 0 * 4 + 2)],
        )
    )


def test_a_file_is_read() -> None:
    graph = small()
    assert (graph.servers, graph.devices) == (3, 2)
    compute, transfer, reduce = graph.tasks
    assert (compute.kind, compute.seconds, compute.after) == (graphs.COMPUTE, 1e-3, [])
    assert (transfer.source, transfer.target, transfer.size_bytes) == (0, 2, 10 * graphs.PAYLOAD)
    assert transfer.after == [0]
    assert (reduce.kind, reduce.members, reduce.after) == (graphs.ALL_REDUCE, (2, 0, 1), [1])


@pytest.mark.parametrize("strides", [(), (1,)])
def test_an_iteration_takes_the_sum_of_what_waits_for_each_other(strides: tuple[int, ...]) -> None:
    graph = small()
    program = graphs.make_program(graph, graphs.Network(graph, strides, 100.0, 0))
    sizes = {"mtu_bytes": graphs.PAYLOAD, "header_bytes": graphs.HEADER}
    result = run_program(program, level="packet", full_last_packet=True, **sizes)
    hops = 1 if strides else 2
    packet_s = (graphs.PAYLOAD + graphs.HEADER) * 8 / 100e9

    def transfer_s(packets: int) -> float:
        return (packets + hops - 1) * packet_s + hops * 1e-6

    rings = 2 if strides else 1  # 40 packets among 3 members: 14 each, or 7 on each of two rings
    expected = 1e-3 + transfer_s(10) + 0.5e-3 + 4 * transfer_s(14 // rings)
    assert result.completion_s == pytest.approx(expected, rel=1e-9)


def test_another_file_is_an_error() -> None:
    for data in (b"", b"no such thing", bytes(64)):
        with refused(ValueError, "task graph"):
            graphs.read_graph(data)
