"""Stage 4: starts the ranks through torch's own elastic launcher and waits for them."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch_topoopt.launcher import signals
from torch_topoopt.launcher.errors import InputError
from torch_topoopt.launcher.run import elastic_agent, forked_ranks
from torch_topoopt.launcher.run.elastic_options import chooses_rendezvous
from torch_topoopt.links.secret import SECRET_VARIABLE, write_secret
from torch_topoopt.processes import rank_main
from torch_topoopt.processes.scratch import scratch_folder
from torch_topoopt.runtime.rank_errors import missed_by, reports_another
from torch_topoopt.supervision.culprits import ranks_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch_topoopt.launcher.run.elastic_agent import Attempt
    from torch_topoopt.launcher.run.fabrics import Hosts
    from torch_topoopt.processes.fork_server import ForkServer


_GRACE_S = 2.0  # for ranks to end after Ctrl-C


@dataclass(frozen=True)
class RankFailure:
    """One failed rank: how it ended (exit code, or minus the signal), and the known cause.

    `message` comes from the rank's error file (see torch_topoopt.runtime.rank_errors). It is empty
    if the script ended without an exception, or before it imported torch. A rank that was stopped
    when others failed has minus SIGSTOP; one that left the job early and well has 0. `remark` is
    the launcher's addition, such as where it ran.
    """

    rank: int
    exit_code: int
    message: str
    remark: str = ""
    JSON_FIELDS: ClassVar = ("rank", "exit_code", "message")

    def how(self) -> str:
        """Its end, in words."""
        if self.exit_code == -signal.SIGSTOP:
            how = "was stopped (SIGSTOP) and did not go on"
        elif self.exit_code == -signal.SIGTERM and self.remark:  # it ran on, until torch ended it
            how = "left the job"
        elif self.exit_code < 0:
            how = f"was killed by {signal.Signals(-self.exit_code).name}"
        else:
            how = f"ended with exit code {self.exit_code}"
        if self.remark:
            how += f" {self.remark}"
        if self.message:
            how += f": {self.message.strip().splitlines()[-1].strip()}"
        return how


def describe(failures: Sequence[RankFailure], script: str) -> list[str]:
    """A line for each failure; ranks with the same end share one."""
    alike: dict[str, list[int]] = {}
    for failure in failures:
        alike.setdefault(failure.how(), []).append(failure.rank)
    return [f"{ranks_text(ranks)} of {script} {how}" for how, ranks in alike.items()]


def train(
    arguments: argparse.Namespace,
    variables: Mapping[str, str],
    log_dir: Path,
    attempt: Attempt,
    hosts: Hosts | None = None,
    server: ForkServer | None = None,
) -> list[RankFailure]:
    """Runs the script on all ranks with `variables` in their environment, once.

    With `hosts` they run in the namespaces of their servers, with `server` as forks of it. Logs
    requested with --redirects or --tee go to `log_dir` unless --log-dir names another folder.
    Returns the ranks that failed first: none when all went well, and more than one only if they
    failed too close together to be separated. Raises Interrupted for a signal, and InputError
    where torch cannot start the job as requested (a rendezvous endpoint that does not answer, say).
    """
    if not (arguments.cluster or chooses_rendezvous(arguments) or arguments.rdzv_id != "none"):
        arguments.rdzv_id = str(uuid.uuid4())  # of all attempts
    arguments = argparse.Namespace(**vars(arguments))  # a copy: other attempts choose again
    with scratch_folder() as scratch:
        if arguments.log_dir is None:
            redirected = arguments.redirects != "0" or arguments.tee != "0"
            arguments.log_dir = str(log_dir if redirected else scratch)
        if not arguments.cluster and SECRET_VARIABLE not in os.environ:
            variables = {**variables, SECRET_VARIABLE: str(write_secret(scratch))}
        spared = () if server is None else (server.pid,)
        with (
            forked_ranks.forking(server),
            signals.elastic_launch_signals(_without_sigint(arguments), spared),
            _restarts(arguments, attempt),
        ):
            failures = _launch(arguments, variables, hosts, attempt)
    stopped = [RankFailure(rank, -signal.SIGSTOP, "") for rank in sorted(attempt.stopped)]
    return stopped or failures


def _restarts(
    arguments: argparse.Namespace, attempt: Attempt
) -> contextlib.AbstractContextManager[None]:
    if chooses_rendezvous(arguments):
        return contextlib.nullcontext()
    return elastic_agent.attempting(attempt)


def _launch(
    arguments: argparse.Namespace,
    variables: Mapping[str, str],
    hosts: Hosts | None,
    attempt: Attempt,
) -> list[RankFailure]:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    if hosts is None and not arguments.cluster:
        # gloo, if a script requests it, would listen at the address of this machine's name
        variables = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), **variables}
    _choose_rendezvous(arguments, arguments.master_addr if hosts is None else hosts.address)
    try:
        with _environment(variables), _without_torchs_report():
            config, command, command_arguments = _configure(arguments, hosts)
            elastic_launch(config=config, entrypoint=command)(*command_arguments)
    except elastic_agent.AttemptInterrupted:
        return []
    except ChildFailedError as error:
        failures = _first_failures(error.failures, attempt.ended_well)
        attempt.others = len(error.failures.keys() - {failure.rank for failure in failures})
        return failures
    except RendezvousError as error:
        raise InputError(f"rendezvous: {error}") from None
    return []


def _without_sigint(arguments: argparse.Namespace) -> float:
    """Leaves SIGINT to us; returns the time for ranks to end after it: --shutdown-timeout, if the
    installed torch has it."""
    names = getattr(arguments, "signals_to_handle", "").split(",")
    if "SIGINT" in names:
        arguments.signals_to_handle = ",".join(name for name in names if name != "SIGINT")
    given = getattr(arguments, "shutdown_timeout", None)
    return _GRACE_S if given is None else float(given)


def _choose_rendezvous(arguments: argparse.Namespace, address: str) -> None:
    """A rendezvous of this machine alone at `address`, and a free port unless the user names one.

    The user's own rendezvous options are left to torch, as in torchrun; the hosts of a cluster have
    one already.
    """
    if arguments.cluster:
        return
    named = arguments.rdzv_backend != "static" or arguments.rdzv_endpoint
    if arguments.standalone or not named:
        from torch_topoopt.launcher.rendezvous import rendezvous

        rendezvous.register()
        port = 0 if arguments.standalone else arguments.master_port or 0
        arguments.standalone = False  # else torch would use its own rendezvous
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
    emulated = arguments.nccl and not arguments.cluster  # NCCL has to see them as machines
    per_server = str(arguments.accelerators_per_server or int(emulated))
    where = "-"
    if hosts is not None:
        servers = ",".join(map(str, (hosts.ranks_per_server, *hosts.order)))
        where = f"{servers}:{hosts.namespaces}"
    wrapper = ["-I", "-S", rank_main.__file__, str(os.getpid()), per_server, where, command]
    return config, sys.executable, [*wrapper, *command_arguments]


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets `variables` in this process's environment, which the ranks inherit, for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's default, without its banner
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _first_failures(failures: dict[int, Any], ended_well: Collection[int]) -> list[RankFailure]:
    """The causes among the failures. Torch's times have a resolution of a second. Ranks that it
    ended itself (SIGTERM), or that only report another rank's failure, are no cause."""
    found = [_described(rank, failure) for rank, failure in sorted(failures.items())]
    causes = causes_of([f for f in found if f.exit_code != -signal.SIGTERM] or found)
    if left := early_leavers(causes, ended_well):
        return [
            RankFailure(
                rank,
                0 if rank in ended_well else -signal.SIGTERM,
                "",
                f"while others still called {call or 'operations'}",
            )
            for rank, call in sorted(left.items())
        ]
    first = min(failures[cause.rank].timestamp for cause in causes)
    return [cause for cause in causes if failures[cause.rank].timestamp == first]


