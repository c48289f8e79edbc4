"""The gate: refuses callers while the server can't serve, and limits the number of open sessions."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from completion_server.admission.keyed_sessions import KeyedSessions, NamedSessions, choose_by
from completion_server.core import descriptors
from completion_server.core.checks import DAY_S, Above, Between, require_bounds
from completion_server.core.errors import (
    DrainingError,
    Limit,
    OverloadedError,
    ServerFullError,
    UnavailableError,
)
from completion_server.limits.local import LocalLimiters, LocalSessions
from completion_server.limits.shared import Limiters

_USERS_PER_PEER = 2
_SESSIONS_PER_PEER = 256
_SESSIONS = 16_000
_MAX_RETRY_AFTER_MS = 60_000
"""Longest time after which a caller is told to retry while the engine starts: it may be ready sooner than predicted."""


class Readiness(Enum):
    """Whether the server can serve."""

    STARTING = "starting"
    READY = "ready"
    ENGINE_DOWN = "engine_down"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """The `[admission]` section."""

    max_sessions: Annotated[int | None, Between(1, 1_000_000)] = None
    """Session streams that may be open at once. After a reconnect, an editor's old stream counts until it has ended.
    Unset: 16,000, or fewer if the system's limit of open files does not allow as many connections."""
    max_sessions_per_user: Annotated[int, Between(0, 1_000_000)] = 64
    """Session streams of one named user; 0 sets no limit."""
    max_sessions_per_tenant: Annotated[int, Between(0, 1_000_000)] = 0
    """Session streams of one tenant; 0 sets no limit."""
    max_sessions_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """Session streams from one address. 0 sets no limit. Unset: 256, or no limit with `trust_user_names`. Each open
    editor needs one. Does not apply to verified callers and Unix sockets."""
    first_request_s: Annotated[float, Above(0, DAY_S)] = 60.0
    """Time in which a new Session stream must send its first request; otherwise the server ends it."""
    session_idle_s: Annotated[float, Above(0, DAY_S)] = 300.0
    """A Session stream that sends nothing for this time is ended; editors open another with their next request. Also
    limits how long the server holds a partly received message."""
    refused_bytes_per_s: Annotated[float, Between(0, 1e12)] = 1024 * 1024
    """Bytes of refused requests that one connection may send in the long run; beyond that all its calls are refused
    unread. A refusal counts as at least 16 KiB. 0 sets no limit. Does not apply to a Unix socket."""
    refused_burst_bytes: Annotated[int, Between(1, 1_000_000_000)] = 8 * 1024 * 1024
    """Bytes of refused requests that one connection may send at once."""
    retry_after_ms: Annotated[int, Between(0, 3_600_000)] = 1000
    """Time after which a refused caller should retry. While the engine starts it is the time that is left if the start
    takes as long as the last one, but at least this value and at most a minute."""
    user_requests_per_s: Annotated[float, Between(0, 1_000_000)] = 20.0
    """Requests that one user may send in the long run; further ones are shed. 0 sets no limit."""
    user_burst: Annotated[int, Between(1, 1_000_000)] = 40
    """Requests that one user may send at once after a quiet time."""
    user_tokens_per_s: Annotated[float, Between(0, 1e9)] = 2000.0
    """Tokens that the engine may compute for one user in the long run: generated tokens, and prompt tokens that are not
    in the prefix cache. A typing user causes a few hundred. 0 sets no limit."""
    user_token_burst: Annotated[int, Between(1, 1_000_000_000)] = 8000
    """Tokens that the engine may compute for one user at once, for example when the user opens files. Allow for several
    prompts of prompt.max_prompt_tokens."""
    tenant_requests_per_s: Annotated[float, Between(0, 1e9)] = 0.0
    """Requests that the users of one tenant may send in the long run; further ones are shed. 0 sets no limit. Unless a
    proxy vouches for the names (`trust_user_names`), a tenant's limits apply to each of its addresses."""
    tenant_burst: Annotated[int, Between(1, 1_000_000_000)] = 400
    """Requests that the users of one tenant may send at once after a quiet time."""
    tenant_tokens_per_s: Annotated[float, Between(0, 1e12)] = 0.0
    """Tokens that the engine may compute for one tenant in the long run. 0 sets no limit."""
    tenant_token_burst: Annotated[int, Between(1, 1_000_000_000_000)] = 80_000
    """Tokens that the engine may compute for one tenant at once."""
    assumed_replicas: Annotated[int, Between(1, 10_000)] = 1
    """The number of replicas that a replica assumes until it reaches Redis for the first time. Until then each user and
    tenant has this part of its limits here. Without `redis.addresses` it has no effect."""
    users_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """The callers of one address together are guaranteed the limits of this many users. What exceeds them is shed only
    while the engine has no capacity to spare. 0 sets no limit. Unset: 2, or no limit with `trust_user_names`. Does not
    apply to verified callers and Unix sockets."""
    quotas_file: str = ""
    """A TOML file with the quotas of tenants and users, reread when it changes. What it gives a tenant or a user takes
    the place of the limits here. Unset: all have the limits here."""
    require_user: bool = False
    """Whether every call must name its user in the metadata `x-user-id`."""
    trust_user_names: bool = False
    """Whether user names are verified, because only a proxy that authenticates callers and sets `x-user-id` can reach
    this server. A user is then the same user at every address. Addresses have no limits, because they are the
    proxy's."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)

    @property
    def num_users_per_peer(self) -> int:
        """The effective value of `users_per_peer`; 0 for no limit."""
        return self._per_peer(self.users_per_peer, _USERS_PER_PEER)

    @property
    def num_sessions_per_peer(self) -> int:
        """The effective value of `max_sessions_per_peer`; 0 for no limit."""
        return self._per_peer(self.max_sessions_per_peer, _SESSIONS_PER_PEER)

    def _per_peer(self, given: int | None, otherwise: int) -> int:
        if given is not None:
            return given
        return 0 if self.trust_user_names else otherwise


_REFUSALS = {
    Readiness.STARTING: "the engine is starting",
    Readiness.ENGINE_DOWN: "the engine failed and is being restarted",
    Readiness.DRAINING: "the server is shutting down",
}


def retry_after_ms(settings: AdmissionSettings, remaining_start_s: float | None) -> int:
    """Return when a caller should retry while the engine starts, from the predicted time that is left, if known."""
    remaining_ms = math.ceil(1000 * (remaining_start_s or 0.0))
    return max(settings.retry_after_ms, min(_MAX_RETRY_AFTER_MS, remaining_ms))


Holder = tuple[KeyedSessions, str]
"""Counted sessions, and the key that a session is counted for."""


class Gate:
    """Decides whether a caller is admitted. The composition root sets the state of the engine."""

    def __init__(
        self,
        settings: AdmissionSettings,
        remaining_start_s: Callable[[], float | None] = lambda: None,
        limiters: Limiters | None = None,
        named: NamedSessions | None = None,
    ) -> None:
        """Start closed: no request is served before the engine is warm.

        `remaining_start_s` predicts how long that takes, while the engine starts. `limiters` make the limits of users
        and tenants, where `named` has no others; an address has its limit on each replica.
        """
        self._settings = settings
        self._remaining_start_s = remaining_start_s
        self._is_engine_ready = False
        self._is_draining = False
        self._was_ready = False
        self.num_sessions = 0
        self._max_sessions = settings.max_sessions or min(_SESSIONS, descriptors.max_connections())
        limiters = limiters or LocalLimiters()
        num_users, num_tenants = settings.max_sessions_per_user, settings.max_sessions_per_tenant
        users = limiters.sessions("user_sessions", num_users), Limit("admission.max_sessions_per_user", num_users)
        tenants = (
            limiters.sessions("tenant_sessions", num_tenants),
            Limit("admission.max_sessions_per_tenant", num_tenants),
        )
        num_peers = settings.num_sessions_per_peer
        peers = LocalSessions(num_peers), Limit("admission.max_sessions_per_peer", num_peers)
        self._users = KeyedSessions(choose_by(named.user_sessions if named else None, users))
        self._tenants = KeyedSessions(choose_by(named.tenant_sessions if named else None, tenants))
        self._peers = KeyedSessions(choose_by(None, peers))
        if named is not None:
            named.on_change(self._users.move)
            named.on_change(self._tenants.move)

    @property
    def readiness(self) -> Readiness:
        """Whether the server can serve now."""
        if self._is_draining:
            return Readiness.DRAINING
        if self._is_engine_ready:
            return Readiness.READY
        return Readiness.ENGINE_DOWN if self._was_ready else Readiness.STARTING

    @property
    def is_draining(self) -> bool:
        """Whether the server is draining."""
        return self._is_draining

    def set_engine_ready(self, is_ready: bool) -> None:
        """Open the gate if the engine is ready, else close it."""
        self._is_engine_ready = is_ready
        self._was_ready = self._was_ready or is_ready

    def drain(self) -> None:
        """Refuse all new requests and sessions from now on."""
        self._is_draining = True

    def check(self) -> None:
        """Check that the server can serve.

        Raises:
            DrainingError: it is shutting down.
            UnavailableError: it can't serve now; the error says when to retry.

        """
        readiness = self.readiness
        if readiness is Readiness.READY:
            return
        text = _REFUSALS[readiness]
        if readiness is Readiness.DRAINING:
            raise DrainingError(text, retry_after_ms=self._settings.retry_after_ms)
        raise UnavailableError(text, retry_after_ms=retry_after_ms(self._settings, self._remaining_start_s()))

    def enter_session(self, user: str | None = None, peer: str = "", tenant: str | None = None) -> ExitStack:
        """Admit a session stream, which is counted until what this returns is closed.

        The arguments are the keys of a named user, of the address and of the tenant.

        Raises:
            UnavailableError: the server can't serve now.
            ServerFullError: the limit of open sessions of this server is reached.
            OverloadedError: that of this user, tenant or address is reached.

        """
        self.check()
        if self.num_sessions >= self._max_sessions:
            full = Limit("admission.max_sessions", self._max_sessions)
            raise self._overloaded(f"{self.num_sessions} sessions are open", full, ServerFullError)
        holders = tuple(self._holders(user, peer, tenant))
        self.num_sessions += 1
        for sessions, key in holders:
            sessions.enter(key)
        permit = ExitStack()
        permit.callback(self._leave_session, holders)
        return permit

    def _leave_session(self, holders: tuple[Holder, ...]) -> None:
        self.num_sessions -= 1
        for sessions, key in holders:
            sessions.leave(key)

    def _holders(self, user: str | None, peer: str, tenant: str | None) -> Iterator[Holder]:
        """Yield each limit that the session counts for, with its key. Raises OverloadedError if one is reached."""
        for sessions, key, scope in (
            (self._users, user, "of this user"),
            (self._tenants, tenant, "of this tenant"),
            (self._peers, peer or None, "from this address"),
        ):
            if key is not None:
                if sessions.is_full(key):
                    raise self._full(sessions, key, scope)
                yield sessions, key

    def _full(self, sessions: KeyedSessions, key: str, scope: str) -> OverloadedError:
        limit, wait_s = sessions.limit(key), sessions.more_in_s(key)
        open_sessions = f"{sessions.num_open(key)} sessions {scope} are open"
        if wait_s is None:
            return self._overloaded(open_sessions, limit)
        msg = f"{open_sessions} here, all that this replica may open now of the shared limit ({limit.name})"
        return OverloadedError(msg, retry_after_ms=math.ceil(1000 * wait_s), limit=limit)

    def _overloaded(self, state: str, limit: Limit, kind: type[OverloadedError] = OverloadedError) -> OverloadedError:
        msg = f"{state}, the limit of this server ({limit.name})"
        return kind(msg, retry_after_ms=self._settings.retry_after_ms, limit=limit)
