"""Applies the quotas of a file by the limiters of this server, which replicas may share.

A limit of the file replaces that of `[admission]` for its tenant or user. Tokens a day are counted by each replica
alone, which allows its part of them: one by the number of living replicas. No count is kept over a restart.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from completion_server.admission.keyed_sessions import SessionLimit
from completion_server.admission.quota_table import Quota, QuotaTable, Rate
from completion_server.admission.quotas import MAX_WAIT_S, Scope
from completion_server.core.checks import DAY_S
from completion_server.core.request import key_of
from completion_server.limits.local import LocalLimiters
from completion_server.limits.shared import Limiter, Limiters, SessionLimiter

_MAX_DAY_COUNTS = 100_000
"""Users or tenants whose tokens of the day are known; beyond that the one charged longest ago is forgotten."""

_RateKey = tuple[str, float, float]
_SessionsKey = tuple[str, int]


class DayTokens:
    """Counts the tokens of each key on the current day, UTC."""

    def __init__(self, unix_s: Callable[[], float], num_replicas: Callable[[], int]) -> None:
        """`unix_s` returns Unix time in seconds; `num_replicas` the number of replicas that divide what is allowed."""
        self._unix_s = unix_s
        self._num_replicas = num_replicas
        self._day = 0
        self._counts: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are counted."""
        return len(self._counts)

    def charge(self, key: str, num_tokens: float) -> None:
        """Count tokens; a negative number takes them back."""
        self._begin_day()
        self._counts[key] = max(0.0, self._counts.pop(key, 0.0) + num_tokens)
        if len(self._counts) > _MAX_DAY_COUNTS:
            self._counts.popitem(last=False)

    def wait_s(self, key: str, allowed: float) -> float:
        """Return the seconds until a key may have tokens again, which is at midnight; 0 for now."""
        now_s = self._begin_day()
        if self._counts.get(key, 0.0) < allowed / self._num_replicas():
            return 0.0
        return (self._day + 1) * DAY_S - now_s

    def _begin_day(self) -> float:
        now_s = self._unix_s()
        day = int(now_s // DAY_S)
        if day != self._day:
            self._day = day
            self._counts.clear()
        return now_s


class FileQuotas:
    """The limits that the file gives to tenants and users, and the tenants' weights."""

    def __init__(
        self, table: QuotaTable, limiters: Limiters | None = None, unix_s: Callable[[], float] = time.time
    ) -> None:
        """Begin with the quotas of `table`. `limiters` make the limits."""
        self._table = table
        self._limiters = limiters or LocalLimiters()
        self._rates: dict[_RateKey, Limiter] = {}
        """Quotas with equal values share a limiter. So a change of other quotas leaves its keys as they are."""
        self._sessions: dict[_SessionsKey, SessionLimiter] = {}
        self._days = {kind: DayTokens(unix_s, self._num_replicas) for kind in ("tenant", "user")}
        self._scopes: dict[Quota, Scope] = {}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change, while the limiters of both tables are there."""
        self._listeners.append(listener)

    def replace(self, table: QuotaTable) -> None:
        """Apply other quotas from now on."""
        self._table = table
        self._scopes.clear()
        for listener in self._listeners:
            listener()
        self._retire(table)

    def weight_of(self, tenant: str) -> float:
        """Return the weight of a tenant whose name is verified."""
        return self._table.weight_of(key_of(tenant))

    def of_user(self, owner: str, otherwise: Scope) -> Scope:
        """Return the limits of a user by its `Caller.owner`; those of `otherwise` where the file has none."""
        return self._scope("user", self._table.of_user(owner), otherwise)

    def of_tenant(self, tenant_key: str, otherwise: Scope) -> Scope:
        """Return the limits of a tenant by its `Caller.tenant_key`; those of `otherwise` where the file has none."""
        return self._scope("tenant", self._table.of_tenant(tenant_key), otherwise)

    def user_sessions(self, owner: str) -> SessionLimit | None:
        """Return the limit of a user's sessions; None if the file has none."""
        return self._session_limit("user", self._table.of_user(owner))

    def tenant_sessions(self, tenant_key: str) -> SessionLimit | None:
        """Return the limit of a tenant's sessions; None if the file has none."""
        return self._session_limit("tenant", self._table.of_tenant(tenant_key))

    def _num_replicas(self) -> int:
        return self._limiters.num_replicas

    def _scope(self, kind: str, quota: Quota, otherwise: Scope) -> Scope:
        found = self._scopes.get(quota)
        if found is None or found.base is not otherwise:
            found = self._scopes[quota] = self._make_scope(kind, quota, otherwise)
        return found

    def _make_scope(self, kind: str, quota: Quota, otherwise: Scope) -> Scope:
        requests, requests_limit = otherwise.requests, otherwise.requests_limit
        tokens, tokens_limit = otherwise.tokens, otherwise.tokens_limit
        if quota.requests is not None:
            requests, requests_limit = self._rate(_requests_key(kind, quota.requests)), quota.requests.limit
        if quota.tokens is not None:
            tokens, tokens_limit = self._rate(_tokens_key(kind, quota.tokens), MAX_WAIT_S), quota.tokens.limit
        is_limited = quota.tokens_per_day is not None and quota.tokens_per_day.allowed > 0
        day = self._days[kind] if is_limited else None
        return Scope(requests, tokens, requests_limit, tokens_limit, day, quota.tokens_per_day, otherwise)

    def _rate(self, key: _RateKey, max_wait_s: float = math.inf) -> Limiter:
        if key not in self._rates:
            self._rates[key] = self._limiters.rate(*key, max_wait_s)
        return self._rates[key]

    def _session_limit(self, kind: str, quota: Quota) -> SessionLimit | None:
        if quota.sessions is None:
            return None
        key = _sessions_key(kind, quota)
        if key not in self._sessions:
            self._sessions[key] = self._limiters.sessions(*key)
        return self._sessions[key], quota.sessions

    def _retire(self, table: QuotaTable) -> None:
        """Give up the limiters that a table has no use for."""
        rates: set[_RateKey] = set()
        sessions: set[_SessionsKey] = set()
        for kind, quota in table.quotas():
            if quota.requests is not None:
                rates.add(_requests_key(kind, quota.requests))
            if quota.tokens is not None:
                rates.add(_tokens_key(kind, quota.tokens))
            if quota.sessions is not None:
                sessions.add(_sessions_key(kind, quota))
        for rate_key in [each for each in self._rates if each not in rates]:
            self._limiters.retire(self._rates.pop(rate_key))
        for sessions_key in [each for each in self._sessions if each not in sessions]:
            self._limiters.retire(self._sessions.pop(sessions_key))


def _requests_key(kind: str, rate: Rate) -> _RateKey:
    return f"{kind}_requests", rate.limit.allowed, rate.burst


def _tokens_key(kind: str, rate: Rate) -> _RateKey:
    return f"{kind}_tokens", rate.limit.allowed, rate.burst


def _sessions_key(kind: str, quota: Quota) -> _SessionsKey:
    assert quota.sessions is not None
    return f"{kind}_sessions", int(quota.sessions.allowed)
