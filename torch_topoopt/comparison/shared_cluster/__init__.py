"""A cluster that many jobs share, on several architectures: what `topoopt simulate --jobs` runs.

`jobs_file` is the document, `job_mix` makes jobs of it, `job_kinds` finds how each kind of job is
split on each architecture, and `simulate` runs the timelines: `shards` for TopoOpt, where a job has
servers and links of its own, `timeline` for switches, where `contention` measures what the jobs of
the moment cost each other. `outcome` is what comes out.
"""
