"""The gate: refuses callers while the server can't serve, and limits the number of open sessions."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from enum import Enum

from completion_server.core import descriptors
from completion_server.core.errors import (
    DrainingError,
    Limit,
    OverloadedError,
    ServerFullError,
    UnavailableError,
)
from completion_server.core.request import Caller
from completion_server.requests.limits.file_quotas import FileQuotas
from completion_server.requests.limits.settings import AdmissionSettings

_SESSIONS = 16_000
_MAX_RETRY_AFTER_MS = 60_000
"""Longest time after which a caller is told to retry while the engine starts: it may be ready sooner than predicted."""


class Readiness(Enum):
    """Whether the server can serve."""

    STARTING = "starting"
    READY = "ready"
    ENGINE_DOWN = "engine_down"
    DRAINING = "draining"


_REFUSALS = {
    Readiness.STARTING: "the engine is starting",
    Readiness.ENGINE_DOWN: "the engine failed and is being restarted",
    Readiness.DRAINING: "the server is shutting down",
}


def retry_after_ms(settings: AdmissionSettings, remaining_start_s: float | None) -> int:
    """Return when a caller should retry while the engine starts, from the predicted time that is left, if known."""
    remaining_ms = math.ceil(1000 * (remaining_start_s or 0.0))
    return max(settings.retry_after_ms, min(_MAX_RETRY_AFTER_MS, remaining_ms))


class _Sessions:
    """Counts the open sessions of each user, tenant or address. A limit of 0 sets none."""

    def __init__(self, otherwise: Limit, named: Callable[[str], Limit | None] = lambda _key: None) -> None:
        """`named` returns the limit that a key has now; a key without one has `otherwise`."""
        self.open: Counter[str] = Counter()
        self._otherwise = otherwise
        self._named = named

    def limit(self, key: str) -> Limit:
        return self._named(key) or self._otherwise

    def leave(self, key: str) -> None:
        self.open[key] -= 1
        if not self.open[key]:
            del self.open[key]


Holder = tuple[_Sessions, str]
"""Counted sessions, and the key that a session is counted for."""


class Gate:
    """Decides whether a caller is admitted. The composition root sets the state of the engine."""

    def __init__(
        self,
        settings: AdmissionSettings,
        remaining_start_s: Callable[[], float | None] = lambda: None,
        named: FileQuotas | None = None,
    ) -> None:
        """Start closed: no request is served before the engine is warm.

        `remaining_start_s` predicts how long that takes, while the engine starts. `named` has the limits of users and
        tenants that differ from the settings.
        """
        self._settings = settings
        self._remaining_start_s = remaining_start_s
        self._is_engine_ready = False
        self._is_draining = False
        self._was_ready = False
        self.num_sessions = 0
        self._max_sessions = settings.max_sessions or min(_SESSIONS, descriptors.max_connections())
        users = Limit("admission.max_sessions_per_user", settings.max_sessions_per_user)
        self._users = _Sessions(users, named.user_sessions) if named else _Sessions(users)
        self._tenants = _Sessions(Limit("admission.quotas_file", 0), named.tenant_sessions) if named else None
        self._peers = _Sessions(Limit("admission.users_per_peer", settings.num_sessions_per_peer))

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

    def enter_session(self, caller: Caller) -> ExitStack:
        """Admit a session stream, which is counted until what this returns is closed.

        Raises:
            UnavailableError: the server can't serve now.
            ServerFullError: the limit of open sessions of this server is reached.
            OverloadedError: that of this user, tenant or address is reached.

        """
        self.check()
        if self.num_sessions >= self._max_sessions:
            full = Limit("admission.max_sessions", self._max_sessions)
            raise self._overloaded(f"{self.num_sessions} sessions are open", full, ServerFullError)
        holders = tuple(self._holders(caller))
        self.num_sessions += 1
        for sessions, key in holders:
            sessions.open[key] += 1
        permit = ExitStack()
        permit.callback(self._leave_session, holders)
        return permit

    def _leave_session(self, holders: tuple[Holder, ...]) -> None:
        self.num_sessions -= 1
        for sessions, key in holders:
            sessions.leave(key)

    def _holders(self, caller: Caller) -> Iterator[Holder]:
        """Yield each limit that the session counts for, with its key. Raises OverloadedError if one is reached."""
        for sessions, key, scope in (
            (self._users, caller.owner if caller.user else None, "of this user"),
            (self._tenants, caller.tenant_key, "of this tenant"),
            (self._peers, caller.limited_peer or None, "from this address"),
        ):
            if sessions is not None and key is not None:
                num_open, limit = sessions.open[key], sessions.limit(key)
                if 0 < limit.allowed <= num_open:
                    raise self._overloaded(f"{num_open} sessions {scope} are open", limit)
                yield sessions, key

    def _overloaded(self, state: str, limit: Limit, kind: type[OverloadedError] = OverloadedError) -> OverloadedError:
        msg = f"{state}, the limit of this server ({limit.name})"
        return kind(msg, retry_after_ms=self._settings.retry_after_ms, limit=limit)
