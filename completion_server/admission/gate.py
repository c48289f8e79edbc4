"""The gate: refuses callers while the server can't serve, and counts the sessions that it let in."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from completion_server.core import descriptors
from completion_server.core.checks import DAY_S, Above, Between, require_bounds
from completion_server.core.errors import OverloadedError, UnauthenticatedError, UnavailableError

_USERS_PER_PEER = 2
_SESSIONS_PER_PEER = 128
_SESSIONS = 16_000


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
    """Session streams that may be open at once, those included whose editors have just come back on another. Unset:
    16,000, or fewer if the system's limit of open files does not allow as many connections."""
    max_sessions_per_user: Annotated[int, Between(0, 1_000_000)] = 64
    """Session streams of one named user; 0 sets no limit."""
    max_sessions_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """Session streams from one address. 0 sets no limit; None is 128, or no limit with `trust_user_names`. An office
    behind one address, or a proxy, may need more. Does not apply to a Unix socket."""
    first_request_s: Annotated[float, Above(0, DAY_S)] = 60.0
    """A Session stream that has sent nothing after this long is ended."""
    session_idle_s: Annotated[float, Above(0, DAY_S)] = 300.0
    """A Session stream that has sent nothing for this long is ended; editors open another with their next request. Also
    bounds how long a message that was received in part is held."""
    refused_bytes_per_s: Annotated[float, Between(0, 1e12)] = 1024 * 1024
    """Bytes of refused requests that one connection may send for long; beyond it all its calls are refused unread. A
    refusal counts for at least 16 KiB. 0 sets no limit. Does not apply to a Unix socket."""
    refused_burst_bytes: Annotated[int, Between(1, 1_000_000_000)] = 8 * 1024 * 1024
    """Bytes of refused requests that one connection may send at once."""
    retry_after_ms: Annotated[int, Between(0, 3_600_000)] = 1000
    """When a refused caller should ask again."""
    user_requests_per_s: Annotated[float, Between(0, 1_000_000)] = 20.0
    """What one user may ask for long; what is more is shed. 0 sets no limit."""
    user_burst: Annotated[int, Between(1, 1_000_000)] = 40
    """What one user may ask at once, after having asked little."""
    user_tokens_per_s: Annotated[float, Between(0, 1e9)] = 2000.0
    """Tokens that the engine may compute for one user in the long run: generated ones, and those of prompts that the
    prefix cache does not have. A user who types causes a few hundred. 0 sets no limit."""
    user_token_burst: Annotated[int, Between(1, 1_000_000_000)] = 8000
    """Tokens that the engine may compute for one user at once, as when files are opened. Allow for several prompts of
    prompt.max_prompt_tokens."""
    users_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """The callers of one address together may ask for as much as this many users. 0 sets no limit; None is 2, or no
    limit with `trust_user_names`. Callers behind a proxy or a NAT share one address. A Unix socket has no limit."""
    require_user: bool = False
    """Whether every call must name its user in the metadata `x-user-id`."""
    trust_user_names: bool = False
    """Whether user names are true, because only a proxy that authenticates callers and sets `x-user-id` can reach this
    server. A user is then one user at every address, and addresses have no limits, since they are the proxy's."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_bounds(self)

    @property
    def num_users_per_peer(self) -> int:
        """What `users_per_peer` comes to; 0 for no limit."""
        return self._per_peer(self.users_per_peer, _USERS_PER_PEER)

    @property
    def num_sessions_per_peer(self) -> int:
        """What `max_sessions_per_peer` comes to; 0 for no limit."""
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


class Permit:
    """A session's place. Give it back exactly once, by leaving its `with` block."""

    def __init__(self, gate: "Gate", holders: tuple[Hashable, ...]) -> None:
        """Hold a place that counts for each of the `holders`."""
        self._gate = gate
        self._holders = holders

    def __enter__(self) -> None:
        """Hold it."""

    def __exit__(self, *_exc: object) -> None:
        """Give it back."""
        self._gate.leave_session(self._holders)


class Gate:
    """Decides who may come in. The composition root tells it how the server is."""

    def __init__(self, settings: AdmissionSettings) -> None:
        """Start closed: nothing is served before the engine is warm."""
        self._settings = settings
        self._is_engine_ready = False
        self._is_draining = False
        self._was_ready = False
        self.num_sessions = 0
        self._max_sessions = settings.max_sessions or min(_SESSIONS, descriptors.max_connections())
        self._held: Counter[Hashable] = Counter()
        """Open sessions of each named user and of each address."""

    @property
    def num_known(self) -> int:
        """Users and addresses with open sessions that count against a limit."""
        return len(self._held)

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
        """Whether the server is on its way out."""
        return self._is_draining

    def set_engine_ready(self, is_ready: bool) -> None:
        """The engine came or went."""
        self._is_engine_ready = is_ready
        self._was_ready = self._was_ready or is_ready

    def drain(self) -> None:
        """Let nobody in any more."""
        self._is_draining = True

    def check(self) -> None:
        """Let a request pass.

        Raises:
            UnavailableError: the server can't serve now; says when to ask again.

        """
        if self.readiness is not Readiness.READY:
            raise UnavailableError(_REFUSALS[self.readiness], retry_after_ms=self._settings.retry_after_ms)

    def check_user(self, user: str) -> None:
        """Let a caller pass that names its user.

        Raises:
            UnauthenticatedError: it names none, and must.

        """
        if self._settings.require_user and not user:
            msg = "metadata x-user-id: must name the user; admission.require_user is set on this server"
            raise UnauthenticatedError(msg)

    def enter_session(self, user: str | None = None, peer: str = "") -> Permit:
        """Let a session stream in. `user` is the key of a named user; `peer` is the address.

        Raises:
            UnavailableError: the server can't serve now.
            OverloadedError: as many sessions are open as may be, on this server, of this user or from this address.

        """
        self.check()
        settings = self._settings
        self._check_room("", self.num_sessions, self._max_sessions, "max_sessions")
        holders: list[Hashable] = []
        if user is not None and settings.max_sessions_per_user:
            num = self._held["user", user]
            self._check_room(" of this user", num, settings.max_sessions_per_user, "max_sessions_per_user")
            holders.append(("user", user))
        if peer and settings.num_sessions_per_peer:
            num = self._held["peer", peer]
            self._check_room(" from this address", num, settings.num_sessions_per_peer, "max_sessions_per_peer")
            holders.append(("peer", peer))
        self.num_sessions += 1
        self._held.update(holders)
        return Permit(self, tuple(holders))

    def leave_session(self, holders: tuple[Hashable, ...]) -> None:
        """A session stream has ended; its permit says for whom it counted."""
        self.num_sessions -= 1
        for holder in holders:
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]

    def _check_room(self, whose: str, num_open: int, limit: int, key: str) -> None:
        if num_open >= limit:
            msg = f"{num_open} sessions{whose} are open, the limit of this server (admission.{key})"
            raise OverloadedError(msg, retry_after_ms=self._settings.retry_after_ms)
