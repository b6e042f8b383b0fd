"""`topoopt run`: profile, co-optimise, wire, train; a drop-in for torchrun."""

from __future__ import annotations

from dataclasses import replace

from torch_topoopt.launcher import console
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import job_watch, nccl_ranks
from torch_topoopt.launcher.run import options as run_options
from torch_topoopt.runtime.versions import BuildMismatchError, check_installed, check_tls


def _check_tls() -> None:
    try:
        check_tls()
    except BuildMismatchError as error:
        raise InputError(f"encrypt: {error}") from None


def main(argv: list[str], compared: tuple[str, ...] = ()) -> int:
    """Runs the verb; returns the exit code. `compared`: see RunOptions."""
    options = replace(run_options.parse(argv), compared=compared)
    check_installed()
    if options.encrypt:
        _check_tls()
    if options.nccl:
        nccl_ranks.require(options.cluster, emulated=options.site is None)
    # After the checks, since these modules draw reports, and their imports take half a second.
    from torch_topoopt.launcher.run import all_stages, outcome

    outcome.require(options.trackers)
    job_watch.stall_limit_s()
    if not options.json:
        code, _ = all_stages.run(options, argv)
        return code
    with console.stdout_to_stderr():
        code, result = all_stages.run(options, argv)
    console.print_json(result)
    return code
