"""Pseudonyms of users: the same user has the same one, and only the holder of the secret can find whose it is."""

import hashlib
import hmac
from functools import lru_cache

_NUM_DIGITS = 16
_MAX_REMEMBERED = 65_536


class Pseudonyms:
    """Makes pseudonyms with one secret."""

    def __init__(self, secret: bytes) -> None:
        """Hold the secret."""
        self._secret = secret
        self._of = lru_cache(_MAX_REMEMBERED)(self._make)

    def of(self, tenant: str, user: str) -> str:
        """Return a user's pseudonym of 16 hexadecimal digits; "" for a caller without a name. Safe in any thread."""
        return self._of(tenant, user) if user else ""

    def _make(self, tenant: str, user: str) -> str:
        names = b"\0".join(name.encode(errors="surrogatepass") for name in (tenant, user))
        return hmac.digest(self._secret, names, hashlib.sha256).hex()[:_NUM_DIGITS]
