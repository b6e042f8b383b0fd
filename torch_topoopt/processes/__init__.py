"""Starts processes that run a user's script: as ranks of a job, or to trace it.

All of them end with the process that started them, even if it is killed. Imports stay small, so
that processes start fast.
"""
