"""The measured operations, on buffers with known results.

Element i of rank r holds (r + i) % 7, or 1 + (r + i) % 2 where they are multiplied: small integers,
so sums of some ranks are exact in every type. benchmarks/harness/mpi_collectives.c does
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torch_topoopt.tools.bench.options import DATATYPE_NAMES, REDUCE_OP_NAMES

IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})  # PyTorch has no other form
BOTH_WAYS = frozenset({"all_gather", "reduce_scatter"})  # a part may be inside the whole
REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
ROOTED = frozenset({"broadcast", "reduce"})
DATATYPES = {name: getattr(torch, of_torch) for name, of_torch in DATATYPE_NAMES.items()}
REDUCE_OPS = {name: getattr(dist.ReduceOp, of_torch) for name, of_torch in REDUCE_OP_NAMES.items()}
_SPLIT = frozenset({"all_gather", "reduce_scatter", "all_to_all"})  # one part of it per rank
_PERIOD = 14  # of all patterns and their results
_UNTOUCHED = 9  # no rank sends it, so unwritten elements count as wrong


@dataclass(frozen=True)
class Case:
    """One line of the table, on `ranks` ranks; `size_bytes` is the whole buffer of one of them.

    `root` is the root of a broadcast or reduce and the sender of sendrecv; `target` receives.
    """

    operation: str
    size_bytes: int
    datatype: str
    reduce_op: str
    root: int
    target: int
    ranks: int

    @property
    def count(self) -> int:
        """Elements of one rank's part, as nccl-tests counts them."""
        parts = self.ranks if self.operation in _SPLIT else 1
        return self.size_bytes // int(DATATYPES[self.datatype].itemsize) // parts

    @property
    def elements(self) -> int:
        """Elements of the whole buffer: a multiple of the ranks where it is split."""
        return self.count * (self.ranks if self.operation in _SPLIT else 1)

    @property
    def moved_bytes(self) -> int:
        """The measured size: `size_bytes` rounded down to whole parts."""
        return self.elements * int(DATATYPES[self.datatype].itemsize)


class Buffers:
    """The tensors of one rank for one case; `in_place`: of those that may be, as NCCL has it."""

    def __init__(self, case: Case, rank: int, *, in_place: bool = False) -> None:
        self._case = case
        self._rank = rank
        own = case.count if case.operation == "all_gather" else case.elements
        self.input = self._pattern(rank, own)
        if case.operation in IN_PLACE or case.operation == "barrier":
            self.output = self.input
        elif case.operation == "reduce_scatter":
            self.output = torch.full((case.count,), _UNTOUCHED, dtype=self.input.dtype)
        else:
            self.output = torch.full((case.elements,), _UNTOUCHED, dtype=self.input.dtype)
        if in_place and case.operation in BOTH_WAYS:
            own_part = slice(rank * case.count, (rank + 1) * case.count)
            if case.operation == "all_gather":
                self.output[own_part] = self.input
                self.input = self.output[own_part]
            else:
                self.output = self.input[own_part]

    def call(self, group: dist.ProcessGroup) -> None:
        """Runs the operation once, synchronously."""
        case = self._case
        reduce_op: Any = REDUCE_OPS[case.reduce_op]
        match case.operation:
            case "all_reduce":
                dist.all_reduce(self.output, reduce_op, group=group)
            case "all_gather":
                dist.all_gather_into_tensor(self.output, self.input, group=group)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self.output, self.input, reduce_op, group=group)
            case "broadcast":
                dist.broadcast(self.output, case.root, group=group)
            case "reduce":
                dist.reduce(self.output, case.root, reduce_op, group=group)
            case "all_to_all":
                dist.all_to_all_single(self.output, self.input, group=group)
            case "sendrecv":
                if self._rank == case.root:
                    dist.send(self.input, case.target, group=group)
                elif self._rank == case.target:
                    dist.recv(self.output, case.root, group=group)
            case "barrier":
                dist.barrier(group)

    def renew(self) -> None:
        """Writes the next call's input, so that no other rank has it in its caches."""
        sends = self._case.operation != "sendrecv" or self._rank == self._case.root
        if sends:
            self.input.fill_(1)

    def wrong(self) -> int:
        """The number of elements that differ from the first call's known result."""
        expected = self._expected()
        if expected is None:
            return 0
        return int((self.output != expected.to(self.output.dtype)).sum())

    def _expected(self) -> torch.Tensor | None:
        case, rank = self._case, self._rank
        match case.operation:
            case "all_reduce":
                return self._reduced()
            case "reduce" if rank == case.root:
                return self._reduced()
            case "reduce_scatter":
                return self._reduced()[rank * case.count : (rank + 1) * case.count]
            case "broadcast":
                return self._pattern(case.root, case.elements)
            case "all_gather":
                return torch.cat([self._pattern(r, case.count) for r in range(case.ranks)])
            case "all_to_all":
                mine = slice(rank * case.count, (rank + 1) * case.count)
                return torch.cat([self._pattern(r, case.elements)[mine] for r in range(case.ranks)])
            case "sendrecv" if rank == case.target:
                return self._pattern(case.root, case.elements)
        return None

    def _pattern(self, rank: int, count: int) -> torch.Tensor:
        multiplied = self._case.operation in REDUCING and self._case.reduce_op == "prod"
        index = torch.arange(rank, rank + _PERIOD)
        return self._repeated(1 + index % 2 if multiplied else index % 7, count)

    def _reduced(self) -> torch.Tensor:
        case = self._case
        index = torch.arange(_PERIOD) + torch.arange(case.ranks).reshape(-1, 1)
        match case.reduce_op:
            case "prod":
                result = (1 + index % 2).prod(0)
            case "min":
                result = (index % 7).amin(0)
            case "max":
                result = (index % 7).amax(0)
            case "avg":
                result = (index % 7).sum(0) / case.ranks
            case _:
                result = (index % 7).sum(0)
        return self._repeated(result, case.elements)

    def _repeated(self, period: torch.Tensor, count: int) -> torch.Tensor:
        values = period.to(DATATYPES[self._case.datatype])
        return values.repeat(count // _PERIOD + 1)[:count]
