"""`topoopt bench link`: measures single cables between real hosts."""
