"""Targets of a load test: the interfaces of targets and editors, and the targets' syntax on the command line."""

import asyncio
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl

from completion_client import Endpoint, Token
from completion_client.endpoint import with_port
from loadtest import LoadTestError
from loadtest.processes.meter import GENERATED_TOKENS, read_counter
from loadtest.targets.record import Record
from loadtest.traffic.typed import Trace

NEAREST = "grpc+nearest"
"""The scheme of several servers of which each editor uses the nearest that works."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "grpc": ("connections",),
    "grpc+complete": ("connections",),
    NEAREST: (),
    "openai+http": ("model", "fim", "body", "waits"),
    "llama+http": ("body", "waits"),
    "tabby+http": ("body", "waits"),
}
"""The schemes and their options, besides `metrics`, which all have."""

STREAMS_PER_CONNECTION = 100
"""The streams that any HTTP/2 server should accept (RFC 9113, 6.5.2)."""

_SPEC = re.compile(r"(?:(?P<name>[^=/?:]+)=)?(?P<kind>[a-z+]+)://(?P<hosts>[^/?]+)/?(?:\?(?P<options>.*))?")
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]@\s]+):(\d{1,5})")


class TargetError(LoadTestError):
    """A target can't be used for a run; the message names the target and the reason."""


class Editor(Protocol):
    """Sends one session's requests to a target."""

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        ...

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """Send a request without waiting; `max_tokens` replaces the target's own limit."""
        ...

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """Drop the connection. Open requests fail, and the editor reconnects.

        `host_shift` selects the host for the future: so many after the editor's own. None keeps the present one.
        """
        ...


