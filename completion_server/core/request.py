"""A validated completion request, the type that every package below rpc works on."""

import itertools
from dataclasses import field, replace
from enum import Enum, IntEnum
from functools import lru_cache
from urllib.parse import quote

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.credential import Credential, Scope
from completion_server.core.immutable import immutable
from completion_server.core.next_edit import NextEdit
from completion_server.core.trace_context import TraceContext

_stream_numbers = itertools.count(1)


class Trigger(IntEnum):
    """The cause of a request; the smaller value is served first."""

    EXPLICIT = 0
    AUTOMATIC = 1
    PREFETCH = 2


class Mode(Enum):
    """The extent of a completion, or the next edit instead of one."""

    SINGLE_LINE = "single_line"
    MULTI_LINE = "multi_line"
    NEXT_EDIT = "next_edit"
    """No text at the cursor, but a change to the lines around it."""


@immutable
class Snippet:
    """Text from another place of the code base, as context for the completion."""

    uri: str
    text: str
    score: float = 0.0


@lru_cache(4096)
def _quoted(part: str) -> str:
    return quote(part, safe="")


def key_of(*parts: str) -> str:
    """Return a key made of several names, the same in every process. Different names never give the same key."""
    return "/".join(map(_quoted, parts))


def _is_within_host(peer: str) -> bool:
    """Return whether a peer's key is that of a Unix socket or of a loopback address."""
    return not peer or peer.startswith("127.") or peer == "::/64"


@immutable
class Caller:
    """Who calls: known from the connection, the metadata and the credential. The session id comes from the message."""

    user: str = ""
    """Name of the user; "" if the call gives none. The session on its connection then takes the user's place."""
    session: str = ""
    """"" before the first message."""
    tenant: str = ""
    """Tenants never share prefix-cache entries; "" is one common tenant."""
    connection: str = ""
    """Key of the connection: its address and port, or a name for the stream on a Unix socket."""
    peer: str = ""
    """Key of the network address, see `core.addresses.peer_key`; "" on a Unix socket."""
    is_verified: bool = False
    """Whether a verified credential or an authenticating proxy gave the user's name."""
    stream: int = 0
    """Number of the session stream, unique in this process; 0 for a call with a single request."""
    credential: Credential | None = field(default=None, compare=False)
    """The verified credential; None while authentication is off."""

    owner: str = field(init=False)
    """Key of limits, lanes and the cache salt; the tenant is its first part.

    Names and session ids are the caller's own choice. So a name that nothing trusted vouches for belongs to its network
    address, and a session without a name to its connection: a caller elsewhere that gives the same name or id is
    another owner.
    """

    tenant_key: str = field(init=False)
    """Key of the tenant's limits. A name that nothing trusted vouches for belongs to its network address."""

    def __post_init__(self) -> None:
        """Make the keys once: they are read many times for each request."""
        tenant_key = key_of(self.tenant) if self.is_verified else key_of(self.tenant, self.peer)
        if self.is_verified:
            owner = key_of(self.tenant, "user", self.user)
        elif self.user:
            owner = key_of(self.tenant, "user", self.user, self.peer)
        else:
            owner = key_of(self.tenant, "session", self.session, self.connection)
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "tenant_key", tenant_key)

    def in_session(self, session: str) -> "Caller":
        """Return the caller of a single request that gives this session id."""
        return Caller(
            self.user, session, self.tenant, self.connection, self.peer, self.is_verified, self.stream, self.credential
        )

    def on_stream(self, session: str) -> "Caller":
        """Return the caller of a session stream that gives this session id."""
        number = next_stream_number()
        return replace(self, session=session, connection=self.connection or f"stream {number}", stream=number)

    def require(self, scope: Scope) -> None:
        """Check that it may do what a scope names; while authentication is off it may.

        Raises:
            PermissionDeniedError: it may not.

        """
        if self.credential is not None:
            self.credential.require(scope)

    @property
    def limited_peer(self) -> str:
        """Key of the address whose limits count: "" for a verified caller, who may share it with a whole company."""
        return "" if self.is_verified else self.peer

    @property
    def is_known_everywhere(self) -> bool:
        """Whether `owner` means the same caller on every replica.

        A caller without a name belongs to its connection, and an unverified name to an address. That of a connection
        within the host, and a Unix socket's, could be anybody's on another host.
        """
        return self.is_verified or (bool(self.user) and not _is_within_host(self.peer))

    @property
    def memory(self) -> tuple[str, ...] | None:
        """The key under which document text may be kept for the caller's next request; None if none may be kept.

        Unless the user's name is verified, no remembered text crosses from one stream or connection to another. A
        single call without a user has no memory, because another caller may get its connection's address next.
        """
        if self.is_verified:
            return self.tenant, self.user, self.session
        if self.stream:
            return self.tenant, self.user, self.session, f"stream {self.stream}"
        return (self.tenant, self.user, self.session, self.connection) if self.user else None


def next_stream_number() -> int:
    """Return a new `Caller.stream`, unique in this process."""
    return next(_stream_numbers)


@immutable
class Sampling:
    """How tokens are sampled."""

    temperature: float = 0.0
    seed: int | None = None
    speculate: bool = True
    """Whether a draft model may propose tokens."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the same request would have the same answer again: it is greedy or has a seed."""
        return not self.temperature or self.seed is not None


@immutable
class Request:
    """One completion request. Text is whole characters; every limit has been checked."""

    id: str
    """Unique in this process."""
    caller: Caller
    sequence: int
    document_uri: str
    language_id: str
    prefix: str
    suffix: str
    max_tokens: int
    received_at: float
    """Clock seconds at which the server had received it."""
    receive_began_at: float | None = None
    """Clock seconds at which its call began, or its message was read from a stream; None if that is not known."""
    snippets: tuple[Snippet, ...] = ()
    trigger: Trigger = Trigger.AUTOMATIC
    mode: Mode = Mode.SINGLE_LINE
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    deadline: Deadline = NEVER
    use_completion_cache: bool = True
    """If not, the engine computes the answer for this request alone: it is neither taken from the completion cache nor
    kept there, and its generation is shared with no other request."""
    lane: str = ""
    """Name of a lane of its own beside its caller's common one, on which only requests with the same name supersede it.
    Other replicas don't know such lanes."""
    next_edit: NextEdit | None = None
    """Set if `mode` is NEXT_EDIT, and only then."""
    trace: TraceContext | None = None
    """Its place in a trace; None if it is in none. Exemplars may name `trace_id` if `is_sampled`."""
