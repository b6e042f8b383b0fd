"""AllReduce, AllGather, ReduceScatter and Broadcast during which circuits move.

For usage and measurements see docs/planning/alltoall.md.

A collective is a sequence of phases, each on circuits of one stride (phases.py). Pieces of the
message pass through them one after another. A port serves all phases or takes turns with others,
and moves at a time of its own (port_timeline.py). Every timeline is replayed (replay.py).
"""
