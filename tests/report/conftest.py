"""One finished run of four servers on a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from report_runs import (
    make_events,
    make_plan,
    write_run,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    plan = make_plan(4, (1,))
    return write_run(tmp_path / "run", plan, make_events(plan))
