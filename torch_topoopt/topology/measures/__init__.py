"""Measures of a network: hops, loads, bounds."""
