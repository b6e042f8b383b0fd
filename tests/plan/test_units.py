"""Rates as people write them, figures as people read them."""

from __future__ import annotations

import math

import pytest
from support.refusals import refused

from torch_topoopt.plan.units import (
    counted,
    format_bytes,
    format_flops,
    format_gbps,
    format_seconds,
    parse_gbps,
)


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("25Gbps", 25.0),
        ("200Mbps", 0.2),
        ("1.5 Gb/s", 1.5),
        (".5tbps", 500.0),
        ("100 Mbit/s", 0.1),
        ("800kbps", 0.0008),
    ],
)
def test_a_rate_with_a_unit_is_understood(text: str, gbps: float) -> None:
    assert parse_gbps(text) == pytest.approx(gbps, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("25", ("'25'", "25Gbps", "25Mbps")),
        ("25GBps", ("'GBps'", "kbps", "Mbps", "Gbps", "Tbps")),
        ("25G", ("'G'",)),
        ("fast", ("'fast'", "25Gbps")),
        ("-3Gbps", ("'-3Gbps'",)),
        ("nanGbps", ("'nanGbps'",)),
        ("0Gbps", ("'0Gbps'", 0)),
        ("", ("''",)),
        ("9" * 400 + "Gbps", (f"'{'9' * 79}...", 406)),
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(
    text: str, tokens: tuple[object, ...]
) -> None:
    with refused(ValueError, *tokens):
        parse_gbps(text)


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 5000 + "Gbps", "x" * 5000, "1" + "x" * 5000])
def test_what_is_refused_is_shortened(text: str) -> None:
    with refused(ValueError, "characters") as caught:
        parse_gbps(text)
    assert len(str(caught.value)) < 500


def test_figures_are_short_and_carry_their_unit() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(999) == "999 B"
    assert format_bytes(1536) == "1.54 kB"
    assert format_bytes(999_600) == "1 MB"
    assert format_bytes(12_345_678_901_234_567) == "12.3 PB"
    assert format_bytes(10**400) == "more than 1000 EB"
    assert format_flops(15.5e9) == "15.5 GFLOP"
    assert format_gbps(0.15) == "150 Mb/s"
    assert format_gbps(25) == "25 Gb/s"
    assert format_seconds(0.00123) == "1.23 ms"
    assert format_seconds(12e-6) == "12 µs"
    assert format_seconds(75) == "75 s"
    assert format_seconds(0.9999) == "1 s"
    assert format_seconds(150) == "2 min 30 s"
    assert format_seconds(1234.4) == "20 min 34 s"
    assert format_seconds(3725) == "1 h 2 min"
    assert format_seconds(math.inf) == "inf s"
    assert counted(1, "round") == "1 round"
    assert counted(0, "round") == "0 rounds"
