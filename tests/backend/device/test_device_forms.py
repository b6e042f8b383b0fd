"""The ways to name the backend for each kind of device, on machines that have no such device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.backend.ranks import make_plan, run_ranks, values

if TYPE_CHECKING:
    from pathlib import Path

_CPU = torch.device("cpu")
_CUDA = torch.device("cuda")


def _with_form(form: str, rank: int, world: int) -> tuple[list[str], str]:
    dist.init_process_group(form)
    group = dist.group.WORLD
    tensor = torch.full((4,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 4
    backends = [group._get_backend(device).name() for device in group._device_types]
    default = group.name()
    dist.barrier()
    dist.destroy_process_group()
    return backends, default


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a PyTorch built for CUDA")
@pytest.mark.parametrize(
    ("form", "backends"),
    [
        ("topoopt", ["topoopt", "topoopt"]),
        ("cpu:topoopt", ["topoopt"]),
        ("cpu:topoopt,cuda:topoopt", ["topoopt", "topoopt"]),
        ("cpu:topoopt,cuda:gloo", ["topoopt", "gloo"]),
        ("cpu:gloo,cuda:topoopt", ["gloo", "topoopt"]),
    ],
)
def test_a_group_has_the_backends_that_were_named(
    tmp_path: Path, form: str, backends: list[str]
) -> None:
    outcomes = run_ranks(make_plan(2, 1), tmp_path, partial(_with_form, form))
    # "custom" is PyTorch's type for every backend that is not its own. From 2.14 on the default is
    # the backend of the accelerator, before it was the first one that is not PyTorch's own.
    from_2_14 = hasattr(dist.distributed_c10d, "_get_default_backend_type_for_backend_config")
    expected = "gloo" if from_2_14 and backends[-1] == "gloo" else "custom"
    for found, default in values(outcomes):
        assert sorted(found) == sorted(backends)
        assert default == expected


def _shares_one(rank: int, world: int) -> bool:
    dist.init_process_group("cpu:topoopt,cuda:topoopt")
    group = dist.group.WORLD
    same = group._get_backend(_CPU) is group._get_backend(_CUDA)
    dist.destroy_process_group()
    return same


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a PyTorch built for CUDA")
def test_both_devices_share_one_process_group(tmp_path: Path) -> None:
    assert values(run_ranks(make_plan(2, 1), tmp_path, _shares_one)) == [True, True]
