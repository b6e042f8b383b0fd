"""`topoopt profile`."""
