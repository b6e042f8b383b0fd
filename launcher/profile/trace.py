"""`topoopt profile --from-trace`: an OpGraph from a profiler's recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError, input_errors

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.op_graph import OpGraph

_CHAKRA = ".et"


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError unless there is one thing to profile, with all required options."""
    if arguments.from_trace is None:
        if arguments.model is None:
            raise InputError("MODEL: missing; name one, or a --from-trace FILE")
        return
    if arguments.model is not None:
        raise InputError(f"from-trace: it stands in for MODEL; leave {arguments.model} out")
    for option in ("sequence", "task"):
        if getattr(arguments, option) is not None:
            raise InputError(f"{option}: a trace has its own; leave --{option} out")
    if arguments.world_size is not None:
        raise InputError("from-trace: nothing is run; leave out --world-size")
    if arguments.measure or arguments.costs is not None:
        raise InputError("from-trace: a trace has its times; leave out --measure and --costs")
    if arguments.batch_size is None:
        raise InputError("batch-size: missing; a trace does not say how many samples it is of")
    if arguments.batch_size < 1:
        raise InputError(f"batch-size: must be at least 1 (got {arguments.batch_size})")


def load(arguments: argparse.Namespace) -> OpGraph:
    """Reads the trace; raises InputError."""
    path = arguments.from_trace
    try:
        if Path(path).suffix == _CHAKRA:
            from torch_topoopt.profile.chakra_format import decode
            from torch_topoopt.profile.chakra_import import op_graph_of

            with input_errors():
                trace = decode(Path(path).read_bytes())
                return op_graph_of(trace, Path(path).name.partition(".")[0], arguments.batch_size)
        from torch_topoopt.profile.kineto import load_trace
        from torch_topoopt.profile.profiling import ProfileError

        try:
            return load_trace(path, arguments.batch_size)
        except ProfileError as error:
            raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"from-trace: {path}: {error.strerror}") from None
