"""Who calls, as the connection says it: the only place where a user, a tenant or a peer comes from."""

from dataclasses import dataclass
from typing import Any

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Caller
from completion_server.rpc.settings import LimitSettings

_USER_KEY = "x-user-id"
_TENANT_KEY = "x-tenant-id"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a call's connection and metadata say of its caller."""

    user: str
    """"" where the metadata names none."""
    tenant: str
    connection: str
    """Address and port of the other end; "" on a Unix socket, where connections can't be told apart."""

    @property
    def peer(self) -> str:
        """The address of the other end, "" on a Unix socket."""
        return self.connection.rpartition(":")[0]

    def caller(self, session: str) -> Caller:
        """Return the caller of a request that gives this session id."""
        return Caller(self.user, session, self.tenant, self.connection)


def identity_of(context: Any, limits: LimitSettings) -> Identity:
    """Return who calls.

    Raises:
        InvalidRequestError: a name is too long.

    """
    found = {_USER_KEY: "", _TENANT_KEY: ""}
    for key, value in context.invocation_metadata() or ():
        if key in found:
            found[key] = value if isinstance(value, str) else value.decode("ascii", "replace")
            if len(found[key]) > limits.max_session_id_bytes:
                limit = f"must be at most {limits.max_session_id_bytes} bytes, got {len(found[key])}"
                raise InvalidRequestError(f"metadata {key}", limit)
    scheme, _, connection = context.peer().partition(":")
    return Identity(found[_USER_KEY], found[_TENANT_KEY], "" if scheme == "unix" else connection)
