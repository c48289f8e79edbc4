"""Keeps the garbage collector from pauses while requests run."""

import gc

_GC_THRESHOLDS = (10_000, 50, 100)
"""Allocations before a collection of the youngest generation, and collections before one of the next older."""


def freeze_startup_objects() -> None:
    """Keep the garbage collector from scanning all imported and loaded objects, which takes 200 ms.

    Reference counting frees the objects of a request, except a few cycles of libraries, which die young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
