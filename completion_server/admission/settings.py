"""Settings of the listeners, of TLS, of the sizes of requests and of admission."""

import re
from dataclasses import dataclass
from typing import Annotated

from completion_server.core.addresses import is_unix_socket, split_address
from completion_server.core.checks import DAY_S, Above, Between, require_bounds

MIB = 1024 * 1024
_MAX_MESSAGE_BYTES = 2**31 - 1
_DEFAULT_TOKENS_SINGLE_LINE = 48
_DEFAULT_TOKENS_MULTI_LINE = 128
_FIELD_BYTES = 12
"""Maximum bytes of a field's tag and length, or of its tag and number."""
_USERS_PER_PEER = 2
_SESSIONS_PER_PEER = 256
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
    http_max_connections: Annotated[int, Between(1, 1_000_000)] = 1024
    """HTTP connections that may be open at once; further ones are closed."""
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
    stop_timeout_s: Annotated[float, Above(0, DAY_S)] = 15.0
    """How long the rest of the stop may take, after which the process ends with status 1 and says what did not end."""
    stall_timeout_s: Annotated[float, Above(0, 3600)] = 5.0
    """How long a write may block because the client does not read; then the call is reset."""
    delta_pause_ms: Annotated[float, Between(0, 10_000)] = 20.0
    """Minimum time between two messages with text of one answer, because each message has a cost of its own. The first
    text and the End are never delayed."""
    max_message_bytes: Annotated[int | None, Between(1, _MAX_MESSAGE_BYTES)] = None
    """Maximum size of a message, compressed messages by their decompressed size; the transport refuses larger ones.
    Unset: the sum of the limits of one request."""
    receive_timeout_s: Annotated[float, Above(0, 3600)] = 10.0
    """How long the server waits for the whole request of a call; then it ends the call."""
    max_connections: Annotated[int | None, Between(1, 1_000_000)] = None
    """Connections that may be open at once; further ones are closed. Unset: as many as the system's limit of open files
    allows."""
    max_concurrent_streams: Annotated[int, Between(1, 1_000_000)] = 128
    """Calls and Session streams that may be open on one connection; gRPC clients queue further ones."""
    max_connection_age_s: Annotated[float, Between(0, 30 * DAY_S)] = 3600.0
    """Age, plus or minus 10%, at which a connection accepts no more calls; clients open another. 0 sets no limit."""
    max_connection_age_grace_s: Annotated[float, Above(0, 30 * DAY_S)] = 2100.0
    """How long open calls on such a connection may take to end before it is closed."""
    max_session_age_s: Annotated[float, Above(0, 30 * DAY_S)] = 1800.0
    """Age at which the server ends a Session stream after answering its open requests; editors open another. Must be
    less than max_connection_age_grace_s, so that closing a connection cuts no stream."""

    def __post_init__(self) -> None:
        """Check the bounds and the addresses, and that streams end before their connections."""
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
        if not self.max_session_age_s < self.max_connection_age_grace_s:
            limit = f"must be less than max_connection_age_grace_s ({self.max_connection_age_grace_s:g})"
            msg = f"max_session_age_s: {limit}, got {self.max_session_age_s:g}"
            raise ValueError(msg)


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
    max_snippets: Annotated[int, Between(1, 10_000)] = 32
    """Context snippets of one request."""
    max_snippet_bytes: Annotated[int, Between(1, 256 * MIB)] = 16 * 1024
    """Text of one snippet."""
    max_recent_edits: Annotated[int, Between(1, 10_000)] = 16
    """Recent edits of one request for a next edit."""
    max_recent_edit_bytes: Annotated[int, Between(1, 256 * MIB)] = 16 * 1024
    """Diff of one recent edit."""
    max_edit_lines: Annotated[int, Between(0, 10_000)] = 100
    """Lines before or after the cursor's that a next edit may change."""
    max_uri_bytes: Annotated[int, Between(1, MIB)] = 4096
    """Document and snippet URIs."""
    max_session_id_bytes: Annotated[int, Between(1, 65_536)] = 128
    """Session, user and tenant ids, and the language id."""
    max_stop: Annotated[int, Between(1, 1000)] = 8
    """Stop strings of one request."""
    max_stop_bytes: Annotated[int, Between(1, 65_536)] = 64
    """One stop string."""
    max_tokens: Annotated[int, Between(1, 10_000_000)] = 128
    """Largest value of a request's max_tokens."""
    default_tokens_single_line: Annotated[int | None, Between(1, 10_000_000)] = None
    """Default max_tokens of a single-line request. Unset: 48, or max_tokens if that is less."""
    default_tokens_multi_line: Annotated[int | None, Between(1, 10_000_000)] = None
    """Default max_tokens of a multi-line request. Unset: 128, or max_tokens if that is less."""
    max_tokens_next_edit: Annotated[int, Between(16, 10_000_000)] = 512
    """Largest max_tokens of a request for a next edit, and its default. The model repeats the lines that may change, so
    fewer tokens mean fewer such lines."""
    max_deadline_s: Annotated[float, Above(0, DAY_S)] = 30.0
    """Longest deadline of a request; replaces longer deadlines, and is the default."""
    max_requests_per_session: Annotated[int, Between(1, 10_000)] = 8
    """Requests of one Session stream that may be live at once; further ones are refused."""

    @property
    def num_default_tokens_single_line(self) -> int:
        """The effective value of `default_tokens_single_line`."""
        return self.default_tokens_single_line or min(_DEFAULT_TOKENS_SINGLE_LINE, self.max_tokens)

    @property
    def num_default_tokens_multi_line(self) -> int:
        """The effective value of `default_tokens_multi_line`."""
        return self.default_tokens_multi_line or min(_DEFAULT_TOKENS_MULTI_LINE, self.max_tokens)

    @property
    def max_message_bytes(self) -> int:
        """The size of a message with every field at its limit, and an allowance for the fields of a newer contract."""
        snippet = self.max_snippet_bytes + self.max_uri_bytes + _FIELD_BYTES * 4
        texts = self.max_prefix_bytes + self.max_suffix_bytes + self.max_uri_bytes + self.max_session_id_bytes * 2
        stops = self.max_stop * (self.max_stop_bytes + _FIELD_BYTES)
        edits = self.max_recent_edits * (self.max_recent_edit_bytes + self.max_uri_bytes + _FIELD_BYTES * 3)
        return min(_MAX_MESSAGE_BYTES, texts + self.max_snippets * snippet + edits + stops + _OTHER_BYTES)

    def __post_init__(self) -> None:
        """Check the bounds, and that the defaults are within `max_tokens`."""
        require_bounds(self)
        for name in ("default_tokens_single_line", "default_tokens_multi_line"):
            given = getattr(self, name)
            if given is not None and given > self.max_tokens:
                msg = f"{name}: must be at most max_tokens ({self.max_tokens}), got {given}"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """The `[admission]` section."""

    max_sessions: Annotated[int | None, Between(1, 1_000_000)] = None
    """Session streams that may be open at once. After a reconnect, an editor's old stream counts until it has ended.
    Unset: 16,000, or fewer if the system's limit of open files does not allow as many connections."""
    max_sessions_per_user: Annotated[int, Between(0, 1_000_000)] = 64
    """Session streams of one named user; 0 sets no limit."""
    max_sessions_per_tenant: Annotated[int, Between(0, 1_000_000)] = 0
    """Session streams of one tenant; 0 sets no limit."""
    max_sessions_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """Session streams from one address. 0 sets no limit. Unset: 256, or no limit with `trust_user_names`. Each open
    editor needs one. Does not apply to verified callers and Unix sockets."""
    first_request_s: Annotated[float, Above(0, DAY_S)] = 60.0
    """Time in which a new Session stream must send its first request; otherwise the server ends it."""
    session_idle_s: Annotated[float, Above(0, DAY_S)] = 300.0
    """A Session stream that sends nothing for this time is ended; editors open another with their next request. Also
    limits how long the server holds a partly received message."""
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
    tenant_requests_per_s: Annotated[float, Between(0, 1e9)] = 0.0
    """Requests that the users of one tenant may send in the long run; further ones are shed. 0 sets no limit. Unless a
    proxy vouches for the names (`trust_user_names`), a tenant's limits apply to each of its addresses."""
    tenant_burst: Annotated[int, Between(1, 1_000_000_000)] = 400
    """Requests that the users of one tenant may send at once after a quiet time."""
    tenant_tokens_per_s: Annotated[float, Between(0, 1e12)] = 0.0
    """Tokens that the engine may compute for one tenant in the long run. 0 sets no limit."""
    tenant_token_burst: Annotated[int, Between(1, 1_000_000_000_000)] = 80_000
    """Tokens that the engine may compute for one tenant at once."""
    assumed_replicas: Annotated[int, Between(1, 10_000)] = 1
    """The number of servers that there should be. Where nothing else knows it, an alert compares the servers that work
    with this one."""
    users_per_peer: Annotated[int | None, Between(0, 1_000_000)] = None
    """The callers of one address together are guaranteed the limits of this many users. What exceeds them is shed only
    while the engine has no capacity to spare. 0 sets no limit. Unset: 2, or no limit with `trust_user_names`. Does not
    apply to verified callers and Unix sockets."""
    quotas_file: str = ""
    """A TOML file with the quotas of tenants and users, reread when it changes. What it gives a tenant or a user takes
    the place of the limits here. Unset: all have the limits here."""
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
