"""Notifications about groups of other backends, for "topoopt" groups beside them.

torch.distributed calls a backend's creator on the members of a new group only, and does not notify
a backend when the default process group of another backend ends.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


def watch_groups(
    name: str,
    join: Callable[[timedelta | float | None], None],
    let_go: Callable[[bool], None],
) -> None:
    """`join(timeout)` is called on all ranks before some of them make a group of backend `name`.

    Exception: only the members call `new_group` (use_local_synchronization). `let_go(aborted)` is
    called when the default process group has been destroyed or aborted.
    """
    c10d._new_group_with_tag = _joining(c10d._new_group_with_tag, name, join)
    destroy = _letting_go(c10d.destroy_process_group, let_go, aborted=False)
    c10d.destroy_process_group = dist.destroy_process_group = destroy
    c10d._abort_process_group = _letting_go(c10d._abort_process_group, let_go, aborted=True)


def _joining(original: Any, name: str, join: Callable[[timedelta | float | None], None]) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        backend = given.get("backend") or c10d._world.pg_map[c10d._get_default_group()][0]
        named = re.split("[:,]", str(backend).lower())
        if name in named and not given.get("use_local_synchronization"):
            join(given.get("timeout"))
        return original(*args, **kwargs)

    return new_group


def _letting_go(original: Any, let_go: Callable[[bool], None], *, aborted: bool) -> Any:
    @functools.wraps(original)
    def end(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if not dist.is_initialized():
            let_go(aborted)

    return end
