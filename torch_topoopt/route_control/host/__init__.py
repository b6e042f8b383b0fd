"""What a host does with the controller's answers: its connections leave from the source ports that
switches hash to the assigned paths (paper, section 3.5).

Without an answer they leave from whatever port the kernel chooses, which is ECMP.
"""
