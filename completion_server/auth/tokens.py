"""Verifies the tokens (JWT) of a company's issuer."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jwt
from jwt.types import Options

from completion_server.auth.claims import RefusedCredentialError, Result, is_name, name_in, scopes_in
from completion_server.auth.issuer import FetchedKeys, FileKeys
from completion_server.auth.settings import AuthSettings
from completion_server.core.credential import Credential
from completion_server.core.errors import IssuerUnavailableError
from completion_server.core.request import Caller

KIND = "token"
MAX_TOKEN_CHARACTERS = 8192
SIGNATURES = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"))
"""The algorithms that are allowed. All need a private key to sign: with HS256, who can verify can forge."""
_LEEWAY_S = 30.0
"""How far the issuer's clock may differ from this machine's."""
_MAX_KEY_ID = 256
_MAX_TOKEN_ID = 64
_MAX_VERIFIED = 4096
_RETRY_AFTER_MS = 10_000
_LATEST = 1e12
"""Seconds; what lies behind is no time."""
_OPTIONS: Options = {
    "require": ["exp", "iss", "aud"],
    # Checked here, by the clock that the server is given.
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
_BROKEN = (jwt.PyJWTError, ValueError, TypeError, RecursionError)


class Tokens:
    """Verifies tokens. The same token is verified once; afterwards it is looked up by its hash."""

    def __init__(self, settings: AuthSettings, keys: FetchedKeys | FileKeys, wall: Callable[[], float]) -> None:
        """Verify by the issuer's `keys`; `wall` returns Unix seconds."""
        self._settings = settings
        self._keys = keys
        self._wall = wall
        self._verified: dict[bytes, tuple[Caller, Credential]] = {}

    async def poll(self) -> None:
        """Keep the issuer's keys up to date."""
        await self._keys.poll()

    async def verify(self, token: str) -> Caller:
        """Return the holder of a token.

        Raises:
            RefusedCredentialError: the token is malformed, forged, expired or meant for others.
            IssuerUnavailableError: the issuer's keys were never fetched.

        """
        if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
            msg = f"the token is no JSON Web Token of at most {MAX_TOKEN_CHARACTERS} characters"
            raise RefusedCredentialError(Result.MALFORMED, msg)
        digest = hashlib.sha256(token.encode()).digest()
        known = self._verified.get(digest)
        if known is None or not self.is_current(*known):
            known = self._verified[digest] = await self._check(token, digest)
            if len(self._verified) > _MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]
        return known[0]

    def is_current(self, _caller: Caller, credential: Credential) -> bool:
        """Return whether a token has not expired, and the issuer still shows the key that signed it."""
        return self._wall() < credential.expires_at and credential.fingerprint in self._keys.current.fingerprints

    async def _check(self, token: str, digest: bytes) -> tuple[Caller, Credential]:
        try:
            header = jwt.get_unverified_header(token)
        except _BROKEN:
            raise RefusedCredentialError(Result.MALFORMED, "the token is no JSON Web Token") from None
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if not isinstance(algorithm, str) or algorithm not in SIGNATURES:
            raise RefusedCredentialError(Result.ALGORITHM, "the token's algorithm is not allowed here")
        if len(key_id) > _MAX_KEY_ID:
            raise RefusedCredentialError(Result.MALFORMED, "the token's key id is too long")
        fingerprint, key = await self._key(key_id, algorithm)
        claims = self._claims(token, key)
        expires_at = self._expiry(claims)
        token_id = claims.get("jti")
        has_id = is_name(token_id) and len(str(token_id)) <= _MAX_TOKEN_ID
        settings = self._settings
        scopes = scopes_in(claims, settings.scopes_claim, settings.default_scopes)
        name = str(token_id) if has_id else digest.hex()[:16]
        credential = Credential(KIND, name, scopes, expires_at, fingerprint)
        user = name_in(claims, settings.user_claim)
        tenant = name_in(claims, settings.tenant_claim, default="") if settings.tenant_claim else ""
        return Caller(user, tenant=tenant, is_verified=True, credential=credential), credential

    async def _key(self, key_id: str, algorithm: str) -> tuple[str, jwt.PyJWK]:
        """Return the one key that a token may be signed with, and its fingerprint."""
        found = self._keys.current.find(key_id)
        if not found:
            keys = await self._keys.renewed()
            found = keys.find(key_id)
            if not keys.fingerprints:
                msg = "the keys of the issuer can't be fetched yet, so no token can be verified: try again"
                raise IssuerUnavailableError(msg, retry_after_ms=_RETRY_AFTER_MS)
            if not found:
                raise RefusedCredentialError(Result.UNKNOWN, "the issuer has no key with the token's key id")
        fitting = [each for each in found if each[1].algorithm_name == algorithm]
        if not fitting:
            raise RefusedCredentialError(Result.ALGORITHM, "the token's key is not for its algorithm")
        if len(fitting) > 1:
            raise RefusedCredentialError(Result.UNKNOWN, "the token does not say which of the issuer's keys signed it")
        return fitting[0]

    def _claims(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        """Return the claims of a token whose signature, issuer and audience are right."""
        settings = self._settings
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=settings.audience,
                issuer=settings.issuer,
                options=_OPTIONS,
            )
        except jwt.InvalidSignatureError:
            result, why = Result.FORGED, "the token's signature is wrong"
        except jwt.InvalidIssuerError:
            result, why = Result.ISSUER, "the token is from another issuer"
        except jwt.InvalidAudienceError:
            result, why = Result.AUDIENCE, "the token is for another service: its audience is not this server"
        except jwt.MissingRequiredClaimError as error:
            result, why = Result.CLAIMS, f"the token lacks the claim {error.claim}"
        except _BROKEN:
            result, why = Result.MALFORMED, "the token's claims are broken"
        raise RefusedCredentialError(result, why)

    def _expiry(self, claims: Mapping[str, Any]) -> float:
        """Return the Unix time at which verified claims end, with the leeway."""
        now = self._wall()
        expires, begins = claims["exp"], claims.get("nbf", 0)
        if not _is_time(expires) or not _is_time(begins):
            raise RefusedCredentialError(Result.CLAIMS, "the token's exp or nbf is no time")
        if now >= expires + _LEEWAY_S:
            raise RefusedCredentialError(Result.EXPIRED, "the token has expired: log in again")
        if now < begins - _LEEWAY_S:
            raise RefusedCredentialError(Result.NOT_YET_VALID, "the token is not valid yet")
        return float(expires) + _LEEWAY_S


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST
