"""The file that describes a cluster of real machines: what it may say, and how it is read."""
