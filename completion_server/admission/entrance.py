"""The one way in: identifies the caller of each call, whatever its transport."""

from completion_server.admission.identity import Identity
from completion_server.admission.settings import AdmissionSettings, LimitSettings
from completion_server.auth.principal import Authenticator, Credentials, Principal, Scope
from completion_server.core.errors import InvalidRequestError, PermissionDeniedError, UnauthenticatedError
from completion_server.core.events import Actor, AuthenticationRefused, Emit
from completion_server.core.immutable import immutable


@immutable
class Arrival:
    """What a call brings."""

    user: str
    """The name that the metadata claim; it counts only while authentication is off."""
    tenant: str
    connection: str
    peer: str
    credentials: Credentials
    traceparent: str = ""
    tracestate: str = ""


class Entrance:
    """Identifies callers: by verified credentials if authentication is on, else by the names that they give."""

    def __init__(
        self,
        settings: AdmissionSettings,
        limits: LimitSettings,
        authenticator: Authenticator | None = None,
        emit: Emit = lambda _event: None,
    ) -> None:
        """Verify callers by `authenticator`; None leaves authentication off. `emit` hears of those that it refuses."""
        self._emit = emit
        self._settings = settings
        self._limits = limits
        self._authenticator = authenticator

    @property
    def is_open(self) -> bool:
        """Whether authentication is off."""
        return self._authenticator is None

    async def identify(self, arrival: Arrival, scope: Scope = Scope.COMPLETE) -> Identity:
        """Return the caller, who may do what `scope` names.

        Raises:
            InvalidRequestError: a name is too long.
            UnauthenticatedError: authentication is on and nothing valid was presented, or no user is named and one is
                required.
            PermissionDeniedError: the caller lacks the scope.
            UnavailableError: the issuer's keys were never fetched.

        """
        traces = (arrival.traceparent, arrival.tracestate)
        if self._authenticator is None:
            for name, value in (("x-user-id", arrival.user), ("x-tenant-id", arrival.tenant)):
                num_bytes = len(value.encode(errors="replace"))
                if num_bytes > self._limits.max_session_id_bytes:
                    limit = f"must be at most {self._limits.max_session_id_bytes} bytes, got {num_bytes}"
                    raise InvalidRequestError(name, limit)
            if self._settings.require_user and not arrival.user:
                msg = "metadata x-user-id: must name the user; admission.require_user is set on this server"
                raise UnauthenticatedError(msg)
            is_verified = self._settings.trust_user_names and bool(arrival.user)
            return Identity(arrival.user, arrival.tenant, arrival.connection, arrival.peer, is_verified, *traces)
        try:
            principal = await self._authenticator.authenticate(arrival.credentials)
        except UnauthenticatedError as error:
            self._emit(AuthenticationRefused(Actor(peer=arrival.peer), error))
            raise
        if scope not in principal.scopes:
            msg = f"{principal.kind} {principal.credential}: lacks the scope {scope.value}"
            refusal = PermissionDeniedError(msg)
            actor = Actor(principal.user, principal.tenant, principal.credential, arrival.peer, is_verified=True)
            self._emit(AuthenticationRefused(actor, refusal))
            raise refusal
        place = (arrival.connection, arrival.peer)
        return Identity(principal.user, principal.tenant, *place, True, *traces, principal=principal)

    def is_current(self, identity: Identity) -> bool:
        """Return whether the caller is still who it was: its credential is not revoked or expired."""
        principal: Principal | None = identity.principal
        if self._authenticator is None or principal is None:
            return True
        return self._authenticator.is_current(principal)
