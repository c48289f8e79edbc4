"""Forged tokens: expired, without a signature, for another audience, of an unknown key, or with a changed claim."""

import base64
import json
import secrets
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from loadtest.bench.attacks.attack import SMALL_REQUEST, Counts, Prepared, Target, ask, ask_at_rate
from loadtest.bench.attacks.http2 import Http2Connection, Metadata

ISSUER, AUDIENCE, KEY_ID = "https://issuer.example", "completion", "bench"
_ALGORITHM, _FILE = "ES256", "forger.pem"
_HONEST_USERS = 8
_HOUR_S = 3600
_PER_S = 1_000
KINDS = ("expired", "none", "audience", "kid", "signature", "garbage", "key", "claim")


def prepare(folder: Path) -> Prepared:
    """Make an issuer's key set, tokens of honest users, and a key that the issuer does not know."""
    key, forger = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    public = json.loads(ECAlgorithm.to_jwk(key.public_key())) | {"kid": KEY_ID, "alg": _ALGORITHM, "use": "sig"}
    keys = folder / "jwks.json"
    keys.write_text(json.dumps({"keys": [public]}), encoding="utf-8")
    encoded = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / _FILE).write_bytes(forger.private_bytes(*encoded))
    (folder / "expired").write_text(_token(key, exp=int(time.time()) - _HOUR_S), encoding="utf-8")
    (folder / "audience").write_text(_token(key, aud="another"), encoding="utf-8")
    settings = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(keys)}
    honest = [bearer(_token(key, sub=f"honest-{number}")) for number in range(_HONEST_USERS)]
    return Prepared(tuple(f"auth.{name}={value}" for name, value in settings.items()), tuple(honest))


def bearer(token: str) -> Metadata:
    """Return the metadata of a call with a token."""
    return (("authorization", f"Bearer {token}"),)


def forged(kind: str, folder: Path) -> str:
    """Return a new token of a kind that a server must refuse."""
    if kind in ("expired", "audience"):
        return (folder / kind).read_text(encoding="utf-8")
    if kind == "none":
        return jwt.encode(_claims(), "", "none")
    if kind == "garbage":
        return secrets.token_urlsafe(200)
    forger = serialization.load_pem_private_key((folder / _FILE).read_bytes(), None)
    if kind == "kid":
        return _token(forger, kid=secrets.token_hex(8))
    if kind == "key":
        return f"cs_{secrets.token_urlsafe(32)}"
    whole = (folder / "expired").read_text(encoding="utf-8") if kind == "claim" else _token(forger)
    head, _claim_part, signature = whole.split(".")
    claims = json.dumps(_claims()).encode()
    return ".".join((head, base64.urlsafe_b64encode(claims).rstrip(b"=").decode(), signature))


def _claims(**given: Any) -> dict[str, Any]:  # noqa: ANN401 - claims have any type
    now = int(time.time())
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": "forged", "iat": now - 60, "exp": now + _HOUR_S} | given


def _token(key: Any, *, kid: str = KEY_ID, **given: Any) -> str:  # noqa: ANN401 - a private key of any kind
    return jwt.encode(_claims(**given), key, _ALGORITHM, {"kid": kid})


async def forged_tokens(target: Target, counts: Counts) -> None:
    """Call with a forged token of each kind in turn, 1,000 times a second."""
    async with await Http2Connection.open(target.address) as connection:

        async def call(number: int) -> None:
            await ask(connection, SMALL_REQUEST, counts, bearer(forged(KINDS[number % len(KINDS)], target.folder)))

        await ask_at_rate(_PER_S, call, connection)
