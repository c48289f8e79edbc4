"""Verifies callers by API keys, tokens of an issuer and client certificates, whichever the settings name."""

import asyncio
import time
from collections.abc import Callable, Sequence

from completion_server.auth import certificates, keys, tokens
from completion_server.auth.certificates import Certificates
from completion_server.auth.fetching import fetch as fetch_url
from completion_server.auth.issuer import Fetch, FetchedKeys, FileKeys
from completion_server.auth.key_file import PREFIX
from completion_server.auth.keys import ApiKeys
from completion_server.auth.principal import Credentials, Principal
from completion_server.auth.refusal import RefusedCredentialError, Result
from completion_server.auth.settings import AuthSettings
from completion_server.auth.tokens import Tokens
from completion_server.core.errors import IssuerUnavailableError
from completion_server.core.events import CredentialsChecked, CredentialSourceRead, Emit

POLL_S = 0.5
"""From one look at the files to the next. A key that was revoked ends its streams after about as long."""
NO_KIND = "none"


class CredentialVerifier:
    """Verifies callers, as `Authenticator` asks for."""

    def __init__(
        self,
        settings: AuthSettings,
        wall: Callable[[], float] = time.time,
        *,
        emit: Emit,
        fetch: Fetch = fetch_url,
        client_cas: Sequence[str] = (),
    ) -> None:
        """Read the files. `wall` returns Unix seconds; `fetch` returns the document at a URL, and runs in a thread.

        `client_cas` are the files of the authorities that sign clients' certificates and lists of revoked ones.

        Raises:
            ConfigError: a file can't be used.

        """
        self._emit = emit
        self._certificate_wins = settings.certificate_wins
        self._api_keys = ApiKeys(settings.keys_file, wall, self._report) if settings.keys_file else None
        self._tokens: Tokens | None = None
        if settings.jwks_file:
            self._tokens = Tokens(settings, FileKeys(settings.jwks_file, self._report), wall)
        elif settings.issuer:
            self._tokens = Tokens(settings, FetchedKeys(settings, fetch, wall, self._report), wall)
        self._certificates: Certificates | None = None
        if settings.takes_certificates:
            self._certificates = Certificates(settings, client_cas, wall, self._report)

    async def run(self) -> None:
        """Read changed files again, and fetch the issuer's keys, until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Look at each file once, and begin a fetch of the issuer's keys if one is due."""
        for part in (self._api_keys, self._tokens, self._certificates):
            if part is not None:
                await part.poll()

    async def authenticate(self, credentials: Credentials) -> Principal:
        """Return the verified caller.

        Raises:
            UnauthenticatedError: nothing was presented, or it is unknown, forged, expired or revoked.
            UnavailableError: the issuer's keys were never fetched; retry later.

        """
        kind = self._kind_of(credentials)
        result = Result.ACCEPTED
        try:
            return await self._verify(kind, credentials)
        except RefusedCredentialError as error:
            result = error.result
            raise
        except IssuerUnavailableError:
            result = Result.UNAVAILABLE
            raise
        finally:
            self._emit(CredentialsChecked(kind, result.value))

    def is_current(self, principal: Principal) -> bool:
        """Return whether a caller verified earlier still would be."""
        part: ApiKeys | Tokens | Certificates | None = None
        match principal.kind:
            case keys.KIND:
                part = self._api_keys
            case tokens.KIND:
                part = self._tokens
            case certificates.KIND:
                part = self._certificates
        return part is not None and part.is_current(principal)

    def _kind_of(self, credentials: Credentials) -> str:
        """Return the kind of credential that counts. One that is refused is not made up for by another one."""
        takes_token = bool(credentials.token) and (self._api_keys is not None or self._tokens is not None)
        takes_certificate = bool(credentials.certificate) and self._certificates is not None
        if takes_certificate and (self._certificate_wins or not takes_token):
            return certificates.KIND
        if takes_token:
            return keys.KIND if credentials.token.startswith(PREFIX) else tokens.KIND
        return NO_KIND

    async def _verify(self, kind: str, credentials: Credentials) -> Principal:
        if kind == certificates.KIND and self._certificates is not None:
            return self._certificates.verify(credentials.certificate)
        if kind == keys.KIND and self._api_keys is not None:
            return self._api_keys.verify(credentials.token)
        if kind == tokens.KIND and self._tokens is not None:
            return await self._tokens.verify(credentials.token)
        if kind != NO_KIND:
            what = "API keys" if kind == keys.KIND else "tokens of an issuer"
            raise RefusedCredentialError(Result.UNKNOWN, f"this server takes no {what}")
        raise RefusedCredentialError(Result.MISSING, f"this server asks for {self._wanted()}; nothing was presented")

    def _wanted(self) -> str:
        parts = (
            ("an API key", self._api_keys),
            ("a token", self._tokens),
            ("a client certificate", self._certificates),
        )
        return " or ".join(name for name, part in parts if part is not None)

    def _report(self, source: str, has_failed: bool) -> None:
        self._emit(CredentialSourceRead(source, has_failed))
