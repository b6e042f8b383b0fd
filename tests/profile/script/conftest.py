"""One process imports PyTorch for the tests of a file, where every profile would have its own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from torch_topoopt.processes.fork_server import ForkServer
from torch_topoopt.profile.script import runner

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def one_fork_server() -> Iterator[None]:
    with ForkServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "shared", lambda given: contextlib.nullcontext(given or server))
        yield
