"""Networks side by side: an iteration on each of them, at both levels, and what they cost."""
