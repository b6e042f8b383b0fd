"""Rates as people write them, and figures as people read them."""

from __future__ import annotations

from torch_topoopt.launcher.errors import InputError
from torch_topoopt.plan import rates
from torch_topoopt.plan.rates import format_gbps

__all__ = ["counted", "format_bytes", "format_flops", "format_gbps", "format_seconds", "parse_gbps"]


def parse_gbps(text: str) -> float:
    """ "200Mbps", "25 Gb/s" -> Gb/s. The unit is compulsory; raises InputError."""
    try:
        return rates.parse_gbps(text)
    except ValueError as error:
        raise InputError(f"bandwidth: {error}") from None


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < 999.5:  # the limit of three digits
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} {units[-1]}"


def format_bytes(size_bytes: float) -> str:
    """1536 -> "1.54 kB" (powers of 1000, as link rates are)."""
    return _scaled(size_bytes, ("B", "kB", "MB", "GB", "TB"))


def format_flops(flops: float) -> str:
    return _scaled(flops, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def format_seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def counted(count: int, noun: str) -> str:
    """1, "round" -> "1 round"; 2, "round" -> "2 rounds"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
