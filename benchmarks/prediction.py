"""An iteration predicted against an iteration measured: four examples at three bandwidths each.

    python benchmarks/prediction.py
    python benchmarks/prediction.py --only dlrm --bandwidth 5Mbps --json
    sudo python benchmarks/prediction.py --layouts --fabric netns

`--layouts` runs examples/llama.py, and the same with experts, under layouts of every dimension.

Every case is one `topoopt run` of an example on emulated servers: it measures a few steps without
messages, plans, predicts, and trains for so many iterations as it takes to measure one. Printed are
both times, what of the predicted one is computing (with data loading and optimizer), their
difference relative to the prediction, and the largest difference of bytes on any link. At the end
come the median and the largest difference without their signs, and whether they are within 5 % and
10 %, with the bytes of every link as predicted (0.5 %).

Nothing else may run on the machine. The sum of all link rates stays below what two cores can move
(about 1.5 Gb/s).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_RUN_LIMIT_S = 300.0
_MEDIAN, _WORST, _BYTES = 0.05, 0.10, 0.005

# example: options of the run, bandwidths of a port, arguments of the script
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "digits": (
        ("--servers", "4", "--degree", "2"),
        ("50Mbps", "100Mbps", "150Mbps"),
        ("--epochs", "4", "--target-accuracy", "0"),
    ),
    "dlrm": (
        ("--servers", "8", "--degree", "4", "--strategy-space", "full"),
        ("5Mbps", "10Mbps", "20Mbps"),
        ("--steps", "40"),
    ),
    "gpt": (  # sharded, so predicted from its own calls
        ("--servers", "8", "--degree", "2"),
        ("20Mbps", "50Mbps", "80Mbps"),
        ("--shard", "--steps", "15"),
    ),
    "pipeline": (
        ("--servers", "8", "--degree", "6", "--strategy-space", "pipeline", "--stages", "2"),
        ("1Mbps", "2Mbps", "4Mbps"),
        ("--steps", "19"),
    ),
}

_HERE = Path(__file__).resolve().parent
_LLAMA = _ROOT / "examples" / "llama.py"
_EXPERTS = _HERE / "harness" / "llama_of_experts.py"
_FOUR, _EIGHT = ("--servers", "4", "--degree", "2"), ("--servers", "8", "--degree", "3")
# name: script, servers, bandwidth of a port, layout
LAYOUTS: dict[str, tuple[Path, tuple[str, ...], str, str]] = {
    "zero-1": (_LLAMA, _FOUR, "50Mbps", "sharding=optimizer,micro_batch=8"),
    "zero-2": (_LLAMA, _FOUR, "50Mbps", "sharding=gradients,micro_batch=8"),
    "fsdp": (_LLAMA, _FOUR, "50Mbps", "sharding=parameters,micro_batch=8"),
    "hsdp": (_LLAMA, _FOUR, "50Mbps", "sharding=parameters,state_shards=2,micro_batch=8"),
    "tensor": (_LLAMA, _FOUR, "100Mbps", "tensor=4,micro_batch=32"),
    "tensor-fsdp": (_LLAMA, _FOUR, "100Mbps", "tensor=2,sharding=parameters,micro_batch=8"),
    "context": (_LLAMA, _FOUR, "50Mbps", "context=4,micro_batch=8"),
    "gpipe": (_LLAMA, _FOUR, "50Mbps", "pipeline=4,schedule=gpipe,micro_batch=4"),
    "1f1b": (_LLAMA, _FOUR, "50Mbps", "pipeline=4,schedule=1f1b,micro_batch=4"),
    "interleaved": (
        _LLAMA, _FOUR, "50Mbps", "pipeline=2,interleave=2,schedule=interleaved,micro_batch=4"
    ),
    "zero-bubble": (_LLAMA, _FOUR, "50Mbps", "pipeline=4,schedule=zero-bubble,micro_batch=4"),
    "tensor-1f1b": (_LLAMA, _FOUR, "100Mbps", "tensor=2,pipeline=2,micro_batch=8"),
    "experts": (_EXPERTS, _FOUR, "100Mbps", "expert=4,micro_batch=8"),
    "fsdp of 8": (_LLAMA, _EIGHT, "50Mbps", "sharding=parameters,micro_batch=4"),
    "1f1b of 8": (_LLAMA, _EIGHT, "50Mbps", "pipeline=4,micro_batch=4"),
    "experts of 8": (
        _EXPERTS, _EIGHT, "100Mbps", "expert=4,tensor=2,sharding=parameters,micro_batch=8"
    ),
    "all of 8": (
        _LLAMA, _EIGHT, "100Mbps", "tensor=2,pipeline=2,sharding=parameters,micro_batch=4"
    ),
}  # fmt: skip
_WIDTHS = (13, 12, 12, 12, 12, 12, 12)
COLUMNS = ("case", "bandwidth", "predicted", "computing", "measured", "difference", "bytes")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; exits for one that is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layouts", action="store_true", help="layouts instead of the examples")
    parser.add_argument(
        "--only", choices=sorted({*CASES, *LAYOUTS}), action="append", help="default: all"
    )
    parser.add_argument("--bandwidth", action="append", help="default: three for each example")
    parser.add_argument("--fabric", choices=["loopback", "netns"], default="loopback")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def run(case: str, bandwidth: str, fabric: str, folder: Path) -> dict[str, Any]:
    """The row of one run; raises RuntimeError if it fails or measures no iteration."""
    script, options, arguments = _job(case)
    command = [sys.executable, "-m", "torch_topoopt.launcher.main", "run", "--json", *options]
    command += ["--bandwidth", bandwidth, "--fabric", fabric, "--run-dir", str(folder)]
    command += [str(script), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_RUN_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        raise RuntimeError(
            f"{case} at {bandwidth}: `topoopt run` ended with exit code {done.returncode}: {last}"
        )
    figures = json.loads(done.stdout)
    iterations = figures["iterations"]
    if iterations is None:
        raise RuntimeError(f"{case} at {bandwidth}: no iteration was measured")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return {
        "case": case,
        "bandwidth": bandwidth,
        "predicted_s": iterations["predicted_s"],
        "compute_s": plan["prediction"]["compute_s"],
        "measured_s": iterations["measured_s"],
        "difference": iterations["difference"],
        "link_bytes_difference": iterations["link_bytes_difference"],
        "iterations": iterations["count"],
        "other_processors": figures["other_processors"],
    }


def _job(case: str) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """The script, the options of its run, and its arguments."""
    if case in LAYOUTS:
        script, servers, _, layout = LAYOUTS[case]
        return script, (*servers, "--layout", layout), ("--steps", "24")
    options, _, arguments = CASES[case]
    return _ROOT / "examples" / f"{case}.py", options, arguments


def _bandwidths(case: str) -> tuple[str, ...]:
    return (LAYOUTS[case][2],) if case in LAYOUTS else CASES[case][1]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and largest difference of all rows, and whether they are as near as they should be."""
    apart = [abs(row["difference"]) for row in rows]
    bytes_apart = max(row["link_bytes_difference"] for row in rows)
    median, worst = statistics.median(apart), max(apart)
    near = median <= _MEDIAN and worst <= _WORST and bytes_apart <= _BYTES
    return {"median": median, "worst": worst, "link_bytes": bytes_apart, "passed": near}


