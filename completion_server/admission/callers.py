"""Identifies the callers of one listener, whatever its transport, and turns those away that are refused too often.

A call that lasts is watched: it ends soon after its caller's credential is revoked.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from completion_server.admission.entrance import Arrival, Entrance
from completion_server.admission.identity import Identity
from completion_server.admission.refusals import MAX_HOLD_S, Refusals
from completion_server.auth.principal import Scope
from completion_server.core.errors import CompletionError, Fault, PermissionDeniedError, UnauthenticatedError
from completion_server.core.outcome import FinishReason, Outcome

CHECK_EVERY_S = 2.0
"""How often the caller of a running call is checked, so that the call ends soon after a key is revoked."""
GRACE_S = 30.0
"""How long a call whose token has expired may go on, and a stream may wait for a new one."""


class Callers:
    """The callers of one listener."""

    def __init__(self, entrance: Entrance, refusals: Refusals) -> None:
        """Let callers in by `entrance`; refused calls are charged to `refusals`."""
        self._entrance = entrance
        self.refusals = refusals
        self._watched: dict[VerifiedCaller, Callable[[Outcome], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Runs while callers are watched: one for all, since most calls end before it."""

    @property
    def is_open(self) -> bool:
        """Whether authentication is off."""
        return self._entrance.is_open

    async def identify(self, arrival: Arrival, scope: Scope = Scope.COMPLETE) -> Identity:
        """Return the caller of a call, who may do what `scope` names.

        Raises:
            TooManyRefusalsError: it is over its budget of refused bytes; the wait before it slows the caller down.
            CompletionError: as `Entrance.identify`.

        """
        try:
            identity = await self._entrance.identify(arrival, scope)
        except CompletionError as error:
            if error.fault is Fault.CALLER:
                stranger = Identity("", "", arrival.connection, arrival.peer)
                await self._turn_away(stranger)
                self.refusals.charge(stranger, 0)
            raise
        await self._turn_away(identity)
        return identity

    def is_current(self, identity: Identity) -> bool:
        """Return whether a caller is still who it was: its credential is not revoked or expired."""
        return self._entrance.is_current(identity)

    @contextmanager
    def watching(self, identity: Identity, end: Callable[[Outcome], None]) -> Iterator[None]:
        """Have `end` called with an error if a caller is not verified any more while the context lasts."""
        if identity.principal is None:
            yield
            return
        verified = VerifiedCaller(self, identity)
        self._watched[verified] = end
        self._check_later()
        try:
            yield
        finally:
            del self._watched[verified]

    def _check_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._check_watched)

    def _check_watched(self) -> None:
        now, self._timer = asyncio.get_running_loop().time(), None
        for verified, end in tuple(self._watched.items()):
            try:
                verified.check(now)
            except UnauthenticatedError as error:
                end(Outcome(FinishReason.ERROR, error=error))
        if self._watched:
            self._check_later()

    async def _turn_away(self, identity: Identity) -> None:
        error = self.refusals.over_budget(identity)
        if error is not None:
            await asyncio.sleep(min(MAX_HOLD_S, (error.retry_after_ms or 0) / 1000))
            raise error


class VerifiedCaller:
    """The caller of one call, whose credential may expire or be revoked meanwhile."""

    def __init__(self, callers: Callers, identity: Identity, wall_s: Callable[[], float] = time.time) -> None:
        """Begin with the caller that opened the call. `wall_s` returns Unix time in seconds."""
        self._callers = callers
        self.identity = identity
        self._wall_s = wall_s
        self._expired_at: float | None = None

    def check(self, now: float) -> bool:
        """Check that the call may go on; return whether the credential has expired, so that a new one must come.

        `now` is the time in seconds of a clock that never jumps.

        Raises:
            UnauthenticatedError: the credential was revoked, or expired and no new one came in time.

        """
        principal = self.identity.principal
        if principal is None or self._callers.is_current(self.identity):
            return False
        name = f"{principal.kind} {principal.credential}"
        if self._wall_s() < principal.expires_at:
            msg = f"{name}: was revoked"
            raise UnauthenticatedError(msg)
        if self._expired_at is None:
            self._expired_at = now
        if now - self._expired_at >= GRACE_S:
            msg = f"{name}: expired, and no valid one came within {GRACE_S:g} s"
            raise UnauthenticatedError(msg)
        return True

    def renew(self, identity: Identity) -> None:
        """Go on as the caller that a new token names.

        Raises:
            PermissionDeniedError: that is another user, or one of another tenant.

        """
        opened = self.identity
        if (identity.tenant, identity.user) != (opened.tenant, opened.user) or identity.principal is None:
            raise PermissionDeniedError("authorization: must name the user and the tenant that opened the stream")
        self.identity, self._expired_at = identity, None

    def require(self, scope: Scope) -> None:
        """Check that the caller may do what a scope names.

        Raises:
            PermissionDeniedError: it may not.

        """
        principal = self.identity.principal
        if principal is not None and scope not in principal.scopes:
            msg = f"{principal.kind} {principal.credential}: lacks the scope {scope.value}"
            raise PermissionDeniedError(msg)
