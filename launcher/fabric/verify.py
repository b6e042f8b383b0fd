"""`topoopt fabric verify`: measures every link of a fabric of network namespaces."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_topoopt.launcher import console, parser, shared_options
from torch_topoopt.launcher.errors import CHECK_FAILED, OK
from torch_topoopt.plan.units import counted, format_gbps, format_seconds

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.fabric.netns.goodput import Goodput

_DESCRIPTION = """\
Measures what TCP gets of every link of a fabric and direction, and compares it with what the rate
that was set leaves after the headers (0.956 of it at an MTU of 1500). Links that share no port are
measured together. Exit code 1 if a link is more than 3 % off. Needs root; a job that uses the
fabric meanwhile shares the links with the measurement."""

_EXAMPLES = """\
  topoopt fabric verify lab
  topoopt fabric verify lab --json"""


@dataclass(frozen=True)
class VerifiedFabric:
    """The result of `topoopt fabric verify`."""

    fabric: str
    exit_code: int
    seconds: float
    links: list[Goodput]


def make_parser() -> argparse.ArgumentParser:
    """The options of the sub-verb."""
    options = parser.Parser("fabric verify", _DESCRIPTION, _EXAMPLES)
    options.add_argument("name", metavar="NAME", help="name of the fabric")
    shared_options.add(options, "json")
    return options


def main(argv: list[str]) -> int:
    """Runs the sub-verb; returns the exit code."""
    arguments = make_parser().parse_args(argv)

    from torch_topoopt.fabric.netns import goodput as netns_goodput
    from torch_topoopt.fabric.netns import kernel as netns_kernel
    from torch_topoopt.fabric.netns import state as netns_state

    netns_kernel.require()
    record, plan, wiring = netns_state.load(arguments.name)
    terminal = console.Terminal(json_output=arguments.json)
    started = time.monotonic()
    with terminal.progress(f"measuring the fabric {arguments.name}") as show:
        measured = netns_goodput.measure(record, wiring, plan.network.links, show)
    seconds = time.monotonic() - started
    wrong = [goodput for goodput in measured if not goodput.right]
    code = CHECK_FAILED if wrong else OK
    if arguments.json:
        console.print_json(VerifiedFabric(record.name, code, seconds, measured))
        return code
    rate = "not limited" if record.gbps is None else format_gbps(record.gbps)
    terminal.table(
        f"Goodput of the links of {record.name} (rate {rate}, MTU {record.mtu})",
        ("link", "measured", "expected", "share", ""),
        [_row(goodput) for goodput in measured],
    )
    judged = f"{len(wrong)} more than {netns_goodput.TOLERANCE:.0%} off" if wrong else "all right"
    terminal.line(f"{counted(len(measured), 'link')} in {format_seconds(seconds)}: {judged}")
    return code


def _row(goodput: Goodput) -> tuple[str, ...]:
    link, share, expected = goodput.link, goodput.share, goodput.expected_gbps
    return (
        f"server {link.source} port {link.source_port} -> "
        f"server {link.target} port {link.target_port}",
        f"{goodput.gbps * 1000:.3f} Mb/s",
        "-" if expected is None else f"{expected * 1000:.3f} Mb/s",
        "-" if share is None else f"{share:.4f}",
        goodput.error or ("" if goodput.right else "WRONG"),
    )
