"""States what a plan assumes: each number, and in sentences what no number says."""

from collections.abc import Iterator
from dataclasses import asdict

from loadtest.planning.assumptions import assumptions_of
from loadtest.planning.fleet import Plan

_OF_A_SERVER = frozenset({"gpu", "memory"})
"""Sections that a measured server needs none of."""


def numbers(plan: Plan) -> Iterator[str]:
    """Yield a line for each section of assumptions that the plan uses."""
    for section, values in asdict(plan.assumptions).items():
        if plan.cache is None and section in _OF_A_SERVER:
            continue
        known = assumptions_of(type(getattr(plan.assumptions, section)))
        given = {name: value for name, value in values.items() if name in known and value is not None}
        yield f"{section}: {', '.join(f'{name} {value:g}' for name, value in given.items())}"


def sentences(plan: Plan) -> list[str]:
    """Return the assumptions of the model itself."""
    found = [
        "A user's times between keys are independent draws of the load tester's typist.",
        "The sessions of a region are spread evenly over its servers.",
    ]
    if len(plan.regions) > 1:
        found.append("The users of a lost region go to the others in proportion to the others' shares.")
    if plan.cache is None:
        return [*found, "A server does at any number of sessions what it was measured or given to do."]
    found += [
        "Requests wait for a slot in one queue (M/M/c).",
        "A draft model's own computation takes no time.",
        "The KV cache is divided evenly over the GPUs of a server and holds nothing but documents.",
        "By counts of one's own, as many sessions type as send these requests.",
        "Each session has one document. The cache keeps whole documents, those that were asked for last.",
        "A request whose document is not in the cache computes all of it, and no other request waits for that.",
    ]
    if len(plan.regions) > 1:
        found.append("After a loss all users come at once, and each one's first request computes the whole document.")
    return found
