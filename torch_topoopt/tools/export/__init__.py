"""Plans in the formats of other programs. Each exporter returns the files to write."""
