"""Stage 4: starts the ranks through torch's own elastic launcher and waits for them."""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_topoopt.fabric.secret import SECRET_VARIABLE, write_secret
from torch_topoopt.launcher import signals
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import forked_ranks
from torch_topoopt.processes import rank_main
from torch_topoopt.processes.scratch import scratch_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch_topoopt.launcher.run.fabrics import Hosts
    from torch_topoopt.processes.fork_server import ForkServer


_GRACE_S = 2.0  # for ranks to end after Ctrl-C


@dataclass(frozen=True)
class RankFailure:
    """One rank that failed: how (exit code, or minus the signal), and what is known of why.

    `message` comes from the rank's error file (see torch_topoopt.runtime.rank_errors); it is
    empty where the script ended without an exception, or before it imported torch.
    """

    rank: int
    exit_code: int
    message: str

    def describe(self, script: str) -> str:
        if self.exit_code < 0:
            how = f"was killed by {signal.Signals(-self.exit_code).name}"
        else:
            how = f"ended with exit code {self.exit_code}"
        text = f"rank {self.rank} of {script} {how}"
        if self.message:
            text += f": {self.message.strip().splitlines()[-1].strip()}"
        return text


def train(
    arguments: argparse.Namespace,
    variables: Mapping[str, str],
    log_dir: Path,
    hosts: Hosts | None = None,
    server: ForkServer | None = None,
) -> list[RankFailure]:
    """Runs the script on all ranks with `variables` in their environment.

    With `hosts` they run in the namespaces of their servers, with `server` as forks of it. Logs
    asked for with --redirects or --tee go to `log_dir` unless --log-dir names another folder.
    Returns the ranks that failed first: none when all went well, and more than one only if they
    failed too close together to be separated. Raises Interrupted for a signal, and InputError
    where torch cannot start the job as asked (a rendezvous endpoint that does not answer, say).
    """
    with scratch_folder() as scratch:
        if arguments.log_dir is None:
            redirected = arguments.redirects != "0" or arguments.tee != "0"
            arguments.log_dir = str(log_dir if redirected else scratch)
        if not arguments.cluster and SECRET_VARIABLE not in os.environ:
            variables = {**variables, SECRET_VARIABLE: str(write_secret(scratch))}
        with forked_ranks.forking(server):
            return _launch(arguments, variables, hosts)


def _launch(
    arguments: argparse.Namespace, variables: Mapping[str, str], hosts: Hosts | None
) -> list[RankFailure]:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    if hosts is None and not arguments.cluster:
        # gloo, where a script asks for it, would listen at the address of this machine's name
        variables = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), **variables}
    _choose_rendezvous(arguments, arguments.master_addr if hosts is None else hosts.address)
    try:
        with signals.elastic_launch_signals(_without_sigint(arguments)), _environment(variables):
            config, command, command_arguments = _configure(arguments, hosts)
            elastic_launch(config=config, entrypoint=command)(*command_arguments)
    except ChildFailedError as error:
        return _first_failures(error.failures)
    except RendezvousError as error:
        raise InputError(f"rendezvous: {error}") from None
    return []


def _without_sigint(arguments: argparse.Namespace) -> float:
    """Leaves SIGINT to us; returns how long ranks may take to end then: --shutdown-timeout, if the
    installed torch has it."""
    names = getattr(arguments, "signals_to_handle", "").split(",")
    if "SIGINT" in names:
        arguments.signals_to_handle = ",".join(name for name in names if name != "SIGINT")
    given = getattr(arguments, "shutdown_timeout", None)
    return _GRACE_S if given is None else float(given)


def _choose_rendezvous(arguments: argparse.Namespace, address: str) -> None:
    """One of this machine alone at `address`, and a free port unless the user names one.

    What the user says of the rendezvous is left to torch, which then does what torchrun does; the
    hosts of a cluster have chosen already.
    """
    if arguments.cluster:
        return
    named = arguments.rdzv_backend != "static" or arguments.rdzv_endpoint
    if arguments.standalone or not named:
        from torch_topoopt.runtime import rendezvous

        rendezvous.register()
        port = 0 if arguments.standalone else arguments.master_port or 0
        arguments.standalone = False  # else torch would take its own instead
        arguments.rdzv_backend = rendezvous.BACKEND
        arguments.rdzv_endpoint = f"{address}:{port}"
        if arguments.rdzv_id == "none":  # torch's default
            arguments.rdzv_id = str(uuid.uuid4())
    if arguments.local_addr is None:
        arguments.local_addr = address
    if arguments.master_port is None:
        arguments.master_port = 29500


def _configure(arguments: argparse.Namespace, hosts: Hosts | None) -> tuple[Any, Any, list[str]]:
    """torch's launch configuration; ranks start through rank_main so that they end with us."""
    from torch.distributed.run import config_from_args

    try:
        config, command, command_arguments = config_from_args(arguments)
    except (ValueError, AssertionError) as error:
        raise InputError(str(error)) from None
    if callable(command):  # --run-path: torch starts it with multiprocessing, which ends it with us
        return config, command, command_arguments
    per_server = str(arguments.accelerators_per_server or 0)
    where = f"{hosts.ranks_per_server}:{hosts.namespaces}" if hosts else "-"
    wrapper = ["-I", "-S", rank_main.__file__, str(os.getpid()), per_server, where, command]
    return config, sys.executable, [*wrapper, *command_arguments]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Puts `variables` into this process's environment, which the ranks inherit, for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own default, without its banner
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _first_failures(failures: dict[int, Any]) -> list[RankFailure]:
    """Torch notes failures to the second; ranks that it ended itself (SIGTERM) are no cause."""
    causes = {r: f for r, f in failures.items() if f.exitcode != -signal.SIGTERM} or failures
    first = min(failure.timestamp for failure in causes.values())
    found = [
        RankFailure(rank, failure.exitcode, _recorded(failure))
        for rank, failure in sorted(causes.items())
        if failure.timestamp == first
    ]
    # a rank that only reports another's failure is no cause either, if that one gives a reason
    explained = {failure.rank for failure in found if failure.message}
    return [f for f in found if _failed_rank(f.message) not in explained] or found


def _failed_rank(message: str) -> int | None:
    """The rank whose failure a rank's own exception is about."""
    match = re.search(r"topoopt: rank (\d+) failed: ", message)
    return int(match[1]) if match else None


def _recorded(failure: Any) -> str:
    message = failure.error_file_data.get("message")
    if isinstance(message, dict):
        message = message.get("message")
    return message if isinstance(message, str) and os.path.isfile(failure.error_file) else ""
