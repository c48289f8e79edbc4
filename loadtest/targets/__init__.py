"""Whom the load is sent to: what every target and every editor can do, and how the command line names a target."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl

from loadtest.targets.record import Record
from loadtest.traffic.trace import Trace

_COMMON_OPTIONS = ("metrics",)
KINDS: Mapping[str, tuple[str, ...]] = {
    "grpc": ("connections",),
    "grpc+complete": ("connections",),
    "openai+http": ("model", "fim", "body"),
    "llama+http": ("body",),
    "tabby+http": ("body",),
}
"""The schemes, and the options of each besides those of all."""

STREAMS_PER_CONNECTION = 100
"""What any HTTP/2 server should take (RFC 9113, 6.5.2)."""

_SPEC = re.compile(r"(?:(?P<name>[^=/?:]+)=)?(?P<kind>[a-z+]+)://(?P<hosts>[^/?]+)/?(?:\?(?P<options>.*))?")
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]@\s]+):(\d{1,5})")


class TargetError(Exception):
    """A target is not what a run needs; the message says which and why."""


class Editor(Protocol):
    """One session's way to a target."""

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        ...

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """Send a request without waiting for anything; `max_tokens` is instead of the target's own number."""
        ...

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """Lose the connection. What is open fails, and the editor comes back, as editors do.

        `host_shift` is how many hosts after its own it goes to from now on; not given, it stays where it is.
        """
        ...


class Target(Protocol):
    """Something that answers editors."""

    name: str
    num_connected: int
    """Sessions connected so far, while `editors` prepares."""
    reconnects_s: list[float]
    """How long each session that came back was away."""

    def editors(self, trace: Trace) -> AbstractAsyncContextManager[Sequence[Editor]]:
        """Connect an editor for each session, in their order; leaving the context cancels what is open."""
        ...

    async def generated_tokens(self) -> float:
        """Return how many tokens its engine has generated since it started, for whomever; nan where nobody says."""
        ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What all editors of a run have in common, whomever they ask."""

    max_tokens: int = 24
    mode: str = "multi_line"
    cancels_at_key: bool = True
    """Whether an editor says so at once when a key makes a request stale, not only with its next request."""
    deadline_s: float = 0.0
    """After this an editor wants no answer; 0 is never."""
    backoff_min_s: float = 0.1
    backoff_max_s: float = 5.0


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target as the command line names it."""

    name: str
    kind: str
    """One of KINDS."""
    hosts: tuple[str, ...]
    """HOST:PORT; host i serves region i, and they begin anew where there are fewer."""
    options: Mapping[str, str] = field(default_factory=dict)
    metrics_url: str = ""
    """Where its engine's counters are shown; "" where nowhere."""
    uri: str = ""
    """As it was given, without the name."""

    def num_connections(self, sessions: int) -> int:
        """Return how many connections so many sessions of a worker share on each host; 0 where each has its own.

        At least as many as servers take streams for: gRPC lets further streams wait until others end.
        """
        count = int(self.options.get("connections", "0"))
        return max(count, math.ceil(sessions / STREAMS_PER_CONNECTION)) if count else 0


def parse_target(text: str) -> TargetSpec:
    """Read "[NAME=]KIND://HOST:PORT[,HOST:PORT...][?OPTION=VALUE&...]".

    Raises:
        TargetError: it is none.

    """
    found = _SPEC.fullmatch(text)
    if found is None:
        msg = f"{text!r} is no target: expected [NAME=]KIND://HOST:PORT[,HOST:PORT...][?OPTION=VALUE&...]"
        raise TargetError(msg)
    kind = found["kind"]
    if kind not in KINDS:
        msg = f"{text!r}: unknown scheme {kind!r}{_nearest(kind, KINDS)}; known are {', '.join(KINDS)}"
        raise TargetError(msg)
    hosts = tuple(found["hosts"].split(","))
    for host in hosts:
        _check_host(text, host)
    options = _options(text, kind, found["options"] or "")
    metrics = options.pop("metrics", "")
    return TargetSpec(
        name=found["name"] or f"{kind}://{found['hosts']}",
        kind=kind,
        hosts=hosts,
        options=options,
        metrics_url=metrics if not metrics or "://" in metrics else f"http://{metrics}/metrics",
        uri=text.removeprefix(f"{found['name']}=") if found["name"] else text,
    )


def _check_host(text: str, host: str) -> None:
    found = _HOST.fullmatch(host)
    if found is None or not 0 < int(found[2]) <= 65_535:  # noqa: PLR2004 - the highest port
        msg = f"{text!r}: {host!r} is not HOST:PORT"
        raise TargetError(msg)


def _options(text: str, kind: str, query: str) -> dict[str, str]:
    known = (*_COMMON_OPTIONS, *KINDS[kind])
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            msg = f"{text!r}: {kind} has no option {name!r}{_nearest(name, known)}; known are {', '.join(known)}"
            raise TargetError(msg)
        options[name] = value
    connections = options.get("connections", "1")
    if not connections.isdecimal() or int(connections) < 1:
        msg = f"{text!r}: connections must be a whole number of at least 1, got {connections!r}"
        raise TargetError(msg)
    return options


def _nearest(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
