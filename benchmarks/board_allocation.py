"""How long it takes to give all boards of a HammingMesh to jobs.

    python benchmarks/board_allocation.py                    1000 x 1000 boards
    python benchmarks/board_allocation.py --boards 64x64

Jobs are a mix that fills all boards (docs/planning/allocation.md). Prints a line for each set of
heuristics: jobs, utilisation, and the median processor seconds of `--rounds` rounds: `search` is
that for boards, with sub-meshes as objects of Python, and `all` what a caller of the scheme waits
for.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from figures.cells.board_jobs import VARIANTS, job_mixes
from torch_topoopt.launcher.errors import BAD_INPUT, OK
from torch_topoopt.shared_networks.allocation.board_job import BoardJob
from torch_topoopt.shared_networks.allocation.boards import Boards
from torch_topoopt.shared_networks.allocation.schemes import SCHEMES, Heuristics, mesh_of

MOST_COMPARED = 20_000  # boards


def main(words: list[str]) -> int:
    """Runs the command; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--boards", default="1000x1000", help="columns x rows (1000x1000)")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--law", choices=("powers", "uniform"), default="powers")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args(words)
    try:
        boards = Boards.parse(arguments.boards)
    except ValueError as error:
        print(f"board_allocation: {error}", file=sys.stderr)
        return BAD_INPUT
    sizes = next(job_mixes(arguments.law, boards.columns, boards.rows, arguments.seed))
    jobs = [BoardJob.square(str(i), size) for i, size in enumerate(sizes)]
    print(f"{boards.columns}x{boards.rows} boards, {len(jobs)} jobs")
    print(f"{'heuristics':<40} utilisation  search (s)  all (s)")
    for name, (scheme, heuristics) in VARIANTS.items():
        if scheme == "ruin-recreate" and heuristics.locality and boards.working > MOST_COMPARED:
            print(
                f"{name:<40} left out: it compares all its searches, above {MOST_COMPARED} boards"
            )
            continue
        search_s: list[float] = []
        all_s: list[float] = []
        for _ in range(arguments.rounds):
            began = time.process_time()
            found = SCHEMES[scheme](boards, jobs, heuristics, seed=arguments.seed)
            all_s.append(time.process_time() - began)
            if scheme == "greedy":
                search_s.append(_search_s(boards, jobs, heuristics))
        search = f"{median(search_s):.3f}" if search_s else ""
        print(f"{name:<40} {found.utilisation:>11.4f}  {search:>10}  {median(all_s):>7.3f}")
    return OK


def _search_s(boards: Boards, jobs: list[BoardJob], heuristics: Heuristics) -> float:
    numbers = {size: i for i, size in enumerate(dict.fromkeys(job.size for job in jobs))}
    kinds = [
        heuristics.shapes.shapes(BoardJob.square("", size), boards.rows, boards.columns)
        for size in numbers
    ]
    order = list(range(len(jobs)))
    if heuristics.sort:
        order.sort(key=lambda i: -jobs[i].size)
    kind_of = [numbers[job.size] for job in jobs]
    mesh = mesh_of(boards, {})
    fit = "local" if heuristics.locality else "first"
    began = time.process_time()
    mesh.allocate(kinds, kind_of, order, fit, heuristics.boards_per_leaf)
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
