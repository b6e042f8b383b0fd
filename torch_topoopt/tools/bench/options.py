"""The names of operations as in nccl-tests, and the options of `topoopt bench`.

Nothing here imports torch, so that `--help` and errors of options come at once.
"""

from __future__ import annotations

import argparse

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "sendrecv",
    "barrier",
)
# Names of nccl-tests and of torch.
DATATYPE_NAMES = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int64": "int64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "double": "float64",
}
REDUCE_OP_NAMES = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}


def parse_size(text: str) -> int:
    """ "64K" -> 65536: powers of 1024, as in nccl-tests."""
    units = {"K": 10, "M": 20, "G": 30}
    shift = units.get(text[-1:].upper(), 0)
    number = text[:-1] if shift else text
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 8, 64K, 16M or 1G")
    return int(number) << shift


def add_options(options: argparse._ActionsContainer) -> None:
    """The options of nccl-tests, with their letters, names and defaults."""
    add = options.add_argument
    add("-b", "--minbytes", type=parse_size, default=8, metavar="SIZE",
        help="smallest size (bytes, K, M or G, default: 8)")  # fmt: skip
    add("-e", "--maxbytes", type=parse_size, default=32 << 20, metavar="SIZE",
        help="largest size (bytes, K, M or G, default: 32M)")  # fmt: skip
    add("-i", "--stepbytes", type=parse_size, default=0, metavar="SIZE",
        help="difference of sizes (bytes, K, M or G, default: a factor)")  # fmt: skip
    add("-f", "--stepfactor", type=int, default=4, metavar="K",
        help="from one size to the next (default: 4)")  # fmt: skip
    add("-n", "--iters", type=int, default=20, metavar="N",
        help="calls that are timed (default: 20)")  # fmt: skip
    add("-w", "--warmup_iters", type=int, default=1, metavar="N",
        help="calls before these (default: 1)")  # fmt: skip
    add("-c", "--check", type=int, default=1, metavar="0|1",
        help="check the results of the first call (default: 1)")  # fmt: skip
    add("-o", "--op", choices=(*REDUCE_OP_NAMES, "all"), default="sum", metavar="OP",
        help=f"what reduces: {', '.join(REDUCE_OP_NAMES)} or all (default: sum)")  # fmt: skip
    add("-d", "--datatype", choices=(*DATATYPE_NAMES, "all"), default="float", metavar="TYPE",
        help=f"{', '.join(DATATYPE_NAMES)} or all (default: float)")  # fmt: skip
    add("-r", "--root", type=int, default=0, metavar="RANK",
        help="of broadcast and reduce, and the sender of sendrecv (default: 0)")  # fmt: skip
    add("--hops", type=int, metavar="N",
        help="sendrecv: to a server so many cables away (default: to the farthest)")  # fmt: skip
    add("--peer", choices=("gloo",), help="also measure this backend, in turns")
    add("--links", action="store_true",
        help="also the bytes and the rate of every link, with theory")  # fmt: skip
    add("-J", "--json-file", metavar="FILE", help="also write the results to this file, as JSON")


def check(options: argparse.Namespace) -> None:
    """Raises ValueError for a value out of range."""
    for name, least in (("minbytes", 1), ("stepfactor", 2), ("iters", 1), ("warmup_iters", 0)):
        if getattr(options, name) < least:
            raise ValueError(f"{name}: must be at least {least} (got {getattr(options, name)})")
    if options.maxbytes < options.minbytes:
        raise ValueError(f"maxbytes: {options.maxbytes} is below minbytes, {options.minbytes}")
    if options.check not in (0, 1):
        raise ValueError(f"check: {options.check} is not 0 or 1")


def operations_of(text: str) -> list[str]:
    """ "all_reduce,sendrecv" or "all"; raises ValueError."""
    names = list(OPERATIONS) if text == "all" else text.split(",")
    for name in names:
        if name not in OPERATIONS:
            raise ValueError(f"operation: {name!r} is not one of {', '.join(OPERATIONS)}, or all")
    return names
