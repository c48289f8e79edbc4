"""The errors of failures that a user can fix."""


class TargetError(Exception):
    """An expected failure with a message for the user; the command line prints it without a traceback."""


class QuantiseError(TargetError):
    """A model that can't be quantised, or a disk that refuses the copy."""


class EvaluationError(TargetError):
    """Tasks, models or texts that can't be measured."""
