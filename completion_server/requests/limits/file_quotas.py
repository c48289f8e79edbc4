"""Applies the quotas of a file. A limit of the file replaces that of `[admission]` for its tenant or user."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from completion_server.core.errors import ConfigError, Limit
from completion_server.core.request import key_of
from completion_server.core.watched_file import WatchedFile
from completion_server.requests.limits.day_tokens import DayTokens
from completion_server.requests.limits.quota_table import Quota, QuotaTable, Rate, parse_quotas
from completion_server.requests.limits.rate_limiter import MAX_WAIT_S, RateLimiter, RateLimits

_Key = tuple[str, float, float]
"""Name, limit and burst of a limiter."""
POLL_S = 1.0


def open_quotas(path: str) -> WatchedFile[QuotaTable]:
    """Read `admission.quotas_file`. A later version with a fault is logged once, and the last good one stays.

    Raises:
        ConfigError: it can't be read, or has a fault; the message names the key.

    """
    key = "admission.quotas_file"
    file = WatchedFile(key, path, _parse, lambda _key, _has_failed: None, parse_quotas(""))
    file.load()
    return file


def _parse(data: bytes) -> QuotaTable:
    try:
        return parse_quotas(data.decode())
    except ConfigError as error:
        raise ValueError("; ".join(str(error).splitlines())) from error


class FileQuotas:
    """The limits that the file gives to tenants and users, and the tenants' weights."""

    def __init__(self, table: QuotaTable, unix_s: Callable[[], float] = time.time) -> None:
        """Begin with the quotas of `table`."""
        self._table = table
        self._rates: dict[_Key, RateLimiter] = {}
        """Quotas with equal values share a limiter. So a change of other quotas leaves its keys as they are."""
        self._user_days = DayTokens(unix_s)
        self.tenant_days = DayTokens(unix_s)
        """Replicas add these up; a user's requests reach one replica."""
        self._limits: dict[Quota, RateLimits] = {}

    def replace(self, table: QuotaTable) -> None:
        """Apply other quotas from now on."""
        self._table = table
        self._limits.clear()
        used = {key for kind, quota in table.quotas() for key in _rate_keys(kind, quota)}
        self._rates = {key: limiter for key, limiter in self._rates.items() if key in used}

    async def follow(self, file: WatchedFile[QuotaTable], poll_s: float = POLL_S) -> None:
        """Apply each new version of a file, until cancelled."""
        while True:
            await asyncio.sleep(poll_s)
            if await file.poll():
                self.replace(file.content)

    def weight_of(self, tenant: str) -> float:
        """Return the weight of a tenant whose name is verified."""
        return self._table.weight_of(key_of(tenant))

    def of_user(self, owner: str, otherwise: RateLimits) -> RateLimits:
        """Return the limits of a user by its `Caller.owner`; those of `otherwise` where the file has none."""
        return self._limits_of("user", self._table.of_user(owner), otherwise, self._user_days)

    def of_tenant(self, tenant_key: str, otherwise: RateLimits) -> RateLimits:
        """Return the limits of a tenant by its `Caller.tenant_key`; those of `otherwise` where the file has none."""
        return self._limits_of("tenant", self._table.of_tenant(tenant_key), otherwise, self.tenant_days)

    def user_sessions(self, owner: str) -> Limit | None:
        """Return the limit of a user's sessions; None if the file has none."""
        return self._table.of_user(owner).sessions

    def tenant_sessions(self, tenant_key: str) -> Limit | None:
        """Return the limit of a tenant's sessions; None if the file has none."""
        return self._table.of_tenant(tenant_key).sessions

    def _limits_of(self, kind: str, quota: Quota, otherwise: RateLimits, days: DayTokens) -> RateLimits:
        found = self._limits.get(quota)
        if found is None or found.base is not otherwise:
            found = self._limits[quota] = self._make_limits(kind, quota, otherwise, days)
        return found

    def _make_limits(self, kind: str, quota: Quota, otherwise: RateLimits, days: DayTokens) -> RateLimits:
        changes: dict[str, Any] = {"base": otherwise, "day_limit": quota.tokens_per_day}
        if quota.requests is not None:
            limiter = self._rate(_rate_key(f"{kind}_requests", quota.requests))
            changes |= {"requests": limiter, "requests_limit": quota.requests.limit}
        if quota.tokens is not None:
            limiter = self._rate(_rate_key(f"{kind}_tokens", quota.tokens), MAX_WAIT_S)
            changes |= {"tokens": limiter, "tokens_limit": quota.tokens.limit}
        if quota.tokens_per_day is not None and quota.tokens_per_day.allowed > 0:
            changes["day"] = days
        return replace(otherwise, **changes)

    def _rate(self, key: _Key, max_wait_s: float = math.inf) -> RateLimiter:
        if key not in self._rates:
            _name, units_per_s, burst = key
            self._rates[key] = RateLimiter(units_per_s, burst, max_wait_s)
        return self._rates[key]


def _rate_keys(kind: str, quota: Quota) -> Iterator[_Key]:
    if quota.requests is not None:
        yield _rate_key(f"{kind}_requests", quota.requests)
    if quota.tokens is not None:
        yield _rate_key(f"{kind}_tokens", quota.tokens)


def _rate_key(name: str, rate: Rate) -> _Key:
    return name, rate.limit.allowed, rate.burst
