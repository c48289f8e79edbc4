"""What can go wrong for a reason the person at the keyboard can remove."""


class PipelineError(Exception):
    """An expected failure, worded for who started the command; the command line prints it without a traceback."""
