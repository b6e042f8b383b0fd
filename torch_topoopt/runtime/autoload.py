"""The entry points by which torch finds the backend "topoopt".

Group `torch.backends` (`register`) is read at the end of `import torch`, unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0. Group `torch.distributed.backends` (`register_named`) is read from
torch 2.15 on, when a script names a backend that is not registered yet.
"""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from torch_topoopt.runtime.versions import BuildMismatchError, check_build


def register() -> None:
    """Registers the backend; a failure is a warning, because torch must still import."""
    try:
        register_named()
    except Exception as error:
        warnings.warn(f'torch_topoopt: backend "topoopt" is not available: {error}', stacklevel=2)


def register_named() -> None:
    """Registers the backend; raises the error that prevents it."""
    import torch

    try:
        check_build(torch.__version__)
    except BuildMismatchError as error:
        # Another version of torch may lack parts that the rest relies on.
        _refuse_groups(error)
        raise
    from torch_topoopt.runtime import backend, rank_errors

    if not hasattr(backend, "register"):
        # Its own `import torch` was the first of this process and led here, so wait for its end.
        vars(backend)["after_import"] = register
        return
    rank_errors.record_uncaught()
    backend.register()
    backend.load()


def _refuse_groups(error: BuildMismatchError) -> None:
    """Makes a process group "topoopt" raise `error` instead of an unknown backend."""
    import torch.distributed as dist

    def refuse(*_: Any) -> NoReturn:
        raise error

    if not hasattr(dist.Backend, "TOPOOPT"):
        dist.Backend.register_backend("topoopt", refuse, extended_api=True, devices=["cpu", "cuda"])
