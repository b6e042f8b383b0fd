"""`topoopt cluster`: jobs that share a cluster."""
