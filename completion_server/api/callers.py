"""Finds out who calls: the one place where a `Caller` is made of headers, connection and certificate.

A call that lasts is watched: it ends soon after its caller's credential is revoked.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from completion_server.auth.authenticator import Authenticator
from completion_server.core.credential import Scope
from completion_server.core.errors import InvalidRequestError, PermissionDeniedError, UnauthenticatedError
from completion_server.core.events import AuthenticationRefused, Emit
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Caller
from completion_server.requests.limits.settings import AdmissionSettings, LimitSettings

CHECK_EVERY_S = 2.0
"""How often the caller of a running call is checked, so that the call ends soon after a key is revoked."""
GRACE_S = 30.0
"""How long a call whose token has expired may go on, and a stream may wait for a new one."""
USER, TENANT = "x-user-id", "x-tenant-id"
AUTHORIZATION, API_KEY = "authorization", "x-api-key"
_BEARER = "bearer "


def token_in(headers: Mapping[str, str]) -> str:
    """Return the token or API key in a call's headers, "" without one."""
    authorization = headers.get(AUTHORIZATION, "")
    token = authorization[len(_BEARER) :].strip() if authorization[: len(_BEARER)].lower() == _BEARER else ""
    return token or headers.get(API_KEY, "")


class Callers:
    """Identifies callers: by verified credentials if authentication is on, else by the names that they give."""

    def __init__(
        self,
        settings: AdmissionSettings,
        limits: LimitSettings,
        authenticator: Authenticator | None = None,
        emit: Emit = lambda _event: None,
    ) -> None:
        """Verify callers by `authenticator`; None leaves authentication off. `emit` hears of those that are refused."""
        self._settings = settings
        self._max_name_bytes = limits.max_session_id_bytes
        self._authenticator = authenticator
        self._emit = emit
        self._watched: dict[CredentialWatch, Callable[[Outcome], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Runs while callers are watched: one for all, since most calls end before it."""

    @property
    def is_open(self) -> bool:
        """Whether authentication is off."""
        return self._authenticator is None

    async def identify(
        self,
        headers: Mapping[str, str],
        connection: str,
        peer: str,
        certificate: bytes = b"",
        scope: Scope = Scope.COMPLETE,
    ) -> Caller:
        """Return the caller of a call, who may do what `scope` names.

        `connection` and `peer` are as in `Caller`; `certificate` is in PEM, and the TLS library has verified it.

        Raises:
            InvalidRequestError: a name is too long.
            UnauthenticatedError: authentication is on and nothing valid was presented, or no user is named and one is
                required.
            PermissionDeniedError: the caller lacks the scope.
            UnavailableError: the issuer's keys were never fetched.

        """
        if self._authenticator is None:
            return self._named(headers, connection, peer)
        caller = Caller(peer=peer)
        try:
            verified = await self._authenticator.authenticate(token_in(headers), certificate)
            caller = replace(verified, connection=connection, peer=peer)
            caller.require(scope)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            self._emit(AuthenticationRefused(caller, error))
            raise
        return caller

    def is_current(self, caller: Caller) -> bool:
        """Return whether a caller is still who it was: its credential is not revoked or expired."""
        if self._authenticator is None or caller.credential is None:
            return True
        return self._authenticator.is_current(caller)

    @contextmanager
    def watching(self, caller: Caller, end: Callable[[Outcome], None]) -> Iterator[None]:
        """Have `end` called with an error if a caller is not verified any more while the context lasts."""
        if caller.credential is None:
            yield
            return
        watch = CredentialWatch(self, caller)
        self._watched[watch] = end
        self._check_later()
        try:
            yield
        finally:
            del self._watched[watch]

    def _named(self, headers: Mapping[str, str], connection: str, peer: str) -> Caller:
        user, tenant = headers.get(USER, ""), headers.get(TENANT, "")
        for name, value in ((USER, user), (TENANT, tenant)):
            num_bytes = len(value.encode(errors="replace"))
            if num_bytes > self._max_name_bytes:
                raise InvalidRequestError(name, f"must be at most {self._max_name_bytes} bytes, got {num_bytes}")
        if self._settings.require_user and not user:
            msg = f"metadata {USER}: must name the user; admission.require_user is set on this server"
            raise UnauthenticatedError(msg)
        is_verified = self._settings.trust_user_names and bool(user)
        return Caller(user, "", tenant, connection, peer, is_verified)

    def _check_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._check_watched)

    def _check_watched(self) -> None:
        now, self._timer = asyncio.get_running_loop().time(), None
        for watch, end in tuple(self._watched.items()):
            try:
                watch.check(now)
            except UnauthenticatedError as error:
                end(Outcome(FinishReason.ERROR, error=error))
        if self._watched:
            self._check_later()


class CredentialWatch:
    """Watches the credential of the caller of one call, which may expire or be revoked meanwhile."""

    def __init__(self, callers: Callers, caller: Caller, wall_s: Callable[[], float] = time.time) -> None:
        """Begin with the caller that opened the call. `wall_s` returns Unix time in seconds."""
        self._callers = callers
        self.caller = caller
        self._wall_s = wall_s
        self._expired_at: float | None = None

    def check(self, now: float) -> bool:
        """Check that the call may go on; return whether the credential has expired, so that a new one must come.

        `now` is the time in seconds of a clock that never jumps.

        Raises:
            UnauthenticatedError: the credential was revoked, or expired and no new one came in time.

        """
        credential = self.caller.credential
        if credential is None or self._callers.is_current(self.caller):
            return False
        name = f"{credential.kind} {credential.name}"
        if self._wall_s() < credential.expires_at:
            msg = f"{name}: was revoked"
            raise UnauthenticatedError(msg)
        if self._expired_at is None:
            self._expired_at = now
        if now - self._expired_at >= GRACE_S:
            msg = f"{name}: expired, and no valid one came within {GRACE_S:g} s"
            raise UnauthenticatedError(msg)
        return True

    def renew(self, caller: Caller) -> None:
        """Go on as the caller that a new token names.

        Raises:
            PermissionDeniedError: that is another user, or one of another tenant.

        """
        opened = self.caller
        if (caller.tenant, caller.user) != (opened.tenant, opened.user) or caller.credential is None:
            raise PermissionDeniedError("authorization: must name the user and the tenant that opened the stream")
        self.caller, self._expired_at = replace(opened, credential=caller.credential), None
