"""Jobs that share an emulated leaf-spine network: real kernels, real hashes, real processes.

`jobs` builds the network and runs the jobs; `collision` finds source ports whose paths meet;
`controller` is the controller as a process of its own, and what a prober reports to it.
"""
