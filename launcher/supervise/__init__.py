"""Verbs that look at a job: `topoopt inspect` and `topoopt status`."""
