"""Rates as people write them ("25Gbps", "200 Mb/s"), and figures with units as people read them."""

from __future__ import annotations

import math
import re

from torch_topoopt.plan.codec import brief, brief_name

_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z/]*)")
_GBPS = {"kbps": 1e-6, "mbps": 1e-3, "gbps": 1.0, "tbps": 1e3}
_GBPS |= {name.replace("bps", "b/s"): value for name, value in _GBPS.items()}
_GBPS |= {name.replace("bps", "bit/s"): value for name, value in _GBPS.items() if "bps" in name}


def parse_gbps(text: str) -> float:
    """ "200Mbps", "25 Gb/s" -> Gb/s. The unit is compulsory; raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{brief(text)} is not a rate; write a number and a unit, e.g. 25Gbps")
    number, unit = match.groups()
    if not unit:
        shown = brief_name(number)
        raise ValueError(f"{brief(text)} has no unit; write {shown}Gbps or {shown}Mbps")
    if unit.lower() not in _GBPS or unit[1:2] == "B":
        raise ValueError(
            f"{brief(unit)} is not a unit of bits per second; use kbps, Mbps, Gbps or Tbps"
        )
    gbps = float(number) * _GBPS[unit.lower()]
    if not gbps > 0:
        raise ValueError(f"{brief(text)} is not greater than 0")
    if math.isinf(gbps):
        raise ValueError(f"{brief(text)} is too large for a rate; write one as in 25Gbps")
    return gbps


_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]*)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)")
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}


def parse_seconds(text: str) -> float:
    """ "10us", "1.5 ms", "0s" -> seconds. The unit is compulsory; raises ValueError."""
    return _with_unit(text, _TIME, _SECONDS, "time", "ns, us, ms, s or min", "10us")


def parse_bytes(text: str) -> float:
    """ "4MB" (powers of 1000), "4MiB" (of 1024) -> bytes. The unit is compulsory; raises
    ValueError."""
    return _with_unit(text, _SIZE, _BYTES, "size", "B, kB, MB, GB, KiB, MiB or GiB", "4MB")


def _with_unit(
    text: str, form: re.Pattern[str], units: dict[str, float], what: str, known: str, as_in: str
) -> float:
    match = form.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{brief(text)} is not a {what}; write a number and a unit, as in {as_in}")
    number, unit = match.groups()
    if unit.lower() not in units:
        raise ValueError(f"{brief(text)} has no unit of a {what}; use {known}, as in {as_in}")
    value = float(number) * units[unit.lower()]
    if math.isinf(value):
        raise ValueError(f"{brief(text)} is too large for a {what}")
    return value


def rate_text(gbps: float) -> str:
    """25.0 -> "25Gbps", 0.025 -> "25Mbps"; `parse_gbps` reads it back."""
    for unit, scale in (("Gbps", 1.0), ("Mbps", 1e3)):
        if gbps * scale >= 1:
            return f"{gbps * scale:.12g}{unit}"
    return f"{gbps * 1e6:.12g}kbps"


def format_gbps(gbps: float) -> str:
    """25.0 -> "25 Gb/s", 0.15 -> "150 Mb/s": the form of rates in all output."""
    return f"{gbps:g} Gb/s" if gbps >= 1 else f"{gbps * 1000:g} Mb/s"


def prefix(value: float, prefixes: str = " kMGTPE") -> tuple[float, str]:
    """(factor, prefix) of the SI prefix that shows `value` below 1000, in three digits."""
    factor = 1.0
    for letter in prefixes:
        if float(f"{abs(value) / factor:.2e}") < 1000 or letter == prefixes[-1]:
            return factor, letter.strip()
        factor *= 1000.0
    raise ValueError("prefixes: empty")


def format_bytes(size_bytes: float) -> str:
    """1536 -> "1.54 kB" (powers of 1000, as link rates are)."""
    return _prefixed(size_bytes, "B") if size_bytes < 1e21 else "more than 1000 EB"


def format_flops(flops: float) -> str:
    """2e9 -> "2 GFLOP"."""
    return _prefixed(flops, "FLOP")


def _prefixed(value: float, unit: str) -> str:
    factor, letter = prefix(value)
    return f"{value / factor:.3g} {letter}{unit}"


def format_seconds(seconds: float) -> str:
    """0.0123 -> "12.3 ms", 150 -> "2 min 30 s"; the report's page shows the same (base.js)."""
    for limit, factor, unit in ((9.995e-4, 1e6, "µs"), (0.9995, 1e3, "ms"), (119.5, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    if not math.isfinite(seconds):
        return f"{seconds} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def counted(count: int, noun: str) -> str:
    """1, "round" -> "1 round"; 2, "round" -> "2 rounds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
