"""The shares of limits that a board keeps in this process, as the scripts of state/limit_reports.py keep them. Pure.

What the scripts do, and why, is written there.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from completion_server.limits.replicas import Replica

_SWEEP_AFTER = 4096


class Terms(NamedTuple):
    """The arguments of a report, in the order of those of `SHARE`."""

    kept_s: float
    units_per_s: float
    burst: float
    max_debt: float
    taken: float
    num_open: float
    demand: float
    floor: float


class Part(NamedTuple):
    """What one reporter has of a key."""

    at: float
    demand: float
    part: float
    num_open: float


@dataclass(slots=True)
class Account:
    """One key."""

    at: float
    """When the debt was true."""
    debt: float = 0.0
    parts: dict[str, Part] = field(default_factory=dict)
    expires_at: float = 0.0


class Ledger:
    """Divides each key among those that report it."""

    def __init__(self) -> None:
        """Begin without a key."""
        self.accounts: dict[Hashable, Account] = {}
        self.heartbeats: dict[str, tuple[float, str]] = {}
        self._num_to_sweep = _SWEEP_AFTER

    def meet(self, me: str, process: str, known_s: float, now: float) -> list[Replica]:
        """Keep a heartbeat, or none if `process` is empty; return those that were kept before."""
        found = self.heartbeats = {name: each for name, each in self.heartbeats.items() if now - each[0] <= known_s}
        seen = [Replica(name, process, now - at) for name, (at, process) in found.items()]
        if process:
            found[me] = now, process
        else:
            found.pop(me, None)
        return seen

    def share(self, key: Hashable, me: str, terms: Terms, now: float) -> tuple[float, float]:
        """Take a report; return the share of the key, and the units left of the burst."""
        account = self.accounts.get(key)
        if account is None:
            self._sweep(now)
            account = self.accounts[key] = Account(now)
        parts = account.parts = {
            name: each for name, each in account.parts.items() if abs(now - each.at) < terms.kept_s
        }
        filled = max(0.0, now - account.at) * terms.units_per_s * (1 - sum(each.part for each in parts.values()))
        account.at, account.debt = now, min(terms.max_debt, max(0.0, account.debt - filled + terms.taken))
        parts.pop(me, None)
        part = 0.0
        others, num_open = sum(each.part for each in parts.values()), sum(each.num_open for each in parts.values())
        if terms.demand > 0:
            wanted = terms.demand + sum(each.demand for each in parts.values())
            part = min(terms.demand / wanted, max(terms.floor, 1 - others))
            parts[me] = Part(now, terms.demand, part, terms.num_open)
        debt_s = terms.max_debt / terms.units_per_s if terms.units_per_s else 0.0
        account.expires_at = now + terms.kept_s + debt_s
        return part, terms.burst - account.debt - terms.num_open - num_open

    def forget(self, me: str) -> None:
        """Leave all that a reporter had to the others: it has died."""
        self.heartbeats.pop(me, None)
        for account in self.accounts.values():
            account.parts.pop(me, None)

    def _sweep(self, now: float) -> None:
        """Forget keys that were not reported lately, after as many new ones as there are keys."""
        self._num_to_sweep -= 1
        if self._num_to_sweep == 0:
            self.accounts = {key: each for key, each in self.accounts.items() if each.expires_at > now}
            self._num_to_sweep = max(_SWEEP_AFTER, len(self.accounts))
