"""The keys of an issuer: fetched beside the event loop, or from a file."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from completion_server.auth.key_set import NO_KEYS, KeySet, parse_key_set, parse_object
from completion_server.auth.lru import LruCache
from completion_server.auth.settings import AuthSettings
from completion_server.auth.urls import require_safe
from completion_server.core.watched_file import Report, WatchedFile

logger = logging.getLogger(__name__)

MIN_PAUSE_S = 30.0
"""From the begin of a fetch to that of the next one, whatever callers present."""
REFRESH_S = 300.0
"""How long a removed key may still be taken."""
_UNKNOWN_S = 60.0
"""How long an unknown key id is not asked for again: an issuer may sign with a key shortly before it shows it."""
_MAX_UNKNOWN = 1024
_FETCH_S = 10.0
_CALLER_WAITS_S = 5.0
_DISCOVERY = "/.well-known/openid-configuration"

Fetch = Callable[[str], bytes]
"""Returns the document at a URL. Blocks; raises OSError or ValueError."""


class IssuerKeys(Protocol):
    """The keys of an issuer."""

    @property
    def current(self) -> KeySet:
        """The keys that are known now; none before they were ever read."""

    async def renewed_for(self, key_id: str) -> KeySet:
        """Return the keys after an attempt to find one that is not known, if it is time for an attempt."""

    async def poll(self) -> None:
        """Do what is due. Called about once a second."""


class FileKeys:
    """The keys in a file, which is read again when it changes."""

    def __init__(self, path: str, report: Report) -> None:
        """Read the file.

        Raises:
            ConfigError: it can't be used.

        """
        self._file = WatchedFile("auth.jwks_file", path, parse_key_set, report, NO_KEYS)
        self._file.load()

    @property
    def current(self) -> KeySet:
        """The keys in the file."""
        return self._file.content

    async def renewed_for(self, _key_id: str) -> KeySet:
        """Return the keys; the file is looked at by `poll` only."""
        return self.current

    async def poll(self) -> None:
        """Read the file again if it changed."""
        await self._file.poll()


class FetchedKeys:
    """The keys at the issuer. They stay in use while it is away.

    They are fetched again after some minutes, and when a token names a key that is not known; one fetch at a time.
    """

    def __init__(self, settings: AuthSettings, fetch: Fetch, wall: Callable[[], float], report: Report) -> None:
        """Fetch nothing yet. `wall` returns Unix seconds; `report` hears of each fetch."""
        self._settings = settings
        self._fetch = fetch
        self._wall = wall
        self._report = report
        self._discovered = ""
        self._unknown: LruCache[str, float] = LruCache(_MAX_UNKNOWN)
        """When each unknown key id was last looked for."""
        self._begun_at: float | None = None
        self._fetched_at: float | None = None
        """When the last fetch that succeeded began."""
        self._is_away = False
        """Whether the last fetch failed, which is logged once."""
        self._task: asyncio.Task[None] | None = None
        self._loading: asyncio.Future[KeySet] | None = None
        """The thread that fetches. An issuer that trickles its answer can hold it for longer than a fetch may take."""
        self.current = NO_KEYS

    async def renewed_for(self, key_id: str) -> KeySet:
        """Return the keys, fetched again if `key_id` was not asked for lately and the last fetch is long enough ago."""
        now = self._wall()
        if self._fetched_at is not None and _is_within(_UNKNOWN_S, self._unknown.get(key_id), now):
            return self.current
        self._begin_if_allowed(now)
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=_CALLER_WAITS_S)  # a caller that leaves stops nobody's fetch
            if task.done() and self._fetched_at == self._begun_at and not self.current.find(key_id):
                self._unknown.put(key_id, now)
        return self.current

    async def poll(self) -> None:
        """Begin a fetch if one is due; it goes on beside the caller."""
        now = self._wall()
        if not _is_within(REFRESH_S, self._fetched_at, now):
            self._begin_if_allowed(now)

    def _begin_if_allowed(self, now: float) -> None:
        is_held = self._loading is not None and not self._loading.done()
        if self._task is None and not is_held and not _is_within(MIN_PAUSE_S, self._begun_at, now):
            self._begun_at = now
            self._task = asyncio.get_running_loop().create_task(self._renew(now), name="keys of the issuer")
            self._task.add_done_callback(self._ended)

    def _ended(self, _task: "asyncio.Task[None]") -> None:
        self._task = None

    async def _renew(self, now: float) -> None:
        try:
            async with asyncio.timeout(_FETCH_S):
                self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
                self._loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # may come late
                keys = await asyncio.shield(self._loading)
        except (OSError, ValueError) as error:
            if not self._is_away:
                known = "none are known yet" if self._fetched_at is None else "those that are known stay"
                logger.warning("auth.issuer: its keys can't be fetched (%s); %s", _reason(error), known)
            self._is_away = True
            self._report("auth.issuer", True)
            return
        self._is_away = False
        self._report("auth.issuer", False)
        if keys.fingerprints != self.current.fingerprints:
            logger.info("auth.issuer: %d keys fetched", len(keys.fingerprints))
            self._unknown.clear()
        self.current, self._fetched_at = keys, now

    def _load(self) -> KeySet:
        """Fetch the keys. Runs in a thread; raises OSError or ValueError."""
        url = self._settings.jwks_url or self._discovered or self._discover()
        try:
            return parse_key_set(self._fetch(url))
        except (OSError, ValueError):
            self._discovered = ""
            raise

    def _discover(self) -> str:
        issuer = self._settings.issuer
        document = parse_object(self._fetch(issuer.removesuffix("/") + _DISCOVERY))
        if document.get("issuer") != issuer:
            raise ValueError("the discovery document is that of another issuer")
        url = str(document.get("jwks_uri"))
        require_safe("jwks_uri", url)
        self._discovered = url
        return url


def _is_within(seconds: float, since: float | None, now: float) -> bool:
    """Return whether something happened less than `seconds` ago. If the wall clock was set back, it did not."""
    return since is not None and 0 <= now - since < seconds


def _reason(error: OSError | ValueError) -> str:
    """Return the fault of a fetch: the message of an error that the issuer's text is not in."""
    return str(getattr(error, "reason", "") or error) or type(error).__name__
