"""Reports of flows are read fast where they are plain, and strictly in any case."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.refusals import refused

from torch_topoopt.plan.codec import DocumentError
from torch_topoopt.route_control.controller.messages import (
    FlowReport,
    _plain_flows,
    flows_body,
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
        [{**FLOW, "id": "é", "bytes": 2**63 - 1}],
    ],
)
def test_plain_reports_are_read_without_the_codec(flows: list[dict[str, Any]]) -> None:
    text = json.dumps({"request": "r", "job": "job", "flows": flows}, ensure_ascii=False).encode()
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
    for text in (
        (TEXT % PLAIN).replace('"f"', '"\\u0066"').encode(),
        body(FLOW).decode().encode("utf-16"),
    ):
        assert _plain_flows(text) is None
        message = read_flows(text)
        assert (message.job, message.flows) == (expected.job, expected.flows)
    assert read_flows(body()).flows == ()


def test_a_body_of_flows_is_read_again() -> None:
    flows = (FlowReport("f", "h0", "h1", 7), FlowReport("g", "h1", "h0", 8, 0.25))
    message = read_flows(flows_body("j", flows))
    assert (message.job, message.flows) == ("j", flows)
