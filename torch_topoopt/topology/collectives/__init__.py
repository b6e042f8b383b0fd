"""Schedules of collectives over any directed graph of links: candidates, files and their replay."""
