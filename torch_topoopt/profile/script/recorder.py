"""Records every collective of this process, below DDP, FSDP2, DTensor and torch.distributed.

All of them reach the operators of PyTorch's `c10d` and `_c10d_functional` namespaces, C++ callers
such as DDP's reducer included, and a TorchDispatchMode sees these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_topoopt.profile.script.document import CollectiveCall, Operation, Phase

if TYPE_CHECKING:
    from torch_topoopt.profile.script.integer_messages import RankChannel

# Not in the type stubs of PyTorch.
_WORK_OF_FUTURE: Any = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class SeenCall(NamedTuple):
    """The communication of one operator, from its arguments: ranks are those of the group."""

    operation: Operation
    size_bytes: int
    peer: int | None = None
    part_bytes: tuple[int, ...] = ()


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """While it is entered, appends to `calls`, all in iteration 0.

    `optimizing` and `setting_up` are set from outside.
    """

    def __init__(self, rank: int, channel: RankChannel) -> None:
        super().__init__()
        self._channel = channel
        self.calls: list[CollectiveCall] = []
        self.optimizing = False
        self.setting_up = True
        self._rank = rank

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # a DTensor: its own operators on local tensors come by next
        kwargs = kwargs or {}
        if func.namespace not in ("c10d", "_c10d_functional"):
            return func(*args, **kwargs)
        values = by_name(func, args, kwargs)
        name = func._schema.name
        members: tuple[int, ...] = ()
        read = READERS.get(name)
        if read is not None:
            members = tuple(dist.get_process_group_ranks(group_of(values)))
            for seen in read(values, len(members)):
                self._append(seen, members)
        elif not values.keys().isdisjoint(("process_group", "group_name")):
            raise NotImplementedError(f"{func} is a collective that this profile does not know")
        result = _with_future(func(*args, **kwargs))
        if name in _RECEIVING:
            for tensor in values.get("tensors") or [values["tensor"]]:
                tensor.detach().fill_(1)
        self._channel.deliver(name, values, members, result)
        return result

    def _append(self, seen: SeenCall, members: tuple[int, ...]) -> None:
        peer = None if seen.peer is None else members[seen.peer]
        self.calls.append(
            CollectiveCall(
                self._rank,
                0,
                self._phase(),
                seen.operation,
                seen.size_bytes,
                members,
                peer,
                seen.part_bytes,
            )
        )

    def _phase(self) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            return "backward"
        if self.optimizing:
            return "optimizer"
        return "setup" if self.setting_up else "forward"


def _with_future(result: Any) -> Any:
    """The result with a future that holds the tensors, as of a real backend: DDP reads it."""
    if not (isinstance(result, tuple) and len(result) == 2 and _is_tensors(result[0])):
        return result
    return result[0], completed(result[0])


def completed(tensors: list[torch.Tensor]) -> Any:
    """The Work, as operators of c10d return it, of a collective that has ended with `tensors`."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return _WORK_OF_FUTURE(future).boxed()


def _is_tensors(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, torch.Tensor) for item in value)


