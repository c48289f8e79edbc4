"""The wait before the next try to connect."""

import random


class Backoff:
    """Exponential back-off with full jitter: each wait is drawn evenly from 0 to a bound that doubles.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """

    __slots__ = ("_bound_s", "_max_s", "_min_s", "_random")

    def __init__(self, min_s: float, max_s: float, seed: str | None = None) -> None:
        """Draw the first wait from 0 to `min_s`, and no wait above `max_s`; a seed makes the waits repeatable."""
        self._min_s = min_s
        self._max_s = max_s
        self._bound_s = min_s
        self._random = random.Random(seed)

    def next_s(self) -> float:
        """Return the next wait, in seconds."""
        wait_s = self._random.uniform(0, self._bound_s)
        self._bound_s = min(self._max_s, self._bound_s * 2)
        return wait_s

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._bound_s = self._min_s
