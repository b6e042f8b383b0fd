"""`python -m torch_topoopt`: the versions of torch_topoopt, torch, Python and the build."""

from torch_topoopt.runtime.versions import versions_text

print(versions_text())
