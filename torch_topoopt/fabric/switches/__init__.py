"""Devices with circuits: one contract, safe changes, and a driver per protocol."""
