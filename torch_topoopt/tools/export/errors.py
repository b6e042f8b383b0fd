"""The error of all exporters."""


class ExportError(ValueError):
    """What a format cannot say, or a file that is not of it; one line with the place."""


class FormatError(ExportError):
    """A file of another format, in which there is nothing to check."""
