"""Applies the quotas of a file by the limiters of this server, which replicas may share.

A limit of the file replaces that of `[admission]` for its tenant or user.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from completion_server.admission.day_tokens import DayTokens
from completion_server.admission.keyed_sessions import SessionLimit
from completion_server.admission.quota_table import Quota, QuotaTable, Rate
from completion_server.admission.quotas import MAX_WAIT_S, Scope
from completion_server.core.errors import Limit
from completion_server.core.request import key_of
from completion_server.limits.local import LocalLimiters
from completion_server.limits.shared import Limiter, Limiters, SessionLimiter

_Key = tuple[str, float, float]
"""Name, limit and burst of a limiter."""


class FileQuotas:
    """The limits that the file gives to tenants and users, and the tenants' weights."""

    def __init__(
        self, table: QuotaTable, limiters: Limiters | None = None, unix_s: Callable[[], float] = time.time
    ) -> None:
        """Begin with the quotas of `table`. `limiters` make the limits."""
        self._table = table
        self._limiters = limiters or LocalLimiters()
        self._rates: dict[_Key, Limiter] = {}
        """Quotas with equal values share a limiter. So a change of other quotas leaves its keys as they are."""
        self._sessions: dict[_Key, SessionLimiter] = {}
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
        changes: dict[str, Any] = {"base": otherwise, "day_limit": quota.tokens_per_day}
        if quota.requests is not None:
            limiter = self._rate(_rate_key(f"{kind}_requests", quota.requests))
            changes |= {"requests": limiter, "requests_limit": quota.requests.limit}
        if quota.tokens is not None:
            limiter = self._rate(_rate_key(f"{kind}_tokens", quota.tokens), MAX_WAIT_S)
            changes |= {"tokens": limiter, "tokens_limit": quota.tokens.limit}
        if quota.tokens_per_day is not None and quota.tokens_per_day.allowed > 0:
            changes["day"] = self._days[kind]
        return replace(otherwise, **changes)

    def _rate(self, key: _Key, max_wait_s: float = math.inf) -> Limiter:
        if key not in self._rates:
            self._rates[key] = self._limiters.rate(*key, max_wait_s)
        return self._rates[key]

    def _session_limit(self, kind: str, quota: Quota) -> SessionLimit | None:
        if quota.sessions is None:
            return None
        key = _sessions_key(kind, quota.sessions)
        if key not in self._sessions:
            self._sessions[key] = self._limiters.sessions(f"{kind}_sessions", int(quota.sessions.allowed))
        return self._sessions[key], quota.sessions

    def _retire(self, table: QuotaTable) -> None:
        """Give up the limiters that a table has no use for."""
        used = {key for kind, quota in table.quotas() for key in _keys(kind, quota)}
        for key in self._rates.keys() - used:
            self._limiters.retire(self._rates.pop(key))
        for key in self._sessions.keys() - used:
            self._limiters.retire(self._sessions.pop(key))


def _keys(kind: str, quota: Quota) -> Iterator[_Key]:
    if quota.requests is not None:
        yield _rate_key(f"{kind}_requests", quota.requests)
    if quota.tokens is not None:
        yield _rate_key(f"{kind}_tokens", quota.tokens)
    if quota.sessions is not None:
        yield _sessions_key(kind, quota.sessions)


def _rate_key(name: str, rate: Rate) -> _Key:
    return name, rate.limit.allowed, rate.burst


def _sessions_key(kind: str, limit: Limit) -> _Key:
    return f"{kind}_sessions", limit.allowed, 0.0