class Target(Protocol):
    """A server, or several, that a run sends requests to."""

    name: str
    num_connected: int
    """Sessions connected so far, while `editors` connects them."""
    reconnects_s: list[float]
    """For each reconnect, how long the session was disconnected."""

    def editors(self, trace: Trace) -> AbstractAsyncContextManager[Sequence[Editor]]:
        """Connect an editor for each session, in their order; leaving the context cancels open requests."""
        ...

    def present(self) -> Mapping[int, int]:
        """Return the number of editors at each host that has any; empty if editors don't choose their host."""
        ...

    async def generated_tokens(self) -> float:
        """Return how many tokens its engine has generated since it started, for all callers; nan if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of all editors of a run, for any target."""

    max_tokens: int = 24
    mode: str = "multi_line"
    cancels_at_key: bool = True
    """Whether an editor cancels a request as soon as a key makes it stale, not only with its next request."""
    deadline_s: float = 0.0
    """Deadline of each request; 0 is none."""
    use_completion_cache: bool = True
    """If not, requests refuse a completion server's completion cache: the engine computes each answer."""
    tenant: str = ""
    """The users' tenant at a completion server. Tenants share no caches."""
    traced_share: float = 0.0
    """Share of the requests that ask the server to trace them."""
    patience_s: float = 0.25
    """How long a user waits for a completion. A client with several servers gives each a share of it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the connections to a target need: PEM files, without any of which they are not encrypted, and tokens."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None
    """A file with the token of all users. Without it and `token_command` it is in the environment, if there is one."""
    token_command: str | None = None
    """A command that prints the token of all users."""
    user_tokens: Path | None = None
    """A file with a token in each line, for one user after another, around."""

    @property
    def is_encrypted(self) -> bool:
        """Whether there is any PEM file."""
        return any((self.ca, self.certificate, self.key))

    def endpoint(self, host: str) -> Endpoint:
        """Return a host with these files. Raises EndpointError for a certificate without its key, and the reverse."""
        return Endpoint(host, self.ca, self.certificate, self.key)

    def check(self) -> None:
        """Raise EndpointError for PEM files that can't be used, TargetError or ServiceError for tokens that can't."""
        self.endpoint("127.0.0.1:1").open_channel().close()
        if sum(map(bool, (self.token_file, self.token_command, self.user_tokens))) > 1:
            raise TargetError("give one of them")
        for token in self.tokens():
            token.get_blocking()

    def tokens(self) -> tuple[Token, ...]:
        """Return the tokens of the users, for `token_of`; none if there is none.

        Raises TargetError if they can't be read, or the command is none.
        """
        try:
            if self.user_tokens is not None:
                lines = self.user_tokens.read_text(encoding="ascii").split()
                if not lines:
                    raise TargetError(f"{self.user_tokens} has no tokens, one a line")
                return tuple(map(Token.of_text, lines))
            if self.token_file is not None:
                return (Token.of_file(self.token_file),)
            if self.token_command is not None:
                return (Token.of_command(self.token_command),)
        except (OSError, ValueError) as error:
            raise TargetError(f"{self.user_tokens or 'the command'} can't be used: {error}") from error
        return (found,) if (found := Token.of_environment()).is_given else ()


NO_CREDENTIALS = Credentials()


def token_of(tokens: Sequence[Token], number: int) -> Token | None:
    """Return the token of a session by its number: users have them one after another, around."""
    return tokens[number % len(tokens)] if tokens else None


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target as the command line specifies it."""

    name: str
    kind: str
    """One of KINDS."""
    hosts: tuple[str, ...]
    """HOST:PORT; host i serves region i, modulo the number of hosts."""
    options: Mapping[str, str] = field(default_factory=dict)
    metrics_url: str = ""
    """URL of its engine's metrics; "" if it has none."""
    uri: str = ""
    """The specification as it was given, without the name."""
    credentials: Credentials = NO_CREDENTIALS

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The hosts, with the files for their connections."""
        return tuple(map(self.credentials.endpoint, self.hosts))

    async def generated_tokens(self) -> float:
        """Return the counter of generated tokens of its engine; nan without a metrics URL."""
        if not self.metrics_url:
            return float("nan")
        return await asyncio.to_thread(read_counter, self.metrics_url, GENERATED_TOKENS)

    def num_connections(self, sessions: int) -> int:
        """Return how many connections a worker's sessions share on each host; 0 if each session has its own.

        There are enough for the streams that servers accept: gRPC queues further streams until others end.
        """
        count = int(self.options.get("connections", "0"))
        return max(count, math.ceil(sessions / STREAMS_PER_CONNECTION)) if count else 0


def parse_target(text: str) -> TargetSpec:
    """Parse "[NAME=]KIND://HOST:PORT[,HOST:PORT...][?OPTION=VALUE&...]". Only a gRPC server's port may be left out.

    Raises TargetError if the text is not a target.
    """
    found = _SPEC.fullmatch(text)
    if found is None:
        raise TargetError(f"{text!r} is no target: expected [NAME=]KIND://HOST:PORT[,HOST:PORT...][?OPTION=VALUE&...]")
    kind = found["kind"]
    if kind not in KINDS:
        raise TargetError(f"{text!r}: unknown scheme {kind!r}{_nearest(kind, KINDS)}; known are {', '.join(KINDS)}")
    hosts = tuple(found["hosts"].split(","))
    if kind.startswith("grpc"):
        hosts = tuple(map(with_port, hosts))
    for host in hosts:
        match = _HOST.fullmatch(host)
        if match is None or not 0 < int(match[2]) <= 65_535:  # noqa: PLR2004 - the highest port
            raise TargetError(f"{text!r}: {host!r} is not HOST:PORT")
    if kind == NEAREST and not 1 < len(hosts) == len(set(hosts)):
        raise TargetError(f"{text!r}: the nearest of several servers needs at least two HOST:PORT, each another one")
    options = _options(text, kind, found["options"] or "")
    metrics = options.pop("metrics", "")
    return TargetSpec(
        name=found["name"] or f"{kind}://{found['hosts']}",
        kind=kind,
        hosts=hosts,
        options=options,
        metrics_url=metrics if not metrics or "://" in metrics else f"http://{metrics}/metrics",
        uri=text.removeprefix(f"{found['name']}="),
    )


def nearest_target(servers: str) -> TargetSpec:
    """Return the target "grpc+nearest" for "HOST:PORT,HOST:PORT[,...]", with blanks or not. Raises TargetError."""
    return parse_target(f"{NEAREST}://{','.join(each.strip() for each in servers.split(','))}")


def _options(text: str, kind: str, query: str) -> dict[str, str]:
    options, known = dict(parse_qsl(query, keep_blank_values=True)), ("metrics", *KINDS[kind])
    for name in options.keys() - known:
        msg = f"{text!r}: {kind} has no option {name!r}{_nearest(name, known)}; known are {', '.join(known)}"
        raise TargetError(msg)
    connections = options.get("connections", "1")
    if not connections.isdecimal() or int(connections) < 1:
        raise TargetError(f"{text!r}: connections must be a whole number of at least 1, got {connections!r}")
    if (waits := options.get("waits", "0")) not in {"0", "1"}:
        raise TargetError(f"{text!r}: waits must be 0 or 1, got {waits!r}")
    return options


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
