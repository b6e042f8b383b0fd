"""How a host applies the controller's answers: its connections use source ports that switches hash
to the assigned paths (paper, section 3.5).

Without an answer the kernel chooses the port, which is ECMP.
"""
