"""Receives the body of a request within its limits, and notices when the client leaves."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from completion_server.core.errors import DeadlineError, InvalidRequestError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGoneError(Exception):
    """The client has closed its connection."""


class BodyTooLargeError(InvalidRequestError):
    """The body exceeds the limit of a message."""

    def __init__(self, max_bytes: int, given: str, num_received: int) -> None:
        """Name the limit and what was given, of which some bytes were received."""
        super().__init__("body", f"must be at most {max_bytes} bytes, got {given}")
        self.num_received = num_received


async def receive_body(receive: Receive, headers: Mapping[str, str], max_bytes: int, timeout_s: float) -> bytes:
    """Return the body of a request.

    Raises:
        BodyTooLargeError: it has more than `max_bytes`, or its header says so.
        InvalidRequestError: it is compressed.
        DeadlineError: it was not received within `timeout_s` seconds.
        ClientGoneError: the client left.

    """
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError("header content-encoding", "must be identity: compressed bodies are not taken")
    announced = headers.get("content-length", "0")
    if announced.isdecimal() and (len(announced) > len(str(max_bytes)) or int(announced) > max_bytes):
        raise BodyTooLargeError(max_bytes, announced[:20], 0)
    try:
        async with asyncio.timeout(timeout_s):
            return await _receive(receive, max_bytes)
    except TimeoutError:
        msg = f"the request was not received within {timeout_s:g} s"
        raise DeadlineError(msg) from None


async def _receive(receive: Receive, max_bytes: int) -> bytes:
    chunks, num_bytes = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        chunk = message.get("body", b"")
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLargeError(max_bytes, "more", num_bytes)
        if not message.get("more_body"):
            return b"".join(chunks)


async def discard_body(receive: Receive, max_bytes: int, timeout_s: float) -> None:
    """Receive the body of a request that is refused, up to `max_bytes` and for at most `timeout_s` seconds.

    A client that is still writing would see its connection fail instead of the answer.
    """
    num_bytes, has_more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while has_more and num_bytes <= max_bytes:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                has_more = message.get("more_body", False)


async def until_gone(receive: Receive) -> None:
    """Return when the client has left. The body was received before."""
    while (await receive())["type"] != "http.disconnect":
        pass
