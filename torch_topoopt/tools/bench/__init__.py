"""Collectives measured: operations whose results are known, their timing, bounds, the table."""
