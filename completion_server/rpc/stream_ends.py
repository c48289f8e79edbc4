"""When a Session stream ends: at its time limits, and when its caller is not verified any more."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from completion_server.admission.callers import Callers
from completion_server.admission.identity import Identity
from completion_server.auth.principal import Principal, Scope
from completion_server.core.errors import PermissionDeniedError, UnauthenticatedError

CHECK_EVERY_S = 2.0
"""A stream without messages checks its caller as often, so that it ends soon after a key is revoked."""
GRACE_S = 30.0
"""How long a stream whose token has expired waits for a new one."""


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The time limits of a stream, in seconds."""

    first_request_s: float
    """From its start to its first message."""
    idle_s: float
    """From one message to the next."""
    max_age_s: float
    stall_timeout_s: float
    """How long a write may block."""

    def end(self, opened_at: float, received_at: float | None, *, is_busy: bool) -> tuple[float, str]:
        """Return the time at which a stream ends if it gets no further message, and the reason.

        `received_at` is the time of its last message, None if there was none. A busy stream, which has open requests,
        is not idle.
        """
        ends = [(opened_at + self.max_age_s, f"it is {self.max_age_s:.3g} s old (server.max_session_age_s)")]
        if received_at is None:
            reason = f"no request came within {self.first_request_s:g} s (admission.first_request_s)"
            ends.append((opened_at + self.first_request_s, reason))
        elif not is_busy:
            ends.append((received_at + self.idle_s, f"no message for {self.idle_s:g} s (admission.session_idle_s)"))
        return min(ends)


class VerifiedCaller:
    """The caller of one stream while authentication is on; its token may expire or be revoked meanwhile."""

    def __init__(
        self, callers: Callers, identity: Identity, principal: Principal, wall_s: Callable[[], float] = time.time
    ) -> None:
        """Begin with the caller that the stream was opened by. `wall_s` returns Unix time in seconds."""
        self._callers = callers
        self._identity = identity
        self._principal = principal
        self._wall_s = wall_s
        self._expired_at: float | None = None

    def check(self, now: float) -> None:
        """Check that the stream may go on. `now` is the time in seconds of a clock that never jumps.

        Raises:
            UnauthenticatedError: the credential was revoked, or expired and no new one came in time.

        """
        if self._callers.is_current(self._identity):
            return
        name = f"{self._principal.kind} {self._principal.credential}"
        if self._wall_s() < self._principal.expires_at:
            msg = f"{name}: was revoked"
            raise UnauthenticatedError(msg)
        if self._expired_at is None:
            self._expired_at = now
        if now - self._expired_at >= GRACE_S:
            msg = f"{name}: expired, and no valid one came within {GRACE_S:g} s"
            raise UnauthenticatedError(msg)

    def renew(self, identity: Identity) -> None:
        """Go on as the caller that a new token names.

        Raises:
            PermissionDeniedError: that is another user, or one of another tenant.

        """
        if (identity.tenant, identity.user) != (self._identity.tenant, self._identity.user) or not identity.principal:
            raise PermissionDeniedError("authorization: must name the user and the tenant that opened the stream")
        self._identity, self._principal, self._expired_at = identity, identity.principal, None

    def require(self, scope: Scope) -> None:
        """Check that the caller may do what a scope names.

        Raises:
            PermissionDeniedError: it may not.

        """
        if scope not in self._principal.scopes:
            msg = f"{self._principal.kind} {self._principal.credential}: lacks the scope {scope.value}"
            raise PermissionDeniedError(msg)
