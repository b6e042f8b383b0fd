"""The plan of this rank, read once and shared by all parts of the library."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from torch_topoopt.plan.document import Plan, digest_of

PLAN_VARIABLE = "TOPOOPT_PLAN"


@dataclass(frozen=True)
class GivenPlan:
    """A plan, and the digest of the text that it was read from."""

    plan: Plan
    text_digest: str


def given_plan() -> GivenPlan | None:
    """The plan at TOPOOPT_PLAN; None where a process has none.

    Raises DocumentError or OSError.
    """
    path = os.environ.get(PLAN_VARIABLE)
    return _read(path) if path else None


@functools.lru_cache(maxsize=1)
def _read(path: str) -> GivenPlan:
    plan, text = Plan.read(path)
    return GivenPlan(plan, digest_of(text))
