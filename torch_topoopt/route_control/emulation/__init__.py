"""Emulated Clos networks: switches are network namespaces whose kernels route over several paths.

`EmulatedClos` makes one of a network file, and cuts and restores its cables; `JobOnClos` wires the
plan of a job on some of its hosts, of which several jobs may share one network.
"""
