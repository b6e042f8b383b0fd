"""Reports of flows are read fast where they are plain, and strictly in any case."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError, decode
from torch_topoopt.route_control.controller.messages import (
    FlowReport,
    FlowsDocument,
    FlowsReader,
    _plain_flows,
    flows_body,
    parse_object,
    read_flows,
)

FLOW = {"id": "f", "source": "h0", "target": "h2", "bytes": 10}
TEXT = '{"request": "r", "job": "j", "flows": [%s]}'
PLAIN = json.dumps(FLOW)


def body(*flows: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({"request": "r", "job": "j", "flows": flows, **changes}).encode()


@pytest.mark.parametrize(
    "flows",
    [
        [FLOW],
        [FLOW, {**FLOW, "id": "g", "period_s": 0.5}],
        [{**FLOW, "period_s": None, "source": "id"}],
        [{**FLOW, "id": "g" * 200, "bytes": 2**63 - 1}],
    ],
)
def test_plain_reports_are_read_without_the_codec(flows: list[dict[str, Any]]) -> None:
    text = json.dumps({"request": "r", "job": "job", "flows": flows}, indent=1).encode()
    message = _plain_flows(text)
    assert message is not None
    assert message.flows == tuple(FlowReport(**flow) for flow in flows)
    assert message == read_flows(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (TEXT % PLAIN.replace('"bytes"', '"bytes": 9, "bytes"'), ("bytes", "twice")),
        (TEXT % PLAIN.replace('"bytes"', '"bytes" : 9, "bytes"'), ("bytes", "twice")),
        (TEXT % PLAIN.replace('"id"', '"\\u0069d": "g", "id"'), ("id", "twice")),
        (TEXT % PLAIN.replace('"id"', '"id": "id", "id"'), ("id", "twice")),
        (TEXT % PLAIN + "x", ("body",)),
        ((TEXT % PLAIN).replace('"job"', '"job": "k", "job"'), ("job", "twice")),
        (TEXT % PLAIN.replace("10", "10.5"), ("flows[0].bytes", 10.5)),
        (TEXT % PLAIN.replace("10", "true"), ("flows[0].bytes",)),
        (TEXT % PLAIN.replace("10", "0"), ("flows[0].bytes", 0)),
        (TEXT % PLAIN.replace("10", "NaN"), ("body", "NaN")),
        (TEXT % PLAIN.replace("}", ', "colour": 1}'), ("colour",)),
        (TEXT % PLAIN.replace("}", ', "period_s": 1e999}'), ("flows[0].period_s",)),
        (TEXT % PLAIN.replace("}", ', "period_s": -1.0}'), ("flows[0].period_s", -1.0)),
        (
            TEXT % f'{PLAIN[:-1]}, "x": 1}}, {PLAIN[:-1]}, "period_s": 1.0, "period_s": 2.0}}',
            ("period_s", "twice"),
        ),
        (TEXT % PLAIN.replace('"f"', '""'), ("flows[0].id",)),
        (TEXT % PLAIN.replace('"f"', '"\\n"'), ("flows[0].id",)),
        (TEXT % PLAIN.replace('"f"', f'"{201 * "f"}"'), ("flows[0].id",)),
        (TEXT % PLAIN.replace('"f"', "[]"), ("flows[0].id",)),
        (TEXT % "7", ("flows[0]",)),
        (TEXT.replace('"r"', '""') % PLAIN, ("request",)),
    ],
)
def test_what_is_not_a_report_is_refused(text: str, tokens: tuple[object, ...]) -> None:
    with refused(DocumentError, *tokens):
        read_flows(text.encode())


def test_other_forms_of_the_same_report_are_read_by_the_codec() -> None:
    expected = read_flows(body(FLOW))
    plain = TEXT % PLAIN
    texts = [plain.replace('"f"', '"\\u0066"').encode(), plain.encode("utf-16")]
    for text in texts:
        assert _plain_flows(text) is None
        message = read_flows(text)
        assert (message.job, message.flows) == (expected.job, expected.flows)
    assert read_flows(body()).flows == ()
    other = (TEXT % PLAIN.replace('"f"', '"é"').replace("}", ', "period_s": 1}')).encode()
    assert _plain_flows(other) is None
    assert read_flows(other).flows == (FlowReport("é", "h0", "h2", 10, 1.0),)


def test_what_is_read_fast_is_what_the_codec_reads() -> None:
    """Bodies with random changes: whatever the fast reader accepts, the codec reads the same."""
    random_ = random.Random(7)
    pieces = [b'"', b"{", b"}", b"[", b"]", b",", b":", b" ", b"0", b"1", b".5", b"e9", b"-", b"+"]
    pieces += [b"null", b"true", b'"id"', b'"period_s": 2.5', b'"job": "j"', b"\\n", b"\x7f", b"01"]
    flows = [FLOW, {**FLOW, "id": "g", "period_s": 0.5}, {**FLOW, "id": "h", "period_s": None}]
    plain = body(*flows)
    accepted = 0
    for _ in range(20_000):
        text = plain
        for _ in range(random_.choice([1, 1, 2])):
            at = random_.randrange(len(text))
            text = text[:at] + random_.choice(pieces) + text[at + random_.choice([0, 1, 1, 4]) :]
        found = _plain_flows(text)
        if found is None:
            continue
        accepted += 1
        read = decode(FlowsDocument, parse_object(text))
        assert (found.request, found.job) == (read.request, read.job)
        assert list(map(tuple, found.flows)) == [tuple(vars(of).values()) for of in read.flows]
        for of in found.flows:
            assert 1 <= of.bytes < 2**63
            assert of.period_s is None or of.period_s > 0
            assert of.id.isprintable()
    assert accepted > 500


def test_a_repeated_report_is_not_parsed_again() -> None:
    reader = FlowsReader()
    first, other = reader.read(body(FLOW)), reader.read(body({**FLOW, "id": "g"}))
    again = reader.read(body(FLOW).replace(b'"r"', b'"s"'))
    assert again.flows is first.flows
    assert (again.request, again.job, again.body != first.body) == ("s", "j", True)
    assert reader.read(body({**FLOW, "id": "g"})).flows is other.flows
    assert reader.read(body(FLOW, job="k")) == read_flows(body(FLOW, job="k"))
    assert reader.read(body({**FLOW, "bytes": 11})).flows[0].bytes == 11
    for changed, field in (
        (body(FLOW)[:-1], "body"),
        (body(FLOW) + b"]", "body"),
        (body(FLOW).replace(b'"r"', b'"' + b"r" * 201 + b'"'), "request"),
        (body(FLOW).replace(b'"r"', b'"r", "request": "s"'), "request"),
        (body(FLOW)[:-1] + b', "job": "j"}', "job"),
    ):
        with refused(DocumentError, field):
            reader.read(changed)


def test_a_body_of_flows_is_read_again() -> None:
    flows = (FlowReport("f", "h0", "h1", 7), FlowReport("g", "h1", "h0", 8, 0.25))
    message = read_flows(flows_body("j", flows))
    assert (message.job, message.flows) == ("j", flows)
