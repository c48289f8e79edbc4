"""The load tester: simulated editors, the benchmarks, and a simulation of the scheduler in virtual time."""


class LoadTestError(Exception):
    """An expected error, such as bad input. The message says what is wrong."""
