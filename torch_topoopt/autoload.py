"""Entry point of group `torch.backends`: runs at the end of `import torch`, so it must never raise."""

from __future__ import annotations


def register() -> None:
    pass
