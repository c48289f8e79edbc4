"""The number of Hypothesis examples for tests that need more or fewer than others."""

from hypothesis import settings


def examples(factor: float) -> int:
    """Return a multiple of the number of examples in the selected profile."""
    return max(1, round(factor * settings().max_examples))
