"""Verifies callers by API keys, tokens of an issuer and client certificates, whichever the settings name."""

import asyncio
import time
from collections.abc import Callable, Sequence

from completion_server.auth import certificates, keys, tokens
from completion_server.auth.certificates import Certificates
from completion_server.auth.claims import RefusedCredentialError, Result
from completion_server.auth.issuer import FetchedKeys, FileKeys
from completion_server.auth.key_file import PREFIX
from completion_server.auth.keys import ApiKeys
from completion_server.auth.settings import AuthSettings
from completion_server.auth.tokens import Tokens
from completion_server.core.errors import IssuerUnavailableError
from completion_server.core.events import CredentialsChecked, CredentialSourceRead, Emit
from completion_server.core.request import Caller

POLL_S = 0.5
"""From one look at the files to the next. A key that was revoked ends its streams after about as long."""
NO_KIND = "none"
_WANTED = {keys.KIND: "an API key", tokens.KIND: "a token", certificates.KIND: "a client certificate"}
_REFUSED = {
    keys.KIND: "takes no API keys; its operator can set auth.keys_file",
    tokens.KIND: "takes no tokens of an issuer, only API keys, which begin with cs_; its operator can set auth.issuer",
}


class Authenticator:
    """Verifies callers. A token is verified once; asking again for the same one is a lookup."""

    def __init__(
        self,
        settings: AuthSettings,
        wall: Callable[[], float] = time.time,
        *,
        emit: Emit,
        client_cas: Sequence[str] = (),
    ) -> None:
        """Read the files. `wall` returns Unix seconds.

        `client_cas` are the files of the authorities that sign clients' certificates and lists of revoked ones.

        Raises:
            ConfigError: a file can't be used.

        """
        self._emit = emit
        self._verifiers: dict[str, ApiKeys | Tokens | Certificates] = {}
        if settings.keys_file:
            self._verifiers[keys.KIND] = ApiKeys(settings.keys_file, wall, self._report)
        if settings.jwks_file:
            self._verifiers[tokens.KIND] = Tokens(settings, FileKeys(settings.jwks_file, self._report), wall)
        elif settings.issuer:
            self._verifiers[tokens.KIND] = Tokens(settings, FetchedKeys(settings, wall, self._report), wall)
        if settings.takes_certificates:
            self._verifiers[certificates.KIND] = Certificates(settings, client_cas, wall, self._report)

    async def run(self) -> None:
        """Read changed files again, and fetch the issuer's keys, until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Look at each file once, and begin a fetch of the issuer's keys if one is due."""
        for verifier in self._verifiers.values():
            await verifier.poll()

    async def authenticate(self, token: str, certificate: bytes) -> Caller:
        """Return the verified caller, whose connection is not known here.

        `token` is a bearer token or an API key, "" for none; `certificate` is in PEM, b"" for none, and the TLS library
        has verified it.

        Raises:
            UnauthenticatedError: nothing was presented, or it is unknown, forged, expired or revoked.
            UnavailableError: the issuer's keys were never fetched; retry later.

        """
        kind = self._kind_of(token, certificate)
        result = Result.ACCEPTED
        try:
            return await self._verify(kind, token, certificate)
        except RefusedCredentialError as error:
            result = error.result
            raise
        except IssuerUnavailableError:
            result = Result.UNAVAILABLE
            raise
        finally:
            self._emit(CredentialsChecked(kind, result.value))

    def is_current(self, caller: Caller) -> bool:
        """Return whether a caller verified earlier still would be. Cheap enough for each request."""
        if caller.credential is None:
            return False
        verifier = self._verifiers.get(caller.credential.kind)
        return verifier is not None and verifier.is_current(caller, caller.credential)

    def _kind_of(self, token: str, certificate: bytes) -> str:
        """Return the kind of credential that counts. One that is refused is not made up for by another one."""
        takes_token = bool(token) and not self._verifiers.keys().isdisjoint((keys.KIND, tokens.KIND))
        if takes_token:
            return keys.KIND if token.startswith(PREFIX) else tokens.KIND
        return certificates.KIND if certificate and certificates.KIND in self._verifiers else NO_KIND

    async def _verify(self, kind: str, token: str, certificate: bytes) -> Caller:
        match self._verifiers.get(kind):
            case Certificates() as verifier:
                return verifier.verify(certificate)
            case ApiKeys() as verifier:
                return verifier.verify(token)
            case Tokens() as verifier:
                return await verifier.verify(token)
        if kind != NO_KIND:
            raise RefusedCredentialError(Result.UNKNOWN, f"this server {_REFUSED[kind]}")
        wanted = " or ".join(_WANTED[each] for each in self._verifiers)
        raise RefusedCredentialError(Result.MISSING, f"this server asks for {wanted}; nothing was presented")

    def _report(self, source: str, has_failed: bool) -> None:
        self._emit(CredentialSourceRead(source, has_failed))
