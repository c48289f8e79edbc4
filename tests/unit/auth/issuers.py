"""A scripted issuer of tokens, the wall clock, and callers that are verified."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

from completion_server.auth.authenticator import Authenticator
from completion_server.auth.claims import RefusedCredentialError, Result
from completion_server.auth.settings import AuthSettings
from completion_server.core.credential import Scope
from completion_server.core.events import CredentialsChecked, CredentialSourceRead, Event
from completion_server.core.request import Caller

URL = "https://issuer.example"
AUDIENCE = "completion"
SigningKey = EllipticCurvePrivateKey | RSAPrivateKey


@dataclass
class Wall:
    """The wall clock."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Recorder:
    """Keeps the events."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def failures(self) -> list[str]:
        return [event.source for event in self.events if isinstance(event, CredentialSourceRead) and event.has_failed]

    @property
    def failing(self) -> set[str]:
        """The sources that can't be used now."""
        last = {event.source: event.has_failed for event in self.events if isinstance(event, CredentialSourceRead)}
        return {source for source, has_failed in last.items() if has_failed}

    @property
    def results(self) -> list[tuple[str, str]]:
        return [(event.kind, event.result) for event in self.events if isinstance(event, CredentialsChecked)]


class Issuer:
    """Signs tokens and shows its keys."""

    def __init__(self, wall: Wall, **keys: SigningKey) -> None:
        self.wall = wall
        self.keys = keys
        self.is_away = False
        self.fetched: list[str] = []

    @property
    def num_key_fetches(self) -> int:
        return self.fetched.count(f"{URL}/keys")

    def fetch(self, url: str) -> Any:
        self.fetched.append(url)
        if self.is_away:
            raise jwt.PyJWKClientConnectionError("Connection refused")
        documents = {
            f"{URL}/.well-known/openid-configuration": json.dumps({"issuer": URL, "jwks_uri": f"{URL}/keys"}).encode(),
            f"{URL}/keys": self.key_set(),
        }
        return json.loads(documents[url])

    def key_set(self) -> bytes:
        return json.dumps(
            {"keys": [jwk(key) | {"kid": key_id, "use": "sig"} for key_id, key in self.keys.items()]}
        ).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return good claims, changed; None leaves a claim out."""
        found = {"iss": URL, "aud": AUDIENCE, "exp": self.wall.now + 600, "sub": "ada", "tenant": "acme"} | changes
        return {name: value for name, value in found.items() if value is not None}

    def token(self, key_id: str = "first", *, key: SigningKey | None = None, **changes: Any) -> str:
        signer = key or self.keys[key_id]
        algorithm = "RS256" if isinstance(signer, RSAPrivateKey) else "ES256"
        payload = json.dumps(self.claims(**changes)).encode()  # not jwt.encode, which refuses bad claims
        return jwt.PyJWS().encode(payload, signer, algorithm, headers={"kid": key_id})


def jwk(key: SigningKey) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, RSAPrivateKey) else ECAlgorithm
    found: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return found


def by_hand(header: Mapping[str, Any], claims: Mapping[str, Any], secret: bytes | None = None) -> str:
    """Return a token that no library would make: unsigned, or signed with a secret (HS256)."""
    parts = [base64url_encode(json.dumps(part).encode()) for part in (header, claims)]
    signature = b"" if secret is None else hmac.digest(secret, b".".join(parts), hashlib.sha256)
    return b".".join([*parts, base64url_encode(signature)]).decode()


def make_callers(issuer: Issuer, emit: Recorder | None = None, **settings: Any) -> Authenticator:
    """Return callers that are verified by the issuer's tokens."""
    auth = AuthSettings(**{"issuer": URL, "audience": AUDIENCE} | settings)
    return Authenticator(auth, issuer.wall, emit=emit or Recorder())


async def accepted(callers: Authenticator, token: str = "", certificate: bytes = b"") -> Caller:
    return await callers.authenticate(token, certificate)


def told(caller: Caller) -> tuple[str, str, str, str]:
    """Return what logs tell of a verified caller: user, tenant, and the kind and the name of its credential."""
    assert caller.is_verified
    assert caller.credential is not None
    return caller.user, caller.tenant, caller.credential.kind, caller.credential.name


def scopes(caller: Caller) -> frozenset[Scope]:
    assert caller.credential is not None
    return caller.credential.scopes


def ends_at(caller: Caller) -> float:
    assert caller.credential is not None
    return caller.credential.expires_at


async def refusal(callers: Authenticator, token: str = "", certificate: bytes = b"") -> Result:
    with pytest.raises(RefusedCredentialError) as caught:
        await callers.authenticate(token, certificate)
    return caught.value.result
