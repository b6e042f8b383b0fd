"""Positions that forward methods count themselves are refused in a context group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from torch_topoopt.models import gpt, llama
from torch_topoopt.parallel import StrategyError
from torch_topoopt.parallel.sharded.context import context_parallel
from torch_topoopt.profile.profiling import profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.device_mesh import DeviceMesh

LENGTH = 8
SIZE = llama.SIZES["tiny"]


class ReadsBuffer(llama.Llama):
    """Multiplies by the beginning of a buffer, as rotations are kept by many."""

    def __init__(self) -> None:
        super().__init__(SIZE)
        self.register_buffer("angles", torch.randn(1, 2 * LENGTH, SIZE.hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        turned = x * self.angles[:, : x.shape[1]].cos()
        return self.head(self.norm(self.blocks(turned)))


class Counts(llama.Llama):
    """Weighs positions by their number."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        counted = torch.arange(x.shape[1], dtype=x.dtype)[None, :, None]
        return self.head(self.norm(self.blocks(x + counted / 10)))


@pytest.fixture
def pair() -> Iterator[DeviceMesh]:
    """A group of two ranks whose messages change nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def called(module: nn.Module, mesh: DeviceMesh) -> torch.Tensor:
    tokens = torch.zeros(2, LENGTH, dtype=torch.long)
    context_parallel(module, profile(module, tokens, name="model"), mesh)
    made: torch.Tensor = module(tokens)
    return made


@pytest.mark.parametrize("model", [ReadsBuffer, lambda: Counts(SIZE)])
def test_a_forward_method_that_counts_positions_is_refused(
    model: type[nn.Module], pair: DeviceMesh
) -> None:
    module = model()
    with pytest.raises(StrategyError) as error:
        called(module, pair)
    message = str(error.value)
    assert message.startswith("layout: context: 2: ")
    assert type(module).__name__ in message


@pytest.mark.parametrize("module", [llama.build("tiny"), gpt.build("tiny")])
def test_modules_that_are_given_positions_are_not(module: nn.Module, pair: DeviceMesh) -> None:
    assert called(module, pair).shape[:2] == (2, LENGTH)
