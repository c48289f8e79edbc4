"""The gate: refuses callers while the server can't serve, and limits the number of open sessions."""

import math
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from completion_server.core import descriptors
from completion_server.core.checks import DAY_S, Above, Between, require_bounds
from completion_server.core.errors import OverloadedError, UnauthenticatedError, UnavailableError

_USERS_PER_PEER = 2
_SESSIONS_PER_PEER = 128
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
    max_sessions_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """Session streams from one address. 0 sets no limit. Unset: 128, or no limit with `trust_user_names`. An office
    behind one address, or a proxy, may need more. Does not apply to a Unix socket."""
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
    users_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """The callers of one address together have the limits of this many users. 0 sets no limit. Unset: 2, or no limit
    with `trust_user_names`. Callers behind a proxy or a NAT share one address. Does not apply to a Unix socket."""
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


class Permit:
    """Permission for one open session. Release it exactly once, by leaving its `with` block."""

    def __init__(self, gate: "Gate", holders: tuple[Hashable, ...]) -> None:
        """Count one session for each of the `holders`: its user, its address."""
        self._gate = gate
        self._holders = holders

    def __enter__(self) -> None:
        """Do nothing: the session is counted already."""

    def __exit__(self, *_exc: object) -> None:
        """Release the permit."""
        self._gate.leave_session(self._holders)


class Gate:
    """Decides whether a caller is admitted. The composition root sets the state of the engine."""

    def __init__(
        self, settings: AdmissionSettings, remaining_start_s: Callable[[], float | None] = lambda: None
    ) -> None:
        """Start closed: no request is served before the engine is warm.

        `remaining_start_s` predicts how long that takes, while the engine starts.
        """
        self._settings = settings
        self._remaining_start_s = remaining_start_s
        self._is_engine_ready = False
        self._is_draining = False
        self._was_ready = False
        self.num_sessions = 0
        self._max_sessions = settings.max_sessions or min(_SESSIONS, descriptors.max_connections())
        self._held: Counter[Hashable] = Counter()
        """Open sessions of each named user and of each address."""

    @property
    def readiness(self) -> Readiness:
        """Whether the server can serve now."""
        if self._is_draining:
            return Readiness.DRAINING
        if self._is_engine_ready:
            return Readiness.READY
        return Readiness.ENGINE_DOWN if self._was_ready else Readiness.STARTING

    @property
    def num_holders(self) -> int:
        """Number of users and addresses with open sessions."""
        return len(self._held)

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
            UnavailableError: it can't serve now; the error says when to retry.

        """
        readiness = self.readiness
        if readiness is Readiness.READY:
            return
        is_draining = readiness is Readiness.DRAINING
        remaining_s = None if is_draining else self._remaining_start_s()
        raise UnavailableError(_REFUSALS[readiness], retry_after_ms=retry_after_ms(self._settings, remaining_s))

    def check_user(self, user: str) -> None:
        """Check that a caller names its user, if the server requires it.

        Raises:
            UnauthenticatedError: the name is missing.

        """
        if self._settings.require_user and not user:
            msg = "metadata x-user-id: must name the user; admission.require_user is set on this server"
            raise UnauthenticatedError(msg)

    def enter_session(self, user: str | None = None, peer: str = "") -> Permit:
        """Admit a session stream. `user` is the key of a named user; `peer` is the key of the address.

        Raises:
            UnavailableError: the server can't serve now.
            OverloadedError: the limit of open sessions of this server, this user or this address is reached.

        """
        self.check()
        settings = self._settings
        self._check_limit("", self.num_sessions, self._max_sessions, "max_sessions")
        holders: list[Hashable] = []
        if user is not None and settings.max_sessions_per_user:
            num = self._held["user", user]
            self._check_limit(" of this user", num, settings.max_sessions_per_user, "max_sessions_per_user")
            holders.append(("user", user))
        if peer and settings.num_sessions_per_peer:
            num = self._held["peer", peer]
            self._check_limit(" from this address", num, settings.num_sessions_per_peer, "max_sessions_per_peer")
            holders.append(("peer", peer))
        self.num_sessions += 1
        self._held.update(holders)
        return Permit(self, tuple(holders))

    def leave_session(self, holders: tuple[Hashable, ...]) -> None:
        """Count an ended session no longer. `holders` are those of its permit."""
        self.num_sessions -= 1
        for holder in holders:
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]

    def _check_limit(self, scope: str, num_open: int, limit: int, key: str) -> None:
        if num_open >= limit:
            msg = f"{num_open} sessions{scope} are open, the limit of this server (admission.{key})"
            raise OverloadedError(msg, retry_after_ms=self._settings.retry_after_ms)
