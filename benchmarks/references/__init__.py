"""What results are compared with, and on.

`flow_workloads` are the workloads on which simulators are compared, `simulator_peers` the recorded
times of others, `ns3_flows` runs ns-3; `measured_a100` are operators that others have measured;
`exhaustive_optimum` and `optimality_gaps` enumerate what the planner searches.
"""
