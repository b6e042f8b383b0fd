"""Networks that are searched for a demand, not built in one pass."""
