"""PyTorch's own tests of torch.distributed against "topoopt"; expected.toml lists all of them."""

from __future__ import annotations

import contextlib
import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from run_suite import Suite, started
from torch.torch_version import TorchVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXPECTED = tomllib.loads(Path(__file__).with_name("expected.toml").read_text())
PASSES: dict[int, list[str]] = {3: EXPECTED["passes"]["ranks_3"], 4: EXPECTED["passes"]["ranks_4"]}
# Tests that this torch may lack.
MAY_LACK = {
    name
    for version, names in EXPECTED["since"].items()
    for name in names
    if torch.__version__ < TorchVersion(version)
}


@pytest.fixture(scope="module")
def suite_of() -> Iterator[Callable[[int], Suite]]:
    """The suite for a number of ranks; each is started once."""
    with contextlib.ExitStack() as running:
        yield functools.cache(lambda ranks: running.enter_context(started(ranks)))


@pytest.mark.parametrize(
    ("ranks", "name"), [(ranks, name) for ranks, names in PASSES.items() for name in names]
)
def test_passes(suite_of: Callable[[int], Suite], ranks: int, name: str) -> None:
    suite = suite_of(ranks)
    if name in MAY_LACK - set(suite.names):
        pytest.skip(f"torch {torch.__version__} does not have it")
    record = suite.run(name)
    assert record["outcome"] == "passed", record["detail"]


def test_every_test_of_the_suite_passes_or_has_a_reason_to_be_skipped(
    suite_of: Callable[[int], Suite],
) -> None:
    skips = [name for entry in EXPECTED["skips"] for name in entry["tests"]]
    listed = [name for names in PASSES.values() for name in names] + skips
    assert len(listed) == len(set(listed)), "a test is listed twice"
    names = set(suite_of(3).names)
    assert sorted(set(listed) - (MAY_LACK - names)) == sorted(names)