def show(row: dict[str, Any]) -> str:
    """A line of the table."""
    return _line(
        (
            row["case"],
            row["bandwidth"],
            f"{row['predicted_s'] * 1e3:.1f} ms",
            f"{row['compute_s'] * 1e3:.1f} ms",
            f"{row['measured_s'] * 1e3:.1f} ms",
            f"{row['difference']:+.1%}",
            f"{row['link_bytes_difference']:.2%}",
        )
    )


def _line(cells: tuple[str, ...]) -> str:
    first = cells[0].ljust(_WIDTHS[0])
    pairs = zip(cells[1:], _WIDTHS[1:], strict=True)
    return first + "".join(cell.rjust(width) for cell, width in pairs)


def main(argv: list[str] | None = None) -> int:
    """Runs the cases, prints a line for each and what they come to."""
    arguments = parse_arguments(argv)
    rows = []
    if not arguments.json:
        print(_line(COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for case in arguments.only or (LAYOUTS if arguments.layouts else CASES):
            for bandwidth in arguments.bandwidth or _bandwidths(case):
                folder = Path(scratch) / f"{case}-{bandwidth}"
                row = run(case, bandwidth, arguments.fabric, folder)
                rows.append(row)
                if not arguments.json:
                    print(show(row), flush=True)
    total = summary(rows)
    if arguments.json:
        print(json.dumps({"cases": rows, **total}))
    else:
        verdict = "as near as it should be" if total["passed"] else "further than it should be"
        print(f"median {total['median']:.1%}, worst {total['worst']:.1%}: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