def _described(rank: int, failure: Any) -> RankFailure:
    """Whether SIGTERM met a rank that had raised, so that Python was ending with exit code 1."""
    message, exit_code = _recorded(failure), int(failure.exitcode)
    return RankFailure(rank, 1 if message and exit_code == -signal.SIGTERM else exit_code, message)


def early_leavers(causes: list[RankFailure], ended_well: Collection[int]) -> dict[int, str]:
    """The ranks that left the job while others still had calls, and one of these calls.

    Only without any other failure. Others may find such a rank gone, if its end was quick.
    """
    if not all(reports_another(cause.message) for cause in causes):
        return {}
    found: dict[int, str] = {}
    for cause in causes:
        if (missed := missed_by(cause.message)) is not None:
            named, left = missed.ranks, missed.left
            found |= {rank: missed.call for rank in named if left or rank in ended_well}
    return found


@contextlib.contextmanager
def _without_torchs_report() -> Iterator[None]:
    """Inside, torch's launcher does not log the rank that it saw fail first, which may only report
    another, nor the processes that it ends."""
    logger = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    texts = ("failed (exitcode: ", "Sending process ", "Closing process ")

    def is_other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(texts)

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def causes_of(failures: list[RankFailure]) -> list[RankFailure]:
    """The failures that are not about another rank; all of them if there are none."""
    return [failure for failure in failures if not reports_another(failure.message)] or failures


def _recorded(failure: Any) -> str:
    message = failure.error_file_data.get("message")
    if isinstance(message, dict):
        message = message.get("message")
    return message if isinstance(message, str) and os.path.isfile(failure.error_file) else ""
