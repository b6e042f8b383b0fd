"""What the benchmarks are run with.

`settings` opens the fabric, loopback or shared memory that ranks meet on, `direct_fabric` makes its
plans, `rank_processes` forks the ranks, `mpi` runs Open MPI beside them, `idle_backend` is a
backend that sends nothing, and `separate_cases` gives each case of a long list a process of its
own.
"""
