"""Shell scripts that set up a real host for a plan, and undo exactly that."""
