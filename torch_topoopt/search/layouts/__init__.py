"""Layouts: one division of all blocks of a model over the accelerators of a cluster."""
