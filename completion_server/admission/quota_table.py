"""Reads the quotas of tenants and users from the text of `admission.quotas_file`. Pure.

    [default]                # each tenant
    [default.user]           # each user
    [tenant.acme]            # this tenant; keys that it leaves out are those of [default]
    [tenant.acme.user]       # each user of this tenant; else [default.user]
    [user."acme/ada"]        # this user; else [tenant.acme.user]

Only verified names have sections of their own: anybody could give another name. The others have the defaults.
"""

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from completion_server.core.checks import Above, Between, bounds_of
from completion_server.core.errors import ConfigError, Limit
from completion_server.core.request import key_of, tenant_key_of

DEFAULT_WEIGHT = 1.0
_PREFIX = "quotas"
_USER = "user"
_BURST_S = 2.0
"""A burst that is not given: as much as may be sent in this time, as in admission.user_burst."""
_TOKEN_BURST_S = 4.0


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the file, as it is written; None for a key that it leaves out, 0 for no limit."""

    requests_per_s: Annotated[float | None, Between(0, 1e9)] = None
    burst: Annotated[float | None, Between(1, 1e9)] = None
    """Requests at once. Unset: those of two seconds."""
    tokens_per_s: Annotated[float | None, Between(0, 1e12)] = None
    token_burst: Annotated[float | None, Between(1, 1e12)] = None
    """Tokens at once. Unset: those of four seconds."""
    sessions: Annotated[float | None, Between(0, 1_000_000)] = None
    tokens_per_day: Annotated[float | None, Between(0, 1e15)] = None
    """Tokens from midnight to midnight UTC."""
    weight: Annotated[float | None, Above(0, 1000)] = None
    """The tenant's part of the engine among tenants that want more than there is. Unset: 1."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of units a second."""

    limit: Limit
    burst: float


@dataclass(frozen=True, slots=True, eq=False)
class Quota:
    """What one tenant, or one user, may use. None where the file says nothing; the limits of `[admission]` hold then.

    Compared by identity: it is the key of what is made from it.
    """

    requests: Rate | None = None
    tokens: Rate | None = None
    sessions: Limit | None = None
    tokens_per_day: Limit | None = None


_LIMIT_KEYS = frozenset(("requests_per_s", "tokens_per_s", "sessions", "tokens_per_day"))
_BURSTS = {"burst": "requests_per_s", "token_burst": "tokens_per_s"}


@dataclass(frozen=True, slots=True)
class QuotaTable:
    """The quotas of all tenants and users, by the keys of their limits."""

    default_tenant: Quota
    default_user: Quota
    tenants: Mapping[str, Quota]
    tenant_users: Mapping[str, Quota]
    """Those of each user of a tenant, by the tenant's key."""
    users: Mapping[str, Quota]
    weights: Mapping[str, float]
    default_weight: float

    def of_tenant(self, tenant_key: str) -> Quota:
        """Return the quota of a tenant by its `Caller.tenant_key`. That of an unverified name has its address, too."""
        return self.tenants.get(tenant_key, self.default_tenant)

    def of_user(self, owner: str) -> Quota:
        """Return the quota of a user by its `Caller.owner`."""
        found = self.users.get(owner)
        if found is not None:
            return found
        match owner.split("/"):
            case [tenant, "user", _name]:  # a verified one, see Caller.owner
                return self.tenant_users.get(tenant, self.default_user)
        return self.default_user

    def weight_of(self, tenant_key: str) -> float:
        """Return the weight of a tenant by its `Caller.tenant_key`."""
        return self.weights.get(tenant_key, self.default_weight)

    def quotas(self) -> Iterator[tuple[str, Quota]]:
        """Yield every quota, with "tenant" or "user"."""
        yield from (("tenant", each) for each in (self.default_tenant, *self.tenants.values()))
        yield from (("user", each) for each in (self.default_user, *self.tenant_users.values(), *self.users.values()))


