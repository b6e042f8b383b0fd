"""Plans in the formats of other programs. Each exporter gives the files that it would write."""
