"""A caller's token: when it is fetched, when it is fetched again, and what follows a refusal.

    no token   -- fetched ------------------------>  at hand
    at hand    -- soon expires, or the source changed -->  at hand, and fetched again meanwhile
    at hand    -- refused ------------------------>  no token (fetched again at once, this once)
    no token   -- refused again, the same token, or the source fails -->  waiting (15 s, doubling to 300 s)
    waiting    -- the time is over, or the source changed -->  no token

The server decides what a token is worth; only its time of expiry is read here, without a check.
"""

import asyncio
import math
import os
import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from completion_client.errors import ServiceError, TokenError, TokenRefusedError, UnauthenticatedError
from completion_client.token_sources import (
    NO_TOKEN,
    VARIABLE,
    FixedToken,
    SourceError,
    TokenCommand,
    TokenFile,
    TokenSource,
    expiry_of,
)

_FIRST_WAIT_S, _LAST_WAIT_S = 15.0, 300.0
"""After a second refusal or a source that failed; each further one doubles it."""
_MARGIN_S, _MARGIN_SHARE = 60.0, 0.2
"""Before the expiry a token is fetched again: so many seconds, or this share of a shorter time."""
_LOOK_S = 1.0
"""Between two looks at a source while its token is refused."""
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class _Fetched:
    value: str = field(repr=False)
    state: object = field(repr=False)
    renew_at_s: float
    expires_at_s: float


