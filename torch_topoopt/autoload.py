"""Entry point of group `torch.backends`: runs at the end of `import torch`, and never raises."""

from __future__ import annotations

import warnings


def register() -> None:
    """Registers the backend "topoopt"; a failure is a warning, for torch must still import."""
    try:
        from torch_topoopt import backend

        backend.register()
        backend.load_in_ranks()
    except Exception as error:
        warnings.warn(f'torch_topoopt: backend "topoopt" is not available: {error}', stacklevel=2)
