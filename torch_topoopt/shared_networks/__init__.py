"""Jobs that share a network: their servers, and the times of their iterations.

`topoopt simulate --jobs`: `jobs_file` is the document, `job_mix` draws jobs, and `job_kinds` finds
the split of each kind of job on each architecture. `simulate` runs the timelines. On TopoOpt
(`shards`) a job has its own servers and links. On switches (`timeline`), `contention` simulates the
running jobs together, with `concurrent_jobs`. `outcome` has the results.

`routed/`: jobs whose paths a route controller chooses (`topoopt simulate --routed-jobs`).
`allocation/`: boards of a HammingMesh for jobs (`topoopt allocate`, `topoopt cluster`).
"""
