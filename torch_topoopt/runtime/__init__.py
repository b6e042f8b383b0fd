"""The runtime of a rank: the process group, the rendezvous of ranks, and their counters."""
