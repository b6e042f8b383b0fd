"""Faults of emulated hosts, and jobs that they happen to.

`faults.py` runs each of `fault_list` and `runs` in `trials` on a `checked_job`, whose ranks do what
`deeds` has when they are ordered to, and `strangers` knock at their ports. `endurance.py` and
`soak.py` run a `faulted_job` of `endurance_rank` and `soak_rank`, in turns of `cable_faults`.
`broken_cables` is how a cable fails and is mended.
"""
