"""`topoopt run`: from options to ranks that train."""
