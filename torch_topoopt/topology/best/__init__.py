"""Searches networks for a demand, instead of building one in a single pass."""