def by_name(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def group_of(values: dict[str, Any]) -> Any:
    if "process_group" in values:
        return dist.ProcessGroup.unbox(values["process_group"])
    group = values["group_name"]
    return _distributed_c10d._resolve_process_group(group) if isinstance(group, str) else group


def _bytes(tensors: Any) -> int:
    """Of a tensor, or of a list (of lists) of them."""
    if isinstance(tensors, torch.Tensor):
        return int(tensors.numel() * tensors.element_size())
    return sum(map(_bytes, tensors))


def _parts(tensor: Any, split_sizes: Any, count: int) -> tuple[int, ...]:
    """Bytes of each part of a tensor that is split along its first dimension."""
    if not split_sizes:
        return (_bytes(tensor) // count,) * count
    rows = max(int(tensor.shape[0]), 1)
    return tuple(_bytes(tensor) // rows * int(size) for size in split_sizes)


_Values = dict[str, Any]
_Reader = Callable[[_Values, int], list[SeenCall]]


def _whole(operation: Operation, *names: str, peer: str = "", per: int = 0) -> _Reader:
    """Reads an operator whose bytes are those of one argument, by any name.

    `per` is 1 if the argument is one rank's part of the whole.
    """

    def read(values: _Values, count: int) -> list[SeenCall]:
        tensors = next(values[name] for name in names if name in values)
        root = int(values[peer]) if peer else None
        return [SeenCall(operation, _bytes(tensors) * (count if per else 1), root)]

    return read


def _all_to_all_base(values: _Values, count: int) -> list[SeenCall]:
    splits = values.get("input_split_sizes")
    parts = _parts(values["input"], splits, count)
    return [SeenCall("AllToAll", sum(parts), None, parts)]


def _all_to_all_list(values: _Values, count: int) -> list[SeenCall]:
    parts = tuple(map(_bytes, values["input_tensors"]))
    return [SeenCall("AllToAll", sum(parts), None, parts)]


def _point_to_point(values: _Values, count: int) -> list[SeenCall]:
    columns = (values["op_list"], values["peer_list"], values["tensors"])
    return [
        SeenCall("Send" if name.endswith("send") else "Recv", _bytes(tensor), int(peer))
        for name, peer, tensor in zip(*columns, strict=True)
    ]


def _nothing(values: _Values, count: int) -> list[SeenCall]:
    return [SeenCall("Barrier", 0)]


_IN = "input", "inputs", "tensor", "tensors"
_ALL_REDUCE = _whole("AllReduce", *_IN)
_GATHERED = _whole("AllGather", "input", "inputs", per=1)
_SCATTERED = _whole("ReduceScatter", "input", "inputs")
_BROADCAST = _whole("Broadcast", "input", peer="src")

READERS: dict[str, _Reader] = {
    "c10d::allreduce_": _ALL_REDUCE,
    "c10d::allreduce_coalesced_": _ALL_REDUCE,
    "c10d::allgather_": _whole("AllGather", "output_tensors"),
    "c10d::_allgather_base_": _whole("AllGather", "output_tensor"),
    "c10d::allgather_coalesced_": _whole("AllGather", "input_list", per=1),
    "c10d::allgather_into_tensor_coalesced_": _whole("AllGather", "outputs"),
    "c10d::reduce_scatter_": _whole("ReduceScatter", "input_tensors"),
    "c10d::_reduce_scatter_base_": _whole("ReduceScatter", "input_tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": _whole("ReduceScatter", "inputs"),
    "c10d::broadcast_": _whole("Broadcast", "tensors", peer="root_rank"),
    "c10d::reduce_": _whole("Reduce", "tensors", peer="root_rank"),
    "c10d::gather_": _whole("Gather", "input_tensors", peer="root_rank"),
    "c10d::scatter_": _whole("Scatter", "output_tensors", peer="root_rank"),
    "c10d::alltoall_base_": _all_to_all_base,
    "c10d::alltoall_": _all_to_all_list,
    "c10d::send": _whole("Send", "tensors", peer="dst"),
    "c10d::recv_": _whole("Recv", "tensors", peer="src"),
    "c10d::recv_any_source_": _whole("Recv", "tensors"),
    "c10d::barrier": _nothing,
    "c10d::monitored_barrier_": _nothing,
    "_c10d_functional::all_reduce": _ALL_REDUCE,
    "_c10d_functional::all_reduce_": _ALL_REDUCE,
    "_c10d_functional::all_reduce_coalesced": _ALL_REDUCE,
    "_c10d_functional::all_reduce_coalesced_": _ALL_REDUCE,
    "_c10d_functional::all_gather_into_tensor": _GATHERED,
    "_c10d_functional::all_gather_into_tensor_out": _GATHERED,
    "_c10d_functional::all_gather_into_tensor_coalesced": _GATHERED,
    "_c10d_functional::reduce_scatter_tensor": _SCATTERED,
    "_c10d_functional::reduce_scatter_tensor_out": _SCATTERED,
    "_c10d_functional::reduce_scatter_tensor_coalesced": _SCATTERED,
    "_c10d_functional::broadcast": _BROADCAST,
    "_c10d_functional::broadcast_": _BROADCAST,
    "_c10d_functional::all_to_all_single": _all_to_all_base,
    "_c10d_functional::isend": _whole("Send", "tensor", peer="dst"),
    "_c10d_functional::irecv": _whole("Recv", "tensor", peer="src"),
    "_c10d_functional::batch_p2p_ops": _point_to_point,
}
# These receive ones, unless a profiled rank sends integers.
_RECEIVING = ("c10d::recv_", "c10d::recv_any_source_", "_c10d_functional::irecv")
