"""The backends that the script of a rank requests, and their replacement.

Under `topoopt run` every rank writes the requested backends to TOPOOPT_RUN_DIR. So a line at the
end can name a backend that carried training traffic outside the planned links.

TOPOOPT_TAKE_OVER=gloo,nccl makes init_process_group and new_group open a "topoopt" group instead of
these backends, also in a list such as "cpu:gloo,cuda:nccl". "nccl" includes torch's other names of
NCCL, such as nccl2. Use it for scripts and libraries that hard-code a backend's name. By default
nothing is replaced.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_topoopt.plan.codec import write_text_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

TAKE_OVER_VARIABLE = "TOPOOPT_TAKE_OVER"
FILE_PATTERN = "groups-rank*.json"


@dataclass
class _RequestedBackends:
    """The backends that the script of this rank requested, and those replaced by topoopt.

    `opened`: whether a topoopt group was opened.
    """

    version: int = 1
    rank: int = -1
    requested: list[str] = field(default_factory=list)
    taken_over: list[str] = field(default_factory=list)
    opened: bool = False

    def save(self) -> None:
        run_dir, rank = os.environ.get("TOPOOPT_RUN_DIR"), os.environ.get("RANK", "")
        if run_dir and rank.isdecimal():
            self.rank = int(rank)
            path = Path(run_dir) / FILE_PATTERN.replace("*", rank)
            write_text_atomically(path, json.dumps(asdict(self)) + "\n")


_record = _RequestedBackends()
_default: bool | None = None  # None: not watching yet


@functools.cache
def replaceable_backends() -> tuple[str, ...]:
    """gloo, and all names of NCCL in the installed torch.

    From 2.15 on torch lists its backends as entry points, nccl2 and nccl-lazy among them. torch is
    not imported.
    """
    listed = metadata.entry_points(group="torch.distributed.backends")
    nccl = {e.name for e in listed if e.name.startswith("nccl") and e.value.startswith("torch.")}
    return ("gloo", "nccl", *sorted(nccl - {"nccl"}))


def parse_take_over(text: str) -> tuple[str, ...]:
    """The backends of a list like "gloo,nccl"; raises ValueError for any other backend."""
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in replaceable_backends():
            raise ValueError(f"{name!r} is not one of {', '.join(replaceable_backends())}")
    return names


def with_other_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """`names`, with all names of NCCL if "nccl" is one of them."""
    nccl = replaceable_backends()[1:] if "nccl" in names else ()
    return tuple(dict.fromkeys((*names, *nccl)))


def taken_over(backend: str, names: Collection[str], by: str) -> str:
    """`backend`, or a list like "cpu:gloo,cuda:nccl", with `by` instead of those `names`."""
    parts = []
    for part in backend.split(","):
        device, colon, name = part.rpartition(":")
        parts.append(f"{device}{colon}{by}" if name.strip().lower() in names else part)
    if len(parts) > 1 and all(part.rpartition(":")[2] == by for part in parts):
        return by
    return ",".join(parts)


def note_opened() -> None:
    """A topoopt group was opened on this rank."""
    if not _record.opened:
        _record.opened = True
        _record.save()


def watch(name: str, *, default: bool) -> None:
    """Notes the backends given to init_process_group and new_group, and replaces some of them.

    `name` is the backend that replaces others; with `default`, it is also the default. A second
    call changes `default`.
    """
    global _default
    watched, _default = _default is not None, default
    if not watched:
        _replace("init_process_group", lambda given: _watched(given, name))
        _replace("new_group", lambda given: _watched(given, name, inherits=True))


def _watched(given: dict[str, Any], name: str, *, inherits: bool = False) -> None:
    """Changes the arguments `given` of one call."""
    names = _names()
    backend = given.get("backend")
    if backend is None:
        if _default and not inherits:
            given["backend"] = name
        elif names and not inherits and given.get("device_id") is None:
            given["backend"] = _default_taken_over(names, name)
        return
    requested = str(backend).lower()
    replaced = taken_over(requested, names, name)
    if requested not in _record.requested:
        _record.requested.append(requested)
        if replaced != requested:
            _record.taken_over.append(requested)
            _say(requested, name)
        _record.save()
    if replaced != requested:
        given["backend"] = replaced
        if given.get("pg_options") is not None and not _is_ours(given["pg_options"]):
            del given["pg_options"]  # they are of the replaced backend


def _default_taken_over(names: Collection[str], name: str) -> str | None:
    """The default backends of torch: gloo on the CPU, nccl on GPUs."""
    import torch

    usual = "cpu:gloo,cuda:nccl" if torch.backends.cuda.is_built() else "gloo"
    replaced = taken_over(usual, names, name)
    return None if replaced == usual else replaced


def _names() -> tuple[str, ...]:
    try:
        return with_other_names(parse_take_over(os.environ.get(TAKE_OVER_VARIABLE, "")))
    except ValueError as error:
        raise RuntimeError(f"{TAKE_OVER_VARIABLE}: {error}") from None


def _say(requested: str, name: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(
            f"topoopt: the script asks for {requested} and gets {name} ({TAKE_OVER_VARIABLE}="
            f"{os.environ[TAKE_OVER_VARIABLE]})",
            file=sys.stderr,
            flush=True,
        )


def _is_ours(options: Any) -> bool:
    return type(options).__module__.startswith("torch_topoopt.")


def _replace(function: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Wraps the function under every name of it in PyTorch's modules."""
    import torch.distributed as dist

    original = getattr(dist, function)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # raises torch's own error
        change(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "torch" and vars(module).get(function) is original:
            setattr(module, function, wrapper)
