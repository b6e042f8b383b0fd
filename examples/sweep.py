"""Runs the grid of a Weights & Biases sweep file without its server, one run after another.

    python examples/sweep.py sweep.yaml      # each run is offline; `wandb sync` uploads them
    wandb sweep sweep.yaml                   # the same file, by W&B's own server and agents

Only `method: grid` can do without the server, which is what chooses the values of other methods.
The runs are one W&B group, named after the sweep.
"""

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import yaml


def combinations(parameters: dict[str, dict[str, object]]) -> list[dict[str, object]]:
    """Of the grid: a dict with a value of each parameter."""
    listed = [of["values"] if "values" in of else [of["value"]] for of in parameters.values()]
    return [dict(zip(parameters, chosen, strict=True)) for chosen in itertools.product(*listed)]


def command_of(template: list[str], program: str, chosen: dict[str, object]) -> list[str]:
    """The command of one run, as W&B's agent makes it of a sweep's `command`."""
    arguments = [f"--{name}={value}" for name, value in chosen.items()]
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${program}": [program],
        "${args}": arguments,
    }
    return [word for part in template for word in macros.get(part, [part])]


def main(path: str) -> int:
    sweep = yaml.safe_load(Path(path).read_text())
    if sweep["method"] != "grid":
        print(f"{path}: method: {sweep['method']} needs W&B's server; grid does not")
        return 2
    os.environ.setdefault("WANDB_RUN_GROUP", sweep.get("name", Path(path).stem))
    for chosen in combinations(sweep["parameters"]):
        os.environ["WANDB_NAME"] = ", ".join(f"{name} {value}" for name, value in chosen.items())
        command = command_of(sweep["command"], sweep["program"], chosen)
        print(f"$ {shlex.join(command)}", flush=True)
        if code := subprocess.run(command).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
