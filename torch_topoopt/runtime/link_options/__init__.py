"""What the environment asks of the links of this process's jobs."""
