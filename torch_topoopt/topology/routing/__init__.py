"""Routes on given links, and the bytes that they put there."""
