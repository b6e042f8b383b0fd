"""Execution of layouts: PyTorch's own parallelism, over the groups that the plan wired."""
