"""Networks without a cable, a link or a server."""
