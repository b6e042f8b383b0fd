"""Comparison of networks: one iteration on each, at both levels, and the cost of each."""
