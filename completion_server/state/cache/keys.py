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

    def __init__(
        self, secret: bytes, identity: Sequence[str], salt_of: Callable[[Caller], str], *, is_tenant_wide: bool = False
    ) -> None:
        """Hash with `secret` (1 to 64 bytes). `identity` is all that completions depend on beside the request.

        `salt_of` returns the salt of a caller's prompts in the prefix cache, which the users of a tenant may share.
        """
        self._salt_of = salt_of
        self._is_tenant_wide = is_tenant_wide
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
        scope = self._scope(request.caller)
        if not scope:
            return None
        state = self._base.copy()
        state.update(_context(scope, request))
        offsets = find_anchors(request.prefix, is_single_line=request.mode is Mode.SINGLE_LINE)
        anchors, begin = [], 0
        for offset in reversed(offsets):
            state.update(request.prefix[begin:offset].encode("utf-8", "surrogatepass"))
            anchors.append(Anchor(offset, state.copy().digest()))
            begin = offset
        return RequestKeys(tuple(reversed(anchors)), self._is_shared(request.caller))

    def _scope(self, caller: Caller) -> str:
        """Return the key of the callers that share completions with one; "" if it shares them with no later request.

        A caller without a name shares them with its own stream only, unless its whole tenant does. A single call
        without a name has none, because another caller may get its connection's address next.
        """
        salt = self._salt_of(caller)
        if self._is_tenant_wide:
            return key_of("tenant", salt)
        if caller.user:
            return key_of("owner", salt)
        return key_of("stream", salt, str(caller.stream)) if caller.stream else ""

    def _is_shared(self, caller: Caller) -> bool:
        """Return whether a request on another replica can be in a caller's scope."""
        return caller.is_known_everywhere and (self._is_tenant_wide or bool(caller.user))


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


def _context(scope: str, request: Request) -> bytes:
    """Return everything but the prefix that a request's completion depends on."""
    texts = [scope, request.mode.value, request.language_id, request.document_uri, request.suffix, *request.stop]
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
