"""What can go wrong for a reason the person at the keyboard can remove."""


class TargetError(Exception):
    """An expected failure, worded for who started the command; the command line prints it without a traceback."""


class QuantiseError(TargetError):
    """A model that can't be quantised, or a disk that refuses the copy."""


class EvaluationError(TargetError):
    """Tasks, models or texts that can't be measured."""
