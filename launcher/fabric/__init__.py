"""`topoopt fabric`, `discover` and `doctor`: what servers are wired with."""
