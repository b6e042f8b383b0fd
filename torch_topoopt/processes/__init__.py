"""Starts processes that run a user's script: as ranks of a job, or to see what it does.

All of them end with the process that started them, however that ends. Imports nothing big.
"""
