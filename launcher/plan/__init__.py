"""`topoopt plan`, `topology` and `diff`."""
