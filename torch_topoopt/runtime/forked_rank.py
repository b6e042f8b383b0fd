"""Becomes one rank of emulated servers in a fork of a process that has imported PyTorch.

`python -m torch_topoopt.runtime.forked_rank RANKS_PER_SERVER NAMESPACES ARGUMENTS...`, started
from a fork server; for the first two see rank_main. The rank then runs `python ARGUMENTS...`, but
`import torch` preceded its environment.
"""

from __future__ import annotations

import sys

from torch_topoopt.processes.fork_server_main import run_as_main
from torch_topoopt.processes.rank_main import enter_namespace, place_on_server
from torch_topoopt.runtime import autoload

MODULE = "torch_topoopt.runtime.forked_rank"


def main(ranks_per_server: int, namespaces: str, arguments: list[str]) -> None:
    """Raises SystemExit as the script does."""
    place_on_server(ranks_per_server)
    enter_namespace(namespaces)
    autoload.register()  # the import did it without this rank's environment
    run_as_main(arguments)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
