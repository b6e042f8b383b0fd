"""Verbs that observe a job, such as `topoopt inspect` and `topoopt status`."""
