"""The paper's six workloads (List 1, Appendix D) and seven current ones, one file each.

Every module has `SIZES`, `DEFAULT_SIZE`, `build(size)` and `example_batch(batch_size, size=...)`,
which returns the model's input. The file of a name with dashes has underscores.

List 1 has one value for each evaluation: sizes "paper-5.3" (dedicated cluster; also called
"paper"), "paper-5.4" (all-to-all traffic), "paper-5.6" (shared cluster) and "paper-6" (testbed),
where a model has them. "tiny" has the same structure and fits a test. A size's `batch_size` is that
of one accelerator.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType

_NAMES = (
    *("bert", "candle", "cosmoflow", "dlrm", "gpt", "llama", "mixtral", "moe", "ncf"),
    *("qwen3-moe", "resnet152", "resnet50", "vgg"),
)


class _Models(Mapping[str, ModuleType]):
    """Name -> module; a module is imported on first access."""

    def __getitem__(self, name: str) -> ModuleType:
        if name not in _NAMES:
            raise KeyError(name)
        return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


MODELS: Mapping[str, ModuleType] = _Models()
