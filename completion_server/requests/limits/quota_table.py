"""Reads the quotas of tenants and users from the text of `admission.quotas_file`. Pure.

    [default]                # each tenant
    [default.user]           # each user
    [tenant.acme]            # this tenant; keys that it leaves out are those of [default]
    [tenant.acme.user]       # each user of this tenant; else [default.user]
    [user."acme/ada"]        # this user; else [tenant.acme.user]

Only verified names have sections of their own: anybody could give another name. The others have the defaults.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Strict

from completion_server.core.checks import Above, Between, require_bounds
from completion_server.core.errors import ConfigError, Limit
from completion_server.core.request import key_of
from completion_server.core.sections import read_section

DEFAULT_WEIGHT = 1.0
REQUEST_BURST_S, TOKEN_BURST_S = 2.0, 4.0
"""A burst that is not given, and those of `[admission]`: as much as may be sent in this time."""

_Number = Annotated[float, Strict()]
_Count = Annotated[int, Strict()]


@dataclass(frozen=True, slots=True)
class UserSection:
    """One section of the file, as it is written; None for a key that it leaves out, 0 for no limit."""

    requests_per_s: Annotated[_Number | None, Between(0, 1e9)] = None
    burst: Annotated[_Number | None, Between(1, 1e9)] = None
    """Requests at once. Unset: those of two seconds."""
    tokens_per_s: Annotated[_Number | None, Between(0, 1e12)] = None
    token_burst: Annotated[_Number | None, Between(1, 1e12)] = None
    """Tokens at once. Unset: those of four seconds."""
    sessions: Annotated[_Count | None, Between(0, 1_000_000)] = None
    tokens_per_day: Annotated[_Number | None, Between(0, 1e15)] = None
    """Tokens from midnight to midnight UTC."""

    def __post_init__(self) -> None:
        """Check the bounds, and that each burst has its rate."""
        require_bounds(self)
        for burst, rate in (("burst", "requests_per_s"), ("token_burst", "tokens_per_s")):
            if getattr(self, burst) is not None and not getattr(self, rate):
                msg = f"{burst}: needs {rate} beside it"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class TenantSection(UserSection):
    """The section of a tenant, or of all tenants."""

    weight: Annotated[_Number | None, Above(0, 1000)] = None
    """The tenant's part of the engine among tenants that want more than there is. Unset: 1."""
    user: UserSection = UserSection()


@dataclass(frozen=True, slots=True)
class _File:
    default: TenantSection = TenantSection()
    tenant: dict[str, TenantSection] = field(default_factory=dict)
    user: dict[str, UserSection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.user:
            if not name.partition("/")[2]:
                msg = f'user."{name}": must be "TENANT/NAME"'
                raise ValueError(msg)


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
    file = read_section(_File, tree, "quotas")
    default, default_user = ("quotas.default", file.default), ("quotas.default.user", file.default.user)
    default_weight = file.default.weight or DEFAULT_WEIGHT
    tenants, tenant_users, weights = dict[str, Quota](), dict[str, Quota](), dict[str, float]()
    users_of = {name: (f"quotas.tenant.{name}.user", tenant.user) for name, tenant in file.tenant.items()}
    for name, tenant in file.tenant.items():
        key = key_of(name)
        tenants[key] = _quota((f"quotas.tenant.{name}", tenant), default)
        tenant_users[key] = _quota(users_of[name], default_user)
        weights[key] = tenant.weight or default_weight
    users: dict[str, Quota] = {}
    for name, user in file.user.items():
        tenant_name, _, user_name = name.partition("/")
        of_tenant = [users_of[tenant_name]] if tenant_name in users_of else []
        users[key_of(tenant_name, "user", user_name)] = _quota((f"quotas.user.{name}", user), *of_tenant, default_user)
    return QuotaTable(_quota(default), _quota(default_user), tenants, tenant_users, users, weights, default_weight)


def _quota(*named: tuple[str, UserSection]) -> Quota:
    """Return what sections say together; of those that have a key the first counts."""

    def limit(key: str) -> tuple[Limit, UserSection] | None:
        for name, section in named:
            if (value := getattr(section, key)) is not None:
                return Limit(f"{name}.{key}", value), section
        return None

    requests, tokens = limit("requests_per_s"), limit("tokens_per_s")
    sessions, tokens_per_day = limit("sessions"), limit("tokens_per_day")
    return Quota(
        requests and _rate(requests[0], requests[1].burst, REQUEST_BURST_S),
        tokens and _rate(tokens[0], tokens[1].token_burst, TOKEN_BURST_S),
        sessions and sessions[0],
        tokens_per_day and tokens_per_day[0],
    )


def _rate(limit: Limit, burst: float | None, burst_s: float) -> Rate:
    return Rate(limit, burst_of(limit.allowed, burst_s) if burst is None else burst)


def burst_of(units_per_s: float, burst_s: float) -> float:
    """Return how many units may come at once at a rate: those of `burst_s`, at least one."""
    return max(1.0, math.ceil(burst_s * units_per_s))
