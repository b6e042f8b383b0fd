"""The error of links and fabrics."""


class FabricError(RuntimeError):
    """The fabric cannot be wired as planned; the message names the link and the cause."""
