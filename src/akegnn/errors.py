"""The one error type that is meant for people."""


class AkeError(Exception):
    """Something the caller can put right, told in one line that names the file, field or tensor.

    The command line prints the line and exits with ``code``: 2 for bad input, 1 for a run that failed.
    """

    code = 2


class RunFailed(AkeError):
    """The input was fine but the run was not: a loss became NaN, a network diverged."""

    code = 1
