"""One computation with its inputs, and the key under which its row is kept."""

from __future__ import annotations

import ast
import hashlib
import json
import resource
import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_BENCHMARKS = Path(__file__).resolve().parents[1]
_SUFFIXES = {".py", ".cc", ".h"}

# What can change a simulated row, beside the cell's own module and what that imports of this
# package. Rooms that run jobs or show results are left out, so that work on them costs no rows.
SIMULATION = (
    *("setup.py", "models", "launcher/documents.py", "csrc/common", "csrc/plan", "csrc/topology"),
    *("csrc/search", "csrc/sim", "torch_topoopt/architectures"),
    *("torch_topoopt/comparison", "torch_topoopt/op_graph.py", "torch_topoopt/plan"),
    *("torch_topoopt/planner", "torch_topoopt/profile", "torch_topoopt/reconfiguration"),
    *("torch_topoopt/search", "torch_topoopt/sim", "torch_topoopt/topology"),
)


@dataclass(frozen=True)
class Cell:
    """`function` is "module:function"; `arguments` its parameters, as canonical JSON.

    An `exclusive` cell measures time: it runs on this machine, when no other cell does, and is
    asked to end before it is killed, for it may have more than processes to take away.
    """

    function: str
    arguments: str
    limit_s: float
    exclusive: bool = False

    @classmethod
    def of(
        cls,
        function: str,
        *,
        limit_s: float = 900.0,
        exclusive: bool = False,
        **parameters: Any,
    ) -> Cell:
        """The cell of these parameters; `limit_s` bounds its wall time."""
        return cls(function, json.dumps(parameters, sort_keys=True), limit_s, exclusive)

    @property
    def parameters(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.arguments)
        return found

    @property
    def name(self) -> str:
        """A name for people."""
        values = ", ".join(f"{k}={v}" for k, v in self.parameters.items() if k != "seed")
        return f"{self.function.rpartition('.')[2]}({values})"

    def key(self) -> str:
        """Equal for equal functions, parameters and sources; stable between runs and machines."""
        module = self.function.partition(":")[0]
        text = json.dumps([self.function, self.arguments, sources_digest(module)])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class CellResult:
    """`row`, or why there is none; `cpu_s` and `wall_s` are those of the computation."""

    row: Any
    error: str
    cpu_s: float
    wall_s: float


def compute(function: str, arguments: str) -> CellResult:
    """Runs one cell in this process; what it raises becomes `error`."""
    started, used = time.monotonic(), _cpu_s()
    row, problem = None, ""
    try:
        module, name = function.split(":")
        made = getattr(import_module(module), name)(**json.loads(arguments))
        row = json.loads(json.dumps(made))  # as it is read again: tuples are lists
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return CellResult(row, problem, _cpu_s() - used, time.monotonic() - started)


def _cpu_s() -> float:
    """Processor time of this process, its threads, and its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


@cache
def sources_digest(module: str) -> str:
    """A digest of all sources that can change what the functions of `module` give."""
    digest = hashlib.sha256()
    for path in sorted(_files_of(module)):
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files_of(module: str) -> set[Path]:
    files = own_sources(module)
    depends = (*SIMULATION, *getattr(import_module(module), "DEPENDS_ON", ()))
    for name in depends:
        path = REPOSITORY / name
        found = [path] if path.is_file() else [f for f in path.rglob("*") if f.suffix in _SUFFIXES]
        if not found:
            raise FileNotFoundError(f"{module}: no source is at {name}, which its cells depend on")
        files.update(found)
    return files


def own_sources(module: str) -> set[Path]:
    """The file of `module`, and those that it imports of benchmarks/, however indirectly."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _BENCHMARKS / (name.replace(".", "/") + ".py")
        if path.is_file() and path not in found:
            found.add(path)
            waiting += _imported(path)
    return found


def _imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
