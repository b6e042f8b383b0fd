"""`topoopt profile --from-trace`: an OpGraph from a profiler's recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_topoopt.launcher.errors import InputError, input_errors
from torch_topoopt.plan.file_kinds import (
    CHAKRA_TRACE,
    EXECUTION_TRACE,
    GZIP_FILE,
    is_kind,
    wrong_kind,
)

if TYPE_CHECKING:
    import argparse

    from torch_topoopt.op_graph import OpGraph

_CHAKRA_SUFFIX = ".et"


def check(arguments: argparse.Namespace) -> None:
    """Raises InputError unless there is one thing to profile, with all required options."""
    if arguments.from_trace is None:
        if arguments.model is None:
            raise InputError("MODEL: missing; name one, or a --from-trace FILE")
        return
    if arguments.model is not None:
        raise InputError(f"from-trace: replaces MODEL; leave {arguments.model} out")
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
    """Reads the traces; raises InputError."""
    from torch_topoopt.profile.profiling import ProfileError

    path, *others = arguments.from_trace
    try:
        if others:
            return _linked(arguments.from_trace, arguments.batch_size)
        if is_kind(path, CHAKRA_TRACE) or Path(path).suffix == _CHAKRA_SUFFIX:
            from torch_topoopt.profile.chakra_format import decode
            from torch_topoopt.profile.chakra_import import op_graph_of

            if problem := wrong_kind(path, CHAKRA_TRACE, GZIP_FILE):
                raise InputError(f"{path}: {problem}")
            with input_errors():
                trace = decode(Path(path).read_bytes())
                return op_graph_of(trace, Path(path).name.partition(".")[0], arguments.batch_size)
        if is_kind(path, EXECUTION_TRACE):
            from torch_topoopt.profile.execution_trace import load_execution_trace

            return load_execution_trace(path, arguments.batch_size)
        from torch_topoopt.profile.kineto import load_trace

        return load_trace(path, arguments.batch_size)
    except ProfileError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        raise InputError(f"from-trace: {error.filename}: {error.strerror}") from None


def _linked(paths: list[str], batch_size: int) -> OpGraph:
    """The OpGraph of an execution trace with the times of a Kineto trace, in any order."""
    from torch_topoopt.profile.execution_trace import load_execution_trace

    recorded = [path for path in paths if is_kind(path, EXECUTION_TRACE)]
    timed = [path for path in paths if path not in recorded]
    if len(recorded) != 1 or len(timed) != 1:
        raise InputError(
            f"from-trace: {' and '.join(paths)} are not an execution trace and the Kineto trace of "
            "the same run; name one file, or these two"
        )
    return load_execution_trace(recorded[0], batch_size, timed[0])
