"""Backend names that are taken over, in every form that torch accepts."""

from __future__ import annotations

import pytest

from torch_topoopt.runtime.asked_backends import parse_take_over, taken_over


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
    with pytest.raises(ValueError, match="'mpi' is not one of gloo, nccl"):
        parse_take_over("gloo,mpi")
