"""Real clusters: the file that describes them, and the drivers of cables and circuits in it."""
