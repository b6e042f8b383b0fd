"""Strategies that a search starts from.

A *family* (`case.Family`) makes named strategies of one kind; `fitting` keeps those that fit into
memory, and `timed` ranks them by the coarse simulator.
"""
