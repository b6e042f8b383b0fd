"""`topoopt fabric`, `discover` and `doctor`: the wiring of servers."""
