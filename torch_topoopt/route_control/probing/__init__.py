"""Probing: which path the packets of a source port take from one host to another.

`kernel_paths` asks the switches of an emulated network; `traced_paths` finds it out from the host
alone, on any network; `port_choice` picks the ports that a host reports to the controller.
"""
