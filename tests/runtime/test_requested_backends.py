"""Backend names that are taken over, in every form that torch accepts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed as dist
from support.limits import limit_s
from support.refusals import refused

from torch_topoopt.runtime.requested_backends import (
    TAKE_OVER_VARIABLE,
    parse_take_over,
    replaceable_backends,
    taken_over,
    with_other_names,
)

NAMES_OF_NCCL = ("nccl-lazy", "nccl-legacy", "nccl2")  # of torch 2.15 and newer
names_nccl_otherwise = pytest.mark.skipif(
    not hasattr(dist.Backend, "_ensure_backend_registered"),
    reason="this torch has no other name of NCCL",
)


@pytest.mark.parametrize(
    ("backend", "names", "result"),
    [
        ("gloo", ("gloo",), "topoopt"),
        ("gloo", ("nccl",), "gloo"),
        ("gloo", (), "gloo"),
        ("topoopt", ("gloo", "nccl"), "topoopt"),
        ("cpu:gloo,cuda:nccl", ("gloo", "nccl"), "topoopt"),
        ("cpu:gloo,cuda:nccl", ("gloo",), "cpu:topoopt,cuda:nccl"),
        ("cpu:gloo,cuda:nccl", ("nccl",), "cpu:gloo,cuda:topoopt"),
        ("cpu:gloo", ("gloo",), "cpu:topoopt"),
    ],
)
def test_a_name_is_taken_over_alone_and_in_a_list(
    backend: str, names: tuple[str, ...], result: str
) -> None:
    assert taken_over(backend, names, "topoopt") == result


def test_only_backends_that_can_be_replaced_are_taken_over() -> None:
    assert parse_take_over("") == ()
    assert parse_take_over("gloo, NCCL,gloo") == ("gloo", "nccl")
    with refused(ValueError, "mpi", "gloo"):
        parse_take_over("gloo,mpi")


@names_nccl_otherwise
def test_nccl_is_taken_over_by_every_name_that_torch_has_for_it() -> None:
    assert {"gloo", "nccl", *NAMES_OF_NCCL} <= set(replaceable_backends())
    assert parse_take_over("nccl2") == ("nccl2",)
    assert with_other_names(("nccl2",)) == ("nccl2",)
    assert set(with_other_names(("gloo", "nccl"))) == set(replaceable_backends())
    assert with_other_names(("gloo",)) == ("gloo",)


@names_nccl_otherwise
@pytest.mark.parametrize(
    ("requested", "take_over"),
    [*((name, "nccl") for name in NAMES_OF_NCCL), ("nccl2", "nccl2"), ("NCCL-Lazy", "nccl-lazy")],
)
def test_a_script_that_names_nccl_otherwise_gets_topoopt(requested: str, take_over: str) -> None:
    script = f"""
import torch, torch.distributed as dist
dist.init_process_group({requested!r}, store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        env={**os.environ, TAKE_OVER_VARIABLE: take_over},
    )
    assert done.stdout.split() == ["topoopt"], done.stderr
