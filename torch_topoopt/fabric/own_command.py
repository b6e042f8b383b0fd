"""The command line that started this process, as a person would type it again."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def own_command() -> str:
    """The command that starts `topoopt` again: the running executable, relative if below here.

    Hints with sudo need it, because sudo searches only secure_path and no virtual environment.
    `python -m torch_topoopt` if this process did not start from an executable.
    """
    started = Path(sys.argv[0])
    if started.suffix != ".py" and started.name != "-c" and os.access(started, os.X_OK):
        words = [_from_here(started)]
    else:
        words = [_from_here(Path(sys.executable)), "-m", "torch_topoopt"]
    return shlex.join(words)


def _from_here(path: Path) -> str:
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
