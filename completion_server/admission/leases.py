"""A limit of rates that replicas share. Each leases part of a key's budget ahead of need and decides by itself. Pure.

The budget of a key is a token bucket in Redis. A replica *holds* a few units of it, spends them without asking, and
asks for more in the background. Three rules keep the sum of all replicas within the budget and one lease:

- The bucket and the holdings of all replicas together are at most the burst.
- A key that is new here begins with units that Redis has not granted, its *advance*. It is owed, and charged with the
  first message. The advances of all replicas together are half a lease. Units taken beyond the holding are owed, too.
- A replica that Redis does not answer spends its holding. When no other replica counts it as alive any more, it fills
  its holdings by itself, at its own part of the rate and up to that part of the burst. The bucket in Redis has the
  other part of both. When Redis answers again, the replica drops what it filled by itself, and charges what it took of
  that and has not filled again.

A message whose reply is lost may have been carried out. So what it returned is gone, what it charged is charged again,
and what it granted is lost: each error makes the sum smaller.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from completion_server.admission.limits import LeaseRequest
from completion_server.admission.rate_limiter import ROUNDING
from completion_server.admission.standing import Phase, Standing

LEASE_S = 1.0
"""A lease lasts so long at the full rate."""
_MAX_LEASE = 0.5
"""Largest share of the burst in a lease."""
IDLE_S = 5.0
"""A holding is returned when its key was not charged for this time. In this time the bucket can pay for the advances
of all replicas, at least LEASE_S.
"""
_RENEW_S = 10.0
HELD_S = 30.0
"""Redis forgets a holding that is not reported for this time, of a replica that crashed or is cut off."""
_RETRY_S = 0.05
_MAX_RETRY_S = 1.0
_MAX_DEBT_S = 60.0
_TTL_S = 60.0


@dataclass(slots=True)
class _Account:
    """What this replica holds of the budget of one key."""

    units: float
    """The holding; negative after a charge of more than that."""
    owed: float
    """Units that were taken without a grant and are not charged in Redis yet, beside negative `units`. Below 0: units
    to give back."""
    target: float
    """Units to hold."""
    used_at: float
    renew_at: float
    level: float = math.inf
    """The level of the bucket in Redis in the last reply; infinity before the first one."""
    covered: float = 0.0
    """A charge beyond the holding that the bucket can probably pay. It refuses nothing before Redis has replied."""
    alone_from: float | None = None
    """The beginning of the time alone in which the holding was filled; None if it was not."""
    filled_at: float = -math.inf
    """When the holding was last filled in that time."""
    spent_alone: float = 0.0
    """Units that were taken in that time, less what was filled since."""
    retry_at: float = -math.inf
    solvent_at: float = -math.inf
    """When the bucket in Redis will have paid its debt."""
    is_requesting: bool = False


class LeasedLimiter:
    """Limits the rate of each key over all replicas, and allows bursts. Implements `Limiter`."""

    def __init__(
        self,
        kind: str,
        units_per_s: float,
        burst: float,
        max_wait_s: float,
        standing: Standing,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Allow `burst` units at once and `units_per_s` in the long run; a rate of 0 sets no limit.

        A key waits at most `max_wait_s`, however much was charged to it. `draw` returns numbers from 0 to 1, which keep
        replicas out of step.
        """
        self._kind = kind
        self._units_per_s = units_per_s
        self._burst = burst
        self._max_wait_s = max_wait_s
        self._max_debt = min(max_wait_s, _MAX_DEBT_S) * units_per_s
        self._lease = max(1.0, min(units_per_s * LEASE_S, burst * _MAX_LEASE))
        self._draw = draw
        self._standing = standing
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """The key that was not charged for the longest time comes first."""
        self._waiting: dict[str, None] = {}
        """Keys about which Redis must be asked."""

    @property
    def num_known(self) -> int:
        """Number of keys of which this replica holds units."""
        return len(self._accounts)

    @property
    def lease(self) -> float:
        """The most units by which all replicas together may exceed the budget of a key."""
        return 2 * self.advance * self._standing.num_replicas

    @property
    def advance(self) -> float:
        """The units with which a new key begins."""
        return max(1.0, self._lease / (2 * self._standing.num_replicas))

    def delay_s(self, key: str, now: float, /) -> float:
        """Return the seconds after which the key may have a unit, 0 for now. Takes none."""
        account = self._accounts.get(key)
        if account is None:
            return 0.0
        self._update(account, now)
        missing = 1 - account.units - account.covered
        if missing <= ROUNDING:
            return 0.0
        if account.alone_from is not None:
            wait_s = missing / self._own_rate
        else:
            uncovered = max(0.0, -account.units - max(0.0, account.level))
            wait_s = max(account.retry_at - now, _RETRY_S) + uncovered / self._units_per_s
        return min(wait_s, self._max_wait_s)

    def charge(self, key: str, now: float, units: float = 1.0, /) -> None:
        """Take units, even if fewer are held; a negative number gives them back."""
        if not self._units_per_s:
            return
        account = self._accounts.get(key) or self._begin(key, now)
        self._update(account, now)
        account.used_at = now
        before = account.units
        account.units = max(before - units, -self._max_debt)
        self._accounts.move_to_end(key)
        if account.alone_from is not None:
            account.units = min(account.units, max(before, self._alone_burst))
            account.spent_alone = max(0.0, account.spent_alone + before - account.units)
            self._waiting[key] = None
            return
        if units < 0:
            account.covered = max(0.0, account.covered + units)
        elif not account.covered and max(0.0, before) < units <= account.level:
            account.covered = before - account.units
        if account.units < account.target / 2 or account.units > account.target or now >= account.renew_at:
            self._waiting[key] = None
            if units < 0:
                account.retry_at = now
                self._return_surplus(account, now)

    def requests(self, now: float) -> list[LeaseRequest]:
        """Return the messages to send to Redis. Each must be settled, with its reply or with None."""
        is_shared = self._standing.phase(now) is Phase.SHARED
        found = [self._request(key, now) for key in self._due(now)] if is_shared else []
        return found + self._sweep(now, is_shared=is_shared)

    def give_back(self, now: float) -> list[LeaseRequest]:
        """Return the messages that give back all that this replica holds, and forget it."""
        for account in self._accounts.values():
            self._update(account, now)
            self._end_alone(account)
        found = [self._final(key, account, now) for key, account in self._accounts.items()]
        self._accounts.clear()
        self._waiting.clear()
        return found

    @property
    def _own_rate(self) -> float:
        return self._units_per_s * self._standing.share

    @property
    def _alone_burst(self) -> float:
        return max(self.advance, self._burst * self._standing.share)

    @property
    def _shared_burst(self) -> float:
        """The part of the burst that is left in Redis beside those of the replicas that are cut off."""
        return max(1.0, self._burst * max(self._standing.shared_part, self._standing.share))

    def _begin(self, key: str, now: float) -> _Account:
        advance = self.advance
        account = self._accounts[key] = _Account(advance, advance, self._lease, now, now + _RENEW_S)
        self._waiting[key] = None
        return account

    def _return_surplus(self, account: _Account, now: float) -> None:
        """Set aside for Redis what a refund brings beyond the holding; all of it while the bucket is in debt."""
        surplus = max(0.0, account.units - (account.target if now >= account.solvent_at else 0.0))
        account.units -= surplus
        account.owed -= surplus

    def _update(self, account: _Account, now: float) -> None:
        """Fill the holding while this replica is alone, and end that when Redis has answered since."""
        if account.alone_from is not None and account.alone_from != self._standing.alone_from:
            self._end_alone(account)
        if now >= self._standing.alone_from:
            self._fill(account, now)

    def _fill(self, account: _Account, now: float) -> None:
        """Add what this replica may take alone since the last time. First it fills the holding, then it pays debts."""
        elapsed_s = now - max(account.filled_at, self._standing.fill_from)
        account.alone_from, account.filled_at, account.covered = self._standing.alone_from, now, 0.0
        gain = elapsed_s * self._own_rate
        if gain > 0:
            kept = min(gain, max(0.0, self._alone_burst - account.units))
            account.units += kept
            account.owed = max(0.0, account.owed - (gain - kept))
            account.spent_alone = max(0.0, account.spent_alone - gain)

    def _end_alone(self, account: _Account) -> None:
        """Drop what was filled alone, and owe what was taken of it. The bucket in Redis knows of neither.

        The debt is charged although the bucket was capped, because it is only capped when a replica uses it.
        """
        if account.alone_from is None:
            return
        account.owed += max(0.0, account.spent_alone - max(0.0, -account.units))
        account.units = min(account.units, self.advance)
        account.spent_alone, account.alone_from, account.filled_at = 0.0, None, -math.inf

    def _due(self, now: float) -> list[str]:
        accounts = self._accounts
        return [key for key in self._waiting if not accounts[key].is_requesting and now >= accounts[key].retry_at]

    def _request(self, key: str, now: float) -> LeaseRequest:
        """Ask for units up to the holding; charge debts, or return what is too much."""
        account = self._accounts[key]
        self._update(account, now)
        self._waiting.pop(key, None)
        account.is_requesting = True
        account.renew_at = now + _RENEW_S
        self._return_surplus(account, now)
        held, debt, owed = max(0.0, account.units), max(0.0, -account.units), account.owed
        account.owed = max(0.0, owed)
        want = account.target - held
        settle = partial(self._settle, key, account, debt, account.owed, account.covered, want)
        return LeaseRequest("rate", self._kind, key, self._arguments(debt + owed, held, want, now), settle)

    def _arguments(self, charge: float, held: float, want: float, now: float) -> tuple[float, ...]:
        ttl_s = _TTL_S + 2 * (self._burst + self._max_debt) / self._units_per_s
        return (
            self._standing.budget_s(now), self._units_per_s, self._shared_burst, self._max_debt, charge, held, want,
            HELD_S, ttl_s,
        )  # fmt: skip

    def _settle(
        self, key: str, account: _Account, debt: float, owed: float, covered: float, want: float,
        reply: Sequence[float] | None, now: float,
    ) -> None:  # fmt: skip
        account.is_requesting = False
        if self._accounts.get(key) is not account:
            return
        if reply is None:
            account.retry_at = now + _RETRY_S
            self._waiting[key] = None
            return
        granted, level, num_holders = reply
        account.level, account.covered = level, max(0.0, account.covered - covered)
        rate = self._units_per_s * (self._standing.shared_part or self._standing.share)
        account.units += debt + granted
        account.owed -= owed
        account.target = max(1.0, self._lease / num_holders)
        account.solvent_at = now + max(0.0, -level) / rate
        if account.units < account.target / 2:
            self._waiting[key] = None
        if granted < want:
            until_useful_s = min(max((max(1.0, account.target / 4) - level) / rate, _RETRY_S), _MAX_RETRY_S)
            account.retry_at = now + until_useful_s * (1 + self._draw() / 2)

    def _sweep(self, now: float, *, is_shared: bool) -> list[LeaseRequest]:
        """Give back the holdings of idle keys and forget them."""
        found: list[LeaseRequest] = []
        for _ in range(len(self._accounts)):
            key, account = next(iter(self._accounts.items()))
            if now - account.used_at <= IDLE_S:
                break
            if self._is_forgettable(account, now, is_shared=is_shared):
                del self._accounts[key]
                self._waiting.pop(key, None)
                if is_shared and account.units > 0:
                    found.append(self._final(key, account, now))
            else:
                self._accounts.move_to_end(key)
                account.used_at = now
        return found

    def _is_forgettable(self, account: _Account, now: float, *, is_shared: bool) -> bool:
        """Return whether the key may begin anew, with a holding that is owed, as if it had never been known."""
        self._update(account, now)
        if account.alone_from is not None:
            is_full = account.units >= self._alone_burst - ROUNDING and not account.spent_alone
            account.owed = max(0.0, account.owed)
        else:
            is_full = is_shared and account.units >= 0 and not account.is_requesting and now >= account.solvent_at
        return is_full and not account.owed

    def _final(self, key: str, account: _Account, now: float) -> LeaseRequest:
        """Return the message that gives back a holding, or charges what is owed and not on its way to Redis."""
        charge = -max(0.0, account.units) if account.is_requesting else account.owed - account.units
        return LeaseRequest("rate", self._kind, key, self._arguments(charge, 0.0, 0.0, now), _ignore)


def _ignore(_reply: Sequence[float] | None, _now: float) -> None:
    """Take the reply to a message that asked for nothing."""
