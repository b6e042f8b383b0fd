"""Draws the rooms of torch_topoopt and who imports whom, from the imports themselves.

    python docs/rooms.py             prints a Mermaid flowchart, floor above floor
    python docs/rooms.py --write     puts it into docs/project/architecture.md

A room is a folder or a module of torch_topoopt. It imports from lower floors only, and no module
imports one that imports it, inside functions and for types alone included; tests/test_imports.py
checks both.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "project" / "architecture.md"
PACKAGE = "torch_topoopt"

# From the ground up.
FLOORS: dict[str, frozenset[str]] = {
    "documents, and how processes start": frozenset(
        {"environment", "op_graph", "plan", "processes", "user_functions"}
    ),
    "algorithms on one document, and proven links": frozenset({"links", "profile", "topology"}),
    "spaces, networks and fabrics": frozenset({"architectures", "fabric", "search", "supervision"}),
    "simulation and discovery": frozenset({"discovery", "parallel", "sim"}),
    "plans, moving circuits and controlled routes": frozenset(
        {"planner", "reconfiguration", "route_control"}
    ),
    "running and comparing": frozenset({"comparison", "runtime"}),
    "the report, and jobs that share a network": frozenset({"report", "shared_networks"}),
    "commands": frozenset({"__init__", "__main__", "launcher", "models", "ray_train", "tools"}),
}
# The extensions are below all floors. An OpGraph is read and written by the codec of the Plan; the
# verbs of tools use the options and the output of the launcher, which names their modules only.
BELOW = frozenset({"_backend", "_core"})
SIDEWAYS = frozenset(
    {
        ("__main__", "launcher"),
        ("op_graph", "plan"),
        ("ray_train", "launcher"),
        ("tools", "launcher"),
    }
)


def modules() -> dict[str, Path]:
    """Every module of the package, by its name inside of it ("plan.codec"); "" is the package.

    Without the scripts of examples/, to which the package has links.
    """
    folder = ROOT / PACKAGE
    links = [path for path in folder.iterdir() if path.is_symlink()]  # not followed by rglob
    found = {}
    for path in sorted([*folder.rglob("*.py"), *(p for link in links for p in link.rglob("*.py"))]):
        if path.is_symlink():
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def imported(source: str, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that a file imports, anywhere in it, for types alone included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, inner = name.partition(".")
            if package == PACKAGE:
                yield inner if inner in known or inner in BELOW else inner.rpartition(".")[0]


@functools.cache
def import_graph() -> nx.DiGraph[str]:
    """An edge from every module to each that it imports."""
    known = modules()
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(known)
    for name, path in known.items():
        others = imported(path.read_text(encoding="utf-8"), known)
        graph.add_edges_from((name, other) for other in others if other != name)
    return graph


def room_of(module: str) -> str:
    """The room that a module is in."""
    return module.partition(".")[0] or "__init__"


def floor_of(room: str) -> int:
    """Counted from the ground, 0; -1 for the extensions. Raises KeyError for one that has none."""
    if room in BELOW:
        return -1
    for number, rooms in enumerate(FLOORS.values()):
        if room in rooms:
            return number
    raise KeyError(f"{room} has no floor in {Path(__file__).name}: give it one")


def allowed(importer: str, other: str) -> bool:
    """Whether one room may import from another."""
    return (
        importer == other
        or floor_of(other) < floor_of(importer)
        or (importer, other) in SIDEWAYS
        or other == "__init__"  # __version__ and log, which import nothing
    )


def flowchart() -> str:
    """The rooms in Mermaid. Arrows that follow from others are left out."""
    arrows = nx.DiGraph(
        (room_of(a), room_of(b))
        for a, b in import_graph().edges
        if room_of(a) != room_of(b) and room_of(b) not in BELOW | {"__init__"}
    )
    lines = ["flowchart TB"]
    for number, (name, of_floor) in reversed([*enumerate(FLOORS.items())]):
        lines.append(f'  subgraph floor{number}["{name}"]')
        lines += [f"    {room}" for room in sorted(of_floor & set(arrows))]
        lines.append("  end")
    lines += [f"  {a} --> {b}" for a, b in sorted(nx.transitive_reduction(arrows).edges)]
    return "\n".join(lines) + "\n"


def with_flowchart(page: str) -> str:
    """A page of Markdown with its one Mermaid block replaced. Raises ValueError if it has none."""
    found, count = re.subn(
        r"(?<=^```mermaid\n).*?(?=^```$)", lambda _: flowchart(), page, flags=re.M | re.S
    )
    if count != 1:
        raise ValueError(f"the page: has {count} Mermaid blocks, not one")
    return found


def main(arguments: list[str]) -> int:
    """Prints the flowchart, or writes it. Returns the exit code."""
    if arguments not in ([], ["--write"]):
        print(__doc__, file=sys.stderr)
        return 2
    if arguments:
        PAGE.write_text(with_flowchart(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(flowchart(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
