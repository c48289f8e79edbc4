"""Who is served first among those who wait: one number for each request, by which a class of them is sorted.

EXPLICIT goes before AUTOMATIC before PREFETCH whatever the order. docs/scheduling.md compares the orders.
"""

from collections.abc import Callable, Mapping

from completion_server.scheduling.claim import Claim

Order = Callable[[Claim], float]
"""The request with the smallest number goes first; it must not change while the request waits."""


def first_come(claim: Claim) -> float:
    """Serve whoever came first."""
    return claim.arrived_at


def newest_first(claim: Claim) -> float:
    """Serve whoever typed last. Most of these are about to type on."""
    return -claim.arrived_at


def earliest_deadline(claim: Claim) -> float:
    """Serve whoever's answer must come first. Who has waited that long without typing on is really waiting."""
    return claim.answer_by


ORDERS: Mapping[str, Order] = {
    "earliest_deadline": earliest_deadline,
    "first_come": first_come,
    "newest_first": newest_first,
}
"""By the name that the configuration has for them."""
