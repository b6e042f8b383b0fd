"""Slow and plain references that fast code is held against."""
