"""Every operation of torch.distributed, started on random data, with a check of its result.

An operation takes the group and a case, and returns what it has started: works to wait for, and a
function that compares the results with values computed locally.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from support.backend.contract_values import Placed, blank, block, placed, reduce_op, reduced

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """One combination. `size` counts elements; `number` varies roots, salts and tags."""

    operation: str
    dtype: torch.dtype
    reduction: str  # "" for operations that only move data
    size: int
    layout: str
    asynchronous: bool
    number: int = 0


@dataclass(frozen=True)
class Members:
    """A process group as its members see it."""

    group: Any
    ranks: tuple[int, ...]  # global
    me: int  # index of this process

    @property
    def size(self) -> int:
        return len(self.ranks)

    def root(self, case: Case) -> int:
        return case.number % self.size


@dataclass
class Started:
    works: list[Any] = field(default_factory=list)
    check: Callable[[], None] = lambda: None

    def finish(self) -> None:
        for work in self.works:
            if work is not None:
                assert work.wait() is not False
                assert not isinstance(work, dist.Work) or work.is_completed()
        self.check()


OPERATIONS: dict[str, Callable[[Members, Case], Started]] = {}
REDUCING: set[str] = set()
FLAT_ONLY: set[str] = set()  # operations that choose the shapes of their tensors themselves


def _operation(*, reduces: bool = False, flat: bool = False) -> Callable[[Any], Any]:
    def register(function: Callable[[Members, Case], Started]) -> Any:
        OPERATIONS[function.__name__] = function
        if reduces:
            REDUCING.add(function.__name__)
        if flat:
            FLAT_ONLY.add(function.__name__)
        return function

    return register


def _per_block(m: Members, case: Case) -> int:
    """Elements of a block, so that the operation as a whole moves about `size` of them."""
    return case.size if case.size <= 7 else -(-case.size // m.size)


def _data(m: Members, case: Case, member: int, salt: int = 0, size: int | None = None) -> Any:
    size = case.size if size is None else size
    return block(member, size, case.dtype, salt + case.number, case.reduction)


def _check_all(pairs: list[tuple[str, Placed, torch.Tensor]]) -> Callable[[], None]:
    def check() -> None:
        for what, got, expected in pairs:
            got.check(expected, what)

    return check


def _started(works: Any, pairs: list[tuple[str, Placed, torch.Tensor]]) -> Started:
    return Started(works if isinstance(works, list) else [works], _check_all(pairs))


# ---- reductions --------------------------------------------------------------------------------


@_operation(reduces=True)
def all_reduce(m: Members, case: Case) -> Started:
    tensor = placed(_data(m, case, m.me), case.layout)
    expected = reduced([_data(m, case, r) for r in range(m.size)], case.reduction)
    work = dist.all_reduce(
        tensor.tensor, reduce_op(case.reduction), m.group, async_op=case.asynchronous
    )
    return _started(work, [("result", tensor, expected)])


@_operation(reduces=True)
def all_reduce_coalesced(m: Members, case: Case) -> Started:
    sizes = (case.size, min(case.size, 5), case.size // 3)
    layouts = (case.layout, "flat", "strided")
    tensors, pairs = [], []
    for i, (size, layout) in enumerate(zip(sizes, layouts, strict=True)):
        tensor = placed(_data(m, case, m.me, i, size), layout)
        blocks = [_data(m, case, r, i, size) for r in range(m.size)]
        tensors.append(tensor.tensor)
        pairs.append((f"tensor {i}", tensor, reduced(blocks, case.reduction)))
    with dist._coalescing_manager(m.group, async_ops=case.asynchronous) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, reduce_op(case.reduction), m.group)
    return _started(manager if case.asynchronous else None, pairs)


@_operation(reduces=True)
def reduce(m: Members, case: Case) -> Started:
    root = m.root(case)
    own = _data(m, case, m.me)
    tensor = placed(own, case.layout)
    expected = reduced([_data(m, case, r) for r in range(m.size)], case.reduction)
    work = dist.reduce(
        tensor.tensor,
        m.ranks[root],
        reduce_op(case.reduction),
        m.group,
        async_op=case.asynchronous,
    )
    return _started(work, [("result", tensor, expected if m.me == root else own)])


def _scattered_sum(m: Members, case: Case, size: int) -> torch.Tensor:
    return reduced([_data(m, case, r, m.me, size) for r in range(m.size)], case.reduction)


@_operation(reduces=True)
def reduce_scatter(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    inputs = [placed(_data(m, case, m.me, to, size), case.layout) for to in range(m.size)]
    output = blank(size, case.dtype, case.layout)
    work = dist.reduce_scatter(
        output.tensor,
        [i.tensor for i in inputs],
        reduce_op(case.reduction),
        m.group,
        async_op=case.asynchronous,
    )
    unchanged = [
        (f"input {to}", placed_input, _data(m, case, m.me, to, size))
        for to, placed_input in enumerate(inputs)
    ]
    return _started(work, [("output", output, _scattered_sum(m, case, size)), *unchanged])


@_operation(reduces=True, flat=True)
def reduce_scatter_of_uneven_blocks(m: Members, case: Case) -> Started:
    sizes = [_per_block(m, case) * r // m.size for r in range(m.size)]
    inputs = [_data(m, case, m.me, to, sizes[to]) for to in range(m.size)]
    output = blank(sizes[m.me], case.dtype, "offset")
    work = dist.reduce_scatter(
        output.tensor, inputs, reduce_op(case.reduction), m.group, async_op=case.asynchronous
    )
    return _started(work, [("output", output, _scattered_sum(m, case, sizes[m.me]))])


@_operation(reduces=True)
def reduce_scatter_tensor(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    values = torch.cat([_data(m, case, m.me, to, size) for to in range(m.size)])
    whole = placed(values, "flat" if case.layout == "scalar" else case.layout)
    output = blank(size, case.dtype, case.layout)
    work = dist.reduce_scatter_tensor(
        output.tensor, whole.tensor, reduce_op(case.reduction), m.group, async_op=case.asynchronous
    )
    pairs = [("output", output, _scattered_sum(m, case, size)), ("input", whole, values)]
    return _started(work, pairs)


@_operation(reduces=True, flat=True)
def reduce_scatter_tensor_of_stacked_blocks(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    stacked = torch.stack([_data(m, case, m.me, to, size) for to in range(m.size)])
    output = blank(size, case.dtype, "offset")
    work = dist.reduce_scatter_tensor(
        output.tensor, stacked, reduce_op(case.reduction), m.group, async_op=case.asynchronous
    )
    return _started(work, [("output", output, _scattered_sum(m, case, size))])


@_operation(reduces=True, flat=True)
def reduce_scatter_tensor_in_place(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    whole = torch.cat([_data(m, case, m.me, to, size) for to in range(m.size)])
    output = Placed(whole[m.me * size : (m.me + 1) * size])
    work = dist.reduce_scatter_tensor(
        output.tensor, whole, reduce_op(case.reduction), m.group, async_op=case.asynchronous
    )
    return _started(work, [("output", output, _scattered_sum(m, case, size))])


@_operation(reduces=True)
def reduce_scatter_tensor_coalesced(m: Members, case: Case) -> Started:
    pairs, calls = [], []
    for i, size in enumerate((_per_block(m, case), 3)):
        whole = torch.cat([_data(m, case, m.me, to + i, size) for to in range(m.size)])
        output = blank(size, case.dtype, "flat" if i else case.layout)
        blocks = [_data(m, case, r, m.me + i, size) for r in range(m.size)]
        calls.append((output.tensor, whole))
        pairs.append((f"output {i}", output, reduced(blocks, case.reduction)))
    with dist._coalescing_manager(m.group, async_ops=case.asynchronous) as manager:
        for output_tensor, whole in calls:
            dist.reduce_scatter_tensor(output_tensor, whole, reduce_op(case.reduction), m.group)
    return _started(manager if case.asynchronous else None, pairs)


# ---- moves -------------------------------------------------------------------------------------


@_operation()
def broadcast(m: Members, case: Case) -> Started:
    root = m.root(case)
    tensor = placed(_data(m, case, m.me), case.layout)
    work = dist.broadcast(tensor.tensor, m.ranks[root], m.group, async_op=case.asynchronous)
    return _started(work, [("result", tensor, _data(m, case, root))])


@_operation()
def all_gather(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    outputs = [blank(size, case.dtype, case.layout) for _ in range(m.size)]
    own = placed(_data(m, case, m.me, size=size), case.layout)
    work = dist.all_gather(
        [o.tensor for o in outputs], own.tensor, m.group, async_op=case.asynchronous
    )
    pairs = [(f"output {r}", o, _data(m, case, r, size=size)) for r, o in enumerate(outputs)]
    return _started(work, pairs)


@_operation()
def all_gather_of_uneven_blocks(m: Members, case: Case) -> Started:
    sizes = [_per_block(m, case) * (r + 1) // m.size for r in range(m.size)]
    layout = "flat" if case.layout == "scalar" else case.layout
    outputs = [blank(size, case.dtype, layout) for size in sizes]
    own = placed(_data(m, case, m.me, size=sizes[m.me]), layout)
    work = dist.all_gather(
        [o.tensor for o in outputs], own.tensor, m.group, async_op=case.asynchronous
    )
    pairs = [(f"output {r}", o, _data(m, case, r, size=sizes[r])) for r, o in enumerate(outputs)]
    return _started(work, pairs)


def _gathered(m: Members, case: Case, size: int) -> torch.Tensor:
    return torch.cat([_data(m, case, r, size=size) for r in range(m.size)])


@_operation()
def all_gather_into_tensor(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    layout = "flat" if case.layout == "scalar" else case.layout
    output = blank(size * m.size, case.dtype, layout)
    own = placed(_data(m, case, m.me, size=size), case.layout)
    work = dist.all_gather_into_tensor(
        output.tensor, own.tensor, m.group, async_op=case.asynchronous
    )
    return _started(work, [("output", output, _gathered(m, case, size))])


@_operation(flat=True)
def all_gather_into_stacked_tensor(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    output = blank(size * m.size, case.dtype, "offset")
    work = dist.all_gather_into_tensor(
        output.tensor.view(m.size, size),
        _data(m, case, m.me, size=size),
        m.group,
        async_op=case.asynchronous,
    )
    return _started(work, [("output", output, _gathered(m, case, size))])


@_operation(flat=True)
def all_gather_into_tensor_in_place(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    output = blank(size * m.size, case.dtype, "flat")
    own = output.tensor[m.me * size : (m.me + 1) * size]
    own.copy_(_data(m, case, m.me, size=size))
    work = dist.all_gather_into_tensor(output.tensor, own, m.group, async_op=case.asynchronous)
    return _started(work, [("output", output, _gathered(m, case, size))])


@_operation()
def all_gather_into_tensor_coalesced(m: Members, case: Case) -> Started:
    pairs, calls = [], []
    for i, size in enumerate((_per_block(m, case), 3)):
        output = blank(size * m.size, case.dtype, "flat" if i else "strided")
        own = placed(_data(m, case, m.me, size=size), "flat" if i else case.layout)
        calls.append((output.tensor, own.tensor))
        pairs.append((f"output {i}", output, _gathered(m, case, size)))
    with dist._coalescing_manager(m.group, async_ops=case.asynchronous) as manager:
        for output_tensor, own_tensor in calls:
            dist.all_gather_into_tensor(output_tensor, own_tensor, m.group)
    return _started(manager if case.asynchronous else None, pairs)


@_operation()
def gather(m: Members, case: Case) -> Started:
    size, root = _per_block(m, case), m.root(case)
    own = placed(_data(m, case, m.me, size=size), case.layout)
    outputs = [blank(size, case.dtype, case.layout) for _ in range(m.size)]
    outputs = outputs if m.me == root else []
    work = dist.gather(
        own.tensor,
        [o.tensor for o in outputs] or None,
        m.ranks[root],
        m.group,
        async_op=case.asynchronous,
    )
    pairs = [(f"output {r}", o, _data(m, case, r, size=size)) for r, o in enumerate(outputs)]
    return _started(work, pairs)


@_operation()
def scatter(m: Members, case: Case) -> Started:
    size, root = _per_block(m, case), m.root(case)
    output = blank(size, case.dtype, case.layout)
    inputs = [placed(_data(m, case, root, to, size), case.layout) for to in range(m.size)]
    work = dist.scatter(
        output.tensor,
        [i.tensor for i in inputs] if m.me == root else None,
        m.ranks[root],
        m.group,
        async_op=case.asynchronous,
    )
    return _started(work, [("output", output, _data(m, case, root, m.me, size))])


@_operation()
def all_to_all(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    inputs = [placed(_data(m, case, m.me, to, size), case.layout) for to in range(m.size)]
    outputs = [blank(size, case.dtype, case.layout) for _ in range(m.size)]
    work = dist.all_to_all(
        [o.tensor for o in outputs],
        [i.tensor for i in inputs],
        m.group,
        async_op=case.asynchronous,
    )
    pairs = [(f"output {r}", o, _data(m, case, r, m.me, size)) for r, o in enumerate(outputs)]
    return _started(work, pairs)


def _uneven(m: Members, case: Case, source: int, target: int) -> int:
    """Elements from one member to another; some pairs have none."""
    return _per_block(m, case) * ((source + 2 * target + case.number) % 4) // 3


@_operation()
def all_to_all_of_uneven_blocks(m: Members, case: Case) -> Started:
    layout = "flat" if case.layout == "scalar" else case.layout
    inputs, outputs, pairs = [], [], []
    for peer in range(m.size):
        sent, received = _uneven(m, case, m.me, peer), _uneven(m, case, peer, m.me)
        inputs.append(placed(_data(m, case, m.me, peer, sent), layout).tensor)
        output = blank(received, case.dtype, layout)
        outputs.append(output.tensor)
        pairs.append((f"output {peer}", output, _data(m, case, peer, m.me, received)))
    work = dist.all_to_all(outputs, inputs, m.group, async_op=case.asynchronous)
    return _started(work, pairs)


@_operation()
def all_to_all_single(m: Members, case: Case) -> Started:
    size = _per_block(m, case)
    values = torch.cat([_data(m, case, m.me, to, size) for to in range(m.size)])
    output = blank(size * m.size, case.dtype, "strided" if case.layout == "strided" else "offset")
    work = dist.all_to_all_single(
        output.tensor,
        placed(values, "strided" if case.layout == "strided" else "flat").tensor,
        group=m.group,
        async_op=case.asynchronous,
    )
    expected = torch.cat([_data(m, case, r, m.me, size) for r in range(m.size)])
    return _started(work, [("output", output, expected)])


@_operation(flat=True)
def all_to_all_single_with_splits(m: Members, case: Case) -> Started:
    """Rows of three elements."""
    columns = 3
    to = [_uneven(m, case, m.me, peer) for peer in range(m.size)]
    of = [_uneven(m, case, peer, m.me) for peer in range(m.size)]
    sent = torch.cat([_data(m, case, m.me, peer, n * columns) for peer, n in enumerate(to)])
    output = blank(sum(of) * columns, case.dtype, "offset")
    work = dist.all_to_all_single(
        output.tensor.view(sum(of), columns),
        sent.view(sum(to), columns),
        of,
        to,
        group=m.group,
        async_op=case.asynchronous,
    )
    expected = [_data(m, case, peer, m.me, n * columns) for peer, n in enumerate(of)]
    return _started(work, [("output", output, torch.cat(expected))])


@_operation()
def barrier(m: Members, case: Case) -> Started:
    return Started([dist.barrier(m.group, async_op=case.asynchronous)])


# ---- point to point ----------------------------------------------------------------------------


@_operation()
def send_and_receive_around(m: Members, case: Case) -> Started:
    """Everybody sends to the next member; those with even numbers send first."""
    if m.size == 1:
        return Started()
    tag = case.number
    next_rank, previous = m.ranks[(m.me + 1) % m.size], (m.me - 1) % m.size
    own = placed(_data(m, case, m.me), case.layout)
    output = blank(case.size, case.dtype, case.layout)
    pairs = [("received", output, _data(m, case, previous))]
    if case.asynchronous:
        works = [
            dist.irecv(output.tensor, m.ranks[previous], m.group, tag),
            dist.isend(own.tensor, next_rank, m.group, tag),
        ]
        return _started(works, pairs)
    calls = [
        functools.partial(dist.send, own.tensor, next_rank, m.group, tag),
        functools.partial(dist.recv, output.tensor, m.ranks[previous], m.group, tag),
    ]
    for call in calls if m.me % 2 == 0 else reversed(calls):
        call()
    return _started([], pairs)


@_operation()
def receive_from_any(m: Members, case: Case) -> Started:
    """One member receives a message from every other, in any order of arrival."""
    root, tag = m.root(case), (1 << 20) + case.number
    if m.me != root:
        own = placed(_data(m, case, m.me), case.layout)
        if case.asynchronous:
            return _started(dist.isend(own.tensor, m.ranks[root], m.group, tag), [])
        dist.send(own.tensor, m.ranks[root], m.group, tag)
        return Started()
    outputs = [blank(case.size, case.dtype, case.layout) for _ in range(m.size - 1)]
    if case.asynchronous:
        works = [dist.irecv(o.tensor, None, m.group, tag) for o in outputs]
        return Started(works, lambda: _check_sources(m, case, outputs, works))
    sources = [m.ranks.index(dist.recv(o.tensor, None, m.group, tag)) for o in outputs]
    _check_each_source(m, case, outputs, sources)
    return Started()


def _check_sources(m: Members, case: Case, outputs: list[Placed], works: list[Any]) -> None:
    _check_each_source(m, case, outputs, [work._source_rank() for work in works])


def _check_each_source(m: Members, case: Case, outputs: list[Placed], sources: list[int]) -> None:
    assert sorted(sources) == [r for r in range(m.size) if r != m.root(case)], sources
    for output, source in zip(outputs, sources, strict=True):
        output.check(_data(m, case, source), f"message of member {source}")


@_operation()
def batch_of_sends_and_receives(m: Members, case: Case) -> Started:
    """Every rank with every other, in one batch."""
    if m.size == 1:
        return Started()
    size = _per_block(m, case)
    batch, pairs = [], []
    for peer in (r for r in range(m.size) if r != m.me):
        output = blank(size, case.dtype, case.layout)
        own = placed(_data(m, case, m.me, peer, size), case.layout)
        batch.append(dist.P2POp(dist.isend, own.tensor, m.ranks[peer], m.group))
        batch.append(dist.P2POp(dist.irecv, output.tensor, m.ranks[peer], m.group))
        pairs.append((f"message of {peer}", output, _data(m, case, peer, m.me, size)))
    return _started(dist.batch_isend_irecv(batch), pairs)


# ---- objects -----------------------------------------------------------------------------------


def _thing(case: Case, member: int, salt: int = 0) -> dict[str, Any]:
    return {"member": member, "salt": salt, "number": case.number, "text": "x" * (case.size % 5000)}


@_operation(flat=True)
def objects(m: Members, case: Case) -> Started:
    root = m.root(case)
    everything = [_thing(case, r) for r in range(m.size)]
    gathered: list[Any] = [None] * m.size
    dist.all_gather_object(gathered, _thing(case, m.me), m.group)
    assert gathered == everything, "all_gather_object"
    shared = [_thing(case, m.me), m.me]
    dist.broadcast_object_list(shared, m.ranks[root], m.group)
    assert shared == [_thing(case, root), root], "broadcast_object_list"
    collected: list[Any] | None = [None] * m.size if m.me == root else None
    dist.gather_object(_thing(case, m.me), collected, m.ranks[root], m.group)
    assert collected in (None, everything), "gather_object"
    received: list[Any] = [None]
    dist.scatter_object_list(
        received,
        [_thing(case, root, to) for to in range(m.size)] if m.me == root else None,
        m.ranks[root],
        m.group,
    )
    assert received == [_thing(case, root, m.me)], "scatter_object_list"
    return Started()