def parse_quotas(text: str) -> QuotaTable:
    """Return the quotas that a file describes.

    Raises:
        ConfigError: one line for each fault, which names the key, or the line that is no TOML.

    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"not valid TOML: {error}"
        raise ConfigError(msg) from error
    reader = _Reader()
    table = reader.table(tree)
    if reader.faults:
        raise ConfigError("\n".join(reader.faults))
    return table


@dataclass(frozen=True, slots=True)
class _Named:
    """A section with its name, such as "quotas.tenant.acme"."""

    name: str
    section: Section


class _Reader:
    """Reads the sections, and collects the faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._bounds = bounds_of(Section)

    def table(self, tree: Mapping[str, Any]) -> QuotaTable:
        """Return the quotas of a file; not all of them if there are faults."""
        self._refuse_unknown(tree, ("default", "tenant", _USER), f"{_PREFIX}.")
        default = self._section(self._mapping(tree, "default", _PREFIX), f"{_PREFIX}.default", has_users=True)
        default_user = self._users_of(tree, "default", _PREFIX)
        tenants: dict[str, Quota] = {}
        tenant_users: dict[str, Quota] = {}
        weights: dict[str, float] = {}
        named = self._mapping(tree, "tenant", _PREFIX)
        for tenant in named:
            prefix = f"{_PREFIX}.tenant"
            own = self._section(self._mapping(named, tenant, prefix), f"{prefix}.{tenant}", has_users=True)
            key = tenant_key_of(tenant, "", is_verified=True)
            tenants[key] = _quota(own, default)
            tenant_users[key] = _quota(self._users_of(named, tenant, prefix), default_user)
            weight = own.section.weight or default.section.weight
            weights[key] = DEFAULT_WEIGHT if weight is None else weight
        users: dict[str, Quota] = {}
        by_name = self._mapping(tree, _USER, _PREFIX)
        for name in by_name:
            prefix = f"{_PREFIX}.{_USER}"
            tenant, slash, user = name.partition("/")
            if not slash or not user:
                self.faults.append(f'{prefix}."{name}": must be "TENANT/NAME"')
            own = self._section(self._mapping(by_name, name, prefix), f"{prefix}.{name}", has_weight=False)
            of_tenant = self._users_of(named, tenant, f"{_PREFIX}.tenant", is_checked=True)
            users[key_of(tenant, _USER, user)] = _quota(own, of_tenant, default_user)
        default_weight = DEFAULT_WEIGHT if default.section.weight is None else default.section.weight
        return QuotaTable(_quota(default), _quota(default_user), tenants, tenant_users, users, weights, default_weight)

    def _users_of(self, tree: Mapping[str, Any], name: str, prefix: str, *, is_checked: bool = False) -> _Named:
        """Return the section of each user in a section, empty if there is none. A checked one is not checked again."""
        faults, outer = list(self.faults), tree.get(name, {})
        inner = self._mapping(outer, _USER, f"{prefix}.{name}") if isinstance(outer, Mapping) else {}
        found = self._section(inner, f"{prefix}.{name}.{_USER}", has_weight=False)
        if is_checked:
            self.faults = faults
        return found

    def _mapping(self, tree: Mapping[str, Any], name: str, prefix: str) -> Mapping[str, Any]:
        value = tree.get(name, {})
        if isinstance(value, Mapping):
            return value
        self.faults.append(f"{prefix}.{name}: must be a section, got {value!r}")
        return {}

    def _section(
        self, tree: Mapping[str, Any], name: str, *, has_users: bool = False, has_weight: bool = True
    ) -> _Named:
        known = [each.name for each in fields(Section) if has_weight or each.name != "weight"]
        self._refuse_unknown(tree, [*known, _USER] if has_users else known, f"{name}.")
        values = {key: tree[key] for key in known if key in tree and self._is_valid(tree[key], key, f"{name}.{key}")}
        for burst, rate in _BURSTS.items():
            if burst in values and not values.get(rate):
                self.faults.append(f"{name}.{burst}: needs {rate} beside it")
        return _Named(name, Section(**values))

    def _is_valid(self, value: object, key: str, name: str) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.faults.append(f"{name}: must be a number, got {value!r}")
            return False
        violation = self._bounds[key].violation(value)
        if violation:
            self.faults.append(f"{name}: {violation}, got {value!r}")
        return not violation

    def _refuse_unknown(self, tree: Mapping[str, Any], known: "list[str] | tuple[str, ...]", prefix: str) -> None:
        for key in tree:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
                self.faults.append(f"{prefix}{key}: unknown key; {hint}")


def _quota(*sections: _Named) -> Quota:
    """Return what sections say together; of those that have a key the first counts."""
    limits: dict[str, tuple[Limit, Section]] = {}
    for each in reversed(sections):
        for key in _LIMIT_KEYS:
            value = getattr(each.section, key)
            if value is not None:
                limits[key] = Limit(f"{each.name}.{key}", value), each.section
    return Quota(
        _rate(limits.get("requests_per_s"), "burst", _BURST_S),
        _rate(limits.get("tokens_per_s"), "token_burst", _TOKEN_BURST_S),
        limits["sessions"][0] if "sessions" in limits else None,
        limits["tokens_per_day"][0] if "tokens_per_day" in limits else None,
    )


def _rate(found: tuple[Limit, Section] | None, burst_key: str, burst_s: float) -> Rate | None:
    if found is None:
        return None
    limit, section = found
    burst = getattr(section, burst_key)
    return Rate(limit, max(1.0, math.ceil(burst_s * limit.allowed)) if burst is None else burst)
