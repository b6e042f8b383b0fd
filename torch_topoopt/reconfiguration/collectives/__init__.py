"""AllReduce, AllGather, ReduceScatter and Broadcast during which circuits move.

Usage and what was measured: docs/planning/alltoall.md.

A collective is a sequence of phases, each on circuits of one stride (phases.py); pieces of the
message go through them one after another, and ports serve phases, all of them or in turns, each
moving at a time of its own (port_timeline.py). Every timeline is replayed (replay.py).
"""
