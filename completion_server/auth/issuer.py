"""The keys of an issuer (JWKS, RFC 7517): fetched beside the event loop, or from a file."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, KeysView
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWK, PyJWKClient, PyJWKSet, PyJWTError

from completion_server.auth.settings import AuthSettings, require_safe
from completion_server.core.watched_file import Report, WatchedFile

logger = logging.getLogger(__name__)

MIN_PAUSE_S = 30.0
"""From the begin of a fetch to that of the next one, whatever callers present."""
REFRESH_S = 300.0
"""How long a removed key may still be taken."""
_FETCH_S = 10.0
_STALL_S = 3.0
"""How long the issuer may send nothing."""
_CALLER_WAITS_S = 5.0
_DISCOVERY = "/.well-known/openid-configuration"
_MIN_RSA_BITS = 2048
_FINGERPRINT_DIGITS = 16
_HEADERS = {"Accept": "application/json", "User-Agent": "completion-server"}


class KeySet:
    """The keys of an issuer at a time."""

    def __init__(self, keys: Iterable[PyJWK] = ()) -> None:
        """Hold the keys for signatures; keys that are weak, secret or for something else are left out."""
        self._keys = {_fingerprint(each.key): each for each in keys if _is_usable(each)}

    @property
    def fingerprints(self) -> KeysView[str]:
        """Identify the keys by their material."""
        return self._keys.keys()

    def find(self, key_id: str) -> list[tuple[str, PyJWK]]:
        """Return the keys with an id and their fingerprints; all keys for the id ""."""
        return [(name, each) for name, each in self._keys.items() if not key_id or each.key_id == key_id]


class FileKeys:
    """The keys in a file, which is read again when it changes."""

    def __init__(self, path: str, report: Report) -> None:
        """Read the file.

        Raises:
            ConfigError: it can't be used.

        """
        self._file = WatchedFile("auth.jwks_file", path, parse_key_set, report, KeySet())
        self._file.load()

    @property
    def current(self) -> KeySet:
        """The keys in the file."""
        return self._file.content

    async def renewed(self) -> KeySet:
        """Return the keys; the file is looked at by `poll` only."""
        return self.current

    async def poll(self) -> None:
        """Read the file again if it changed."""
        await self._file.poll()


class FetchedKeys:
    """The keys at the issuer. They stay in use while it is away, unlike those in PyJWKClient's own cache.

    They are fetched again after some minutes, and when a token names a key that is not known; one fetch at a time.
    """

    def __init__(self, settings: AuthSettings, wall: Callable[[], float], report: Report) -> None:
        """Fetch nothing yet. `wall` returns Unix seconds; `report` hears of each fetch."""
        self._settings = settings
        self._wall = wall
        self._report = report
        self._client: PyJWKClient | None = None
        """None before the place of the keys is known."""
        self._begun_at: float | None = None
        self._fetched_at: float | None = None
        """When the last fetch that succeeded began."""
        self._is_away = False
        """Whether the last fetch failed, which is logged once."""
        self._task: asyncio.Task[None] | None = None
        self._loading: asyncio.Future[KeySet] | None = None
        """The thread that fetches. An issuer that trickles its answer can hold it for longer than a fetch may take."""
        self.current = KeySet()

    async def renewed(self) -> KeySet:
        """Return the keys, fetched again if the last fetch is long enough ago."""
        self._begin_if_allowed()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CALLER_WAITS_S)  # a caller that leaves stops nobody's fetch
        return self.current

    async def poll(self) -> None:
        """Begin a fetch if one is due; it goes on beside the caller."""
        if not self._is_within(REFRESH_S, self._fetched_at):
            self._begin_if_allowed()

    def _begin_if_allowed(self) -> None:
        is_held = self._loading is not None and not self._loading.done()
        if self._task is None and not is_held and not self._is_within(MIN_PAUSE_S, self._begun_at):
            self._begun_at = self._wall()
            self._task = asyncio.get_running_loop().create_task(self._renew(self._begun_at), name="keys of the issuer")
            self._task.add_done_callback(self._ended)

    def _ended(self, _task: "asyncio.Task[None]") -> None:
        self._task = None

    async def _renew(self, now: float) -> None:
        try:
            async with asyncio.timeout(_FETCH_S):
                self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
                self._loading.add_done_callback(lambda done: done.cancelled() or done.exception())  # may come late
                keys = await asyncio.shield(self._loading)
        except (OSError, ValueError, PyJWTError, RecursionError) as error:
            if not self._is_away:
                known = "none are known yet" if self._fetched_at is None else "those that are known stay"
                reason = str(error) or type(error).__name__
                logger.warning("auth.issuer: its keys can't be fetched (%s); %s", reason, known)
            self._is_away = True
            self._report("auth.issuer", True)
            return
        self._is_away = False
        self._report("auth.issuer", False)
        if keys.fingerprints != self.current.fingerprints:
            logger.info("auth.issuer: %d keys fetched", len(keys.fingerprints))
        self.current, self._fetched_at = keys, now

    def _load(self) -> KeySet:
        """Fetch the keys. Runs in a thread; raises OSError, ValueError, PyJWTError or RecursionError."""
        client = self._client or _client(self._settings.jwks_url or self._discovered())
        self._client = None  # looked for again after a failure
        keys = _with_keys(KeySet(client.get_jwk_set()))
        self._client = client
        return keys

    def _discovered(self) -> str:
        issuer = self._settings.issuer
        document = _client(issuer.removesuffix("/") + _DISCOVERY).fetch_data()
        if document.get("issuer") != issuer:
            raise ValueError("the discovery document is that of another issuer")
        url = str(document.get("jwks_uri"))
        require_safe("jwks_uri", url)
        return url

    def _is_within(self, seconds: float, since: float | None) -> bool:
        """Return whether something happened less than `seconds` ago. If the wall clock was set back, it did not."""
        return since is not None and 0 <= self._wall() - since < seconds


def parse_key_set(data: bytes) -> KeySet:
    """Return the keys for signatures in a key set.

    Raises:
        ValueError: it is no key set, or has no key that can be used.

    """
    try:
        document = json.loads(data)
        keys = KeySet(PyJWKSet.from_dict(document)) if isinstance(document, dict) else KeySet()
    except (PyJWTError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return _with_keys(keys)


def _with_keys(keys: KeySet) -> KeySet:
    if not keys.fingerprints:
        raise ValueError("a key set without a key for signatures that is known here")
    return keys


def _client(url: str) -> PyJWKClient:
    """Return what fetches a JSON document. Raises ValueError if a proxy could replace that of an http URL."""
    parts = urlsplit(url)
    if parts.scheme == "http" and "http" in getproxies() and not proxy_bypass(parts.hostname or ""):
        msg = f"the environment names a proxy (http_proxy) for {url}: add its host to no_proxy"
        raise ValueError(msg)
    return PyJWKClient(url, cache_jwk_set=False, headers=_HEADERS, timeout=_STALL_S)


def _is_usable(key: PyJWK) -> bool:
    if key.public_key_use not in (None, "sig"):
        return False
    if isinstance(key.key, RSAPublicKey):
        return key.key.key_size >= _MIN_RSA_BITS
    return isinstance(key.key, EllipticCurvePublicKey | Ed25519PublicKey)


def _fingerprint(key: RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey) -> str:
    material = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(material).hexdigest()[:_FINGERPRINT_DIGITS]
