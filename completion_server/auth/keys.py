"""Verifies API keys against their file, which is read again when it changes."""

import hmac
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from completion_server.auth.claims import RefusedCredentialError, Result
from completion_server.auth.key_file import ApiKey, parse_keys, split_token
from completion_server.core.credential import Credential
from completion_server.core.request import Caller
from completion_server.core.watched_file import Report, WatchedFile

KIND = "key"
_FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class _Secret:
    """A secret of a key: its own one, or the one before its last rotation."""

    digest: str
    caller: Caller
    credential: Credential
    is_revoked: bool


_Table = Mapping[str, tuple[_Secret, ...]]


class ApiKeys:
    """The API keys of a file."""

    def __init__(self, path: str, wall: Callable[[], float], report: Report) -> None:
        """Read the file, which may not exist yet. `wall` returns Unix seconds.

        Raises:
            ConfigError: the file is broken or can't be read.

        """
        self._wall = wall
        empty: _Table = {}
        self._file = WatchedFile("auth.keys_file", path, _table, report, empty)
        self._file.load(may_be_missing=True)

    async def poll(self) -> None:
        """Read the file again if it changed."""
        await self._file.poll()

    def verify(self, token: str) -> Caller:
        """Return the holder of a key.

        Raises:
            RefusedCredentialError: the key is malformed, unknown, expired or revoked.

        """
        parts = split_token(token)
        if parts is None:
            raise RefusedCredentialError(Result.MALFORMED, "the API key is not complete: it has 80 characters")
        key_id, digest = parts
        for secret in self._file.content.get(key_id, ()):
            if hmac.compare_digest(secret.digest, digest):
                if secret.is_revoked:
                    raise RefusedCredentialError(Result.REVOKED, f"API key {key_id} was revoked: ask for another one")
                if self._wall() >= secret.credential.expires_at:
                    raise RefusedCredentialError(Result.EXPIRED, f"API key {key_id} has expired: ask for another one")
                return secret.caller
        raise RefusedCredentialError(Result.UNKNOWN, "the API key is not known here")

    def is_current(self, caller: Caller, credential: Credential) -> bool:
        """Return whether the key of a caller is not changed, expired or revoked since."""
        for secret in self._file.content.get(credential.name, ()):
            now = secret.credential
            if now.fingerprint == credential.fingerprint:
                names = (secret.caller.user, secret.caller.tenant, now.scopes)
                is_same = names == (caller.user, caller.tenant, credential.scopes)
                return is_same and not secret.is_revoked and self._wall() < now.expires_at
        return False


def _table(data: bytes) -> _Table:
    """Return the secrets by the id of their key. Raises ValueError if the file is broken."""
    return {key.id: tuple(_secrets(key)) for key in parse_keys(data)}


def _secrets(key: ApiKey) -> Iterator[_Secret]:
    expires_at = math.inf if key.expires is None else float(key.expires)
    yield _secret(key, key.digest, expires_at)
    if key.previous_digest:
        yield _secret(key, key.previous_digest, min(expires_at, key.previous_until))


def _secret(key: ApiKey, digest: str, expires_at: float) -> _Secret:
    credential = Credential(KIND, key.id, frozenset(key.scopes), expires_at, digest[:_FINGERPRINT_DIGITS])
    caller = Caller(key.user, tenant=key.tenant, is_verified=True, credential=credential)
    return _Secret(digest, caller, credential, is_revoked=key.revoked is not None)
