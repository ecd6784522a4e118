"""The one kind of error a user sees: a sentence that names the cause and the next step."""


class HotlapError(Exception):
    """Raised anywhere in hotlap, shown by the command line as one line on stderr with exit code 2."""
