"""Probing: the path of a source port's packets from one host to another.

`kernel_paths` queries the switches of an emulated network; `traced_paths` works from the host
alone, on any network; `port_choice` picks the ports that a host reports to the controller.
"""
