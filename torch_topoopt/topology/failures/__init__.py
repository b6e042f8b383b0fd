"""How a network goes on without a cable, a link or a server."""
