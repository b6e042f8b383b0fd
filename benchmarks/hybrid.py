"""What plans predict against what runs measure, for strategies that are more than data parallel.

    python benchmarks/hybrid.py
    python benchmarks/hybrid.py --only dlrm --bandwidth 5Mbps --steps 30

Runs the two examples under `topoopt run` on emulated servers with links of a limited rate: a DLRM
with its tables on servers of their own, and a GPT in two stages. Each plans first, so strategy,
network and prediction are those of this very run. Printed are, for one training iteration, the
time predicted and measured, and the bytes per link: the largest relative difference of any link,
and that of all links together. `compute` is the part of the predicted time that is computing.

All servers share this machine's cores, so the rate has to be low enough that the network and not
the machine sets the pace; with more cores, or faster ones, it may be higher.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_RUN_LIMIT_S = 600.0

CASES: dict[str, tuple[str, ...]] = {
    "dlrm": ("--strategy-space", "full", "--measure"),
    "pipeline": ("--strategy-space", "pipeline", "--stages", "2", "--measure"),
}
COLUMNS = ("case", "strategy", "predicted", "compute", "measured", "apart", "links apart", "all")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; exits for one that is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="default: all")
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--degree", type=int, default=6)
    parser.add_argument("--bandwidth", default="2Mbps", help="of a port, with its unit")
    parser.add_argument("--steps", type=int, default=12, help="training iterations of each case")
    parser.add_argument("--fabric", choices=["loopback", "netns"], default="loopback")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def run(case: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The figures of `topoopt run` for one case; raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "torch_topoopt.launcher.main", "run", "--json"]
    command += ["--servers", str(arguments.servers), "--degree", str(arguments.degree)]
    command += ["--bandwidth", arguments.bandwidth, "--fabric", arguments.fabric]
    command += ["--run-dir", str(folder / case), *CASES[case]]
    command += [str(_EXAMPLES / f"{case}.py"), "--steps", str(arguments.steps)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=_RUN_LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{case}: `topoopt run` ended with exit code {done.returncode}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def row_of(case: str, figures: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """One line of the table: what `topoopt run --json` printed, and the plan of its run folder."""
    iterations = figures["iterations"]
    if iterations is None:
        raise RuntimeError(f"{case}: no iteration was measured; use more --steps")
    predicted_bytes = sum(plan["prediction"]["link_bytes"])
    measured_bytes = sum(link["iteration_bytes"] for link in figures["links"])
    servers = plan["cluster"]["servers"]
    apart = sum(len(placement["servers"]) < servers for placement in plan["strategy"])
    return {
        "case": case,
        "operators_on_some_servers": apart,
        "micro_batches": plan.get("micro_batches", 1),
        "predicted_s": iterations["predicted_s"],
        "compute_s": plan["prediction"]["compute_s"],
        "measured_s": iterations["measured_s"],
        "difference": iterations["difference"],
        "link_bytes_difference": iterations["link_bytes_difference"],
        "all_bytes_difference": measured_bytes / predicted_bytes - 1,
        "iterations": iterations["count"],
    }


def show(row: dict[str, Any]) -> str:
    """A line of the table."""
    strategy = f"{row['operators_on_some_servers']} placed"
    if row["micro_batches"] > 1:
        strategy += f", {row['micro_batches']} parts"
    cells = (
        row["case"],
        strategy,
        f"{row['predicted_s'] * 1e3:.0f} ms",
        f"{row['compute_s'] * 1e3:.1f} ms",
        f"{row['measured_s'] * 1e3:.0f} ms",
        f"{row['difference']:+.1%}",
        f"{row['link_bytes_difference']:.2%}",
        f"{row['all_bytes_difference']:+.2%}",
    )
    return _line(cells)


def _line(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:10}{cells[1]:22}" + "".join(f"{cell:>12}" for cell in cells[2:])


def main(argv: list[str] | None = None) -> int:
    """Runs the cases and prints the table."""
    arguments = parse_arguments(argv)
    rows = []
    if not arguments.json:
        print(_line(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for case in arguments.only or CASES:
            figures = run(case, arguments, Path(scratch))
            plan = json.loads((Path(scratch) / case / "plan.json").read_text())
            rows.append(row_of(case, figures, plan))
            if not arguments.json:
                print(show(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
