"""The testbed of the TopoOpt paper (section 6) on emulated hosts: real kernels, real processes.

`switch` emulates an electrical switch; `workload` reduces the paper's models; `networks` plans and
wires the three networks; `stand_in` is a model whose computation is waited for; `training` trains
on real images; `job` runs the ranks and measures them. Figures 18 to 21 are made of it
(`figures/cells/testbed.py`).
"""
