"""Settings of the listeners, of TLS, of the sizes of requests and of admission."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from completion_server.core.addresses import is_unix_socket, split_address
from completion_server.core.checks import DAY_S, Above, Between, require_bounds
from completion_server.requests.limits.quota_table import REQUEST_BURST_S, TOKEN_BURST_S

MIB = 1024 * 1024
_MAX_MESSAGE_BYTES = 2**31 - 1
_FIELD_BYTES = 12
"""Maximum bytes of a field's tag and length, or of its tag and number."""
_USERS_PER_PEER = 2
_REGION = re.compile("[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_OTHER_BYTES = 4096
"""Allowance for numeric fields and for fields of a newer contract."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """A TLS section: PEM files. Empty names mean no TLS."""

    certificate: str = ""
    """The server's certificate chain."""
    key: str = ""
    """Its private key."""
    client_ca: str = ""
    """The certificate authority of clients. If set, clients must present a certificate that it signed."""

    def __post_init__(self) -> None:
        """Check that the certificate and the key are given together."""
        if bool(self.certificate) != bool(self.key):
            msg = "certificate: needs key beside it, and key needs certificate"
            raise ValueError(msg)
        if self.client_ca and not self.certificate:
            msg = "client_ca: needs certificate and key beside it"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The `[server]` section."""

    listen: str = "127.0.0.1:50051"
    """HOST:PORT, or unix:PATH; port 0 takes a free one."""
    admin_listen: str = "127.0.0.1:50052"
    """AdminService's own listener; keep it on loopback. Elsewhere it needs `server.admin_tls`, and authentication or
    client certificates. "" switches it off."""
    metrics_listen: str = "127.0.0.1:9464"
    """HTTP: Prometheus metrics at /metrics, health at /healthz (the process runs) and /readyz (the server accepts
    requests). "" switches it off."""
    http_listen: str = ""
    """HOST:PORT for plugins of other servers: the dialects of OpenAI, Codestral, llama.cpp and Tabby. At / it has a
    page to try completions on (docs/editors.md). On loopback it is plain HTTP, elsewhere it has `server.tls`. ""
    switches it off."""
    http_hosts: tuple[str, ...] = ()
    """Names under which browsers and plugins may address `http_listen`, besides IP addresses, localhost and,
    over TLS, those of the certificate. Others are refused: a web page could point a name of its own at this server."""
    http_admin: bool = False
    """Whether a browser on this machine may change the server from the page of `http_listen`, if `admin_listen` is on
    and needs no client certificate. A proxy on this machine may pass that right on to all its callers. With
    authentication on, a token with the scope admin may, from any machine."""
    tls: TlsSettings = TlsSettings()
    admin_tls: TlsSettings = TlsSettings()
    insecure: bool = False
    """Whether other machines may reach `listen`, `http_listen` and `admin_listen` although they lack TLS or
    authentication; else the server refuses to start then. For a network in which only a proxy that authenticates
    callers reaches this server. `serve --insecure` sets it."""
    region: str = ""
    """Name of the region that this server is in, such as us-east: lower-case letters, digits and, between them, "-",
    at most 32 characters. Status, metrics and traces show it."""
    reflection: bool = True
    """Whether to serve gRPC reflection, so that tools such as grpcurl can read the contract."""
    grace_s: Annotated[float, Above(0, DAY_S)] = 10.0
    """How long accepted requests may take to finish after SIGTERM."""
    max_connections: Annotated[int | None, Between(1, 1_000_000)] = None
    """Connections that may be open at once; further ones are closed. Unset: as many as the system's limit of open files
    allows."""

    http_max_connections: ClassVar[int] = 1024
    """HTTP connections that may be open at once; further ones are closed."""
    max_concurrent_streams: ClassVar[int] = 128
    """Calls and Session streams that may be open on one connection; gRPC clients queue further ones."""
    receive_timeout_s: ClassVar[float] = 10.0
    """How long the server waits for the whole request of a call."""
    stall_timeout_s: ClassVar[float] = 5.0
    """How long a write may block because the client does not read; then the call is reset."""
    delta_pause_ms: ClassVar[float] = 20.0
    """Minimum time between two messages with text of one answer. The first text and the End are never delayed."""
    stop_timeout_s: ClassVar[float] = 15.0
    """How long a stop may take after `grace_s`. Then the process ends with status 1 and says what did not end."""
    max_connection_age_s: ClassVar[float] = 3600.0
    """Age, plus or minus 10%, at which a connection accepts no more calls; clients open another."""
    max_connection_age_grace_s: ClassVar[float] = 2100.0
    """How long open calls on such a connection may take to end before it is closed."""
    max_session_age_s: ClassVar[float] = 1800.0
    """Age at which a Session stream ends after answering its open requests: before its connection is closed."""

    def __post_init__(self) -> None:
        """Check the bounds and the addresses."""
        require_bounds(self)
        if self.region and not _REGION.fullmatch(self.region):
            limit = 'must have lower-case letters, digits and, between them, "-", at most 32'
            msg = f"region: {limit}, got {self.region!r}"
            raise ValueError(msg)
        _check_address("listen", self.listen)
        if self.admin_listen:
            _check_address("admin_listen", self.admin_listen)
        if self.metrics_listen:
            _check_address("metrics_listen", self.metrics_listen, takes_unix_sockets=False)
        if self.http_listen:
            _check_address("http_listen", self.http_listen, takes_unix_sockets=False)


def _check_address(name: str, address: str, *, takes_unix_sockets: bool = True) -> None:
    """Check the form of an address. Raises ValueError with the key's name."""
    if takes_unix_sockets and is_unix_socket(address):
        return
    try:
        split_address(address)
    except ValueError as error:
        hint = " (or unix:PATH)" if takes_unix_sockets and ":" not in address else ""
        msg = f"{name}: {error}{hint}"
        raise ValueError(msg) from error


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """The `[limits]` section: limits of one request. Sizes are bytes of UTF-8."""

    max_prefix_bytes: Annotated[int, Between(1, 256 * MIB)] = 512 * 1024
    """Text left of the cursor."""
    max_suffix_bytes: Annotated[int, Between(1, 256 * MIB)] = 512 * 1024
    """Text right of the cursor."""
    max_tokens: Annotated[int, Between(1, 10_000_000)] = 128
    """Largest value of a request's max_tokens."""
    max_deadline_s: Annotated[float, Above(0, DAY_S)] = 30.0
    """Longest deadline of a request; replaces longer deadlines, and is the default."""

    default_tokens_single_line: ClassVar[int] = 48
    default_tokens_multi_line: ClassVar[int] = 128
    """Default max_tokens of a request, or `max_tokens` if that is less."""
    max_tokens_next_edit: ClassVar[int] = 512
    """Largest max_tokens of a request for a next edit, and its default. The model repeats the lines that may change, so
    fewer tokens mean fewer such lines."""
    max_snippets: ClassVar[int] = 32
    """Context snippets of one request."""
    max_snippet_bytes: ClassVar[int] = 16 * 1024
    """Text of one snippet."""
    max_recent_edits: ClassVar[int] = 16
    """Recent edits of one request for a next edit."""
    max_recent_edit_bytes: ClassVar[int] = 16 * 1024
    """Diff of one recent edit."""
    max_edit_lines: ClassVar[int] = 100
    """Lines before or after the cursor's that a next edit may change."""
    max_uri_bytes: ClassVar[int] = 4096
    """Document and snippet URIs."""
    max_session_id_bytes: ClassVar[int] = 128
    """Session, user and tenant ids, and the language id."""
    max_stop: ClassVar[int] = 8
    """Stop strings of one request."""
    max_stop_bytes: ClassVar[int] = 64
    """One stop string."""
    max_requests_per_session: ClassVar[int] = 8
    """Requests of one Session stream that may be live at once; further ones are refused."""

    @property
    def num_default_tokens_single_line(self) -> int:
        """Default max_tokens of a single-line request."""
        return min(self.default_tokens_single_line, self.max_tokens)

    @property
    def num_default_tokens_multi_line(self) -> int:
        """Default max_tokens of a multi-line request."""
        return min(self.default_tokens_multi_line, self.max_tokens)

    @property
    def max_message_bytes(self) -> int:
        """The size of a message with every field at its limit, and an allowance for the fields of a newer contract."""
        snippet = self.max_snippet_bytes + self.max_uri_bytes + _FIELD_BYTES * 4
        texts = self.max_prefix_bytes + self.max_suffix_bytes + self.max_uri_bytes + self.max_session_id_bytes * 2
        stops = self.max_stop * (self.max_stop_bytes + _FIELD_BYTES)
        edits = self.max_recent_edits * (self.max_recent_edit_bytes + self.max_uri_bytes + _FIELD_BYTES * 3)
        return min(_MAX_MESSAGE_BYTES, texts + self.max_snippets * snippet + edits + stops + _OTHER_BYTES)

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """The `[admission]` section."""

    max_sessions: Annotated[int | None, Between(1, 1_000_000)] = None
    """Session streams that may be open at once. After a reconnect, an editor's old stream counts until it has ended.
    Unset: 16,000, or fewer if the system's limit of open files does not allow as many connections."""
    user_requests_per_s: Annotated[float, Between(0, 1_000_000)] = 20.0
    """Requests that one user may send in the long run, those of 2 s at once; further ones are shed. 0 sets no limit."""
    user_tokens_per_s: Annotated[float, Between(0, 1e9)] = 2000.0
    """Tokens that the engine may compute for one user in the long run: generated tokens, and prompt tokens that are not
    in the prefix cache. Those of 4 s may be computed at once, for example when the user opens files: allow for several
    prompts of prompt.max_prompt_tokens. A typing user causes a few hundred a second. 0 sets no limit."""
    tenant_requests_per_s: Annotated[float, Between(0, 1e9)] = 0.0
    """Requests that the users of one tenant may send in the long run, those of 2 s at once; further ones are shed. 0
    sets no limit. Unless a proxy vouches for the names (`trust_user_names`), a tenant's limits apply to each of its
    addresses."""
    tenant_tokens_per_s: Annotated[float, Between(0, 1e12)] = 0.0
    """Tokens that the engine may compute for one tenant in the long run, those of 4 s at once. 0 sets no limit."""
    assumed_replicas: Annotated[int, Between(1, 10_000)] = 1
    """The number of servers that there should be. Where nothing else knows it, an alert compares the servers that work
    with this one."""
    users_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """The callers of one address together are guaranteed the limits of this many users. What exceeds them is shed only
    while the engine has no capacity to spare. They may open 128 Session streams for each of these users. 0 sets no
    limit. Unset: 2, or no limit with `trust_user_names`. Does not apply to verified callers and Unix sockets."""
    quotas_file: str = ""
    """A TOML file with the quotas of tenants and users, reread when it changes. What it gives a tenant or a user takes
    the place of the limits here. Unset: all have the limits here."""
    require_user: bool = False
    """Whether every call must name its user in the metadata `x-user-id`."""
    trust_user_names: bool = False
    """Whether user names are verified, because only a proxy that authenticates callers and sets `x-user-id` can reach
    this server. A user is then the same user at every address. Addresses have no limits, because they are the
    proxy's."""

    max_sessions_per_user: ClassVar[int] = 64
    """Session streams of one named user, unless `quotas_file` has another number."""
    retry_after_ms: ClassVar[int] = 1000
    """Time after which a refused caller should retry. While the engine starts it is the time that is left if the start
    takes as long as the last one, but at least this value and at most a minute."""
    first_request_s: ClassVar[float] = 60.0
    """Time in which a new Session stream must send its first request."""
    session_idle_s: ClassVar[float] = 300.0
    """Time after which a Session stream that sends no whole message is ended."""
    request_burst_s: ClassVar[float] = REQUEST_BURST_S
    """A user or a tenant may send at once as many requests as its rate allows in this time."""
    token_burst_s: ClassVar[float] = TOKEN_BURST_S
    """As many tokens may be computed at once as the rate allows in this time."""
    sessions_per_user_of_peer: ClassVar[int] = 128
    """Session streams for each of `users_per_peer`; each open editor needs one."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_bounds(self)

    @property
    def num_users_per_peer(self) -> int:
        """The effective value of `users_per_peer`; 0 for no limit."""
        if self.users_per_peer is not None:
            return self.users_per_peer
        return 0 if self.trust_user_names else _USERS_PER_PEER

    @property
    def num_sessions_per_peer(self) -> int:
        """Session streams that one address may have open, each open editor one; 0 for no limit."""
        return self.num_users_per_peer * self.sessions_per_user_of_peer
