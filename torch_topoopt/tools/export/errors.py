"""The error of all exporters."""


class ExportError(ValueError):
    """A format cannot express the plan, or a file is invalid; one line with the place."""


class FormatError(ExportError):
    """A file of another format, in which there is nothing to check."""
