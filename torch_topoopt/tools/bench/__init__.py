"""Benchmarks of collectives: operations with known results, timing, bounds, and the table."""
