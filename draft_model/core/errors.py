"""The error of failures that a user can fix."""


class PipelineError(Exception):
    """An expected failure with a message for the user; the command line prints it without a traceback."""
