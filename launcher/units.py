"""Rates as people write them, and figures as people read them."""

from __future__ import annotations

import re

from torch_topoopt.launcher.errors import InputError

_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z/]*)")
_GBPS = {"kbps": 1e-6, "mbps": 1e-3, "gbps": 1.0, "tbps": 1e3}
_GBPS |= {name.replace("bps", "b/s"): value for name, value in _GBPS.items()}
_GBPS |= {name.replace("bps", "bit/s"): value for name, value in _GBPS.items() if "bps" in name}


def parse_gbps(text: str) -> float:
    """ "200Mbps", "25 Gb/s" -> Gb/s. The unit is compulsory; raises InputError."""
    match = _RATE.fullmatch(text.strip())
    if not match:
        raise InputError(
            f"bandwidth: {text!r} is not a rate; write a number and a unit, e.g. 25Gbps"
        )
    number, unit = match.groups()
    if not unit:
        raise InputError(f"bandwidth: {text!r} has no unit; write {number}Gbps or {number}Mbps")
    if unit.lower() not in _GBPS or unit[1:2] == "B":
        raise InputError(
            f"bandwidth: {unit!r} is not a unit of bits per second; use kbps, Mbps, Gbps or Tbps"
        )
    gbps = float(number) * _GBPS[unit.lower()]
    if not gbps > 0:
        raise InputError(f"bandwidth: {text!r} is not greater than 0")
    return gbps


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < 999.5:  # what three digits can show
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} {units[-1]}"


def format_bytes(size_bytes: float) -> str:
    """1536 -> "1.54 kB" (powers of 1000, as link rates are)."""
    return _scaled(size_bytes, ("B", "kB", "MB", "GB", "TB"))


def format_flops(flops: float) -> str:
    return _scaled(flops, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def format_gbps(gbps: float) -> str:
    return f"{gbps:g} Gb/s" if gbps >= 1 else f"{gbps * 1000:g} Mb/s"


def format_seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def counted(count: int, noun: str) -> str:
    """1, "round" -> "1 round"; 2, "round" -> "2 rounds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
