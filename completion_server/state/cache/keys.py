"""Names of kept completions: keyed hashes of all that a completion depends on. Pure.

A name tells nothing about the text to a reader of Redis who lacks the secret. Every field is written with its length,
so that different inputs never give the same bytes. The text before the cursor comes last. A hash can be copied, so one
pass over that text gives the names of several anchors.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from completion_server.core.request import Caller, Mode, Request, Sampling, key_of

FORMAT_VERSION = 1
"""Increase it when the meaning of a name changes. The server's version is part of the identity, too."""

ANCHOR_CHARACTERS = 1024
"""In a longer line further anchors follow the line's start, this far apart: a tail is shorter than this."""
MAX_ANCHORS = 8
"""A multi-line completion can be typed along over as many lines, less one."""

_DIGEST_BYTES = 24
_PERSON = b"completion-cache"
_NUMBERS = struct.Struct("<dqqq")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place in a request's prefix, and the name of the completions that were computed behind it."""

    offset: int
    name: bytes


@dataclass(frozen=True, slots=True)
class CacheScope:
    """The callers that share completions."""

    key: str
    is_shared: bool
    """Whether a request on another replica can be in the scope."""


@dataclass(frozen=True, slots=True)
class CacheScopes:
    """Finds the scope of a caller, which is that of the prefix cache, or smaller."""

    salt_of: Callable[[Caller], str]
    """The salt of the caller's prompts in the prefix cache."""
    is_tenant_wide: bool = False
    """Whether the users of a tenant share one salt."""

    def of(self, caller: Caller) -> CacheScope | None:
        """Return the scope; None if the caller shares completions with no later request.

        A caller without a name shares them with its own stream only, unless its whole tenant does. A single call
        without a name has none, because another caller may get its connection's address next.
        """
        salt = self.salt_of(caller)
        if self.is_tenant_wide:
            return CacheScope(key_of("tenant", salt), caller.is_known_everywhere)
        if caller.user:
            return CacheScope(key_of("owner", salt), caller.is_known_everywhere)
        return CacheScope(key_of("stream", salt, str(caller.stream)), is_shared=False) if caller.stream else None


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """The names under which a request's completion may be found."""

    anchors: tuple[Anchor, ...]
    """The nearest to the cursor first."""
    is_shared: bool
    """Whether a request on another replica can have the same names."""

    def nearest(self, length: int) -> Anchor | None:
        """Return the nearest anchor of the first `length` characters of the prefix; None if that is too far back."""
        return next((anchor for anchor in self.anchors if anchor.offset <= length), None)


class CompletionKeys:
    """Makes the names of one model's completions."""

    def __init__(self, secret: bytes, identity: Sequence[str], scopes: CacheScopes) -> None:
        """Hash with `secret` (1 to 64 bytes). `identity` is all that completions depend on beside the request."""
        self._scopes = scopes
        self._base = blake2b(key=secret, digest_size=_DIGEST_BYTES, person=_PERSON)
        self._base.update(_framed(str(FORMAT_VERSION), *identity))

    @property
    def identity_hash(self) -> str:
        """Eight bytes of a keyed hash in hexadecimal: the same on replicas that can share completions."""
        return self._base.copy().hexdigest()[:16]

    def of(self, request: Request) -> RequestKeys | None:
        """Return the names for a request; None if no later request may have its completion."""
        sampling = request.sampling
        if sampling.temperature and sampling.seed is None:
            return None
        scope = self._scopes.of(request.caller)
        if scope is None:
            return None
        state = self._base.copy()
        state.update(_context(scope, request))
        offsets = find_anchors(request.prefix, is_single_line=request.mode is Mode.SINGLE_LINE)
        anchors, begin = [], 0
        for offset in reversed(offsets):
            state.update(request.prefix[begin:offset].encode("utf-8", "surrogatepass"))
            anchors.append(Anchor(offset, state.copy().digest()))
            begin = offset
        return RequestKeys(tuple(reversed(anchors)), scope.is_shared)


def find_anchors(prefix: str, *, is_single_line: bool) -> list[int]:
    """Return the offsets of the last anchors, the nearest to the cursor first.

    A prefix has all anchors of its own beginnings, so typing never moves them. Completions of one line need no anchors
    of the lines above.
    """
    found: list[int] = []
    end = len(prefix)
    while True:
        line = prefix.rfind("\n", 0, end) + 1
        for offset in range(line + (end - line) // ANCHOR_CHARACTERS * ANCHOR_CHARACTERS, line - 1, -ANCHOR_CHARACTERS):
            found.append(offset)
            if len(found) == MAX_ANCHORS:
                return found
        if line == 0 or is_single_line:
            return found
        end = line - 1


def _context(scope: CacheScope, request: Request) -> bytes:
    """Return everything but the prefix that a request's completion depends on."""
    texts = [scope.key, request.mode.value, request.language_id, request.document_uri, request.suffix, *request.stop]
    for snippet in request.snippets:
        texts += (snippet.uri, snippet.text, repr(snippet.score))
    counts = struct.pack("<qq", len(request.stop), len(request.snippets))
    return counts + _numbers(request.sampling, request.max_tokens) + _framed(*texts)


def _numbers(sampling: Sampling, max_tokens: int) -> bytes:
    """Return the numbers of a request. A seed has no effect at temperature 0."""
    seed = sampling.seed if sampling.temperature and sampling.seed is not None else -1
    return _NUMBERS.pack(sampling.temperature, seed, sampling.speculate, max_tokens)


def _framed(*texts: str) -> bytes:
    return b"".join(_frames(texts))


def _frames(texts: Sequence[str]) -> Iterator[bytes]:
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        yield len(encoded).to_bytes(8, "little")
        yield encoded
