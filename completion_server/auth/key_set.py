"""The public keys of an issuer (JWKS, RFC 7517). Pure."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_MAX_KEYS = 100
_MIN_RSA_BITS = 2048
_PUBLIC_MEMBERS = ("kty", "crv", "n", "e", "x", "y")
_RSA = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_EC = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_FINGERPRINT_DIGITS = 16

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A key that an issuer signs with."""

    key_id: str
    """The `kid`, "" for none."""
    key: PublicKey
    algorithms: frozenset[str]
    """The algorithms that the key is for."""
    fingerprint: str
    """Identifies the key by its material."""


class KeySet:
    """The keys of an issuer at a time."""

    def __init__(self, keys: Sequence[IssuerKey]) -> None:
        """Hold the keys."""
        self._keys = tuple(keys)
        self.fingerprints = frozenset(key.fingerprint for key in keys)

    def find(self, key_id: str) -> tuple[IssuerKey, ...]:
        """Return the keys with an id; all keys for the id ""."""
        return tuple(key for key in self._keys if key.key_id == key_id) if key_id else self._keys


NO_KEYS = KeySet(())


def parse_key_set(data: bytes) -> KeySet:
    """Return the keys for signatures in a key set; keys of kinds that are not known here are left out.

    Raises:
        ValueError: it is no key set, has too many keys, or none that can be used.

    """
    document = parse_object(data)
    found = document.get("keys")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("no key set: its member keys is no list of objects")
    if len(found) > _MAX_KEYS:
        msg = f"a key set of {len(found)} keys; at most {_MAX_KEYS} are taken"
        raise ValueError(msg)
    keys = [key for each in found for key in _keys_of(each)]
    if not keys:
        raise ValueError("a key set without a key for signatures that is known here")
    return KeySet(keys)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: it is none.

    """
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("JSON that is no object")
    return document


def _keys_of(member: Mapping[str, Any]) -> Iterator[IssuerKey]:
    """Yield the key of a member of a set, unless it is not for signatures or can't be used."""
    if member.get("use", "sig") != "sig":
        return
    try:
        # Without its private parts, if it has any, and by its type: `alg` may name what PyJWT does not know.
        key = jwt.PyJWK({name: member[name] for name in _PUBLIC_MEMBERS if name in member}).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return
    algorithms = _algorithms(key)
    if "alg" in member:
        algorithms &= {str(member["alg"])}
    if algorithms:
        key_id = member.get("kid", "")
        material = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fingerprint = hashlib.sha256(material).hexdigest()[:_FINGERPRINT_DIGITS]
        yield IssuerKey(key_id if isinstance(key_id, str) else "", key, algorithms, fingerprint)


def _algorithms(key: object) -> frozenset[str]:
    """Return what a key is for; nothing for a key that is too weak, secret or of a kind that is not known here."""
    match key:
        case RSAPublicKey() if key.key_size >= _MIN_RSA_BITS:
            return _RSA
        case EllipticCurvePublicKey() if key.curve.name in _EC:
            return frozenset((_EC[key.curve.name],))
        case Ed25519PublicKey():
            return frozenset(("EdDSA",))
    return frozenset()
