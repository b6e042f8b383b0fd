"""`topoopt simulate` and `compare`."""
