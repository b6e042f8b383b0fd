"""Cells as tasks of a Ray cluster (docs.ray.io); needs `pip install 'ray>=2.50'`.

Every machine needs torch_topoopt as it is here; this package travels with the tasks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures.cell import Cell, CellResult, compute
from torch_topoopt.search.ray_chains import import_ray

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOOK_S = 1.0


def run_on_ray(cells: Sequence[Cell], address: str) -> Iterator[tuple[Cell, CellResult]]:
    """Every cell with its result, as they are done, by the cluster at `address` ("auto": the one
    that runs on this machine). Raises ValueError without ray, or without the cluster. Tasks that
    are not done are cancelled where the caller stops early."""
    ray = _connected(address)
    task = ray.remote(num_cpus=1, max_retries=0)(compute)
    waiting = {task.remote(cell.function, cell.arguments): cell for cell in cells}
    began, most_s = time.monotonic(), sum(cell.limit_s for cell in cells)
    try:
        while waiting:
            finished, _ = ray.wait(list(waiting), timeout=_LOOK_S)
            for reference in finished:
                yield waiting.pop(reference), _result(ray, reference)
            # A task may wait for a processor while all others run: the limit is that of their sum.
            for reference in list(waiting):
                if time.monotonic() - began > most_s:
                    ray.cancel(reference, force=True)
                    problem = f"not done after {most_s:g} s"
                    yield waiting.pop(reference), CellResult(None, problem, 0.0, 0.0)
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


def _result(ray: Any, reference: Any) -> CellResult:
    try:
        result: CellResult = ray.get(reference)
    except ray.exceptions.RayError as error:
        return CellResult(None, str(error).strip().splitlines()[-1], 0.0, 0.0)
    return result


def _connected(address: str) -> Any:
    ray = import_ray()
    if ray.is_initialized():
        return ray
    package = str(Path(__file__).resolve().parent)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"py_modules": [package]},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        raise ValueError(
            f"ray: no Ray cluster at {address!r} ({reason}); start one with `ray start --head`"
        ) from None
    return ray
