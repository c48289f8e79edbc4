"""Level 2: completions in Redis, which all replicas read and write. Nothing waits for it.

A key holds the latest completion of its anchor. Redis drops it after its time, or earlier by its own maxmemory policy.
A value is a completion as bytes, compressed if that makes them shorter, and encrypted:

    version (1 byte), flags (1), nonce (12), AES-256-GCM's ciphertext of the body with its tag (16)

The tag covers the header and the name of the key, so a value that was moved, changed or cut off is not decoded, nor is
one that was written without the secret. Each name has a key of its own, so random nonces never become too many for one
key.
"""

import asyncio
import os
import struct
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from completion_server.core.clock import Clock
from completion_server.core.events import CacheMiss, CacheReplied, Emit, MissReason
from completion_server.core.outcome import CacheLevel, FinishReason
from completion_server.state.cache.local import Entry
from completion_server.state.store import Store

VERSION = 2
MAX_BYTES = 256 * 1024
"""Largest plain body that is decoded; longer completions are not shared."""

_COMPRESS_FROM = 256
"""Shorter bodies don't become much shorter."""
_COMPRESSED = 1
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEADER_BYTES = 2 + _NONCE_BYTES
_FIELDS = struct.Struct("<BdIIfI")
"""Finish reason, time, prompt tokens, completion tokens, engine seconds, bytes of the tail."""
_REASONS = (FinishReason.STOP, FinishReason.LENGTH)

_PATIENCE_S = 0.05
"""How long a completion may wait to be written together with others."""


class Codec:
    """Encodes and decodes the completions of servers that share a secret."""

    def __init__(self, key: bytes) -> None:
        """Use a key of 32 bytes."""
        self._key = key

    def encode(self, name: bytes, entry: Entry) -> bytes | None:
        """Return the value of the key `name`; None if the completion is too long."""
        body = _pack(entry)
        if len(body) > MAX_BYTES:
            return None
        flags = 0
        if len(body) >= _COMPRESS_FROM and len(shorter := zlib.compress(body, 1)) < len(body):
            flags, body = _COMPRESSED, shorter
        header = bytes((VERSION, flags)) + os.urandom(_NONCE_BYTES)
        return header + self._cipher(name).encrypt(header[2:], body, header + name)

    def decode(self, name: bytes, value: bytes) -> Entry | None:
        """Return the completion; None if the value is not one of `encode` for this name, secret and version."""
        header, sealed = value[:_HEADER_BYTES], value[_HEADER_BYTES:]
        if len(sealed) < _TAG_BYTES or header[0] != VERSION:
            return None
        try:
            body = self._cipher(name).decrypt(header[2:], sealed, header + name)
            return _unpack(_inflate(body) if header[1] & _COMPRESSED else body)
        except InvalidTag:
            return None
        except (ValueError, IndexError, struct.error, zlib.error):
            return None  # only a faulty server that has the secret writes these

    def _cipher(self, name: bytes) -> AESGCM:
        return AESGCM(blake2b(name, key=self._key, digest_size=32, person=b"cache-value-key").digest())


def _pack(entry: Entry) -> bytes:
    tail = entry.tail.encode("utf-8", "surrogatepass")
    fields = _FIELDS.pack(
        _REASONS.index(entry.reason),
        entry.made_at,
        entry.num_prompt_tokens,
        entry.num_completion_tokens,
        entry.engine_s,
        len(tail),
    )
    return fields + tail + entry.text.encode("utf-8", "surrogatepass")


def _unpack(body: bytes) -> Entry:
    reason, made_at, num_prompt, num_completion, engine_s, tail_bytes = _FIELDS.unpack_from(body)
    text_at = _FIELDS.size + tail_bytes
    if text_at > len(body):
        msg = "the tail is cut off"
        raise ValueError(msg)
    return Entry(
        tail=body[_FIELDS.size : text_at].decode("utf-8", "surrogatepass"),
        text=body[text_at:].decode("utf-8", "surrogatepass"),
        reason=_REASONS[reason],
        made_at=made_at,
        num_prompt_tokens=num_prompt,
        num_completion_tokens=num_completion,
        engine_s=engine_s,
    )


def _inflate(body: bytes) -> bytes:
    """Return the uncompressed body.

    Raises:
        ValueError: it would be longer than `MAX_BYTES`, or is not whole.

    """
    inflater = zlib.decompressobj()
    inflated = inflater.decompress(body, MAX_BYTES + 1)
    if len(inflated) > MAX_BYTES or not inflater.eof:
        msg = "the compressed value is too long or not whole"
        raise ValueError(msg)
    return inflated


class SharedCache:
    """Kept completions by the name of their anchor."""

    def __init__(self, store: Store, codec: Codec, clock: Clock, emit: Emit, *, key_prefix: str, ttl_s: float) -> None:
        """Keep completions in `store` for `ttl_s`, under keys that begin with `key_prefix`."""
        self._store = store
        self._codec = codec
        self._clock = clock
        self._emit = emit
        self._key_prefix = key_prefix
        self._ttl_ms = max(1, round(ttl_s * 1000))

    def fetch_nowait(self, name: bytes, on_entry: Callable[[Entry, float], None]) -> None:
        """Ask for an anchor's completion. `on_entry` gets it with the seconds that the reply took, if there is one."""
        sent_at = self._clock.now()

        def replied(reply: asyncio.Future[Any]) -> None:
            elapsed_s = self._clock.now() - sent_at
            self._emit(CacheReplied(elapsed_s))
            entry = self._read(name, reply)
            if isinstance(entry, MissReason):
                self._emit(CacheMiss(CacheLevel.SHARED, entry))
            else:
                on_entry(entry, elapsed_s)

        if self._store.is_available:
            self._store.call_nowait("GET", self._key(name)).add_done_callback(replied)
        else:
            self._emit(CacheMiss(CacheLevel.SHARED, MissReason.UNAVAILABLE))

    def put_nowait(self, name: bytes, entry: Entry) -> None:
        """Write an anchor's completion in a later turn of the event loop. A failure is ignored."""
        asyncio.get_running_loop().call_soon(self._put, name, entry)

    def _put(self, name: bytes, entry: Entry) -> None:
        if not self._store.is_available:
            return
        value = self._codec.encode(name, entry)
        if value is not None:
            written = self._store.call_nowait("SET", self._key(name), value, "PX", self._ttl_ms, patience_s=_PATIENCE_S)
            written.add_done_callback(_note)

    def _read(self, name: bytes, reply: asyncio.Future[Any]) -> Entry | MissReason:
        if reply.cancelled() or reply.exception() is not None:
            return MissReason.UNAVAILABLE
        value = reply.result()
        if value is None:
            return MissReason.ABSENT
        entry = self._codec.decode(name, value) if isinstance(value, bytes) else None
        return MissReason.UNDECODABLE if entry is None else entry

    def _key(self, name: bytes) -> str:
        return f"{self._key_prefix}:cache:{urlsafe_b64encode(name).decode()}"


def _note(written: asyncio.Future[Any]) -> None:
    """Read the error of a write, which asyncio would report else. The store logs its outages."""
    if not written.cancelled():
        written.exception()