class Token:
    """What a caller presents with each call, from one source. Its calls share it, in any thread."""

    def __init__(self, source: TokenSource = NO_TOKEN, *, now: Callable[[], float] = time.time) -> None:
        """Fetch nothing yet; without a source the caller has no token. `now` is the Unix time in seconds."""
        self._source = source
        self._now = now
        self._lock = threading.Lock()
        self._fetched: _Fetched | None = None
        self._fetching: Future[None] | None = None
        self._refused = ""
        self._num_refusals = 0
        self._refusal: ServiceError | None = None
        self._error: ServiceError | None = None
        """Why nothing is sent, until `_retry_at_s` or until the source's state is another."""
        self._retry_at_s = 0.0
        self._failed_state: object = None
        self._wait_s = _FIRST_WAIT_S

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return a given token."""
        return cls(FixedToken("the program's own settings", text))

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the token in a file, which is read again when it changes."""
        return cls(TokenFile(path))

    @classmethod
    def of_command(cls, command: str, ttl_s: float = 300.0) -> Self:
        """Return the token that a command prints, such as "vault read -field=token secret/me". No shell runs it.

        It is run again before a JWT expires, after `ttl_s` for another token, and after a refusal. Raises ValueError if
        there is no command, or a quotation mark without its other.
        """
        if not shlex.split(command):
            raise ValueError("there is no command")
        return cls(TokenCommand(command, ttl_s))

    @classmethod
    def of_environment(cls) -> Self:
        """Return the token in the environment variable COMPLETION_TOKEN, or none if it is empty or not set."""
        text = os.environ.get(VARIABLE, "")
        return cls(FixedToken(f"the environment variable {VARIABLE}", text)) if text else cls()

    @property
    def is_given(self) -> bool:
        """Whether there is a source."""
        return bool(self._source.where)

    @property
    def where(self) -> str:
        """Where it comes from, in words; "" without a source."""
        return self._source.where

    @property
    def problem(self) -> str:
        """Why nothing is sent now; "" if nothing speaks against it."""
        with self._lock:
            return self._error.message if self._error is not None and self._wait_left_s() else ""

    def at_hand(self) -> str | None:
        """Return the token if that takes no wait, else None; "" without a source. Fetches it again if that is due."""
        with self._lock:
            if self._wait_left_s():
                return None
            fetched, source = self._fetched, self._source
            if not isinstance(source, TokenCommand):  # read at once
                state = source.state()
                if fetched is None or fetched.state != state:
                    self._take(self._found(), state)
                return None if self._fetched is None else self._fetched.value
            if fetched is None or self._now() >= fetched.renew_at_s:
                self._start()
            return None if fetched is None or self._now() >= fetched.expires_at_s else fetched.value

    async def get(self) -> str:
        """Return the token, "" without a source; wait until it is fetched, but not while it is refused.

        Raises TokenError if the source has none, TokenRefusedError if the server refused it (see `retry_after_ms`), and
        UnauthenticatedError if the server wants one, and there is no source.
        """
        while (value := self.at_hand()) is None:
            if (fetching := self._awaited()) is not None:
                await asyncio.wait([asyncio.wrap_future(fetching)])
        return value

    def get_blocking(self) -> str:
        """Return the token; see `get`. For programs without an event loop."""
        while (value := self.at_hand()) is None:
            if (fetching := self._awaited()) is not None:
                fetching.result()
        return value

    async def until_usable(self) -> None:
        """Wait as long as it is refused and its source has no other."""
        while True:
            with self._lock:
                left_s = self._wait_left_s()
            if not left_s:
                return
            await asyncio.sleep(min(_LOOK_S, left_s))

    def accepted(self, value: str) -> None:
        """Note that a server took the token: the next refusal is the first."""
        with self._lock:
            if self._fetched is None or self._fetched.value == value:
                self._num_refusals, self._wait_s, self._error = 0, _FIRST_WAIT_S, None

    def refused(self, value: str, error: ServiceError) -> None:
        """Note that a server refused the token, or that it lacks a scope. After a first refusal it is fetched again."""
        with self._lock:
            refused = self._fetched
            if refused is None or refused.value != value:
                return  # calls at the same time get the same refusal
            self._fetched, self._refused = None, value
            self._num_refusals += 1
            self._refusal = self.refusal(error)
            if self._num_refusals > 1:
                self._begin_wait(self._refusal, refused.state)

    def refusal(self, error: ServiceError) -> ServiceError:
        """Return a server's refusal of the token with the source in words; another error unchanged."""
        if not self.is_given or not isinstance(error, UnauthenticatedError) or isinstance(error, TokenError):
            return error
        return TokenRefusedError(f"the server refused the token of {self.where}: {error.message}", reason=error.reason)

    def _awaited(self) -> "Future[None] | None":
        """Return the fetch to wait for, None if it has just ended. Raises why nothing is sent."""
        with self._lock:
            if self._error is not None and (left_s := self._wait_left_s()):
                error = self._error
                raise type(error)(error.message, reason=error.reason, retry_after_ms=round(left_s * _MS_PER_S))
            return self._fetching

    def _start(self) -> None:
        """Fetch the token in a thread, unless that is under way."""
        if self._fetching is not None:
            return
        fetching = self._fetching = Future()

        def run() -> None:
            found = self._found()
            with self._lock:
                self._fetching = None
                self._take(found, None)
            fetching.set_result(None)

        threading.Thread(target=run, name="completion token", daemon=True).start()

    def _found(self) -> str | SourceError:
        try:
            return self._source.fetch()
        except SourceError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an error of this program must not leave its callers waiting
            return SourceError(type(error).__name__)

    def _take(self, found: str | SourceError, state: object) -> None:
        now_s, before = self._now(), self._fetched
        if isinstance(found, SourceError):
            if before is None or now_s >= before.expires_at_s:
                self._fetched = None
                self._begin_wait(TokenError(f"there is no token to send: {self.where}: {found}"), state)
            else:  # the last good one is used on
                self._fetched = _Fetched(before.value, state, now_s + _FIRST_WAIT_S, before.expires_at_s)
            return
        if self._num_refusals == 1 and found == self._refused and self._refusal is not None:
            self._num_refusals = 2  # it is sent once the wait is over
            self._begin_wait(self._refusal, state)
            return
        expires_at_s = expiry_of(found)
        if expires_at_s is None or expires_at_s <= now_s:  # a token that seems expired is sent: a clock may be wrong
            ttl_s = self._source.ttl_s if isinstance(self._source, TokenCommand) else math.inf
            self._fetched = _Fetched(found, state, now_s + ttl_s, math.inf)
            return
        margin_s = min(_MARGIN_S, _MARGIN_SHARE * (expires_at_s - now_s))
        self._fetched = _Fetched(found, state, expires_at_s - margin_s, expires_at_s)

    def _begin_wait(self, error: ServiceError, state: object) -> None:
        self._error, self._failed_state = error, state
        self._retry_at_s = self._now() + self._wait_s
        self._wait_s = min(_LAST_WAIT_S, 2 * self._wait_s)

    def _wait_left_s(self) -> float:
        """Return for how long nothing is sent; forget a refusal whose time is over or whose source has changed."""
        if self._error is None:
            return 0.0
        is_changed = self._source.state() != self._failed_state
        left_s = 0.0 if is_changed else max(0.0, self._retry_at_s - self._now())
        if is_changed:
            self._num_refusals, self._wait_s = 0, _FIRST_WAIT_S
        if not left_s:
            self._error = None
        return left_s
