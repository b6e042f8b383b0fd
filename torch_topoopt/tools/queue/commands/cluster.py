"""`topoopt cluster`: its sub-verbs, each a module beside this one."""

from __future__ import annotations

from torch_topoopt.launcher import sub_verbs

SUB_VERBS: dict[str, str] = {
    "submit": "put a job at the end of the queue",
    "status": "the jobs, their servers, and why one waits",
    "cancel": "end jobs, or take them out of the queue",
    "daemon": "wire the switches and start the jobs, until it is stopped",
}

_HELP = """\
usage: topoopt cluster SUB-VERB ...

Shares a cluster whose ports are plugged into circuit switches among jobs. Every job gets servers of
its own and circuits between them; with 1x2 switches in front of the ports, the circuits of the next
job are set while the current one runs, and flip in milliseconds when it ends.

sub-verbs:
{sub_verbs}

example:
  topoopt cluster daemon --cluster lab.yaml &
  topoopt cluster submit --cluster lab.yaml --servers 4 --degree 2 train.py --epochs 5
  topoopt cluster status

Jobs are in a queue on disk: nothing is lost while no daemon runs, or when it is killed.
`topoopt cluster SUB-VERB --help` explains one; those that print results have --json."""


def main(argv: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return sub_verbs.run("cluster", __package__, SUB_VERBS, _HELP, argv)
